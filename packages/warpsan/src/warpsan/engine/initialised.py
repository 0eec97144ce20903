"""The fence that the ``strict`` check requires between the initialisation of an mbarrier and copies that complete on
it: machine code (:mod:`~warpsan.engine.translate`).

The rules are those of :mod:`warpsan.checks.mbarrier_init`.
"""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.layout import (
    MOST_MBARRIERS,
)
from warpsan.engine.memory import MbarrierState, Record

__all__ = ["fence_mbarriers", "initialised_by"]


def initialised_by(context: Context, entry: MbarrierState, lane: int) -> None:
    """A lane of the current warp has initialised an mbarrier."""
    entry.unfenced = 0
    if context.needs_fence != 0:
        entry.unfenced = 32 * context.current + lane + 1
        context.unfenced += 1


def fence_mbarriers(registers: int, record: Record, mask: int, context: Context) -> int:
    """Lanes execute a fence: the mbarriers that they have initialised are visible in the async proxy."""
    if context.unfenced == 0:
        return 0
    first = 32 * context.current + 1
    for cta in range(context.cta_count):
        for k in range(MOST_MBARRIERS):
            entry = context.mbarriers[MOST_MBARRIERS * cta + k]
            if entry.valid == 0:
                break
            lane = entry.unfenced - first
            if lane >= 0 and lane < 32 and mask >> lane & 1:
                entry.unfenced = 0
                context.unfenced -= 1
    return 0
