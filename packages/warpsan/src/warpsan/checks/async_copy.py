"""The ``async`` check: accesses to memory that an asynchronous operation still uses.

A ``cp.async`` without a wait is counted for a note (:attr:`warpsan.Report.notes`), and is a hazard only if an access
touches its destination. A bulk store without a wait is a hazard: it may read shared memory after another block has it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from warpsan.checks.shadow import Shadow
from warpsan.engine.machine import Machine
from warpsan.engine.observer import Access, CompletionBarrier, Observer
from warpsan.engine.selection import Array, Selection, indices
from warpsan.errors import StepLimit
from warpsan.ptx.ir import Instruction
from warpsan.replay.mbarriers import Mbarriers
from warpsan.report.hazard_log import HazardLog, conflicting_access_at

__all__ = ["AsyncCheck"]

_GRANULE = 4
_WRITING, _READING = np.uint32(1 << 31), np.uint32(1 << 30)
_NUMBER = int(_READING) - 1


@dataclass
class _PendingAccesses:
    """Accesses of one instruction in flight: numbers from ``first`` on, one for each of the lanes ``sel``."""

    first: int
    instruction: Instruction
    sel: Selection
    left: int

    def lane(self, number: int) -> int:
        """The lane that issued an access."""
        place = number - self.first
        return self.sel.start + place if isinstance(self.sel, slice) else int(self.sel[place])


class AsyncCheck(Observer):
    """Marks shared memory that operations in flight read or write, until the issuing lanes have waited for them.

    A mark holds the number of an access: two accesses that read the same bytes remove only their own marks.
    """

    def __init__(self, machine: Machine, log: HazardLog) -> None:
        self.machine, self.log = machine, log
        self.flight = Shadow(len(machine.spaces["shared"].data), _GRANULE)
        self.flying: list[_PendingAccesses] = []
        self.numbers = 0
        machine.on_reset.append(self.reset)

    def reset(self) -> None:
        """A new chunk of CTAs: no operation is in flight."""
        self.flight.clear()
        self.flying.clear()

    def issue(self, access: Access, *, writes: bool, barrier: CompletionBarrier | None = None) -> Array | None:
        """Operations begin.

        Raises
        ------
        StepLimit
            If a mark cannot hold the number of accesses in flight, or issued since the oldest of them.
        """
        if access.space.name != "shared":
            return None
        self._check_opaque(access)
        self._check(access, writes)
        many = len(access.index)
        if not self.flying:
            self.numbers = 0
        if self.numbers + many > _NUMBER:
            raise StepLimit(f"the async check follows at most {_NUMBER} accesses while a copy is in flight")
        self.flying.append(_PendingAccesses(self.numbers, access.instruction, access.sel, many))
        marks = np.arange(self.numbers, self.numbers + many, dtype=np.uint32)
        marks |= _WRITING if writes else _READING
        self.numbers += many
        self.flight.scatter(access.index, access.width, marks)
        return np.stack([access.index, np.full(many, access.width), marks], axis=1)

    def complete(self, ticket: Array, sel: Selection, barrier: CompletionBarrier | None = None) -> None:
        """The lanes have waited for the operations that one call of :meth:`issue` began, or for part of them."""
        if not len(ticket):
            return
        place = self._place(int(ticket[0, 2]))
        self.flying[place].left -= len(ticket)
        if not self.flying[place].left:
            del self.flying[place]
        widths = ticket[:, 1]
        for width in widths[:1] if (widths == widths[0]).all() else np.unique(widths):
            index, marks = ticket[widths == width][:, [0, 2]].T
            mine = self.flight.gather(index, int(width)) == marks[:, None]
            if mine.all():
                self.flight.scatter(index, int(width), np.zeros(len(index), dtype=np.uint32))
            else:
                words = (index[:, None] + _GRANULE * np.arange(mine.shape[1]))[mine]
                self.flight.scatter(words, _GRANULE, np.zeros(len(words), dtype=np.uint32))

    def load(self, access: Access) -> None:
        """A read must not touch memory that an operation in flight writes."""
        if access.space.name == "shared":
            self._check_opaque(access)
            if self.flying:
                self._check(access, False)

    def store(self, access: Access, words: Array | None) -> None:
        """A write must not touch memory that an operation in flight writes or reads."""
        if access.space.name == "shared":
            self._check_opaque(access)
            if self.flying:
                self._check(access, True)

    def atomic(self, access: Access) -> None:
        """An update writes."""
        self.store(access, None)

    def _check_opaque(self, access: Access) -> None:
        """Only mbarrier instructions may touch an mbarrier."""
        unit, instruction = self.machine.units.get("mbarrier"), access.instruction
        if not isinstance(unit, Mbarriers) or instruction.opcode == "mbarrier" or "mbarrier" in instruction.mods:
            return
        bad = unit.words.take(access.index >> 3)
        if access.width > 8:
            bad |= unit.words.take((access.index >> 3) + 1)
        if bad.any():
            offset = int(access.offset[bad][0])
            what = f"touches {access.width} bytes of shared memory at offset {offset}, where an mbarrier is"
            usually = "usually a buffer that is too small; after mbarrier.inval the memory is free"
            self.log.add(self.machine, "mbarrier", instruction, int(indices(access.sel)[bad][0]), what, usually)

    def _place(self, mark: int) -> int:
        """The flight that a mark belongs to."""
        return bisect_right(self.flying, mark & _NUMBER, key=lambda flight: flight.first) - 1

    def _check(self, access: Access, writes: bool) -> None:
        marks = self.flight.gather(access.index, access.width)
        bad = marks != 0 if writes else marks >= _WRITING
        if not bad.any():
            return
        lane, column = (int(place[0]) for place in np.nonzero(bad))
        mark = int(marks[lane, column])
        flight = self.flying[self._place(mark)]
        other = conflicting_access_at(self.machine, flight.instruction, flight.lane(mark & _NUMBER), "in flight")
        does, still = "overwrites" if writes else "reads", "writes" if mark >= int(_WRITING) else "reads"
        place = f"{access.width} bytes of shared memory at offset {int(access.offset[lane])}"
        what = f"{does} {place} which {{other}} still {still}"
        usually = "usually a missing or too weak wait, or a copy outside the group or the phase waited for"
        self.log.add(self.machine, "async", access.instruction, int(indices(access.sel)[lane]), what, usually, other)
