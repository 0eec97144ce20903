"""Bulk copies in flight, their groups and waits (PTX ISA, "Data Movement: Asynchronous Copy", bulk copies).

The bytes of a load reach its mbarrier when native code's event says so (late mode) or at once (early mode). A store
reads shared memory and writes global memory at the latest moment that the waits allow, unless a wait covers only the
reading.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from warpsan.checks.orders import BARRIER
from warpsan.engine.machine import AsyncUnit, Machine
from warpsan.engine.observer import Access, CompletionBarrier, Observer
from warpsan.engine.selection import Array, Indices, Mask, Selection
from warpsan.ptx.ir import Instruction
from warpsan.replay.mbarriers import Mbarriers

__all__ = ["CHUNK", "BulkCopies", "Transfer"]

CHUNK = 16
"""Unit of the size of bulk copies in bytes."""


@dataclass
class Transfer:
    """Copies of one instruction in flight: a row for each issuing lane (and each CTA that a multicast writes to).

    Attributes
    ----------
    lanes : ndarray of int64 [rows]
    group : ndarray of int64 [rows]
        The bulk group of each copy; undefined with a barrier.
    source, target : (space, ndarray of int64 [rows, units])
        Byte indices of units of ``unit`` bytes.
    inside : ndarray of bool [rows, units], optional
        Which units exist in global memory.
    barrier : CompletionBarrier, optional
        The mbarriers to signal, one a row.
    reduces : bool
        Whether it combines the data with the stored values.
    """

    instruction: Instruction
    lanes: Indices
    group: Indices
    unit: int
    source: tuple[str, Indices]
    target: tuple[str, Indices]
    inside: Mask | None = None
    barrier: CompletionBarrier | None = None
    reduces: bool = False
    tickets: list[tuple[Observer, Array, Indices]] = field(default_factory=list)
    """The tickets of observers for the accesses, and the row of each."""
    written: bool = False
    waited: bool = False
    number: int = 0
    """Number of copies issued before it."""

    def part(self, mask: Mask) -> Transfer:
        """Some of its rows."""
        place = np.cumsum(mask) - 1
        return replace(
            self,
            lanes=self.lanes[mask],
            group=self.group[mask],
            source=(self.source[0], self.source[1][mask]),
            target=(self.target[0], self.target[1][mask]),
            inside=None if self.inside is None else self.inside[mask],
            barrier=None if self.barrier is None else replace(self.barrier, home=self.barrier.home[mask]),
            tickets=[(who, ticket[mask[row]], place[row[mask[row]]]) for who, ticket, row in self.tickets],
        )


class BulkCopies(AsyncUnit):
    """All bulk copies of a machine that are in flight or not waited for."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.groups = np.zeros(machine.lanes, dtype=np.int64)
        """Bulk groups that each lane has committed."""
        self.flying: list[Transfer] = []

    @staticmethod
    def of(machine: Machine) -> BulkCopies:
        """The machine's bulk copies, made on first use."""
        unit = machine.units.get("cp.async.bulk")
        if not isinstance(unit, BulkCopies):
            unit = machine.units["cp.async.bulk"] = BulkCopies(machine)
        return unit

    def reset(self) -> None:
        """Reset: no copies in flight, no groups."""
        self.groups.fill(0)
        self.flying.clear()
        self.issued = 0

    # ---- the life of a copy -----------------------------------------------------------------------------------------

    def issue(self, transfer: Transfer) -> None:
        """Put copies in flight, or execute them at once in the early mode."""
        transfer.number = self.issued
        self.issued += 1
        name, index = transfer.source
        if name == "shared":
            self._announce_shared(transfer, index, False)
        elif name == "global":
            self._announce_global(transfer, index)
        overwrites = transfer.target[0] == "shared" and not transfer.reduces
        if overwrites:
            self._announce_shared(transfer, transfer.target[1], True)
        if self.machine.async_mode == "early":
            self._land(transfer)
        if not (transfer.barrier and transfer.written):
            self.flying.append(transfer)

    def _announce_shared(self, transfer: Transfer, index: Indices, writes: bool) -> None:
        """Report 16-byte chunks to the observers, for any size of units; less, if a row has less."""
        shared = self.machine.spaces["shared"]
        rows, units = index.shape
        width = min(CHUNK, units * transfer.unit)
        chunks = np.sort(index, axis=1)[:, :: width // transfer.unit].reshape(-1)
        row = np.repeat(np.arange(rows), units * transfer.unit // width)
        barrier = transfer.barrier
        if self.machine.follows is not None:
            followed = self.machine.follows("shared", chunks % self.machine.shared_stride)
            if barrier is not None:
                followed |= self.machine.follows("shared", np.array([barrier.offset]))
            chunks, row = chunks[followed], row[followed]
        if not len(chunks):
            return
        lanes = transfer.lanes[row]
        if barrier is not None:
            barrier = replace(barrier, home=barrier.home[row])
        offset = chunks % self.machine.shared_stride
        access = Access(shared, offset, chunks, width, lanes, transfer.instruction)
        for observer in self.machine.observers:
            ticket = observer.issue(access, writes=writes, barrier=barrier)
            if ticket is not None:
                transfer.tickets.append((observer, ticket, row))

    def _announce_global(self, transfer: Transfer, index: Indices, *, writes: bool = False) -> None:
        """Report reads or writes to the observers, on behalf of the lanes that issued them."""
        space = self.machine.spaces["global"]
        rows, inside = np.arange(index.shape[0]), transfer.inside
        if not writes:  # a multicast reads once for all
            rows = np.unique(transfer.lanes, return_index=True)[1]
            index, inside = index[rows], None if inside is None else inside[rows]
        row, flat = np.repeat(rows, index.shape[1]), index.reshape(-1)
        if inside is not None:
            row, flat = row[inside.reshape(-1)], index[inside]
        if self.machine.follows is not None:
            followed = self.machine.follows("global", flat)
            row, flat = row[followed], flat[followed]
        if not len(flat):
            return
        access = Access(space, flat, flat, transfer.unit, transfer.lanes[row], transfer.instruction)
        barrier = transfer.barrier and replace(transfer.barrier, home=transfer.barrier.home[row])
        for observer in self.machine.observers:
            if not writes and barrier is not None:
                ticket = observer.copy_reads(access, barrier)
                if ticket is not None:
                    transfer.tickets.append((observer, ticket, row))
            elif not writes:
                observer.load(access)
            elif not transfer.reduces:
                observer.store(access, None)
            else:
                observer.atomic(access)

    def _announce_reduction(self, transfer: Transfer, index: Indices) -> None:
        """Report to the observers the atomic updates of shared memory, visible to all lanes that wait for the mbarrier.

        They are made on behalf of the lanes that issued them, at the time of the landing.
        """
        assert transfer.barrier is not None
        row, flat = np.repeat(np.arange(len(index)), index.shape[1]), index.reshape(-1)
        if self.machine.follows is not None:
            followed = self.machine.follows("shared", flat % self.machine.shared_stride)
            row, flat = row[followed], flat[followed]
        offset, lanes = flat % self.machine.shared_stride, transfer.lanes[row]
        access = Access(self.machine.spaces["shared"], offset, flat, transfer.unit, lanes, transfer.instruction)
        for observer in self.machine.observers:
            if len(flat):
                observer.atomic(access)
            observer.arrive(transfer.barrier, transfer.lanes, BARRIER)

    def _land(self, transfer: Transfer) -> None:
        """Read the source, write the destination, and signal the mbarriers."""
        name, index = transfer.target
        if name == "global":
            self._announce_global(transfer, index, writes=True)
        elif transfer.reduces:
            self._announce_reduction(transfer, index)
        transfer.written = True
        if transfer.barrier is not None:
            self._complete(transfer)
            self._complete_on(transfer, transfer.barrier)

    def _complete(self, transfer: Transfer) -> None:
        """Report to the observers that the accesses are complete."""
        for observer, ticket, row in transfer.tickets:
            barrier = transfer.barrier
            if barrier is not None:
                barrier = replace(barrier, home=barrier.home[row])
            observer.complete(ticket, transfer.lanes[row], barrier)
        transfer.tickets, transfer.waited = [], True

    def _complete_on(self, transfer: Transfer, barrier: CompletionBarrier) -> None:
        units = np.full(len(barrier.home), transfer.unit * transfer.target[1].shape[1], dtype=np.int64)
        mbarriers = Mbarriers.of(self.machine)
        there = mbarriers.usable(barrier.offset, barrier.home)
        if there.any():
            mbarriers.bytes_came(barrier.offset, barrier.home[there], units[there])

    # ---- groups -----------------------------------------------------------------------------------------------------

    def commit(self, sel: Selection) -> None:
        """Close the current bulk group of each lane."""
        self.groups[sel] += 1

    def wait(self, sel: Selection, keep: int, reads_only: bool) -> None:
        """Complete the copies of these lanes but those of their last ``keep`` groups; or only their reading."""
        waiting = np.zeros(self.machine.lanes, dtype=np.bool_)
        waiting[sel] = True
        left: list[Transfer] = []
        for transfer in self.flying:
            ready = waiting[transfer.lanes] & (transfer.group < self.groups[transfer.lanes] - keep)
            if transfer.barrier is not None or not ready.any():
                left.append(transfer)
                continue
            done = transfer if ready.all() else transfer.part(ready)
            if not done.waited:
                self._complete(done)
            if not reads_only and not done.written:
                self._land(done)
            if not done.written:
                left.append(done)
            if not ready.all():
                left.append(transfer.part(~ready))
        self.flying = left

    def land(self, number: int) -> None:
        """See :meth:`AsyncUnit.land`."""
        for place in range(len(self.flying))[::-1]:
            if self.flying[place].number == number and not self.flying[place].written:
                self._come(place)

    def _come(self, place: int) -> None:
        """A copy in flight lands."""
        transfer = self.flying[place]
        self._land(transfer)
        if transfer.waited:
            del self.flying[place]
