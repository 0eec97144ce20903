"""The checks of atomic operations on shared memory: machine code (:mod:`~warpsan.engine.translate`).

Atomic operations race with all other accesses, but not with each other (:mod:`warpsan.checks.race`, ``atomic``): an
update comes after all plain accesses, and a plain access after the updates of all warps, each of which has a plane.
"""

from __future__ import annotations

from warpsan.engine.clocks import vector_of, warps_of_cluster
from warpsan.engine.context import Context
from warpsan.engine.layout import (
    IN_SHARED,
    PAGE_SHIFT,
    RACE,
    SCRATCH_PLACES,
)
from warpsan.engine.suspects import suspect
from warpsan.engine.words import load64

__all__ = ["mark_updated", "page_updated", "updates_before"]


def page_updated(context: Context, cta: int, low: int, high: int, floor: int) -> int:
    """Whether there were updates after ``floor`` in the pages of a range."""
    if context.updaters == 0:
        return 0
    pages = context.page_updated.at(context.pages * cta)
    for page in range(low >> PAGE_SHIFT, (high >> PAGE_SHIFT) + 1):
        if pages[page] > floor:
            return 1
    return 0


def updates_before(context: Context, cta: int, mask: int, low: int, high: int, width: int) -> int:
    """Whether all updates of the places in the scratch come before the current warp's plain access. Returns a
    status."""
    warp = context.current
    floor = context.floors[warp]
    if page_updated(context, cta, low, high + width - 1, floor) == 0:
        return 0
    places = context.scratch + SCRATCH_PLACES
    shift, granules = context.granule_shift, context.granules
    many, warps = max(width >> shift, 1), warps_of_cluster(context)
    for other in range(warps):  # lanes of the current warp may have diverged
        known = vector_of(context, warp)[other]
        plane = context.updaters.at(granules * (warps * cta + other))
        for lane in range(32):
            if mask >> lane & 1:
                granule = load64(places + 8 * lane) >> shift
                for k in range(granule, granule + many):
                    if plane[k] > known:
                        status = suspect(context, IN_SHARED, granules * cta + k, RACE)
                        if status != 0:
                            return status
    return 0


def mark_updated(context: Context, cta: int, mask: int, width: int) -> None:
    """The current warp updates the places in the scratch."""
    warp = context.current
    now = context.clocks[warp]
    places = context.scratch + SCRATCH_PLACES
    shift, granules = context.granule_shift, context.granules
    plane = context.updaters.at(granules * (warps_of_cluster(context) * cta + warp))
    pages = context.page_updated.at(context.pages * cta)
    for lane in range(32):
        if mask >> lane & 1:
            offset = load64(places + 8 * lane)
            for k in range(max(width >> shift, 1)):
                plane[(offset >> shift) + k] = now
            page = pages.at(offset >> PAGE_SHIFT)
            page[0] = max(now, page[0])
