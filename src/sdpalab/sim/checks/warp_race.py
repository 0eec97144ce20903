"""The ``strict`` check: races between the lanes of one warp in shared memory.

Lanes of a warp need not run together (sm_70 and later): what one writes and another reads, or overwrites, needs a
bar.warp.sync, a CTA barrier or a warp-wide instruction that is aligned between them. It is a check of its own
because much correct-looking code relies on lanes running together; in this simulator and on today's hardware they
mostly do.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from sdpalab.sim.checks.shadow import Shadow, granule_of
from sdpalab.sim.hazards import HazardLog
from sdpalab.sim.machine import Machine
from sdpalab.sim.observer import Access, Observer
from sdpalab.sim.selection import WARP, Array, Indices, Selection, indices

__all__ = ["WarpRaceCheck"]

_LANE_MASK = np.uint32(WARP * 2 - 1)
_SEVERAL = np.uint32(WARP)
"""In place of a lane: more than one lane has read."""
_USUALLY = "usually a missing __syncwarp() between them"


class WarpRaceCheck(Observer):
    """For every granule, which lane wrote and which read it since its warp's lanes last met: epoch * 64 + lane."""

    def __init__(self, machine: Machine, log: HazardLog) -> None:
        self.machine, self.log = machine, log
        size, granule = len(machine.spaces["shared"].data), granule_of(machine.entry, ("shared",))
        self.writer, self.reader = Shadow(size, granule), Shadow(size, granule)
        self.writing_warp, self.reading_warp = Shadow(size, granule), Shadow(size, granule)
        self.epoch = np.ones(machine.lanes, dtype=np.uint32)
        lane = np.arange(machine.lanes)
        self.warp: Array = (lane // WARP).astype(np.uint32)
        self.lane: Array = (lane % WARP).astype(np.uint32)
        machine.on_reset.append(self.reset)

    def reset(self) -> None:
        """A new chunk of CTAs."""
        self.epoch.fill(1)
        for shadow in (self.writer, self.reader, self.writing_warp, self.reading_warp):
            shadow.clear()

    def warp_sync(self, sel: Selection) -> None:
        """The lanes have met: what they did before comes before what they do now."""
        self.epoch[sel] += 1

    def acquire(self, key: Hashable, sel: Selection, home: Indices | None = None) -> None:
        """A barrier's end is a meeting too."""
        self.epoch[sel] += 1

    def load(self, access: Access) -> None:
        """A lane reads: no other lane of its warp may have written since they last met."""
        if access.space.name != "shared":
            return
        self._check(self.writer, self.writing_warp, access, "reads what {other} wrote")
        index, width, sel = access.index, access.width, access.sel
        own = self.epoch[sel] << np.uint32(6)
        before = self.reader.gather(index, width).max(axis=1)
        shared = (before >= own) & (self.reading_warp.gather(index, width).max(axis=1) == self.warp[sel])
        mark = own | np.where(shared & (before & _LANE_MASK != self.lane[sel]), _SEVERAL, self.lane[sel])
        self.reader.scatter(index, width, mark)
        self.reading_warp.scatter(index, width, self.warp[sel])

    def store(self, access: Access, words: Array | None) -> None:
        """A lane writes: no other lane of its warp may have written or read since they last met."""
        if access.space.name != "shared":
            return
        index, width, sel = access.index, access.width, access.sel
        if words is not None and not access.changes(words).any():
            return
        what = "overwrites what {other} "
        self._check(self.writer, self.writing_warp, access, what + "wrote")
        self._check(self.reader, self.reading_warp, access, what + "reads")
        self.writer.scatter(index, width, self.epoch[sel] << np.uint32(6) | self.lane[sel])
        self.writing_warp.scatter(index, width, self.warp[sel])

    def _check(self, marks: Shadow, warps: Shadow, access: Access, what: str) -> None:
        sel = access.sel
        left = marks.gather(access.index, access.width)
        same_warp = warps.gather(access.index, access.width) == self.warp[sel][:, None]
        recent = left >= (self.epoch[sel] << np.uint32(6))[:, None]
        bad = same_warp & recent & ((left & _LANE_MASK) != self.lane[sel][:, None])
        if not bad.any():
            return
        row, column = (int(place[0]) for place in np.nonzero(bad))
        other = int(left[row, column] & _LANE_MASK)
        party = "another lane of its warp" if other == _SEVERAL else f"lane {other} of its warp"
        text = f"{what.format(other=party)}, {access.width} bytes of shared memory at offset {int(access.offset[row])}"
        self.log.add(self.machine, "lane-race", access.instruction, int(indices(sel)[row]), text, _USUALLY)
