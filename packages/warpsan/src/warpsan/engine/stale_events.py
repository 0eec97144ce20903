"""Barrier events in launches with stale reads: machine code (:mod:`~warpsan.engine.translate`) that calls
:class:`~warpsan.engine.stale.StaleReads`. In other launches these functions have no effect."""

from __future__ import annotations

from warpsan.engine.layout import MB_CTA, MB_OFFSET, STALE_EVENT
from warpsan.engine.words import call_operation, load64

__all__ = [
    "ARRIVES",
    "COMPLETE",
    "LEAVES",
    "OF_BLOCK",
    "OF_CLUSTER",
    "OF_MBARRIER",
    "barrier_arrival",
    "barrier_complete",
    "barrier_leave",
    "cluster_arrival",
    "cluster_complete",
    "cluster_leave",
    "mbarrier_arrival",
    "mbarrier_complete",
    "mbarrier_leave",
]

ARRIVES, LEAVES, COMPLETE = 0, 1, 2
OF_BLOCK, OF_CLUSTER, OF_MBARRIER = 0, 4, 8
"""The event, and the kind of barrier."""


def happens(context: int, event: int, warp: int, cta: int, place: int, order: int) -> None:
    """Call Python in a launch with stale reads."""
    function = load64(context + 8 * STALE_EVENT)
    if function != 0:
        call_operation(function, event << 32 | warp, cta << 32 | place, order, context)


def barrier_arrival(context: int, warp: int, cta: int, name: int) -> None:
    """A warp arrives at a barrier of its CTA."""
    happens(context, OF_BLOCK | ARRIVES, warp, cta, name, 0)


def barrier_leave(context: int, warp: int, cta: int, name: int) -> None:
    """A warp leaves a barrier of its CTA."""
    happens(context, OF_BLOCK | LEAVES, warp, cta, name, 0)


def barrier_complete(context: int, cta: int, name: int) -> None:
    """All waiting warps have left a barrier of their CTA."""
    happens(context, OF_BLOCK | COMPLETE, 0, cta, name, 0)


def cluster_arrival(context: int, warp: int, cluster: int, relaxed: int) -> None:
    """A warp arrives at the barrier of its cluster."""
    happens(context, OF_CLUSTER | ARRIVES, warp, cluster, 0, relaxed)


def cluster_leave(context: int, warp: int, cluster: int) -> None:
    """A warp has waited for a phase of the barrier of its cluster."""
    happens(context, OF_CLUSTER | LEAVES, warp, cluster, 0, 0)


def cluster_complete(context: int, cluster: int) -> None:
    """A phase of the barrier of a cluster is complete."""
    happens(context, OF_CLUSTER | COMPLETE, 0, cluster, 0, 0)


def mbarrier_arrival(context: int, warp: int, entry: int, order: int) -> None:
    """A warp arrives at an mbarrier, with an order as in :func:`~.mbarriers.arrive_in_order`."""
    happens(context, OF_MBARRIER | ARRIVES, warp, load64(entry + 8 * MB_CTA), load64(entry + 8 * MB_OFFSET), order)


def mbarrier_leave(context: int, warp: int, entry: int, order: int) -> None:
    """A warp has waited for a phase of an mbarrier."""
    happens(context, OF_MBARRIER | LEAVES, warp, load64(entry + 8 * MB_CTA), load64(entry + 8 * MB_OFFSET), order)


def mbarrier_complete(context: int, entry: int) -> None:
    """A phase of an mbarrier is complete."""
    happens(context, OF_MBARRIER | COMPLETE, 0, load64(entry + 8 * MB_CTA), load64(entry + 8 * MB_OFFSET), 0)
