"""Causality order of each warp (PTX ISA, "Memory Consistency Model") beyond the vectors of its cluster: acquired
moments of other clusters, the coverage of its last fences, and the ``fence.sc`` that precede it.

The unit is a warp. The vectors of :mod:`~warpsan.checks.clocks` hold the order within a cluster; a set of
:class:`Moment` holds the order of a warp after other clusters. Barriers pass both on.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from warpsan.checks.clocks import Clocks
from warpsan.checks.orders import SAME_CLUSTER, SAME_CTA, SAME_GPU
from warpsan.engine.machine import Machine
from warpsan.engine.selection import Array, Indices, Mask, Selection, indices

__all__ = ["RELATIONS", "Causality", "Fence", "Moment", "ObservedWrites"]

RELATIONS = (SAME_CTA, SAME_CLUSTER, SAME_GPU)
"""The possible relations of two threads."""


@dataclass(frozen=True, eq=False)
class Moment:
    """The past of a release: the time of each actor of its cluster, and moments of other clusters."""

    cluster: int
    rows: Array
    before: frozenset[Moment]
    fences: frozenset[Fence] = frozenset()
    """The ``fence.sc`` before the release."""
    observed: Observed = frozenset()
    """The ``fence.sc`` before the values that earlier threads have observed."""


@dataclass(frozen=True, eq=False)
class Fence:
    """A ``fence.sc``, with its past."""

    moment: Moment
    block: int
    level: int


@dataclass(frozen=True, eq=False)
class ObservedWrites:
    """Strong writes of one place that have been observed, all with scopes that include the observing thread. The
    ``fence.sc`` before them matter only if that thread, or a later one, executes another ``fence.sc``."""

    links: Sequence[Fenced]
    """The writes of the place; more may be added."""
    first: int
    last: int

    def fences(self) -> frozenset[Fence]:
        """The ``fence.sc`` before the writes from ``first`` up to before ``last``."""
        return frozenset[Fence]().union(*(link.fences for link in self.links[self.first : self.last]))


class Fenced(Protocol):
    """A strong write, with the ``fence.sc`` before it."""

    @property
    def fences(self) -> frozenset[Fence]:
        """The fences of this write."""


Observed = frozenset[Fence | ObservedWrites]


class Causality:
    """The past of each warp of a machine.

    Parameters
    ----------
    machine : Machine
    clocks : Clocks
    active : bool
        Whether the kernel has any instruction that passes accesses on through memory.
    """

    def __init__(self, machine: Machine, clocks: Clocks, *, active: bool) -> None:
        self.machine, self.clocks, self.active = machine, clocks, active
        self._fenced: Array = clocks.blank(len(RELATIONS)) if active else np.empty(0)
        """For each relation, the past of the last fence with that reach [relations, planes, warps, actors]."""
        seats = machine.n_cta * machine.warps
        self._known: list[frozenset[Moment]] = [frozenset()] * seats
        self._passed: list[list[frozenset[Moment]]] = [[frozenset()] * seats for _ in RELATIONS]
        self._fence_level: list[int] = [-1] * seats
        self._flat: list[dict[int, Array] | None] = [None] * seats
        self._taken: list[set[Moment]] = [set() for _ in range(seats)]
        """For each warp, the moments of its cluster in its past."""
        self._posted: dict[Hashable, frozenset[Moment]] = {}
        self._fences: list[frozenset[Fence]] = [frozenset()] * seats
        """For each warp, the ``fence.sc`` in its past."""
        self._fences_passed: list[tuple[frozenset[Fence], Observed]] = [(frozenset(), frozenset())] * seats
        """The values of this and the next attribute at the warp's last releasing fence."""
        self._observed: list[Observed] = [frozenset()] * seats
        """The ``fence.sc`` before the values that the warp, or others before it, have observed."""
        self._posted_fences: dict[Hashable, tuple[frozenset[Fence], Observed]] = {}
        self.foreign = False
        """Whether any warp comes after an access of another cluster."""
        self._sequential = False
        """Whether any warp has executed or observed a ``fence.sc``."""

    def reset(self) -> None:
        """A new chunk of CTAs."""
        seats = len(self._known)
        if self.active:
            self._fenced.fill(0)
        self._known = [frozenset()] * seats
        self._passed = [[frozenset()] * seats for _ in RELATIONS]
        self._fence_level = [-1] * seats
        self._flat = [None] * seats
        self._taken = [set() for _ in range(seats)]
        self._posted.clear()
        self._posted_fences.clear()
        self._fences, self._observed = [frozenset()] * seats, [frozenset()] * seats
        self._fences_passed = [(frozenset(), frozenset())] * seats
        self.foreign = self._sequential = False

    # ---- who --------------------------------------------------------------------------------------------------------

    def _block(self, seat: int) -> int:
        return int(self.machine.cta_ids[seat // self.machine.warps])

    def _cluster(self, seat: int) -> int:
        size = self.machine.cluster_size
        return int(self.machine.cta_ids[seat // self.machine.warps // size * size])

    def _relation_to(self, block: int, cluster: int, seat: int) -> int:
        if block == self._block(seat):
            return SAME_CTA
        return SAME_CLUSTER if cluster == self._cluster(seat) else SAME_GPU

    # ---- fences -----------------------------------------------------------------------------------------------------

    def _release_by_fence(self, seats: Indices, level: int) -> None:
        """These warps execute a releasing fence of scope ``level``."""
        present = self.clocks.present(seats)
        for relation in range(level + 1):
            self._fenced[relation][:, seats] = present
        for seat in seats.tolist():
            self._fence_level[seat] = max(self._fence_level[seat], level)
            self._fences_passed[seat] = self._fences[seat], self._observed[seat]
            for relation in range(level + 1):
                self._passed[relation][seat] = self._known[seat]

    def _come_after_fences(self, seat: int, level: int) -> None:
        """The warp executes a ``fence.sc``: its predecessors in Fence-SC order enter its past."""
        self._sequential = True
        observed = {
            fence
            for each in self._observed[seat]
            for fence in (each.fences() if isinstance(each, ObservedWrites) else (each,))
        }
        before = {
            fence
            for fence in observed
            if self._relation_to(fence.block, fence.moment.cluster, seat) <= min(fence.level, level)
        }
        self._observed[seat] = frozenset(observed - before)
        self._come_after(seat, [fence.moment for fence in before])
        moment = Moment(self._cluster(seat), self.clocks.present(np.array([seat]))[:, 0], self._known[seat])
        mine = Fence(moment, self._block(seat), level)
        self._fences[seat] = frozenset(each for each in self._fences[seat] if each.level > level) | {mine}

    def _come_after(self, seat: int, moments: Sequence[Moment]) -> None:
        self._fences[seat] = self._fences[seat].union(*(moment.fences for moment in moments))
        self._observed[seat] = self._observed[seat].union(*(moment.observed for moment in moments))
        cluster, more = self._cluster(seat), set[Moment]()
        for moment in moments:
            if moment.cluster == cluster:
                self._take_rows(seat, moment)
                more |= moment.before
            else:
                more.add(moment)
        more -= self._known[seat]
        if more:
            self._come_back(seat, cluster, more)
            self._known[seat] |= more
            self._flat[seat] = None
            self.foreign = True

    def _come_back(self, seat: int, cluster: int, moments: AbstractSet[Moment]) -> None:
        """Moments of other clusters also order accesses of the warp's own cluster: these enter its past."""
        done, taken = self._known[seat], self._taken[seat]
        left, seen = list(moments), set(moments)
        while left:
            each = left.pop()
            if each.cluster == cluster:
                if each in taken:
                    continue
                self._take_rows(seat, each)
            fresh = each.before - done - seen
            seen |= fresh
            left += fresh

    def _take_rows(self, seat: int, moment: Moment) -> None:
        """A warp comes after a moment of its cluster."""
        if moment not in self._taken[seat]:
            self._taken[seat].add(moment)
            self.clocks.join(seat, moment.rows)

    # ---- barriers ---------------------------------------------------------------------------------------------------

    def post(self, key: Hashable, sel: Selection, home: Indices | None, *, fenced: int | None = None) -> None:
        """Lanes pass the moments of other clusters on with their arrival at a barrier.

        With ``fenced``, they pass on the moments of their last fence with a scope for this relation.
        """
        if not (self.foreign or self._sequential):
            return
        for seat, cta in self._arrivals(sel, home):
            known = self._known[seat] if fenced is None else self._passed[fenced][seat]
            mine = (self._fences[seat], self._observed[seat]) if fenced is None else self._fences_passed[seat]
            if known:
                self._posted[key, cta] = self._posted.get((key, cta), frozenset()) | known
            if any(mine):
                fences, observed = self._posted_fences.get((key, cta), (frozenset(), frozenset()))
                self._posted_fences[key, cta] = fences | mine[0], observed | mine[1]

    def fence_levels(self, seats: Indices) -> Array:
        """The widest scope of the fences that each warp has executed so far; -1 without a fence."""
        return np.array([self._fence_level[seat] for seat in seats.tolist()])

    def fenced(self, relation: int) -> Array:
        """The past of each warp's last fence with a scope for this relation [planes, warps, actors]."""
        before: Array = self._fenced[relation]
        return before

    def collect(self, key: Hashable, sel: Selection, home: Indices | None) -> None:
        """The lanes leave a barrier."""
        if self._posted or self._posted_fences:
            for seat, cta in self._arrivals(sel, home):
                self.take(seat, key, cta)

    def take(self, seat: int, key: Hashable, cta: int) -> None:
        """A warp comes after the moments released to a barrier of a CTA."""
        fences, observed = self._posted_fences.get((key, cta), (frozenset(), frozenset()))
        self._fences[seat] |= fences
        self._observed[seat] |= observed
        more = self._posted.get((key, cta), frozenset())
        if not more <= self._known[seat]:
            self._known[seat] |= more
            self._flat[seat] = None

    def publish(self, source: Hashable, target: Hashable, ctas: Mask) -> None:
        """Moments released to ``source`` can be acquired from ``target``."""
        for cta in np.flatnonzero(ctas).tolist() if self._posted or self._posted_fences else ():
            more = self._posted.pop((source, cta), None)
            if more:
                self._posted[target, cta] = self._posted.get((target, cta), frozenset()) | more
            fences, observed = self._posted_fences.pop((source, cta), (frozenset(), frozenset()))
            if fences or observed:
                mine, theirs = self._posted_fences.get((target, cta), (frozenset(), frozenset()))
                self._posted_fences[target, cta] = mine | fences, theirs | observed

    def forget(self, key: Hashable, ctas: Mask) -> None:
        """``key`` begins anew."""
        for cta in np.flatnonzero(ctas).tolist() if self._posted or self._posted_fences else ():
            self._posted.pop((key, cta), None)
            self._posted_fences.pop((key, cta), None)

    def _arrivals(self, sel: Selection, home: Indices | None) -> Iterator[tuple[int, int]]:
        lanes = indices(sel)
        seats = self.clocks.seat[lanes]
        pairs = np.unique(np.stack([seats, seats // self.machine.warps if home is None else home]), axis=1)
        return zip(*pairs.tolist(), strict=True)

    # ---- questions --------------------------------------------------------------------------------------------------

    def comes_after(self, seat: int, cluster: int, actor: int, time: int) -> bool:
        """Whether the access of an actor of another cluster at a time comes before the next access of this warp."""
        if not self._known[seat]:
            return False
        flat = self._flat[seat]
        if flat is None:
            flat = self._flat[seat] = _flatten(self._known[seat])
        row = flat.get(cluster)
        return row is not None and time <= int(row[actor])

    def comes_after_any(self, seat: int) -> bool:
        """Whether this warp comes after any access of another cluster."""
        return bool(self._known[seat])


def _flatten(moments: frozenset[Moment]) -> dict[int, Array]:
    """For each cluster, the latest time of each actor that these moments and their predecessors cover."""
    flat: dict[int, Array] = {}
    left, done = list(moments), set(moments)
    while left:
        moment = left.pop()
        row = flat.get(moment.cluster)
        flat[moment.cluster] = moment.rows[0] if row is None else np.maximum(row, moment.rows[0])
        fresh = moment.before - done
        done |= fresh
        left += fresh
    return flat
