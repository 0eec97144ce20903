"""Passing views on: releases and acquires, fences, barriers and mbarriers (PTX ISA, "Release and Acquire Patterns",
"Causality Order")."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from warpsan.checks.clocks import far
from warpsan.checks.orders import BARRIER, SAME_CLUSTER, SAME_CTA, SAME_GPU, MemoryOrder, fence_order
from warpsan.engine.observer import CompletionBarrier
from warpsan.engine.selection import Indices, Mask, Selection
from warpsan.ptx.ir import Entry, Instruction
from warpsan.weak.history import Release, Write
from warpsan.weak.views import FenceOrder, View
from warpsan.weak.warps import WarpTable, WarpViews

__all__ = ["PassedViews"]

_RELATIONS = (SAME_CTA, SAME_CLUSTER, SAME_GPU)


class PassedViews:
    """Keeps the views that warps have released, by their target.

    Parameters
    ----------
    entry : Entry
    warps : WarpTable
    """

    def __init__(self, entry: Entry, warps: WarpTable) -> None:
        self.warps = warps
        self._objects: dict[tuple[Hashable, int], View] = {}
        """The view released to each barrier, by its key and its CTA among the resident ones."""
        sequential = [fence_order(each).level for each in entry.instructions if _sequential(each)]
        self._levels = {min(level, SAME_GPU) for level in sequential}
        self._orders: dict[tuple[int, int], FenceOrder] = {}
        """The Fence-SC orders, by one of these levels and the block, the cluster or 0."""

    def clear(self) -> None:
        """Begin with other threads, which have their own barriers."""
        self._objects.clear()

    # ---- strong operations ------------------------------------------------------------------------------------------

    def observe(
        self, warp: WarpViews, place: tuple[str, int], write: Write, order: MemoryOrder, *, returns: bool
    ) -> list[Release]:
        """A warp's strong operation has read a write that is morally strong to it. Returns the releases that it
        observes, and that its own atomic write passes on. A reduction, which returns no value, acquires none of
        them."""
        if write.warp != warp.number:
            warp.view.seen.add(write.number)
        for release in write.released if returns else ():
            relation = self.warps.relation(warp, release.block)
            view = release.views[relation]
            if view is None:
                continue
            if order.acquire and relation <= order.level:
                warp.view.join(view)
            _join(warp.observed, relation, view)
            _join(warp.observed_at.setdefault(place, [None, None, None]), relation, view)
        return write.released

    def acquire_again(self, warp: WarpViews, place: tuple[str, int], order: MemoryOrder) -> None:
        """An acquire operation also acquires earlier observations of strong reads of its place."""
        for relation, view in enumerate(warp.observed_at.get(place, ())):
            if view is not None and relation <= order.level:
                warp.view.join(view)

    def release_write(
        self, warp: WarpViews, place: tuple[str, int], write: Write, order: MemoryOrder, observed: list[Release]
    ) -> None:
        """The releases that a strong write makes visible to its observers."""
        before = warp.released_to.get(place, [None, None, None])
        views: list[View | None] = []
        present = self.warps.present(warp) if order.release else None
        for relation in _RELATIONS:
            if present is not None and relation <= order.level:
                views.append(present)
                _join(warp.released_to.setdefault(place, [None, None, None]), relation, present)
            else:
                both: list[View | None] = [None]
                for view in filter(None, (warp.fenced[relation], before[relation])):
                    _join(both, 0, view)
                views.append(both[0])
        write.released = observed
        if any(view is not None for view in views):
            write.released = [*observed, Release(warp.block, (views[0], views[1], views[2]))]

    def fence(self, sel: Selection, instruction: Instruction) -> None:
        """Fences acquire earlier observations, and release earlier accesses to later strong writes; those of
        ``fence.sc`` are in one order."""
        order = fence_order(instruction)
        level = min(order.level, SAME_GPU)
        self.warps.time += 1
        for warp in self.warps.each(sel):
            for relation in range(level + 1):
                view = warp.observed[relation]
                if order.acquire and view is not None:
                    warp.view.join(view)
            if _sequential(instruction):
                groups = enumerate((warp.block, warp.cluster, 0)[: level + 1])
                orders = [self._orders.setdefault(each, FenceOrder()) for each in groups if each[0] in self._levels]
                for each in orders:
                    each.lead_to(warp.view)
                present = self.warps.present(warp)
                for each in orders:
                    each.append(present)
            if order.release:
                present = self.warps.present(warp)
                warp.fenced[: level + 1] = [present] * (level + 1)

    # ---- barriers ---------------------------------------------------------------------------------------------------

    def release(self, key: Hashable, sel: Selection, home: Indices | None = None, order: MemoryOrder = BARRIER) -> None:
        """Warps arrive at a barrier."""
        for warp, cta in self.warps.arriving(sel, home):
            view = self.warps.present(warp) if order.release else warp.fenced[SAME_CLUSTER]
            if view is not None:
                self._objects.setdefault((key, cta), View()).join(view)

    def arrive(self, barrier: CompletionBarrier, sel: Selection, order: MemoryOrder) -> None:
        """Warps arrive at an mbarrier; as in :mod:`warpsan.checks.arrivals` without ``strict``."""
        for warp, cta in self.warps.arriving(sel, barrier.home):
            relation = self.warps.relation(warp, int(self.warps.threads.cta_ids[cta]))
            view = self.warps.present(warp) if order.release else warp.fenced[relation]
            if view is not None and (order.implied or relation <= order.level):
                self._objects.setdefault((_at(barrier, relation), cta), View()).join(view)

    def leave(self, barrier: CompletionBarrier, sel: Selection, order: MemoryOrder) -> None:
        """Warps have waited for a phase of an mbarrier."""
        for warp, cta in self.warps.arriving(sel, barrier.home):
            for relation in range((SAME_CLUSTER if order.implied else order.level) + 1):
                view = self._objects.get(((_at(barrier, relation), "complete"), cta))
                if view is not None and order.acquire:
                    warp.view.join(view)
                elif view is not None:
                    _join(warp.observed, relation, view.copy())

    def acquire(self, key: Hashable, sel: Selection, home: Indices | None = None) -> None:
        """Warps leave a barrier."""
        for warp, cta in self.warps.arriving(sel, home):
            if (key, cta) in self._objects:
                warp.view.join(self._objects[key, cta])

    def publish(self, source: Hashable, target: Hashable, ctas: Mask) -> None:
        """Views released to ``source`` can be acquired from ``target``."""
        for cta in np.flatnonzero(ctas).tolist():
            for one, other in ((source, target), (far(source), (far(source), "complete"))):
                view = self._objects.pop((one, cta), None)
                if view is not None:
                    self._objects.setdefault((other, cta), View()).join(view)

    def forget(self, key: Hashable, ctas: Mask) -> None:
        """Reset ``key``."""
        for cta in np.flatnonzero(ctas).tolist():
            self._objects.pop((key, cta), None)


def _at(barrier: CompletionBarrier, relation: int) -> Hashable:
    """The key for releases of threads in this relation to an mbarrier's CTA."""
    return barrier.key if relation == SAME_CTA else far(barrier.key)


def _sequential(instruction: Instruction) -> bool:
    """Whether it is a ``fence.sc``; ``membar`` is one ("membar, fence")."""
    return instruction.opcode == "membar" or (instruction.opcode == "fence" and "sc" in instruction.mods)


def _join(views: list[View | None], place: int, view: View) -> None:
    """Add a view to one of ``views``, all of which are immutable."""
    mine = views[place]
    if mine is None:
        views[place] = view
    elif mine is not view:
        both = mine.copy()
        both.join(view)
        views[place] = both
