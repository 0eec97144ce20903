"""The run queue, under each of the schedules.

A key is (turn, block). In lockstep there is one turn for all lanes and the lowest block goes first. The other
schedules give each warp slot of a CTA a turn of its own (the same slot of all CTAs of the chunk stays together):
``forward`` and ``reverse`` let one slot run until it blocks, ``random`` draws a slot at every block. Where blocks may
communicate, the clusters of a chunk are a few groups, each with turns of its own.
"""

from __future__ import annotations

import numpy as np

from sdpalab.sim.machine import Machine, Resume
from sdpalab.sim.selection import WARP, Indices, Selection, indices, merge, subset

__all__ = ["RunQueue"]

_Key = tuple[int, int]


class RunQueue:
    """Lanes that are ready, by turn and block.

    Parameters
    ----------
    machine : Machine
    schedule : str
        One of :data:`~sdpalab.sim.options.SCHEDULES`.
    groups : int
        Groups of clusters at most that have turns of their own.
    scattered : bool
        Whether neighbours are in different groups.
    """

    def __init__(self, machine: Machine, schedule: str, groups: int = 1, *, scattered: bool = False) -> None:
        self.machine, self.schedule = machine, schedule
        self.by_slot = schedule != "lockstep"
        self.slot_lanes = machine.n_cta * WARP
        clusters = machine.n_cta // machine.cluster_size
        self.turns: Indices | None = None
        """The turn of each lane, where it is not its slot alone."""
        if self.by_slot and min(groups, machine.n_cta if scattered else clusters) > 1:
            cluster = machine.cta // machine.cluster_size
            many = min(groups, machine.n_cta if scattered else clusters)
            group = machine.cta % many if scattered else cluster * many // clusters
            if schedule == "reverse":  # the last turn goes first, and the chunk begins with the block that does
                group = many - 1 - group
            self.turns = group * machine.warps + np.arange(machine.lanes) // self.slot_lanes
        self.random: np.random.Generator
        """Made anew by :meth:`clear`."""
        self.ready: dict[_Key, list[Selection]] = {}
        self.parked: dict[_Key, list[Selection]] = {}
        self.last_run: dict[_Key, int] = {}
        self.picks = 0

    def clear(self, seed: tuple[int, int]) -> None:
        """Reset: no lane is ready; ``random`` draws from ``seed`` on."""
        self.random = np.random.default_rng(seed)
        self.ready.clear()
        self.parked.clear()
        self.last_run.clear()

    def push(self, resumes: list[Resume]) -> None:
        """Make lanes ready."""
        for block, sel in resumes:
            for turn, part in self._turns(sel):
                self.ready.setdefault((turn, block), []).append(part)

    def park(self, turn: int, block: int, sel: Selection) -> None:
        """Lanes of incomplete warps wait for the others in front of a warp-wide instruction."""
        self.parked.setdefault((turn, block), []).append(sel)

    def unpark(self) -> None:
        """Lanes that wait for others are looked at again: some of those have exited."""
        for key, sels in self.parked.items():
            self.ready.setdefault(key, []).extend(sels)
        self.parked.clear()

    def _turns(self, sel: Selection) -> list[tuple[int, Selection]]:
        if not self.by_slot:
            return [(0, sel)]
        if self.turns is not None:
            turns = self.turns[sel]
            return [(int(turn), subset(sel, turns == turn)) for turn in np.unique(turns)]
        if isinstance(sel, slice):
            first, last = sel.start // self.slot_lanes, (sel.stop - 1) // self.slot_lanes
            if first == last:
                return [(first, sel)]
        slots = indices(sel) // self.slot_lanes
        return [(int(slot), subset(sel, slots == slot)) for slot in np.unique(slots)]

    def pick(self, fair: bool) -> tuple[int, int, Selection, bool, int] | None:
        """(turn, block, lanes, whether they were parked, the next waiting block of that turn); None if it is empty.

        ``fair`` picks those that have waited longest, against polling loops that would starve the others.
        """
        forced = not self.ready
        queue = self.parked if forced else self.ready
        if not queue:
            return None
        key = min(queue, key=lambda each: self.last_run.get(each, -1)) if fair else self._choose(queue)
        self.picks += 1
        self.last_run[key] = self.picks
        sels = queue.pop(key)
        if not forced and key in self.parked:
            sels += self.parked.pop(key)
        turn, block = key
        others = (b for t, b in self.ready if t == turn)
        following = -1 if self.schedule == "random" else min(others, default=1 << 60)
        return turn, block, merge(sels), forced, following

    def _choose(self, queue: dict[_Key, list[Selection]]) -> _Key:
        if self.schedule == "lockstep" or self.schedule == "forward":
            return min(queue)
        if self.schedule == "reverse":
            turn = max(turn for turn, _ in queue)
        else:
            turn = int(self.random.choice(sorted({turn for turn, _ in queue})))
        return min(key for key in queue if key[0] == turn)
