"""The order in which recorded events are replayed (:mod:`.replay`).

In lockstep, the clusters of a chunk run side by side, always at the lowest instruction of all that have an event left.
The native run executed them one after the other, and later ones depend on the memory of earlier ones. Accesses to a
place of global memory with strong accesses therefore keep their order of execution: an acquire comes after the release
that it has observed, an atomic operation after those whose sum it has read.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from warpsan.analysis.program import Program
from warpsan.engine import layout
from warpsan.engine.communication import orders_threads
from warpsan.engine.selection import WARP, Array
from warpsan.ptx.ir import Entry

__all__ = ["EventOrder", "in_turns"]

_BEHIND = (
    *(layout.TRACE_ARRIVAL, layout.TRACE_EXIT, layout.TRACE_LANDING, layout.TRACE_ADVANCE),
    layout.TRACE_PHASE,
)
"""Events at the end of a block, or after it."""
_ALONE = (layout.TRACE_LANDING, layout.TRACE_ADVANCE, layout.TRACE_MAP)
"""Events that are separate steps."""
_NOWHERE = (layout.TRACE_EXIT, layout.TRACE_LANDING, layout.TRACE_ADVANCE)
"""Events without a place in the code."""
_IN_TURN = (layout.TRACE_STEP, layout.TRACE_ARRIVAL, layout.TRACE_PHASE)
"""Events whose occurrences in one cluster and step have one turn."""
_LAST = 1 << 62
_WORD = 4
"""Bytes of the places whose accesses keep their order."""
_Event = tuple[int, int]
"""A cluster, and the number of one of its events."""


class _EventPlace(NamedTuple):
    """The order of an event, from its first words."""

    kind: int
    warp: int
    turn: int
    pc: int
    """The place of its instruction; -1 for an event without a place in the code, which is next."""
    alike: tuple[int, ...]
    """The key that the events of one step share."""
    times: int
    """The number of times it happens: more than once for several empty phases of a barrier."""


def in_turns(events: Sequence[Array]) -> list[Array]:
    """The events of a cluster in lockstep order: all warps in a turn, one instruction after the other; for one
    instruction, its uses of registers come first, then the first access of each warp, the second, and so on. Without
    lockstep there is one turn, and the order stays."""
    many = Counter[tuple[int, ...]]()
    """Number of events, by turn, place, kind and warp."""
    keys: list[tuple[int, int, int, int]] = []
    for words in _first_words(events):
        kind, turn, place = words[layout.EV_KIND], words[layout.EV_TURN], words[layout.EV_PLACE]
        if kind in _BEHIND or turn == 0:
            keys.append((turn, _LAST, 0, 0))
            continue
        mine = turn, place, kind, words[layout.EV_WARP]
        many[mine] += 1
        keys.append((turn, place, -kind, many[mine]))
    return [events[k] for k in sorted(range(len(keys)), key=keys.__getitem__)]


def _first_words(events: Sequence[Array]) -> list[list[int]]:
    """The words that all events have."""
    words = [event[: layout.EVENT_WORDS] for event in events]
    first: list[list[int]] = np.stack(words).tolist() if words else []
    return first


class EventOrder:
    """Groups the events of some clusters into steps.

    Parameters
    ----------
    entry, program : Entry, Program
    events : sequence of sequences of ndarray of int64
        The events of each cluster, in the order in which the clusters ran.
    together : bool
        Whether events of several warps and clusters at one instruction are one step, as in lockstep; otherwise each
        event is a step.
    """

    def __init__(self, entry: Entry, program: Program, events: Sequence[Sequence[Array]], *, together: bool) -> None:
        self.program, self.events, self.together = program, events, together
        self._heads = [[self._head(words) for words in _first_words(mine)] for mine in events]
        self._places = [0] * len(events)
        """The number of replayed events of each cluster."""
        self._passed = [0] * len(events)
        """The number of times that the next event has been replayed."""
        self._after = _accesses_before(entry, events) if len(events) > 1 else {}

    def steps(self) -> Iterator[tuple[int, list[tuple[int, Array]]]]:
        """For each step, its first cluster, and its events with their clusters."""
        ready: list[tuple[int, int]] = []
        """A heap of (place of a cluster's next event, cluster), for events that may be replayed."""
        waiting = [k for k, mine in enumerate(self.events) if len(mine)]
        """Clusters with an event left that are absent from the heap, or may have to leave it."""
        while True:
            blocked = []
            for k in waiting:
                if self._may_happen((k, self._places[k])):
                    heapq.heappush(ready, (self._next(k).pc, k))
                else:
                    blocked.append(k)
            if not ready:
                return
            pc, low = ready[0]
            first, taken, others = self._next(low), [heapq.heappop(ready)[1]], list[int]()
            while self.together and first.kind not in _ALONE and ready and ready[0][0] == pc:
                k = heapq.heappop(ready)[1]
                (taken if self._next(k).alike == first.alike else others).append(k)
            self._pass_phases(taken)
            step = [(k, event) for k in taken for event in self._take(k, first)]
            waiting = [k for k in taken if self._places[k] < len(self.events[k])] + others + blocked
            if step:
                yield low, step

    def _next(self, k: int) -> _EventPlace:
        return self._heads[k][self._places[k]]

    def _take(self, k: int, first: _EventPlace) -> Iterator[Array]:
        """The next events of a cluster in the same step as the first, without empty phases, which have no effect."""
        warp, turn = -1, self._next(k).turn
        while self._may_happen((k, self._places[k])):
            head = self._next(k)
            alike = head is first or (first.kind not in _ALONE and head.alike == first.alike)
            if not alike or head.warp <= warp or (head.kind in _IN_TURN and head.turn != turn):
                return
            warp = head.warp if self.together else _LAST
            if head.kind != layout.TRACE_PHASE:
                yield self.events[k][self._places[k]]
            self._passed[k] += 1
            if self._passed[k] < head.times:
                return
            self._places[k], self._passed[k] = self._places[k] + 1, 0

    def _pass_phases(self, clusters: Sequence[int]) -> None:
        """If several empty phases are next in all these clusters, complete all but the last of those in common."""
        heads = [self._next(k) for k in clusters]
        if all(head.kind == layout.TRACE_PHASE for head in heads):
            many = min(head.times - self._passed[k] for k, head in zip(clusters, heads, strict=True)) - 1
            for k in clusters:
                self._passed[k] += many

    def _may_happen(self, event: _Event) -> bool:
        """Whether there is such an event, and all its predecessors have been replayed."""
        k, place = event
        if place >= len(self._heads[k]):
            return False
        after = self._after.get(event)
        return after is None or all(self._places[j] > each for j, each in after)

    def _head(self, words: Sequence[int]) -> _EventPlace:
        kind, place = words[layout.EV_KIND], words[layout.EV_PLACE]
        name, threads = words[layout.EV_NAME], words[layout.EV_THREADS]
        alike: tuple[int, ...] = (kind, place, name, threads)
        times = 1
        if kind == layout.TRACE_STEP:
            alike = kind, place, name
        elif kind == layout.TRACE_PHASE:
            alike, times = (layout.TRACE_ARRIVAL, place, name, threads), words[layout.EV_TIMES]
        pc = -1 if kind in _NOWHERE else place
        if kind in (layout.TRACE_ARRIVAL, layout.TRACE_PHASE):
            end = self.program.blocks[place].end
            assert end is not None
            pc = end.pc
        return _EventPlace(kind, words[layout.EV_WARP], words[layout.EV_TURN], pc, alike, times)


def _accesses_before(entry: Entry, events: Sequence[Sequence[Array]]) -> dict[_Event, list[_Event]]:
    """For accesses to places with strong accesses, the last accesses to the same places by clusters that ran before."""
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
    """The words of memory of an access."""
    lanes = np.flatnonzero(int(event[layout.EV_MASK]) >> np.arange(WARP) & 1)
    parts = np.arange(0, int(event[layout.EV_WIDTH]), _WORD)
    words: list[int] = np.unique(event[layout.EV_OFFSETS :][lanes][:, None] + parts >> 2).tolist()
    return words
