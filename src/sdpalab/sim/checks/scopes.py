"""What orders threads besides barriers: releases and acquires through memory (PTX ISA, "Memory Consistency Model").

A release pattern on a place is a release operation, or a fence and a strong write after it; an acquire pattern is an
acquire operation, or a strong read and a fence after it. If the read observes the write, directly or through
read-modify-writes after it (a release sequence), and writes, read and fences are morally strong, everything that came
before the release comes before everything after the acquire ("Release and Acquire Patterns", "Synchronizes-With",
"Causality Order"). Causality does not ask for scopes beyond that: what a barrier has ordered before a fence is passed
on by it. An operation on the place stands for a fence in both patterns: a release before the strong write, an acquire
after the strong read.

A ``fence.sc`` (``__threadfence()`` is one) need not be of the thread that writes, nor of the one that reads: if the
write comes after one, and the read before another, in base causality order, the first must precede the second in
Fence-SC order, or the write would come after its own reader; and so the first synchronises with the second. So a count
that one thread makes behind a barrier covers what all threads have fenced before the barrier, if those that read have a
``fence.sc``, too.

The unit is a warp. Inside a cluster the vectors of :mod:`~sdpalab.sim.checks.clocks` hold what comes before; what a
warp knows of other clusters is a set of :class:`Moment`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

import numpy as np

from sdpalab.sim.checks.clocks import Clocks
from sdpalab.sim.checks.lanes import LaneOrder
from sdpalab.sim.checks.orders import SAME_CLUSTER, SAME_CTA, SAME_GPU, MemoryOrder, memory_order
from sdpalab.sim.ir import Entry
from sdpalab.sim.machine import Machine
from sdpalab.sim.observer import Access
from sdpalab.sim.opcodes import opcode_of
from sdpalab.sim.selection import WARP, Array, Indices, Mask, Selection, indices

__all__ = ["MOST_SYNCHRONISING", "Moment", "ReleaseChain", "Synchronisation", "synchronises"]

MOST_SYNCHRONISING = 1024
"""Lanes of a step of atomic operations that orders anything: histograms and sums order nothing."""
_RELATIONS = (SAME_CTA, SAME_CLUSTER, SAME_GPU)
_WITHIN = ("", "of another block of the cluster", "in another block")
_SCOPES = ("cta", "cluster", "gpu", "sys")
_FENCES = {SAME_CTA: "__threadfence_block()", SAME_CLUSTER: "fence.acq_rel.cluster", SAME_GPU: "__threadfence()"}

_NOT_COVERED = (
    "no fence is between it, or the barrier that passed it on, and the operation that the other thread saw: put the "
    "fence directly before that operation, or give both sides a fence.sc (__threadfence())"
)


@dataclass(frozen=True, eq=False)
class Moment:
    """What comes before a release: in its cluster up to which time of each actor, and moments of other clusters."""

    cluster: int
    rows: Array
    before: frozenset[Moment]
    fences: frozenset[_Fence] = frozenset()
    """The ``fence.sc`` that come before it."""
    observed: frozenset[_Fence] = frozenset()
    """Those that come before what threads before it have observed."""


@dataclass(frozen=True, eq=False)
class _Fence:
    """A ``fence.sc``, with what comes before it."""

    moment: Moment
    block: int
    level: int


_Moments = tuple[Moment | None, Moment | None, Moment | None]
"""By relation, what is released to threads in that relation."""
_Place = tuple[int, str, int]
"""A warp, and a place of a memory space."""


@dataclass(frozen=True, eq=False)
class _Link:
    """A strong write in a chain, and what it releases to threads of its CTA, its cluster and the GPU."""

    seat: int
    """The warp, in its chunk."""
    block: int
    cluster: int
    lane: int
    time: int
    level: int
    fence: int
    """The level of the widest fence before it, or of its own release; -1 if there was none."""
    moments: _Moments
    fences: frozenset[_Fence]
    """The ``fence.sc`` that come before it."""


@dataclass(eq=False)
class ReleaseChain:
    """The strong write of a place whose value is there, and those before it in its release sequence."""

    links: list[_Link] = field(default_factory=list)
    narrowest: int = 3


def synchronises(entry: Entry) -> bool:
    """Whether a kernel has what an acquire or a release needs."""
    for instruction in entry.instructions:
        if instruction.opcode in ("fence", "membar") and "proxy" not in instruction.mods:
            return True
        if opcode_of(instruction).memory:
            order = memory_order(instruction)
            if order.acquire or order.release:
                return True
    return False


class Synchronisation:
    """Releases and acquires of the warps of a machine.

    Parameters
    ----------
    machine : Machine
    clocks : Clocks
    lanes : LaneOrder
    chains : dict
        For places of global memory, what all chunks of the launch left there.
    """

    def __init__(self, machine: Machine, clocks: Clocks, lanes: LaneOrder, chains: dict[int, ReleaseChain]) -> None:
        self.machine, self.clocks, self.lanes = machine, clocks, lanes
        self.active = synchronises(machine.entry)
        """Whether there is anything to do at all."""
        self._chains: dict[str, dict[int, ReleaseChain]] = {"global": chains, "shared": {}}
        self._fenced: Array = clocks.blank(len(_RELATIONS)) if self.active else np.empty(0)
        """For each relation [relations, planes, warps, actors], what came before the last fence that reaches so far."""
        seats = machine.n_cta * machine.warps
        self._known: list[frozenset[Moment]] = [frozenset()] * seats
        self._passed: list[list[frozenset[Moment]]] = [[frozenset()] * seats for _ in _RELATIONS]
        self._fence_level: list[int] = [-1] * seats
        self._seen: list[dict[ReleaseChain, tuple[int, int]]] = [{} for _ in range(seats)]
        """For each warp the chains that it has read, how much of each, and with which scope."""
        self._flat: list[dict[int, Array] | None] = [None] * seats
        self._taken: list[set[Moment]] = [set() for _ in range(seats)]
        """For each warp the moments of its cluster that it comes after."""
        self._posted: dict[Hashable, frozenset[Moment]] = {}
        self._fences: list[frozenset[_Fence]] = [frozenset()] * seats
        """For each warp the ``fence.sc`` that come before it."""
        self._fences_passed: list[tuple[frozenset[_Fence], frozenset[_Fence]]] = [(frozenset(), frozenset())] * seats
        """This and the next at its last fence that releases."""
        self._observed: list[frozenset[_Fence]] = [frozenset()] * seats
        """Those that come before what the warp, or others before it, have observed."""
        self._posted_fences: dict[Hashable, tuple[frozenset[_Fence], frozenset[_Fence]]] = {}
        self._released_at: dict[_Place, _Moments] = {}
        """What the last release operation of a warp on a place releases."""
        self._seen_at: dict[_Place, dict[ReleaseChain, tuple[int, int]]] = {}
        """The same as ``_seen`` by place."""
        self._acquired: list[int] = [-1] * seats
        """For each warp the level of the widest fence since it last read a chain."""
        self.foreign = False
        """Whether any warp comes after anything of another cluster."""
        self._sequential = False
        """Whether any warp has executed a ``fence.sc``, or has observed one."""

    def reset(self) -> None:
        """A new chunk of CTAs."""
        seats = len(self._known)
        self._chains["shared"].clear()
        if self.active:
            self._fenced.fill(0)
        self._known = [frozenset()] * seats
        self._passed = [[frozenset()] * seats for _ in _RELATIONS]
        self._fence_level, self._acquired = [-1] * seats, [-1] * seats
        self._seen = [{} for _ in range(seats)]
        self._flat = [None] * seats
        self._taken = [set() for _ in range(seats)]
        self._posted.clear()
        self._sequential = False
        self._fences, self._observed = [frozenset()] * seats, [frozenset()] * seats
        self._fences_passed = [(frozenset(), frozenset())] * seats
        for table in (self._posted_fences, self._released_at, self._seen_at):
            table.clear()
        self.foreign = False

    # ---- who --------------------------------------------------------------------------------------------------------

    def _block(self, seat: int) -> int:
        return int(self.machine.cta_ids[seat // self.machine.warps])

    def _cluster(self, seat: int) -> int:
        size = self.machine.cluster_size
        return int(self.machine.cta_ids[seat // self.machine.warps // size * size])

    def _relation(self, link: _Link, seat: int) -> int:
        return self._relation_to(link.block, link.cluster, seat)

    def _relation_to(self, block: int, cluster: int, seat: int) -> int:
        if block == self._block(seat):
            return SAME_CTA
        return SAME_CLUSTER if cluster == self._cluster(seat) else SAME_GPU

    # ---- fences -----------------------------------------------------------------------------------------------------

    def fence(self, sel: Selection, order: MemoryOrder) -> None:
        """The lanes' warps execute a fence."""
        if not self.active:
            return
        seats = self.clocks.seats(sel)
        level = min(order.level, SAME_GPU)
        if order.acquire:
            for seat in seats.tolist():
                self._acquire(seat, level)
        if order.sequential:
            for seat in seats.tolist():
                self._come_after_fences(seat, level)
        if order.release:
            self.lanes.arrive(sel)
            present = self.clocks.present(seats)
            for relation in range(level + 1):
                self._fenced[relation][:, seats] = present
            for seat in seats.tolist():
                self._fence_level[seat] = max(self._fence_level[seat], level)
                self._fences_passed[seat] = self._fences[seat], self._observed[seat]
                for relation in range(level + 1):
                    self._passed[relation][seat] = self._known[seat]

    def _come_after_fences(self, seat: int, level: int) -> None:
        """The warp executes a ``fence.sc``: those that must precede it in Fence-SC order come before it."""
        self._sequential = True
        for fence in self._observed[seat]:
            if self._relation_to(fence.block, fence.moment.cluster, seat) <= min(fence.level, level):
                self._come_after(seat, fence.moment)
                self._observed[seat] -= {fence}
        moment = Moment(self._cluster(seat), self.clocks.present(np.array([seat]))[:, 0], self._known[seat])
        mine = _Fence(moment, self._block(seat), level)
        self._fences[seat] = frozenset(each for each in self._fences[seat] if each.level > level) | {mine}

    def _acquire(self, seat: int, level: int) -> None:
        """What the warp has read of chains is acquired by what reaches ``level``."""
        self._acquired[seat] = max(self._acquired[seat], level)
        self._join_all(seat, self._seen[seat], level)

    def _join_all(self, seat: int, seen: dict[ReleaseChain, tuple[int, int]], level: int) -> None:
        for chain, (many, scope) in seen.items():
            for link in chain.links[:many]:
                relation = self._relation(link, seat)
                if relation <= min(level, scope, link.level):
                    self._join(seat, link, relation)

    def _join(self, seat: int, link: _Link, relation: int) -> None:
        moment = link.moments[relation]
        if moment is None:
            return
        if moment.cluster == self._cluster(seat) and link.seat == seat:
            self.lanes.leave(slice(*self._lanes(seat)))
        self._come_after(seat, moment)

    def _come_after(self, seat: int, moment: Moment) -> None:
        self._fences[seat] |= moment.fences
        self._observed[seat] |= moment.observed
        cluster = self._cluster(seat)
        more = moment.before if moment.cluster == cluster else frozenset((moment,))
        if moment.cluster == cluster:
            self._take_rows(seat, moment)
        if not more <= self._known[seat]:
            self._come_back(seat, cluster, more - self._known[seat])
            self._known[seat] |= more
            self._flat[seat] = None
            self.foreign = True

    def _come_back(self, seat: int, cluster: int, moments: frozenset[Moment]) -> None:
        """What moments of other clusters have of the warp's own cluster comes before the warp, too."""
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
        """A warp comes after a moment of its cluster, and its lanes after what others of the warp have released before
        that."""
        if moment in self._taken[seat]:
            return
        self._taken[seat].add(moment)
        self.clocks.join(seat, moment.rows)
        if (until := int(moment.rows[0, seat % self.clocks.warps])) > 0:
            self.lanes.leave(slice(*self._lanes(seat)), until)

    def _lanes(self, seat: int) -> tuple[int, int]:
        """The lanes of a warp."""
        cta, slot = divmod(seat, self.machine.warps)
        first = (slot * self.machine.n_cta + cta) * WARP
        return first, first + WARP

    # ---- strong operations ------------------------------------------------------------------------------------------

    def read(self, access: Access, order: MemoryOrder) -> None:
        """Lanes read strongly: each warp reads each place once."""
        chains = self._chains[access.space.name]
        if self.active and chains:
            for seat, place in np.unique(np.stack([self.clocks.seat[access.sel], access.index]), axis=1).T.tolist():
                if place in chains:
                    self._observe(seat, access.space.name, place, chains[place], order)

    def write(self, access: Access, order: MemoryOrder) -> None:
        """Lanes write strongly: a new chain begins."""
        for lane, seat, place in self._lanes_of(access):
            self._extend(lane, seat, ReleaseChain(), order, access, place)

    def update(self, access: Access, order: MemoryOrder, *, returns: bool) -> None:
        """Lanes read and write in one operation, in the order of the lanes: the chain of each place goes on."""
        for lane, seat, place in self._lanes_of(access):
            chain = self._chains[access.space.name].get(place) or ReleaseChain()
            if returns and chain.links:
                self._observe(seat, access.space.name, place, chain, order)
            if min(chain.narrowest, order.level) < SAME_GPU:
                strong = [
                    each for each in chain.links if self._relation(each, seat) <= min(each.level, order.level)
                ]  # only observation through morally strong operations goes on
                chain = ReleaseChain(strong, min((each.level for each in strong), default=3))
            self._extend(lane, seat, chain, order, access, place)

    def overwritten(self, access: Access) -> None:
        """Lanes write weakly: nobody observes what was released there."""
        chains = self._chains[access.space.name]
        if chains and self.active:
            for place in access.index.tolist():
                chains.pop(place, None)

    def _lanes_of(self, access: Access) -> Iterator[tuple[int, int, int]]:
        """(lane, warp, place) of each access; none if there are too many."""
        if not self.active or len(access.index) > MOST_SYNCHRONISING:
            return iter(())
        lanes = indices(access.sel)
        return zip(lanes.tolist(), self.clocks.seat[lanes].tolist(), access.index.tolist(), strict=True)

    def _observe(self, seat: int, space: str, place: int, chain: ReleaseChain, order: MemoryOrder) -> None:
        here = self._seen_at.setdefault((seat, space, place), {})
        here[chain] = self._seen[seat][chain] = len(chain.links), order.level
        self._acquired[seat] = -1
        for link in chain.links:
            if link.fences and self._relation(link, seat) <= min(order.level, link.level):
                self._observed[seat] |= link.fences
                self._sequential = True
        if order.acquire:
            self._acquired[seat] = min(order.level, SAME_GPU)
            self._join_all(seat, here, order.level)

    def _extend(
        self, lane: int, seat: int, chain: ReleaseChain, order: MemoryOrder, access: Access, place: int
    ) -> None:
        level, cluster = min(order.level, SAME_GPU), self._cluster(seat)
        moments: list[Moment | None] = []
        fence, here = self._fence_level[seat], (seat, access.space.name, place)
        fences = self._fences[seat], self._observed[seat]
        earlier = self._released_at.get(here, (None, None, None))
        for relation in _RELATIONS:
            if order.release and relation <= level:
                rows, before = self.clocks.present(np.array([seat]))[:, 0], self._known[seat]
                moments.append(Moment(cluster, rows, before, *fences))
            elif relation <= fence:
                rows, before = self._fenced[relation][:, seat].copy(), self._passed[relation][seat]
                if (release := earlier[relation]) is not None:
                    rows, before = np.maximum(rows, release.rows), before | release.before
                moments.append(Moment(cluster, rows, before, *self._fences_passed[seat]))
            else:
                moments.append(earlier[relation])
        if order.release:
            fence = max(fence, level)
            self._released_at[here] = moments[0], moments[1], moments[2]
            self.lanes.arrive(np.array([lane]))
        chain.links.append(
            _Link(
                *(seat, self._block(seat), cluster, lane % WARP, self.clocks.now, order.level, fence),
                *((moments[0], moments[1], moments[2]), fences[0]),
            )
        )
        chain.narrowest = min(chain.narrowest, order.level)
        self._chains[access.space.name][place] = chain

    def excuse(self, sel: Selection) -> None:
        """Lanes read data by volatile loads, which no cache holds: after a release that they have seen, these need no
        fence of their own (CUDA C++ Programming Guide, "Memory Fence Functions", the example of the last block)."""
        if self.active:
            for seat in self.clocks.seats(sel).tolist():
                if self._seen[seat] and self._acquired[seat] < SAME_GPU:
                    self._acquire(seat, SAME_GPU)

    # ---- barriers ---------------------------------------------------------------------------------------------------

    def post(self, key: Hashable, sel: Selection, home: Indices | None, *, fenced: int | None = None) -> None:
        """What the lanes know of other clusters is passed on with their arrival at a barrier.

        With ``fenced`` that is what they knew at their last fence that reaches threads in this relation.
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
        """The levels of the widest fences that these warps have executed so far; -1 of none."""
        return np.array([self._fence_level[seat] for seat in seats.tolist()])

    def fenced(self, relation: int) -> Array:
        """What came before each warp's last fence that reaches threads in this relation [planes, warps, actors]."""
        before: Array = self._fenced[relation]
        return before

    def collect(self, key: Hashable, sel: Selection, home: Indices | None) -> None:
        """The lanes leave a barrier."""
        if self._posted or self._posted_fences:
            for seat, cta in self._arrivals(sel, home):
                self.take(seat, key, cta)

    def take(self, seat: int, key: Hashable, cta: int) -> None:
        """A warp comes after what was passed on to a barrier of a CTA."""
        fences, observed = self._posted_fences.get((key, cta), (frozenset(), frozenset()))
        self._fences[seat] |= fences
        self._observed[seat] |= observed
        more = self._posted.get((key, cta), frozenset())
        if not more <= self._known[seat]:
            self._known[seat] |= more
            self._flat[seat] = None

    def publish(self, source: Hashable, target: Hashable, ctas: Mask) -> None:
        """What was released to ``source`` can be acquired from ``target``."""
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
        """Whether what an actor of another cluster did at a time comes before what this warp does now."""
        if not self._known[seat]:
            return False
        flat = self._flat[seat]
        if flat is None:
            flat = self._flat[seat] = _flatten(self._known[seat])
        row = flat.get(cluster)
        return row is not None and time <= int(row[actor])

    def comes_after_any(self, seat: int) -> bool:
        """Whether this warp comes after anything of another cluster."""
        return bool(self._known[seat])

    def advice(self, seat: int, block: int, time: int) -> str:
        """What keeps this warp from coming after what ``block`` did at a time; empty if neither it nor another warp of
        its CTA has read what that block wrote strongly since."""
        first = seat // self.machine.warps * self.machine.warps
        other = block != self._block(seat)
        for reader in (seat, *range(first, first + self.machine.warps)):
            for chain, (many, scope) in self._seen[reader].items():
                for link in chain.links[:many]:
                    if link.block == block and link.time >= time and (other or link.seat != reader):
                        return self._lack(link, reader, scope)
        return ""

    def _lack(self, link: _Link, seat: int, scope: int) -> str:
        relation = self._relation(link, seat)
        other, use = _WITHIN[relation], _FENCES[relation]
        if link.level < relation:
            return f"the operation that it saw is .{_SCOPES[link.level]}, and the reader is {other}: use .gpu"
        if scope < relation:
            return f"the operation that saw it is .{_SCOPES[scope]}, and the writer is {other}: use .gpu"
        if link.fence < 0:
            return f"no fence or release is between it and the operation that the other thread saw: use {use}"
        if link.fence < relation:
            return f"the fence is .{_SCOPES[link.fence]}, and the reader is {other}: use {use}"
        if self._acquired[seat] < 0:
            return f"the operation that saw the release is relaxed, and no fence follows it: use {use}"
        if self._acquired[seat] < relation:
            return f"the fence after it is .{_SCOPES[self._acquired[seat]]}, and the writer is {other}: use {use}"
        return _NOT_COVERED


def _flatten(moments: frozenset[Moment]) -> dict[int, Array]:
    """For each cluster, up to which time of each actor all these moments and those before them reach."""
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
