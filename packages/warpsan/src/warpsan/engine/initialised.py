"""The fence that the ``strict`` check requires between the initialisation of an mbarrier and copies that complete on
it: machine code (:mod:`~warpsan.engine.translate`).

The rules are those of :mod:`warpsan.checks.mbarrier_init`.
"""

from __future__ import annotations

from warpsan.engine.layout import (
    CTA_COUNT,
    CURRENT,
    MB_UNFENCED,
    MB_VALID,
    MBARRIER_WORDS,
    MBARRIERS,
    MOST_MBARRIERS,
    NEEDS_FENCE,
    UNFENCED,
)
from warpsan.engine.words import load64, store64

__all__ = ["fence_mbarriers", "initialised_by"]


def initialised_by(context: int, entry: int, lane: int) -> None:
    """A lane of the current warp has initialised an mbarrier."""
    store64(entry + 8 * MB_UNFENCED, 0)
    if load64(context + 8 * NEEDS_FENCE) != 0:
        store64(entry + 8 * MB_UNFENCED, 32 * load64(context + 8 * CURRENT) + lane + 1)
        store64(context + 8 * UNFENCED, load64(context + 8 * UNFENCED) + 1)


def fence_mbarriers(registers: int, record: int, mask: int, context: int) -> int:
    """Lanes execute a fence: the mbarriers that they have initialised are visible in the async proxy."""
    if load64(context + 8 * UNFENCED) == 0:
        return 0
    first = 32 * load64(context + 8 * CURRENT) + 1
    for cta in range(load64(context + 8 * CTA_COUNT)):
        for k in range(MOST_MBARRIERS):
            entry = load64(context + 8 * MBARRIERS) + 8 * MBARRIER_WORDS * (MOST_MBARRIERS * cta + k)
            if load64(entry + 8 * MB_VALID) == 0:
                break
            lane = load64(entry + 8 * MB_UNFENCED) - first
            if lane >= 0 and lane < 32 and mask >> lane & 1:
                store64(entry + 8 * MB_UNFENCED, 0)
                store64(context + 8 * UNFENCED, load64(context + 8 * UNFENCED) - 1)
    return 0
