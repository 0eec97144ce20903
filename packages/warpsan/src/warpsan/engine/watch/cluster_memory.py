"""The checks of accesses to the shared memory of other CTAs of the cluster: machine code.

They are the checks of the own CTA's memory, for one CTA after the other. Live threads must remain in that CTA, and one
of them must come after the access before it exits (:func:`~warpsan.engine.flights.others_know`).
"""

from __future__ import annotations

from warpsan.engine.clocks import lanes_there, lanes_with
from warpsan.engine.context import Context
from warpsan.engine.flights import touch_remote
from warpsan.engine.lane_races import READ, WATCHED, note_lanes
from warpsan.engine.layout import (
    EVERY_LANE,
    IN_SHARED,
)
from warpsan.engine.tags import actor_of_tag, shared_tag, time_of_tag
from warpsan.engine.unit_addresses import cta_of, offset_of
from warpsan.engine.watch.shared_memory import (
    read_followed,
    read_shared,
    read_strong_shared,
    update_shared,
    write_shared,
    write_strong_shared,
)
from warpsan.engine.words import copy, load64

__all__ = ["FOLLOWED", "READS", "UPDATES", "WRITES", "watch_cluster"]

READS, WRITES, UPDATES, FOLLOWED = 1, 2, 3, 4
"""Kinds of accesses; undefined bytes may be tracked for reads."""


def watch_cluster(context: Context, mask: int, present: int, width: int, kind: int, does: int) -> int:
    """Lanes read, write or update at addresses of shared::cluster in the scratch; ``does`` has the effects of a strong
    access, or is -1. Returns a status."""
    scratch, home = context.scratch, context.current_warp.cta
    places, addresses = context.places, scratch
    copy(addresses, places, 8 * 32)
    status = 0
    for cta in range(context.cta_count):
        lanes = 0
        low = 1 << 62
        high = 0
        for lane in range(32):
            address = load64(addresses + 8 * lane)
            if mask >> lane & 1 and cta_of(context, address) == cta:
                offset = offset_of(address)
                places[lane] = offset
                lanes |= 1 << lane
                low, high = min(low, offset), max(high, offset)
        if lanes == 0:
            continue
        status = watch_one(context, lanes, present, low, high, width, kind, does, cta)
        if status != 0:
            return status
        warp = context.current
        if cta != home:
            touch_remote(context, warp, cta, warp, context.clocks[warp], 0)
    return 0


def watch_one(
    context: Context, lanes: int, present: int, low: int, high: int, width: int, kind: int, does: int, cta: int
) -> int:
    """The same for lanes that access the shared memory of one CTA."""
    if kind == UPDATES:
        return update_shared(context, cta, lanes, present, low, high, width, does)
    if kind == WRITES and does >= 0:
        return write_strong_shared(context, cta, lanes, present, low, high, width, does)
    if kind == WRITES:
        return write_shared(context, cta, lanes, present, low, high, width)
    if does >= 0:
        status = read_strong_shared(context, cta, lanes, low, high, width, does, kind == FOLLOWED)
    elif kind == FOLLOWED:
        status = read_followed(context, cta, lanes, low, high, width)
    else:
        status = read_shared(context, cta, lanes, low, high, width)
    if does < 0:
        mark_read(context, lanes, width, cta)
    there = lanes_there(context, present)
    note_lanes(context, IN_SHARED, READ if does < 0 else WATCHED, cta, lanes, there, width, -1)
    note_partial_read(context, lanes, there, width, cta)
    return status


def mark_read(context: Context, lanes: int, width: int, cta: int) -> None:
    """Note the time of the current warp's reads of granules of a CTA."""
    warp, shift = context.current, context.granule_shift
    now = context.clocks[warp]
    plane = context.granules * (context.planes * cta + warp)
    readers, places = context.readers.at(plane), context.places
    for lane in range(32):
        if lanes >> lane & 1:
            first = places[lane] >> shift
            for k in range(first, first + max(width >> shift, 1)):
                readers[k] = now


def note_partial_read(context: Context, lanes: int, there: int, width: int, cta: int) -> None:
    """Note reads of granules of a CTA while some lanes of the current warp were absent."""
    if there == EVERY_LANE:
        return
    warp = context.current
    tag = shared_tag(warp, context.clocks[warp])
    met = context.vectors[(context.actors + 1) * warp]
    places = context.places
    shift, first = context.granule_shift, context.granules * cta
    tags, masks = context.partial_tags.at(first), context.partial_masks.at(first)
    context.partial_reads = 1
    for lane in range(32):
        if lanes >> lane & 1:
            granule = places[lane] >> shift
            for k in range(granule, granule + max(width >> shift, 1)):
                before, after = tags[k], lanes_with(there, lane)
                if actor_of_tag(before) == warp and time_of_tag(before) > met:
                    after = after & masks[k]
                tags[k] = tag
                masks[k] = after
