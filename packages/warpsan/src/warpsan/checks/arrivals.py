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

from warpsan.checks.clocks import Clocks, far
from warpsan.checks.orders import SAME_CLUSTER, SAME_CTA, MemoryOrder
from warpsan.checks.scopes import Synchronisation
from warpsan.engine.machine import Machine
from warpsan.engine.observer import CompletionBarrier
from warpsan.engine.selection import Array, Indices, Mask, Selection, subset

__all__ = ["Arrivals"]


class Arrivals:
    """Passes the order of arrivals at mbarriers on to the threads that wait.

    Parameters
    ----------
    machine : Machine
    clocks : Clocks
    sync : Synchronisation
    default_scope_is_cta : bool
        Whether an instruction without a scope has the scope ``.cta``, as PTX defines.
    """

    def __init__(self, machine: Machine, clocks: Clocks, sync: Synchronisation, *, default_scope_is_cta: bool) -> None:
        self.machine, self.clocks, self.sync = machine, clocks, sync
        self.default_scope_is_cta = default_scope_is_cta
        self._read: dict[int, list[tuple[int, Array, Hashable, int]]] = {}
        """The observations of each warp's relaxed waits: relation, released vector and place."""

    def reset(self) -> None:
        """A new chunk of CTAs."""
        self._read.clear()

    def _level(self, order: MemoryOrder) -> int:
        return SAME_CLUSTER if order.implied and not self.default_scope_is_cta else order.level

    # ---- events -----------------------------------------------------------------------------------------------------

    def arrive(self, barrier: CompletionBarrier, sel: Selection, order: MemoryOrder) -> None:
        """Lanes arrive."""
        for relation, lanes, home in self._by_relation(barrier, sel):
            key = barrier.key if relation == SAME_CTA else far(barrier.key)
            if self._level(order) < relation:
                continue
            if order.release:
                self.sync.post(key, lanes, home)
                self.clocks.release(key, lanes, home)
            elif self.sync.active:
                self.sync.post(key, lanes, home, fenced=relation)
                self.clocks.release(key, lanes, home, fenced=self.sync.fenced(relation))

    def leave(self, barrier: CompletionBarrier, sel: Selection, order: MemoryOrder) -> None:
        """The phase that lanes have waited for is complete."""
        keys = [barrier.key, far(barrier.key)] if self.machine.cluster_size > 1 else [barrier.key]
        level = self._level(order)
        for relation, key in enumerate(keys[: level + 1]):
            target = (key, "complete")
            if order.acquire:
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
            if left:
                self._read[seat] = left

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
