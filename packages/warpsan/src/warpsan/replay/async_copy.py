"""Asynchronous copies: cp.async, its groups and waits (PTX ISA, "Data Movement: Asynchronous Copy").

A copy is in flight until the issuing lane waits for its group, or an mbarrier has its arrival.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from warpsan.engine.machine import AsyncUnit, Machine
from warpsan.engine.observer import Access, CompletionBarrier
from warpsan.engine.selection import Array, Indices, Mask, Selection, count, indices, subset
from warpsan.ptx.grammar import form_of
from warpsan.ptx.ir import Immediate, Instruction
from warpsan.ptx.synchronising import AsyncCopy, CopyArrival, CopyWait
from warpsan.ptx.types import TYPES
from warpsan.replay.access import Accessor
from warpsan.replay.decoder import Decoder, Step, opcode
from warpsan.replay.mbarrier import MbarrierOperand
from warpsan.replay.mbarriers import Mbarriers


@dataclass
class _Copy:
    """Copies of one instruction in flight: a group for each lane of ``target``."""

    target: Access
    group: Array
    tickets: list[Array | None]
    """The ticket of each observer at the issue of the copy."""
    serial: int = 0

    def part(self, mask: Array) -> _Copy:
        """The copies of some of its lanes."""
        return _Copy(
            self.target.only(mask),
            self.group[mask],
            [None if ticket is None else ticket[mask] for ticket in self.tickets],
            self.serial,
        )


@dataclass
class _Arrival:
    """Arrivals at the mbarriers at ``offset`` of the CTAs ``home``, due after the lanes' copies so far have landed."""

    sel: Selection
    offset: int
    home: Indices
    serial: int
    number: int


class _CopyQueue(AsyncUnit):
    """All copies of a machine that have been issued without a complete wait."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.groups = np.zeros(machine.lanes, dtype=np.int32)
        """Groups that each lane has committed; a copy belongs to the group of that number."""
        self.flying: list[_Copy] = []
        self.arrivals: list[_Arrival] = []
        self.serial = 0

    @staticmethod
    def of(machine: Machine) -> _CopyQueue:
        """The machine's queue, made on first use."""
        queue = machine.units.get("cp.async")
        if not isinstance(queue, _CopyQueue):
            queue = machine.units["cp.async"] = _CopyQueue(machine)
        return queue

    def reset(self) -> None:
        """Reset: no copies in flight, no groups."""
        self.groups.fill(0)
        self.flying.clear()
        self.arrivals.clear()
        self.issued = 0

    def issue(self, copy: _Copy) -> None:
        """Put a copy in flight."""
        self.serial += 1
        copy.serial = self.serial
        copy.tickets = [observer.issue(copy.target, writes=True) for observer in self.machine.observers]
        self.flying.append(copy)

    def complete(self, copy: _Copy, barrier: CompletionBarrier | None = None) -> None:
        """The lanes have waited for it, or it signals an mbarrier."""
        for observer, ticket in zip(self.machine.observers, copy.tickets, strict=True):
            if ticket is not None:
                observer.complete(ticket, copy.target.sel, barrier)

    def commit(self, sel: Selection) -> None:
        """Close the current group of each lane."""
        self.groups[sel] += 1

    def wait(self, sel: Selection, keep: int) -> None:
        """Complete the copies of these lanes but those of their last ``keep`` groups; all of them if ``keep`` is -1."""
        if not self.flying:
            return
        waiting = np.zeros(self.machine.lanes, dtype=np.bool_)
        waiting[sel] = True

        def due(copy: _Copy) -> Mask:
            ready = waiting[copy.target.sel]
            return ready if keep < 0 else ready & (copy.group < self.groups[copy.target.sel] - keep)

        for done in self._take(due):
            self.complete(done)

    def _take(self, due: Callable[[_Copy], Mask]) -> list[_Copy]:
        """Remove the due copies of those lanes from flight."""
        taken: list[_Copy] = []
        left: list[_Copy] = []
        for copy in self.flying:
            ready = due(copy)
            if ready.all():
                taken.append(copy)
            elif ready.any():
                taken.append(copy.part(ready))
                left.append(copy.part(~ready))
            else:
                left.append(copy)
        self.flying = left
        return taken

    def arrive(self, sel: Selection, offset: int, home: Indices) -> None:
        """The lanes arrive at an mbarrier after their copies so far have landed."""
        arrival = _Arrival(sel, offset, home, self.serial, self.issued)
        self.issued += 1
        if self.machine.async_mode == "early":
            self._carry_out(arrival)
        else:
            self.arrivals.append(arrival)

    def land(self, number: int) -> None:
        """See :meth:`AsyncUnit.land`."""
        for place, arrival in enumerate(self.arrivals):
            if arrival.number == number:
                self._carry_out(self.arrivals.pop(place))
                return

    def _carry_out(self, arrival: _Arrival) -> None:
        home = np.full(self.machine.lanes, -1, dtype=np.int64)
        home[arrival.sel] = arrival.home
        for done in self._take(lambda copy: (home[copy.target.sel] >= 0) & (copy.serial <= arrival.serial)):
            self.complete(done, CompletionBarrier(arrival.offset, home[done.target.sel]))
        ones = np.ones(len(arrival.home), dtype=np.int64)
        Mbarriers.of(self.machine).arrive(arrival.offset, arrival.home, ones)


