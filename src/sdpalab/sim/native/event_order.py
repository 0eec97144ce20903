"""The order in which recorded events happen once more (:mod:`.replay`).

In lockstep, the clusters of a chunk go on side by side: always at the lowest instruction of all that have an event
left. They ran one after the other, and what one of them passed on through memory decided what later ones did. So
accesses to a place of global memory that is accessed strongly happen in the order in which they were executed: an
acquire comes after the release that it has observed, an atomic operation after those whose sum it has read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from sdpalab.sim.ir import Entry
from sdpalab.sim.native import layout
from sdpalab.sim.native.communication import orders_threads
from sdpalab.sim.program import Program
from sdpalab.sim.selection import WARP, Array

__all__ = ["EventOrder", "in_turns"]

_BEHIND = (layout.TRACE_ARRIVAL, layout.TRACE_EXIT, layout.TRACE_LANDING, layout.TRACE_TRAP, layout.TRACE_ADVANCE)
"""Events at the end of a block, or behind it."""
_LAST = 1 << 62
_WORD = 4
"""Bytes of the places whose accesses keep their order."""
_Event = tuple[int, int]
"""A cluster, and the number of one of its events."""


def in_turns(events: Sequence[Array]) -> list[Array]:
    """The events of a cluster in the order of lockstep: what all warps do in a turn, one instruction after the other;
    of one instruction first that it uses registers, and then the first access of each warp, the second, and so on. Out
    of lockstep there is one turn only, and the order stays."""
    many = Counter[tuple[int, ...]]()
    """By turn, place, kind and warp, how many events there were."""

    def key(event: Array) -> tuple[int, int, int, int]:
        kind, turn, place = (int(event[word]) for word in (layout.EV_KIND, layout.EV_TURN, layout.EV_PLACE))
        if kind in _BEHIND or turn == 0:
            return turn, _LAST, 0, 0
        mine = turn, place, kind, int(event[layout.EV_WARP])
        many[mine] += 1
        return turn, place, -kind, many[mine]

    return sorted(events, key=key)


class EventOrder:
    """The steps that the events of some clusters come to.

    Parameters
    ----------
    entry, program : Entry, Program
    events : sequence of sequences of ndarray of int64
        Those of each cluster, in the order in which the clusters ran.
    together : bool
        Whether events of several warps and clusters at one instruction are one step, as in lockstep; else each event
        is a step of its own.
    """

    def __init__(self, entry: Entry, program: Program, events: Sequence[Sequence[Array]], *, together: bool) -> None:
        self.program, self.events, self.together = program, events, together
        self._places = [0] * len(events)
        """How many events of each cluster have happened."""
        self._after = _accesses_before(entry, events) if len(events) > 1 else {}

    def steps(self) -> Iterator[tuple[int, list[tuple[int, Array]]]]:
        """For each step its first cluster, and its events with their clusters."""
        events, places = self.events, self._places
        while any(place < len(mine) for place, mine in zip(places, events, strict=True)):
            heads = {k: events[k][place] for k, place in enumerate(places) if self._may_happen((k, place))}
            low = min(heads, key=lambda k: (self._pc(heads[k]), k))
            step: list[tuple[int, Array]] = []
            for k in heads if self.together else [low]:
                warp, mine = -1, events[k][places[k]]
                while self._may_happen((k, places[k])):
                    event = events[k][places[k]]
                    if not _alike(heads[low], mine, event) or event[layout.EV_WARP] <= warp:
                        break
                    step.append((k, event))
                    places[k] += 1
                    warp = int(event[layout.EV_WARP]) if self.together else _LAST
            yield low, step

    def _may_happen(self, event: _Event) -> bool:
        """Whether there is such an event, and all have happened that it must come after."""
        k, place = event
        return place < len(self.events[k]) and all(self._places[j] > each for j, each in self._after.get(event, ()))

    def _pc(self, event: Array) -> int:
        """The instruction of an event; what has no place in the code comes at once."""
        kind, place = int(event[layout.EV_KIND]), int(event[layout.EV_PLACE])
        if kind in (layout.TRACE_ARRIVAL, layout.TRACE_TRAP):
            end = self.program.blocks[place].end
            assert end is not None
            return end.pc
        return -1 if kind in (layout.TRACE_EXIT, layout.TRACE_LANDING, layout.TRACE_ADVANCE) else place


def _alike(first: Array, mine: Array, event: Array) -> bool:
    """Whether an event may be of one step in lockstep with the first of another cluster, and of its own."""
    kind = int(first[layout.EV_KIND])
    if event is first:
        return True
    if kind in (layout.TRACE_LANDING, layout.TRACE_ADVANCE, layout.TRACE_MAP):
        return False
    words = [layout.EV_KIND, layout.EV_PLACE, layout.EV_NAME]
    if kind == layout.TRACE_STEP:
        return bool((first[words] == event[words]).all()) and mine[layout.EV_TURN] == event[layout.EV_TURN]
    return bool((first[[*words, layout.EV_THREADS]] == event[[*words, layout.EV_THREADS]]).all())


def _accesses_before(entry: Entry, events: Sequence[Sequence[Array]]) -> dict[_Event, list[_Event]]:
    """For accesses to places that any instruction accesses strongly, the last ones to the same places by clusters that
    ran before."""
    strong = {each.pc for each in entry.instructions if orders_threads(entry, each)}
    if not strong:
        return {}
    accesses = [
        ((k, number), int(event[layout.EV_PLACE]) in strong, _words(event))
        for k, mine in enumerate(events)
        for number, event in enumerate(mine)
        if event[layout.EV_KIND] == layout.TRACE_ACCESS and event[layout.EV_SPACE] == layout.IN_GLOBAL
    ]
    shared = {word for _, is_strong, words in accesses if is_strong for word in words}
    last: dict[int, _Event] = {}
    earlier: dict[int, _Event] = {}
    after: dict[_Event, list[_Event]] = {}
    for event, _, words in accesses:
        for word in shared.intersection(words):
            if word in last and last[word][0] != event[0]:
                earlier[word] = last[word]
            last[word] = event
        if before := {earlier[word] for word in shared.intersection(words) if word in earlier}:
            after[event] = sorted(before)
    return after


def _words(event: Array) -> list[int]:
    """The words of memory that an access touches."""
    lanes = np.flatnonzero(int(event[layout.EV_MASK]) >> np.arange(WARP) & 1)
    parts = np.arange(0, int(event[layout.EV_WIDTH]), _WORD)
    words: list[int] = np.unique(event[layout.EV_OFFSETS :][lanes][:, None] + parts >> 2).tolist()
    return words
