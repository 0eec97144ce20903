"""Arrivals at mbarriers and waits for their phases, with their orders and scopes (PTX ISA, "mbarrier.arrive",
"mbarrier.test_wait, mbarrier.try_wait").

An arrival releases and a wait acquires by default. The two synchronise if the scope of each includes the other thread:
``.cta`` is enough within the CTA that has the mbarrier; an arrival from another CTA and the wait for it need
``.cluster``. Each mbarrier therefore has two vectors: one for arrivals of its own CTA, one for arrivals of other CTAs.
A relaxed arrival passes on the vector of the last releasing fence before it, and a relaxed wait acquires at the next
fence ("Release and Acquire Patterns").

PTX defines ``.cta`` as the scope of an instruction without one. Pipelines of a cluster write no scope (CUTLASS's
``ClusterBarrier`` is one), so only the ``strict`` check applies the default to them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np

from warpsan.checks.clocks import Clocks, far
from warpsan.checks.lanes import LaneOrder
from warpsan.checks.orders import SAME_CLUSTER, SAME_CTA, MemoryOrder, arrival_order
from warpsan.checks.scopes import Synchronisation
from warpsan.engine.machine import Machine
from warpsan.engine.observer import CompletionBarrier
from warpsan.engine.selection import Array, Indices, Mask, Selection, indices, subset
from warpsan.ptx.grammar import has_form
from warpsan.ptx.ir import Instruction
from warpsan.ptx.synchronising import MbarrierTest

__all__ = ["Arrivals"]

_RELAXED_ARRIVAL = "the arrival at the mbarrier is .relaxed: use .release, or a fence before it"
_TOO_EARLY = "the arrival at the mbarrier is .relaxed, and the access is not before its fence: use .release"
_RELAXED_IN_CLUSTER = "the arrival at the barrier of the cluster is .relaxed: use .release, or a fence before it"
_NARROW_ARRIVAL = (
    "the arrival at the mbarrier is .cta, and the thread that waits is in another block of the cluster: use "
    ".release.cluster"
)
_RELAXED_WAIT = "the wait for the mbarrier is .relaxed: use .acquire, or a fence behind it"
_NARROW_WAIT = (
    "the wait for the mbarrier is .cta, and the other thread is in another block of the cluster: use .acquire.cluster"
)


class Arrivals:
    """Passes the order of arrivals at mbarriers on to the threads that wait.

    Parameters
    ----------
    machine : Machine
    clocks : Clocks
    sync : Synchronisation
    lanes : LaneOrder
    default_scope_is_cta : bool
        Whether an instruction without a scope has the scope ``.cta``, as PTX defines.
    """

    def __init__(
        self, machine: Machine, clocks: Clocks, sync: Synchronisation, lanes: LaneOrder, *, default_scope_is_cta: bool
    ) -> None:
        self.machine, self.clocks, self.sync, self.lanes, self.default_scope_is_cta = (
            machine,
            clocks,
            sync,
            lanes,
            default_scope_is_cta,
        )
        self._read: dict[int, list[tuple[int, Array, Hashable, int]]] = {}
        """The observations of each warp's relaxed waits: relation, released vector and place."""
        self._lacking: dict[tuple[int, int, str], int] = {}
        """Time of the last such arrival, by arriving block, CTA of the mbarrier and missing qualifier."""
        self._waits: dict[int, str] = {}
        """The qualifier that the last wait of each warp was missing."""
        self._released: dict[tuple[int, int], int] = {}
        """Time of the last release, by arriving block and CTA of the mbarrier; kept if waits may miss a qualifier."""
        self._any_waits = any(map(self._may_lack, machine.entry.instructions))

    def reset(self) -> None:
        """A new chunk of CTAs."""
        for table in (self._read, self._lacking, self._waits, self._released):
            table.clear()

    def _may_lack(self, instruction: Instruction) -> bool:
        """Whether a wait does not acquire from all threads of a cluster."""
        if not has_form(instruction, MbarrierTest):
            return False
        order = arrival_order(instruction)
        return not order.acquire or (self.machine.cluster_size > 1 and self._level(order) < SAME_CLUSTER)

    def _level(self, order: MemoryOrder) -> int:
        return SAME_CLUSTER if order.implied and not self.default_scope_is_cta else order.level

    # ---- events -----------------------------------------------------------------------------------------------------

    def arrive(self, barrier: CompletionBarrier, sel: Selection, order: MemoryOrder) -> None:
        """Lanes arrive."""
        for relation, lanes, home in self._by_relation(barrier, sel):
            key = barrier.key if relation == SAME_CTA else far(barrier.key)
            if self._level(order) < relation:
                self._lack(lanes, home, _NARROW_ARRIVAL)
                continue
            if order.release:
                self.lanes.arrive(lanes)
                self.sync.post(key, lanes, home)
                self.clocks.release(key, lanes, home)
            else:
                fenced = self.sync.fence_levels(self.clocks.seats(lanes)) >= relation
                self._lack(lanes, home, _TOO_EARLY if fenced.all() else _RELAXED_ARRIVAL)
                if self.sync.active:
                    self.sync.post(key, lanes, home, fenced=relation)
                    self.clocks.release(key, lanes, home, fenced=self.sync.fenced(relation))
            if self._any_waits:
                self._released |= dict.fromkeys(self._blocks(lanes, home), self.clocks.now)

    def arrive_in_cluster(self, sel: Selection) -> None:
        """Lanes arrive, relaxed, at the barrier of their cluster: accesses of each CTA after its last fence are not
        released."""
        first = self.machine.cta[sel] // self.machine.cluster_size * self.machine.cluster_size
        for rank in range(self.machine.cluster_size):
            self._lack(sel, first + rank, _RELAXED_IN_CLUSTER)

    def leave(self, barrier: CompletionBarrier, sel: Selection, order: MemoryOrder) -> None:
        """The phase that lanes have waited for is complete."""
        keys = [barrier.key, far(barrier.key)] if self.machine.cluster_size > 1 else [barrier.key]
        level = self._level(order)
        if len(keys) > level + 1 or not order.acquire:
            text = _NARROW_WAIT if order.acquire else _RELAXED_WAIT
            self._waits |= dict.fromkeys(self.clocks.seats(sel).tolist(), text)
        for relation, key in enumerate(keys[: level + 1]):
            target = (key, "complete")
            if order.acquire:
                self.lanes.leave(sel)
                self.sync.collect(target, sel, barrier.home)
                self.clocks.acquire(target, sel, barrier.home)
            else:
                self._observe(relation, target, sel, barrier.home)

    def _observe(self, relation: int, target: Hashable, sel: Selection, home: Indices) -> None:
        """Relaxed waits keep the released vector for the next fence."""
        for seat, cta in set(zip(self.clocks.seat[sel].tolist(), home.tolist(), strict=True)):
            rows = self.clocks.passed_on(target, cta)
            if rows is not None:
                self._read.setdefault(seat, []).append((relation, rows, target, cta))

    def publish(self, source: Hashable, target: Hashable, ctas: Mask) -> None:
        """A phase is complete."""
        for one, other in ((source, target), (far(source), (far(source), "complete"))):
            self.sync.publish(one, other, ctas)
            self.clocks.publish(one, other, ctas)

    def fence(self, sel: Selection, order: MemoryOrder) -> None:
        """Lanes execute a fence, which acquires the observations of their relaxed waits."""
        if not self._read or not order.acquire:
            return
        for seat in self.clocks.seats(sel).tolist():
            left = []
            for entry in self._read.pop(seat, []):
                relation, rows, target, cta = entry
                if relation > order.level:
                    left.append(entry)
                    continue
                self.clocks.join(seat, rows)
                self.sync.take(seat, target, cta)
                self.lanes.leave(sel)
            if left:
                self._read[seat] = left

    # ---- questions --------------------------------------------------------------------------------------------------

    def advice(self, seat: int, block: int, time: int) -> str:
        """The qualifier that an arrival of ``block``, or a wait of this warp or another of its CTA, was missing, so
        that the warp does not come after the accesses of ``block`` at a time; empty if none was missing."""
        cta = seat // self.machine.warps
        lacks = [text for (*pair, text), last in self._lacking.items() if pair == [block, cta] and last >= time]
        for text in lacks:
            if text != _TOO_EARLY:
                return text
        released = self._released.get((block, cta), -1) >= time
        return (self.wait_advice(seat) if released else "") or next(iter(lacks), "")

    def wait_advice(self, seat: int) -> str:
        """The qualifier that the last wait of this warp, or of another of its CTA, was missing."""
        first = seat // self.machine.warps * self.machine.warps
        return next(
            (self._waits[each] for each in (seat, *range(first, first + self.machine.warps)) if each in self._waits), ""
        )

    # ---- who --------------------------------------------------------------------------------------------------------

    def _by_relation(self, barrier: CompletionBarrier, sel: Selection) -> Iterator[tuple[int, Selection, Indices]]:
        """(relation to the CTA of the mbarrier, lanes, CTAs of their mbarriers)."""
        if self.machine.cluster_size == 1:
            yield SAME_CTA, sel, barrier.home
            return
        near = self.machine.cta[sel] == barrier.home
        for relation, mask in ((SAME_CTA, near), (SAME_CLUSTER, ~near)):
            if mask.all():
                yield relation, sel, barrier.home
            elif mask.any():
                yield relation, subset(sel, mask), barrier.home[mask]

    def _lack(self, sel: Selection, home: Indices, text: str) -> None:
        for block, cta in self._blocks(sel, home):
            self._lacking[block, cta, text] = self.clocks.now

    def _blocks(self, sel: Selection, home: Indices) -> set[tuple[int, int]]:
        """(block of the lanes, CTA of the chunk that has their mbarrier)."""
        blocks = self.machine.cta_ids[self.machine.cta[indices(sel)]]
        return set(zip(blocks.tolist(), np.asarray(home).tolist(), strict=True))
