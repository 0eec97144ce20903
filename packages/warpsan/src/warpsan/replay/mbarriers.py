"""The mbarriers of a machine: their phases, and the lanes that wait for them (PTX ISA, "mbarrier").

An object's state is kept here, by CTA and address; its eight bytes in shared memory are opaque. A phase is complete
when no arrivals and no bytes are pending.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from warpsan.checks.orders import MemoryOrder
from warpsan.engine.machine import AsyncUnit, Machine
from warpsan.engine.observer import CompletionBarrier
from warpsan.engine.selection import Array, Indices, Mask, Selection, indices, subset
from warpsan.errors import IllegalAccess
from warpsan.ptx.ir import Instruction

__all__ = ["PENDING_BITS", "MbarrierWait", "Mbarriers"]

_MOST_COUNT, _MOST_BYTES = (1 << 20) - 1, (1 << 20) - 1
PENDING_BITS = np.uint64(32)
"""A state token holds the phase above these bits, and the pending arrivals below."""


class _Objects:
    """The mbarriers at one address of every CTA of the chunk."""

    def __init__(self, n_cta: int) -> None:
        self.valid, self.spent = np.zeros((2, n_cta), dtype=np.bool_)
        """Whether there is an mbarrier; and whether all threads have dropped out of it, so that no further phase
        ends."""
        self.expected, self.pending, self.bytes, self.phase = np.zeros((4, n_cta), dtype=np.int64)
        """Arrivals of a phase, pending arrivals, pending bytes, and complete phases."""


@dataclass
class MbarrierWait:
    """Lanes that wait for a phase, each for the mbarrier at ``offset`` in the CTA ``home`` of the chunk."""

    sel: Selection
    offset: int
    home: Indices
    phase: Indices
    """The wait ends when the object has completed more phases than this."""
    instruction: Instruction
    order: MemoryOrder

    def part(self, mask: Mask) -> MbarrierWait:
        """Some of its lanes."""
        return MbarrierWait(
            *(subset(self.sel, mask), self.offset, self.home[mask], self.phase[mask]),
            *(self.instruction, self.order),
        )


class Mbarriers(AsyncUnit):
    """All mbarriers of a machine, and the lanes that wait for them."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.objects: dict[int, _Objects] = {}
        self.words = np.zeros(len(machine.spaces["shared"].data) // 8, dtype=np.bool_)
        """Which 8-byte words of shared memory are mbarriers."""
        self.waiting: list[MbarrierWait] = []

    @staticmethod
    def of(machine: Machine) -> Mbarriers:
        """The machine's mbarriers, made on first use."""
        unit = machine.units.get("mbarrier")
        if not isinstance(unit, Mbarriers):
            unit = machine.units["mbarrier"] = Mbarriers(machine)
        return unit

    def reset(self) -> None:
        """Reset: no mbarriers."""
        self.objects.clear()
        self.words.fill(False)
        self.waiting.clear()

    def misuse(self, sel: Selection, instruction: Instruction, what: str, usually: str) -> None:
        """Notify the observers, or raise if there are none."""
        if not self.machine.observers:
            self._raise(sel, instruction, what)
        for observer in self.machine.observers:
            observer.misuse("mbarrier", sel, instruction, what, usually)

    def _raise(self, sel: Selection, instruction: Instruction, what: str) -> NoReturn:
        block, thread = self.machine.where(int(indices(sel)[0]))
        where = f"PTX line {instruction.line}, block {block}, thread {thread}"
        raise IllegalAccess(f"{what}, by {instruction.text} at {where}")

    def usable(self, sel: Selection, offset: int, home: Indices, instruction: Instruction) -> Mask:
        """The lanes with an mbarrier at their address."""
        mbarrier = self.objects.get(offset)
        valid: Mask = np.zeros(len(home), np.bool_) if mbarrier is None else mbarrier.valid[home]
        if not valid.all():
            what = f"there is no mbarrier at offset {offset} of shared memory"
            self.misuse(subset(sel, ~valid), instruction, what, "usually a missing mbarrier.init, or one after its use")
        return valid

    def init(self, sel: Selection, offset: int, home: Indices, counts: Array, instruction: Instruction) -> None:
        """Lanes create mbarriers of ``counts`` arrivals a phase."""
        objects = self.objects.setdefault(offset, _Objects(self.machine.n_cta))
        busy = objects.valid[home] & (
            (objects.pending[home] != objects.expected[home]) | (objects.bytes[home] != 0) | self._waited(offset, home)
        )
        if busy.any():
            what = f"initialises the mbarrier at offset {offset} again in the middle of a phase"
            self.misuse(subset(sel, busy), instruction, what, "usually a missing mbarrier.inval or barrier")
        wrong = (counts < 1) | (counts > _MOST_COUNT)
        if wrong.any():
            what = f"an mbarrier expects 1 to {_MOST_COUNT} arrivals, not {int(counts[wrong][0])}"
            self.misuse(subset(sel, wrong), instruction, what, "")
        objects.valid[home], objects.spent[home] = True, False
        self.words[(home * self.machine.shared_stride + offset) // 8] = True
        objects.expected[home] = objects.pending[home] = np.maximum(counts, 1)
        objects.bytes[home] = objects.phase[home] = 0

    def _waited(self, offset: int, home: Indices) -> Mask:
        """The CTAs with lanes that wait for the mbarrier."""
        waited = [entry.home for entry in self.waiting if entry.offset == offset]
        return np.isin(home, np.concatenate(waited)) if waited else np.zeros(len(home), np.bool_)

    def invalidate(self, offset: int, home: Indices) -> None:
        """End the mbarriers; their memory may be reused."""
        self.objects[offset].valid[home] = False
        self.words[(home * self.machine.shared_stride + offset) // 8] = False

    def expect_arrivals(self, offset: int, home: Indices) -> None:
        """The phases of these CTAs expect one more arrival, and do not end before it."""
        self.objects[offset].pending += np.bincount(home, minlength=self.machine.n_cta)

    def drop(self, sel: Selection, offset: int, home: Indices, counts: Array, instruction: Instruction) -> None:
        """The phases after the current one expect that many fewer arrivals."""
        objects = self.objects[offset]
        gone = np.bincount(home, weights=counts, minlength=self.machine.n_cta).astype(np.int64)
        over = gone > objects.expected
        if over.any():
            cta = int(np.flatnonzero(over)[0])
            what = (
                f"{int(gone[cta])} arrivals at once drop out of the mbarrier at offset {offset}, "
                f"which expects {int(objects.expected[cta])}"
            )
            self.misuse(subset(sel, over[home]), instruction, what, "usually a wrong count in mbarrier.init")
        objects.expected = np.maximum(objects.expected - gone, 0)

    def arrive(
        self, sel: Selection, offset: int, home: Indices, counts: Array, instruction: Instruction, last: bool = True
    ) -> None:
        """Lanes arrive ``counts`` times each. ``last`` arrivals may end the phase."""
        objects = self.objects[offset]
        left = np.bincount(home, weights=counts, minlength=self.machine.n_cta).astype(np.int64)
        over = left > objects.pending
        if over.any():
            cta = int(np.flatnonzero(over)[0])
            what = (
                f"{int(left[cta])} arrivals at once at the mbarrier at offset {offset}, whose phase expects "
                f"{int(objects.pending[cta])} more of {int(objects.expected[cta])}"
            )
            self.misuse(subset(sel, over[home]), instruction, what, "usually a wrong count in mbarrier.init")
        if not last and ((left == objects.pending) & (left > 0)).any():
            what = f"completes the phase of the mbarrier at offset {offset}"
            self.misuse(sel, instruction, what, "arrive.noComplete must not be the last arrival")
        left = np.where(left > _MOST_COUNT, objects.pending, left)
        while left.any():
            taken = np.minimum(left, objects.pending)
            objects.pending -= taken
            left -= taken
            if not self.try_complete_phase(offset):
                break  # more arrivals than the phase can take

    def expect(self, sel: Selection, offset: int, home: Indices, many: Array, instruction: Instruction) -> None:
        """The phase expects that many more bytes."""
        self._count_bytes(sel, offset, home, many.astype(np.int64), instruction)

    def bytes_came(self, sel: Selection, offset: int, home: Indices, many: Array, instruction: Instruction) -> None:
        """That many bytes have arrived; phases that waited only for them are complete."""
        self._count_bytes(sel, offset, home, -many.astype(np.int64), instruction)
        objects = self.objects[offset]
        short = objects.valid & (objects.pending == 0) & (objects.bytes < 0)
        short &= np.bincount(home, minlength=len(short)) > 0
        if short.any():
            cta = int(np.flatnonzero(short)[0])
            what = f"{-int(objects.bytes[cta])} bytes more than expected come to the mbarrier at offset {offset}"
            self.misuse(subset(sel, short[home]), instruction, what, "usually a wrong count in expect_tx")
            objects.bytes[short] = 0
        self.try_complete_phase(offset)

    def _count_bytes(self, sel: Selection, offset: int, home: Indices, many: Indices, instruction: Instruction) -> None:
        objects = self.objects[offset]
        np.add.at(objects.bytes, home, many)
        wrong = np.abs(objects.bytes[home]) > _MOST_BYTES
        if wrong.any():
            what = f"the mbarrier at offset {offset} counts at most {_MOST_BYTES} bytes"
            self.misuse(subset(sel, wrong), instruction, what, "split the copy over several phases")

    def try_complete_phase(self, offset: int) -> bool:
        """End complete phases, and release the lanes that wait for them; False if none is complete."""
        objects = self.objects[offset]
        done = objects.valid & (objects.pending == 0) & (objects.bytes == 0) & ~objects.spent
        if not done.any():
            return False
        objects.phase[done] += 1
        objects.pending[done] = objects.expected[done]
        objects.spent |= done & (objects.expected == 0)
        key = CompletionBarrier(offset, np.empty(0, np.int64)).key
        for observer in self.machine.observers:
            observer.publish(key, (key, "complete"), done)
        self._wake(offset)
        return True

    def _wake(self, offset: int) -> None:
        waiting: list[MbarrierWait] = []
        for entry in self.waiting:
            over = self.objects[entry.offset].phase[entry.home] > entry.phase
            if entry.offset != offset or not over.any():
                waiting.append(entry)
                continue
            free = entry if over.all() else entry.part(over)
            self.complete(free)
            if not over.all():
                waiting.append(entry.part(~over))
        self.waiting = waiting

    def complete(self, entry: MbarrierWait) -> None:
        """The phase that these lanes wait for is complete."""
        for observer in self.machine.observers:
            observer.leave(CompletionBarrier(entry.offset, entry.home), entry.sel, entry.order)
