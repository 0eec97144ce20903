"""Order of threads through memory: releases and acquires (PTX ISA, "Memory Consistency Model").

A release pattern on a place is a release operation, or a fence and a later strong write; an acquire pattern is an
acquire operation, or a strong read and a later fence. If the read observes the write, directly or through later
read-modify-writes (a release sequence), and the writes, read and fences are morally strong, all accesses before the
release come before all accesses after the acquire ("Release and Acquire Patterns", "Synchronizes-With", "Causality
Order"). Causality needs no further scopes: a fence passes on accesses that a barrier has ordered before it. An
operation on the place stands for a fence in both patterns: a release before the strong write, an acquire after the
strong read.

A ``fence.sc`` (``__threadfence()`` is one) need not be of the writing or the reading thread. If the write comes after
one ``fence.sc``, and the read before another, in base causality order, the first must precede the second in Fence-SC
order, because otherwise the write would come after its own reader. The first therefore synchronises with the second. A
counter that one thread increments after a barrier thus covers the fences of all threads before the barrier, if the
readers have a ``fence.sc`` too.

The unit is a warp; :mod:`~warpsan.checks.causality` has its past.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from warpsan.analysis.derived import derived
from warpsan.checks.causality import RELATIONS, Causality, Fence, Moment, ObservedWrites
from warpsan.checks.clocks import Clocks
from warpsan.checks.orders import SAME_GPU, MemoryOrder, memory_order
from warpsan.engine.machine import Machine
from warpsan.engine.observer import Access
from warpsan.engine.selection import WARP, Selection, indices
from warpsan.ptx.ir import Entry
from warpsan.ptx.opcodes import opcode_of

__all__ = ["MOST_SYNCHRONISING", "ReleaseChain", "Synchronisation", "synchronises"]

MOST_SYNCHRONISING = 1024
"""Most lanes of a step of atomic operations that orders accesses; histograms and sums have more, and order nothing."""
_Moments = tuple[Moment | None, Moment | None, Moment | None]
"""The released vector, by relation of the acquiring thread."""
_Place = tuple[int, str, int]
"""A warp, and a place of a memory space."""


@dataclass(frozen=True, eq=False)
class _Link:
    """A strong write in a chain, and its releases to threads of its CTA, its cluster and the GPU."""

    seat: int
    """The writing warp, in its chunk."""
    block: int
    cluster: int
    lane: int
    time: int
    level: int
    fence: int
    """The scope of the widest fence before it, or of its own release; -1 for neither."""
    moments: _Moments
    fences: frozenset[Fence]
    """The ``fence.sc`` before it."""


@dataclass(eq=False)
class ReleaseChain:
    """The strong write whose value a place has, and the earlier writes of its release sequence."""

    links: list[_Link] = field(default_factory=list)
    narrowest: int = 3
    """The narrowest scope among them."""
    fenced: int = 0
    """The number of writes up to the last with a ``fence.sc`` before it."""


@derived
def synchronises(entry: Entry) -> bool:
    """Whether a kernel has the instructions of acquire or release patterns."""
    for instruction in entry.instructions:
        if instruction.opcode in ("fence", "membar") and "proxy" not in instruction.mods:
            return True
        if opcode_of(instruction).memory:
            order = memory_order(instruction)
            if order.acquire or order.release:
                return True
    return False


class Synchronisation(Causality):
    """Releases and acquires of the warps of a machine.

    Parameters
    ----------
    machine : Machine
    clocks : Clocks
    chains : dict
        The chains of places of global memory, from all chunks of the launch.
    """

    def __init__(self, machine: Machine, clocks: Clocks, chains: dict[int, ReleaseChain]) -> None:
        super().__init__(machine, clocks, active=synchronises(machine.entry))
        seats = machine.n_cta * machine.warps
        self._chains: dict[str, dict[int, ReleaseChain]] = {"global": chains, "shared": {}}
        self._seen: list[dict[ReleaseChain, tuple[int, int]]] = [{} for _ in range(seats)]
        """For each warp, the chains that it has read: the number of links, and the scope of the read."""
        self._seen_at: dict[_Place, dict[ReleaseChain, tuple[int, int]]] = {}
        """The same chains, by place."""
        self._looked: list[dict[ReleaseChain, tuple[int, int]]] = [{} for _ in range(seats)]
        """For each warp, the number of links of a chain whose fences it has observed, and the scope."""
        self._joined: list[dict[ReleaseChain, tuple[int, int]]] = [{} for _ in range(seats)]
        """The same for the releases of the links."""
        self._released_at: dict[_Place, _Moments] = {}
        """The vector of a warp's last release operation on a place."""
        self._acquired: list[int] = [-1] * seats
        """For each warp, the scope of the widest fence since its last read of a chain."""

    def reset(self) -> None:
        """A new chunk of CTAs."""
        super().reset()
        seats = len(self._acquired)
        self._chains["shared"].clear()
        self._acquired = [-1] * seats
        for seen in (self._seen, self._looked, self._joined):
            seen[:] = [{} for _ in range(seats)]
        for table in (self._released_at, self._seen_at):
            table.clear()

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
            self._release_by_fence(seats, level)

    def _relation(self, link: _Link, seat: int) -> int:
        return self._relation_to(link.block, link.cluster, seat)

    def _acquire(self, seat: int, level: int) -> None:
        """The warp acquires the links that it has read, through a fence or operation of scope ``level``."""
        self._acquired[seat] = max(self._acquired[seat], level)
        self._join_all(seat, self._seen[seat], level)

    def _join_all(self, seat: int, seen: dict[ReleaseChain, tuple[int, int]], level: int) -> None:
        for chain, (many, scope) in seen.items():
            first = _fresh(self._joined[seat], chain, many, min(level, scope))
            links = chain.links[first:many]
            joined = [link for link in links if self._relation(link, seat) <= min(level, scope, link.level)]
            self._join(seat, joined)

    def _join(self, seat: int, links: Sequence[_Link]) -> None:
        moments = []
        for link in links:
            moment = link.moments[self._relation(link, seat)]
            if moment is None:
                continue
            moments.append(moment)
        self._come_after(seat, moments)

    # ---- strong operations ------------------------------------------------------------------------------------------

    def read(self, access: Access, order: MemoryOrder) -> None:
        """Lanes read strongly; each warp reads each place once."""
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
        """Lanes read and write in one operation, in lane order: the chain of each place continues."""
        for lane, seat, place in self._lanes_of(access):
            chain = self._chains[access.space.name].get(place) or ReleaseChain()
            if returns and chain.links:
                self._observe(seat, access.space.name, place, chain, order)
            if min(chain.narrowest, order.level) < SAME_GPU:
                strong = [
                    each for each in chain.links if self._relation(each, seat) <= min(each.level, order.level)
                ]  # only observation through morally strong operations continues the chain
                if len(strong) < len(chain.links):
                    fenced = max((k + 1 for k, each in enumerate(strong) if each.fences), default=0)
                    chain = ReleaseChain(strong, min((each.level for each in strong), default=3), fenced)
            self._extend(lane, seat, chain, order, access, place)

    def overwritten(self, access: Access) -> None:
        """Lanes write weakly: earlier releases on the place can no longer be observed."""
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
        first = _fresh(self._looked[seat], chain, len(chain.links), order.level)
        if min(order.level, chain.narrowest) >= SAME_GPU:  # the scope of each includes the other thread
            if first < chain.fenced:
                self._observed[seat] |= {ObservedWrites(chain.links, first, chain.fenced)}
                self._sequential = True
        else:
            for link in chain.links[first:]:
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
        for relation in RELATIONS:
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
        chain.links.append(
            _Link(
                *(seat, self._block(seat), cluster, lane % WARP, self.clocks.now, order.level, fence),
                *((moments[0], moments[1], moments[2]), fences[0]),
            )
        )
        chain.narrowest = min(chain.narrowest, order.level)
        if fences[0]:
            chain.fenced = len(chain.links)
        self._chains[access.space.name][place] = chain

    def excuse(self, sel: Selection) -> None:
        """Lanes read data by volatile loads, which no cache holds: after an observed release, these need no fence of
        their own (CUDA C++ Programming Guide, "Memory Fence Functions", the example of the last block)."""
        if self.active:
            for seat in self.clocks.seats(sel).tolist():
                if self._seen[seat] and self._acquired[seat] < SAME_GPU:
                    self._acquire(seat, SAME_GPU)


def _fresh(done: dict[ReleaseChain, tuple[int, int]], chain: ReleaseChain, many: int, level: int) -> int:
    """The number of links of a chain that are already acquired at this level or a wider one; records the others, up
    to ``many``, as acquired."""
    before, widest = done.get(chain, (0, -1))
    if level >= widest:
        done[chain] = many, level
    return before if level <= widest else 0
