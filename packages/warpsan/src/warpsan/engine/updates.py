"""The checks of strong accesses to shared memory: machine code (:mod:`~warpsan.engine.translate`).

Strong accesses do not race with each other: an atomic operation or a strong write, which counts as one, comes after all
weak accesses, and a strong read after all weak writes. A weak access comes after the updates of all warps, each of
which has a plane of times; a weak write also comes after their strong reads.
"""

from __future__ import annotations

from warpsan.engine.clocks import vector_of, warps_of_cluster
from warpsan.engine.context import Context
from warpsan.engine.layout import (
    PAGE_SHIFT,
    RACE,
)
from warpsan.engine.races import changed_lanes, race
from warpsan.engine.rules import OVERWRITES_READ, OVERWRITES_UPDATED
from warpsan.engine.structs import Ptr, i32

__all__ = ["mark_updated", "mark_watched", "page_updated", "updater_at", "updates_before", "watches_before"]


def page_updated(context: Context, cta: int, low: int, high: int, floor: int) -> int:
    """Whether there were updates or strong reads after ``floor`` in the pages of a range."""
    if context.page_updated == 0:
        return 0
    pages = context.page_updated.at(context.pages * cta)
    for page in range(low >> PAGE_SHIFT, (high >> PAGE_SHIFT) + 1):
        if pages[page] > floor:
            return 1
    return 0


def updates_before(context: Context, cta: int, mask: int, width: int, rule: int) -> int:
    """Whether all updates of the places in the context come before the current warp's weak access, which otherwise
    breaks a rule. Returns a status."""
    return planes_before(context, context.updaters, context.update_parties, cta, mask, width, rule)


def watches_before(context: Context, cta: int, mask: int, width: int) -> int:
    """The same for all strong reads before a weak write."""
    if context.watchers == 0:
        return 0
    return planes_before(context, context.watchers, context.watch_parties, cta, mask, width, OVERWRITES_READ)


def planes_before(
    context: Context, planes: Ptr[i32], parties: Ptr[i32], cta: int, mask: int, width: int, rule: int
) -> int:
    """Whether the accesses of all warps in their planes come before the current warp's. Returns a status."""
    if planes == 0:
        return 0
    warp, places = context.current, context.places
    shift, granules = context.granule_shift, context.granules
    many, warps = max(width >> shift, 1), warps_of_cluster(context)
    counts, raced = -1 if rule in (OVERWRITES_UPDATED, OVERWRITES_READ) else mask, 0
    for other in range(warps):  # lanes of the current warp may have diverged
        known = vector_of(context, warp)[other]
        first = granules * (warps * cta + other)
        plane = planes.at(first)
        for lane in range(32):
            if mask >> lane & 1:
                offset = places[lane]
                for k in range(offset >> shift, (offset >> shift) + many):
                    if plane[k] <= known:
                        continue
                    status = 0
                    if other == warp and context.lane_marks != 0:
                        continue
                    if other == warp:
                        status = RACE
                    elif raced == 0:
                        if counts < 0:
                            memory = context.shared + cta * context.shared_stride
                            counts = changed_lanes(context, mask, width, memory)
                        if counts >> lane & 1:
                            party = parties[first + k] << 20 if parties != 0 else 0
                            status = race(context, rule, warp, lane, offset, width, other, plane[k], party)
                            raced = 1
                    if status != 0:
                        return status
    return 0


def updater_at(context: Context, place: int) -> int:
    """The party of the last update at a place of the shadow of updates; 0 if parties are not kept."""
    return context.update_parties[place] << 20 if context.update_parties != 0 else 0


def mark_updated(context: Context, cta: int, mask: int, width: int) -> None:
    """The current warp updates the places in the context."""
    mark_planes(context, context.updaters, context.update_parties, cta, mask, width)


def mark_watched(context: Context, cta: int, mask: int, width: int) -> None:
    """The current warp reads the places in the context strongly."""
    mark_planes(context, context.watchers, context.watch_parties, cta, mask, width)


def mark_planes(context: Context, planes: Ptr[i32], parties: Ptr[i32], cta: int, mask: int, width: int) -> None:
    """Note accesses of the current warp in its plane."""
    warp, number = context.current, (context.current_record - context.records) >> 6
    now = context.clocks[warp]
    places = context.places
    shift, granules = context.granule_shift, context.granules
    first = granules * (warps_of_cluster(context) * cta + warp)
    pages = context.page_updated.at(context.pages * cta)
    for lane in range(32):
        if mask >> lane & 1:
            offset = places[lane]
            begin = first + (offset >> shift)
            for k in range(begin, begin + max(width >> shift, 1)):
                planes[k] = now
                if parties != 0:
                    parties[k] = number
            page = pages.at(offset >> PAGE_SHIFT)
            page[0] = max(now, page[0])
