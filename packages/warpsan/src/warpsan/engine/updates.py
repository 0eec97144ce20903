"""The checks of atomic operations on shared memory: machine code (:mod:`~warpsan.engine.translate`).

Atomic operations race with all other accesses, but not with each other (:mod:`warpsan.checks.race`, ``atomic``): an
update comes after all plain accesses, and a plain access after the updates of all warps, each of which has a plane.
"""

from __future__ import annotations

from warpsan.engine.clocks import vector_of, warps_of_cluster
from warpsan.engine.layout import (
    CLOCKS,
    CURRENT,
    CURRENT_STATE,
    FLOORS,
    GRANULE_SHIFT,
    GRANULES,
    IN_SHARED,
    PAGE_SHIFT,
    PAGE_UPDATED,
    PAGES,
    RACE,
    SCRATCH,
    SCRATCH_PLACES,
    UPDATERS,
    WARP_CTA,
)
from warpsan.engine.suspects import suspect
from warpsan.engine.words import load32, load64, store32, store64

__all__ = ["mark_updated", "page_updated", "updates_before"]


def page_updated(context: int, cta: int, low: int, high: int, floor: int) -> int:
    """Whether there were updates after ``floor`` in the pages of a range."""
    if load64(context + 8 * UPDATERS) == 0:
        return 0
    pages = load64(context + 8 * PAGE_UPDATED) + 8 * load64(context + 8 * PAGES) * cta
    for page in range(low >> PAGE_SHIFT, (high >> PAGE_SHIFT) + 1):
        if load64(pages + 8 * page) > floor:
            return 1
    return 0


def updates_before(context: int, mask: int, low: int, high: int, width: int) -> int:
    """Whether all updates of the places in the scratch come before the current warp's plain access. Returns a
    status."""
    warp = load64(context + 8 * CURRENT)
    cta = load64(load64(context + 8 * CURRENT_STATE) + 8 * WARP_CTA)
    floor = load64(load64(context + 8 * FLOORS) + 8 * warp)
    if page_updated(context, cta, low, high + width - 1, floor) == 0:
        return 0
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    shift, granules = load64(context + 8 * GRANULE_SHIFT), load64(context + 8 * GRANULES)
    many, warps = max(width >> shift, 1), warps_of_cluster(context)
    for other in range(warps):  # lanes of the current warp may have diverged
        known = load64(vector_of(context, warp) + 8 * other)
        plane = load64(context + 8 * UPDATERS) + 4 * granules * (warps * cta + other)
        for lane in range(32):
            if mask >> lane & 1:
                granule = load64(places + 8 * lane) >> shift
                for k in range(granule, granule + many):
                    if load32(plane + 4 * k) > known:
                        status = suspect(context, IN_SHARED, granules * cta + k, RACE)
                        if status != 0:
                            return status
    return 0


def mark_updated(context: int, mask: int, width: int) -> None:
    """The current warp updates the places in the scratch."""
    warp = load64(context + 8 * CURRENT)
    cta = load64(load64(context + 8 * CURRENT_STATE) + 8 * WARP_CTA)
    now = load64(load64(context + 8 * CLOCKS) + 8 * warp)
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    shift, granules = load64(context + 8 * GRANULE_SHIFT), load64(context + 8 * GRANULES)
    plane = load64(context + 8 * UPDATERS) + 4 * granules * (warps_of_cluster(context) * cta + warp)
    pages = load64(context + 8 * PAGE_UPDATED) + 8 * load64(context + 8 * PAGES) * cta
    for lane in range(32):
        if mask >> lane & 1:
            offset = load64(places + 8 * lane)
            for k in range(max(width >> shift, 1)):
                store32(plane + 4 * ((offset >> shift) + k), now)
            page = pages + 8 * (offset >> PAGE_SHIFT)
            store64(page, max(now, load64(page)))
