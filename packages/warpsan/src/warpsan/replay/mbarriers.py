"""The mbarriers of a machine: their phases, and the lanes that wait for them (PTX ISA, "mbarrier").

An object's state is kept here, by CTA and address; its eight bytes in shared memory are opaque. A phase is complete
when no arrivals and no bytes are pending.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from warpsan.checks.orders import MemoryOrder
from warpsan.engine.machine import AsyncUnit, Machine
from warpsan.engine.observer import CompletionBarrier
from warpsan.engine.selection import Array, Indices, Mask, Selection, subset

__all__ = ["PENDING_BITS", "MbarrierWait", "Mbarriers"]

_MOST_COUNT = (1 << 20) - 1
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
    order: MemoryOrder

    def part(self, mask: Mask) -> MbarrierWait:
        """Some of its lanes."""
        return MbarrierWait(
            *(subset(self.sel, mask), self.offset, self.home[mask], self.phase[mask]),
            self.order,
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

    def usable(self, offset: int, home: Indices) -> Mask:
        """The CTAs with an mbarrier at an offset."""
        mbarrier = self.objects.get(offset)
        return np.zeros(len(home), np.bool_) if mbarrier is None else mbarrier.valid[home]

    def init(self, offset: int, home: Indices, counts: Array) -> None:
        """Lanes create mbarriers of ``counts`` arrivals a phase."""
        objects = self.objects.setdefault(offset, _Objects(self.machine.n_cta))
        objects.valid[home], objects.spent[home] = True, False
        self.words[(home * self.machine.shared_stride + offset) // 8] = True
        objects.expected[home] = objects.pending[home] = np.maximum(counts, 1)
        objects.bytes[home] = objects.phase[home] = 0

    def invalidate(self, offset: int, home: Indices) -> None:
        """End the mbarriers; their memory may be reused."""
        self.objects[offset].valid[home] = False
        self.words[(home * self.machine.shared_stride + offset) // 8] = False

    def expect_arrivals(self, offset: int, home: Indices) -> None:
        """The phases of these CTAs expect one more arrival, and do not end before it."""
        self.objects[offset].pending += np.bincount(home, minlength=self.machine.n_cta)

    def drop(self, offset: int, home: Indices, counts: Array) -> None:
        """The phases after the current one expect that many fewer arrivals."""
        objects = self.objects[offset]
        gone = np.bincount(home, weights=counts, minlength=self.machine.n_cta).astype(np.int64)
        objects.expected = np.maximum(objects.expected - gone, 0)

    def arrive(self, offset: int, home: Indices, counts: Array) -> None:
        """Lanes arrive ``counts`` times each."""
        objects = self.objects[offset]
        left = np.bincount(home, weights=counts, minlength=self.machine.n_cta).astype(np.int64)
        left = np.where(left > _MOST_COUNT, objects.pending, left)
        while left.any():
            taken = np.minimum(left, objects.pending)
            objects.pending -= taken
            left -= taken
            if not self.try_complete_phase(offset):
                break  # more arrivals than the phase can take

    def expect(self, offset: int, home: Indices, many: Array) -> None:
        """The phase expects that many more bytes."""
        np.add.at(self.objects[offset].bytes, home, many.astype(np.int64))

    def bytes_came(self, offset: int, home: Indices, many: Array) -> None:
        """That many bytes have arrived; phases that waited only for them are complete."""
        objects = self.objects[offset]
        np.add.at(objects.bytes, home, -many.astype(np.int64))
        short = objects.valid & (objects.pending == 0) & (objects.bytes < 0)
        short &= np.bincount(home, minlength=len(short)) > 0
        objects.bytes[short] = 0
        self.try_complete_phase(offset)

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
