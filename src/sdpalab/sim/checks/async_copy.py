"""The ``async`` check: touching what an asynchronous operation is still working on.

An operation that nobody ever waits for is no hazard as long as nobody touches what it writes.
"""

from __future__ import annotations

import numpy as np

from sdpalab.sim.checks.shadow import Shadow
from sdpalab.sim.hazards import HazardLog
from sdpalab.sim.ir import Instruction
from sdpalab.sim.machine import Machine
from sdpalab.sim.mbarriers import Mbarriers
from sdpalab.sim.observer import Access, Observer, Signal
from sdpalab.sim.selection import Array, Selection, indices

__all__ = ["AsyncCheck"]

_GRANULE = 4
_WRITING, _READING = np.uint32(1 << 31), np.uint32(1 << 30)


class AsyncCheck(Observer):
    """Marks what operations in flight read or write in shared memory, until the lanes that issued them have waited.

    The mark holds the operation's number: of two that read the same bytes, each takes away only its own.
    """

    def __init__(self, machine: Machine, log: HazardLog) -> None:
        self.machine, self.log = machine, log
        self.flight = Shadow(len(machine.spaces["shared"].data), _GRANULE)
        self.open = 0
        self.issued: list[Instruction] = []
        """Operations by number."""
        machine.on_reset.append(self.reset)

    def reset(self) -> None:
        """A new chunk of CTAs: nothing is in flight."""
        self.flight.clear()
        self.open = 0
        self.issued.clear()

    def issue(self, access: Access, *, writes: bool, signal: Signal | None = None) -> Array | None:
        """An operation begins."""
        if access.space.name != "shared":
            return None
        self._check_opaque(access)
        self._check(access, writes)
        mark = np.uint32(len(self.issued)) | (_WRITING if writes else _READING)
        self.issued.append(access.instruction)
        many = len(access.index)
        self.flight.scatter(access.index, access.width, np.full(many, mark, dtype=np.uint32))
        self.open += many
        return np.stack([access.index, np.full(many, access.width), np.full(many, mark)], axis=1)

    def complete(self, ticket: Array, sel: Selection, signal: Signal | None = None) -> None:
        """The lanes have waited for it."""
        self.open -= len(ticket)
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
        """Nobody may read what is being written."""
        if access.space.name == "shared":
            self._check_opaque(access)
            if self.open:
                self._check(access, False)

    def store(self, access: Access, words: Array | None) -> None:
        """Nobody may write what is being written or read."""
        if access.space.name == "shared":
            self._check_opaque(access)
            if self.open:
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

    def misuse(self, kind: str, sel: Selection, instruction: Instruction, what: str, usually: str) -> None:
        """Record what a unit found."""
        self.log.add(self.machine, kind, instruction, int(indices(sel)[0]), what, usually)

    def _check(self, access: Access, writes: bool) -> None:
        marks = self.flight.gather(access.index, access.width)
        bad = marks != 0 if writes else marks >= _WRITING
        if not bad.any():
            return
        lane, column = (int(place[0]) for place in np.nonzero(bad))
        mark = int(marks[lane, column])
        other = self.issued[mark & int(_READING - 1)]
        source = self.machine.source(other)
        does = "writes" if mark >= int(_WRITING) else "reads"
        what = (
            f"{'overwrites' if writes else 'reads'} {access.width} bytes of shared memory "
            f"at offset {int(access.offset[lane])} which {other.text} at {f'{source}, ' if source else ''}"
            f"PTX line {other.line} (in flight) still {does}"
        )
        usually = "usually a missing or too weak wait, or a copy outside the group or the phase waited for"
        self.log.add(self.machine, "async", access.instruction, int(indices(access.sel)[lane]), what, usually)
