"""The checks of accesses to the shared memory of other CTAs of the cluster: machine code.

They are the checks of the own CTA's memory, for one CTA after the other. Live threads must remain in that CTA, and one
of them must come after the access before it exits (:func:`~warpsan.engine.flights.others_know`).
"""

from __future__ import annotations

from warpsan.engine.clocks import lanes_there, lanes_with
from warpsan.engine.flights import touch_remote
from warpsan.engine.layout import (
    ACTORS,
    CLOCKS,
    CTA_COUNT,
    CURRENT,
    CURRENT_STATE,
    EVERY_LANE,
    GRANULE_SHIFT,
    GRANULES,
    PARTIAL_MASKS,
    PARTIAL_READS,
    PARTIAL_TAGS,
    PLANES,
    READERS,
    SCRATCH,
    SCRATCH_PLACES,
    VECTORS,
    WARP_CTA,
)
from warpsan.engine.mbarriers import cta_of, offset_of
from warpsan.engine.watch.shared_memory import read_followed, read_shared, update_shared, write_shared
from warpsan.engine.words import copy, load32, load64, store32, store64

__all__ = ["FOLLOWED", "READS", "UPDATES", "WRITES", "watch_cluster"]

READS, WRITES, UPDATES, FOLLOWED = 1, 2, 3, 4
"""Kinds of accesses; undefined bytes may be tracked for reads."""


def watch_cluster(context: int, mask: int, present: int, width: int, does: int) -> int:
    """Lanes read, write or update at addresses of shared::cluster in the scratch. Returns a status."""
    scratch, state = load64(context + 8 * SCRATCH), load64(context + 8 * CURRENT_STATE)
    places, addresses = scratch + SCRATCH_PLACES, scratch
    copy(addresses, places, 8 * 32)
    home = load64(state + 8 * WARP_CTA)
    status = 0
    for cta in range(load64(context + 8 * CTA_COUNT)):
        lanes = 0
        low = 1 << 62
        high = 0
        for lane in range(32):
            address = load64(addresses + 8 * lane)
            if mask >> lane & 1 and cta_of(context, address) == cta:
                offset = offset_of(address)
                store64(places + 8 * lane, offset)
                lanes |= 1 << lane
                low, high = min(low, offset), max(high, offset)
        if lanes == 0:
            continue
        store64(state + 8 * WARP_CTA, cta)  # treat the warp as one of that CTA during the checks
        status = watch_one(context, lanes, present, low, high, width, does, cta)
        store64(state + 8 * WARP_CTA, home)
        if status != 0:
            return status
        warp = load64(context + 8 * CURRENT)
        if cta != home:
            touch_remote(context, warp, cta, warp, load64(load64(context + 8 * CLOCKS) + 8 * warp))
    return 0


def watch_one(context: int, lanes: int, present: int, low: int, high: int, width: int, does: int, cta: int) -> int:
    """The same for lanes that access the shared memory of one CTA."""
    if does == WRITES:
        return write_shared(context, lanes, present, low, high, width)
    if does == UPDATES:
        return update_shared(context, lanes, present, low, high, width)
    if does == FOLLOWED:
        status = read_followed(context, lanes, low, high, width)
    else:
        status = read_shared(context, lanes, low, high, width)
    mark_read(context, lanes, width, cta)
    note_partial_read(context, lanes, lanes_there(context, present), width, cta)
    return status


def mark_read(context: int, lanes: int, width: int, cta: int) -> None:
    """Note the time of the current warp's reads of granules of a CTA."""
    warp, shift = load64(context + 8 * CURRENT), load64(context + 8 * GRANULE_SHIFT)
    now = load64(load64(context + 8 * CLOCKS) + 8 * warp)
    plane = load64(context + 8 * GRANULES) * (load64(context + 8 * PLANES) * cta + warp)
    readers, places = load64(context + 8 * READERS) + 4 * plane, load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    for lane in range(32):
        if lanes >> lane & 1:
            first = load64(places + 8 * lane) >> shift
            for k in range(first, first + max(width >> shift, 1)):
                store32(readers + 4 * k, now)


def note_partial_read(context: int, lanes: int, there: int, width: int, cta: int) -> None:
    """Note reads of granules of a CTA while some lanes of the current warp were absent."""
    if there == EVERY_LANE:
        return
    warp = load64(context + 8 * CURRENT)
    tag = load64(load64(context + 8 * CLOCKS) + 8 * warp) << 16 | warp
    met = load64(load64(context + 8 * VECTORS) + 8 * (load64(context + 8 * ACTORS) + 1) * warp)
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    shift, first = load64(context + 8 * GRANULE_SHIFT), load64(context + 8 * GRANULES) * cta
    tags, masks = load64(context + 8 * PARTIAL_TAGS) + 8 * first, load64(context + 8 * PARTIAL_MASKS) + 4 * first
    store64(context + 8 * PARTIAL_READS, 1)
    for lane in range(32):
        if lanes >> lane & 1:
            granule = load64(places + 8 * lane) >> shift
            for k in range(granule, granule + max(width >> shift, 1)):
                before, after = load64(tags + 8 * k), lanes_with(there, lane)
                if before & 0xFFFF == warp and before >> 16 > met:
                    after = after & load32(masks + 4 * k)
                store64(tags + 8 * k, tag)
                store32(masks + 4 * k, after)
