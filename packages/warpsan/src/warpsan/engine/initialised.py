"""The fence that the ``strict`` check requires between the initialisation of an mbarrier and copies that complete on
it: machine code (:mod:`~warpsan.engine.translate`).

The rules are those of :mod:`warpsan.checks.mbarrier_init`.
"""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.layout import (
    MB_UNFENCED,
    MB_VALID,
    MBARRIER_WORDS,
    MOST_MBARRIERS,
)
from warpsan.engine.words import load64, store64

__all__ = ["fence_mbarriers", "initialised_by"]


def initialised_by(context: Context, entry: int, lane: int) -> None:
    """A lane of the current warp has initialised an mbarrier."""
    store64(entry + 8 * MB_UNFENCED, 0)
    if context.needs_fence != 0:
        store64(entry + 8 * MB_UNFENCED, 32 * context.current + lane + 1)
        context.unfenced += 1


def fence_mbarriers(registers: int, record: int, mask: int, context: Context) -> int:
    """Lanes execute a fence: the mbarriers that they have initialised are visible in the async proxy."""
    if context.unfenced == 0:
        return 0
    first = 32 * context.current + 1
    for cta in range(context.cta_count):
        for k in range(MOST_MBARRIERS):
            entry = context.mbarriers + 8 * MBARRIER_WORDS * (MOST_MBARRIERS * cta + k)
            if load64(entry + 8 * MB_VALID) == 0:
                break
            lane = load64(entry + 8 * MB_UNFENCED) - first
            if lane >= 0 and lane < 32 and mask >> lane & 1:
                store64(entry + 8 * MB_UNFENCED, 0)
                context.unfenced -= 1
    return 0
