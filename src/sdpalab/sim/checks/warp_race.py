"""The ``strict`` check: races between the lanes of one warp in shared memory.

Lanes of a warp need not run together (sm_70 and later): what one writes and another reads, or overwrites, needs a
bar.warp.sync, a CTA barrier or a warp-wide instruction that is aligned between them. It is a separate check because
much code relies on lanes running together, which mostly holds in this simulator and on today's hardware.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from sdpalab.sim.checks.shadow import Shadow, granule_of
from sdpalab.sim.hazard_log import HazardLog, conflicting_access_at, conflicting_access_of
from sdpalab.sim.machine import Machine
from sdpalab.sim.observer import Access, Observer
from sdpalab.sim.selection import WARP, Array, Indices, Selection, indices

__all__ = ["WarpRaceCheck"]

_LANE_MASK = np.uint32(WARP * 2 - 1)
_SEVERAL = np.uint32(WARP)
"""In place of a lane: more than one lane has read."""
_USUALLY = "usually a missing __syncwarp() between them"


@dataclass(frozen=True)
class _LaneMarks:
    """For every granule, which lane accessed it last and when (epoch * 64 + lane), of which warp, by which pc."""

    lane: Shadow
    warp: Shadow
    pc: Shadow

    def clear(self) -> None:
        """Reset: there are no accesses yet."""
        for shadow in (self.lane, self.warp, self.pc):
            shadow.clear()


class WarpRaceCheck(Observer):
    """For every granule, which lane wrote and which read it since its warp's lanes last met."""

    def __init__(self, machine: Machine, log: HazardLog) -> None:
        self.machine, self.log = machine, log
        size, granule = len(machine.spaces["shared"].data), granule_of(machine.entry, ("shared",))
        self.written, self.read = (_LaneMarks(*(Shadow(size, granule) for _ in range(3))) for _ in range(2))
        self.epoch = np.ones(machine.lanes, dtype=np.uint32)
        lane = np.arange(machine.lanes)
        self.warp: Array = (lane // WARP).astype(np.uint32)
        self.lane: Array = (lane % WARP).astype(np.uint32)
        machine.on_reset.append(self.reset)

    def reset(self) -> None:
        """A new chunk of CTAs."""
        self.epoch.fill(1)
        self.written.clear()
        self.read.clear()

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
        self._check(self.written, access, "reads what {other} wrote")
        index, width, sel = access.index, access.width, access.sel
        own = self.epoch[sel] << np.uint32(6)
        before = self.read.lane.gather(index, width).max(axis=1)
        shared = (before >= own) & (self.read.warp.gather(index, width).max(axis=1) == self.warp[sel])
        self._mark(
            self.read, access, np.where(shared & (before & _LANE_MASK != self.lane[sel]), _SEVERAL, self.lane[sel])
        )

    def store(self, access: Access, words: Array | None) -> None:
        """A lane writes: no other lane of its warp may have written or read since they last met."""
        if access.space.name != "shared":
            return
        if words is not None and not access.changes(words).any():
            return
        self._check(self.written, access, "overwrites what {other} wrote")
        self._check(self.read, access, "overwrites what {other} reads")
        self._mark(self.written, access, self.lane[access.sel])

    def _mark(self, marks: _LaneMarks, access: Access, lanes: Array) -> None:
        index, width, sel = access.index, access.width, access.sel
        marks.lane.scatter(index, width, self.epoch[sel] << np.uint32(6) | lanes)
        marks.warp.scatter(index, width, self.warp[sel])
        marks.pc.scatter(index, width, np.full(len(index), access.instruction.pc, dtype=np.uint32))

    def _check(self, marks: _LaneMarks, access: Access, what: str) -> None:
        sel = access.sel
        left = marks.lane.gather(access.index, access.width)
        same_warp = marks.warp.gather(access.index, access.width) == self.warp[sel][:, None]
        recent = left >= (self.epoch[sel] << np.uint32(6))[:, None]
        bad = same_warp & recent & ((left & _LANE_MASK) != self.lane[sel][:, None])
        if not bad.any():
            return
        row, column = (int(place[0]) for place in np.nonzero(bad))
        lane, other = int(indices(sel)[row]), int(left[row, column] & _LANE_MASK)
        pc = int(marks.pc.gather(access.index[row : row + 1], access.width)[0, column])
        instruction = self.machine.entry.instructions[pc]
        if other == _SEVERAL:
            block, _ = self.machine.where(lane)
            other_access = conflicting_access_of(
                self.machine, instruction, block=block, warp=self.machine.warp_of(lane)
            )
        else:
            other_access = conflicting_access_at(self.machine, instruction, lane - lane % WARP + other)
        text = f"{what}, {access.width} bytes of shared memory at offset {int(access.offset[row])}"
        self.log.add(self.machine, "lane-race", access.instruction, lane, text, _USUALLY, other_access)