@opcode("cp.async.commit_group")
def _commit_group(decoder: Decoder, instruction: Instruction) -> Step:
    """Closes the lane's current group."""
    return _CopyQueue.of(decoder.machine).commit


@opcode("cp.async.wait_all")
def _wait_all(decoder: Decoder, instruction: Instruction) -> Step:
    """Completes all copies of the lane."""
    queue = _CopyQueue.of(decoder.machine)
    return lambda sel: queue.wait(sel, -1)


@opcode("cp.async.wait_group")
def _wait_group(decoder: Decoder, instruction: Instruction) -> Step:
    """Completes the copies of all groups of the lane but the last few."""
    queue, keep = _CopyQueue.of(decoder.machine), form_of(instruction, CopyWait).keep
    return lambda sel: queue.wait(sel, keep)


@opcode("cp.async.mbarrier.arrive")
def _arrive(decoder: Decoder, instruction: Instruction) -> Step:
    """The lane arrives after its copies so far have landed; without ``.noinc``, the phase also expects this arrival."""
    queue, expected = _CopyQueue.of(decoder.machine), form_of(instruction, CopyArrival).expected
    mbarrier = MbarrierOperand.of(decoder, instruction, instruction.operands[0])

    def step(sel: Selection) -> None:
        for lanes, offset, home in mbarrier.groups(sel):
            if not expected:
                mbarrier.unit.expect_arrivals(offset, home)
            queue.arrive(lanes, offset, home)

    return step


@opcode("cp.async")
def _cp_async(decoder: Decoder, instruction: Instruction) -> Step:
    """Each lane copies 4, 8 or 16 bytes from global to shared memory, and reads only as many of them as its operand
    gives."""
    queue, operands = _CopyQueue.of(decoder.machine), list(instruction.operands)
    if form_of(instruction, AsyncCopy).hint:
        operands.pop()
    to_shared, from_global, size, *less = operands
    assert isinstance(size, Immediate)
    width = int(size.value)
    to = Accessor(decoder, instruction, to_shared, "shared", width)
    origin = Accessor(decoder, instruction, from_global, "global", width)
    sizes = decoder.src(instruction, less[0], TYPES["u32"]) if less else None

    def reads(lanes: Selection, lengths: Array) -> None:
        """The lanes' reads."""
        for length in np.unique(lengths[lengths > 0]):
            origin.reads(subset(lanes, lengths == length), width=int(length))

    def step(sel: Selection) -> None:
        lengths = np.full(count(sel), width, dtype=np.int64)
        if sizes is not None:
            np.minimum(sizes[sel], width, out=lengths, casting="unsafe")
        for part in to.parts(sel):
            follows = decoder.machine.follows
            access = part if follows is None else part.only(follows("shared", part.offset))
            if not len(access.index):
                continue
            chosen = access.sel
            reads(chosen, lengths if chosen is sel else lengths[np.searchsorted(indices(sel), indices(chosen))])
            queue.issue(_Copy(access, queue.groups[chosen].copy(), []))

    return step
