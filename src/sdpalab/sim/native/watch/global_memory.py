"""The checks of accesses to global memory: machine code."""

from __future__ import annotations

from sdpalab.sim.native.clocks import lanes_there
from sdpalab.sim.native.layout import (
    ACTORS,
    CLOCKS,
    CURRENT,
    CURRENT_CTA,
    EVERY_LANE,
    FLOORS,
    FOLLOWED_AT,
    FOLLOWERS,
    GLOBAL_PAGE_SHIFT,
    GLOBAL_PAGES,
    GLOBAL_READ_MASKS,
    GLOBAL_READERS,
    GLOBAL_RELEASED,
    GLOBAL_SHIFT,
    GLOBAL_STRONG,
    GLOBAL_WRITE_MASKS,
    GLOBAL_WRITERS,
    GRID_CTAS,
    ORDERED,
    ORDERED_WARPS,
    RACE,
    READ_SHIFT,
    SCRATCH,
    SCRATCH_PLACES,
    SEVERAL,
    TIME,
    VECTORS,
)
from sdpalab.sim.native.words import load8, load32, load64, store8, store32, store64

__all__ = ["read_global", "update_global", "write_global"]


def global_tag(context: int) -> int:
    """What an access of the current warp leaves in global memory."""
    warp = load64(context + 8 * CURRENT)
    return load64(context + 8 * CURRENT_CTA) << 40 | load64(load64(context + 8 * CLOCKS) + 8 * warp) << 8 | warp


def conflicts(context: int, tag: int, lane: int, there: int) -> int:
    """Whether the access of a tag, at which these lanes were there, may not come before the current warp's by a lane:
    it is another CTA's, a warp's that is not ordered, or one of lanes that had diverged."""
    if tag == 0:
        return 0
    cta, current = tag >> 40, load64(context + 8 * CURRENT_CTA)
    warp, other, time = load64(context + 8 * CURRENT), tag & 0xFF, tag >> 8 & 0xFFFFFFFF
    vector = load64(context + 8 * VECTORS) + 8 * load64(context + 8 * ACTORS) * warp
    if cta != current:
        table = load64(context + 8 * ORDERED)
        if table == 0 or cta == SEVERAL:
            return 1
        place = 8 * (load64(context + 8 * GRID_CTAS) * (current - 1) + cta - 1)
        if time > load64(table + place):
            own = load64(load64(context + 8 * ORDERED_WARPS) + place)
            if own & 0xFF != other or time > own >> 8:
                return 1
        follower = load64(load64(context + 8 * FOLLOWERS) + 8 * (current - 1))
        if follower == warp:
            return 0
        return 1 if load64(load64(context + 8 * FOLLOWED_AT) + 8 * (current - 1)) > load64(vector + 8 * follower) else 0
    if time <= load64(vector + 8 * other):
        return 0
    return 1 if warp != other or there >> lane & 1 == 0 else 0


def read_global(context: int, mask: int, present: int, width: int) -> int:
    """Lanes read global memory; their offsets in the arena are in the scratch. A status."""
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    shift = load64(context + 8 * GLOBAL_SHIFT)
    many = max(width >> shift, 1)
    writers, readers = load64(context + 8 * GLOBAL_WRITERS), load64(context + 8 * GLOBAL_READERS)
    write_masks, read_masks = load64(context + 8 * GLOBAL_WRITE_MASKS), load64(context + 8 * GLOBAL_READ_MASKS)
    strong, pages = load64(context + 8 * GLOBAL_STRONG), load64(context + 8 * GLOBAL_PAGES)
    there = lanes_there(context, present)
    mine = global_tag(context)
    warp = load64(context + 8 * CURRENT)
    met = load64(load64(context + 8 * VECTORS) + 8 * (load64(context + 8 * ACTORS) + 1) * warp)
    for lane in range(32):
        if mask >> lane & 1:
            offset = load64(places + 8 * lane)
            if load8(pages + (offset >> GLOBAL_PAGE_SHIFT)) != 0:
                granule = offset >> shift
                for k in range(granule, granule + many):
                    if conflicts(context, load64(writers + 8 * k), lane, load32(write_masks + 4 * k)):
                        return RACE
                    if strong != 0 and conflicts(context, load64(strong + 8 * k), lane, 0):
                        return RACE
            place, masks = readers + 8 * (offset >> READ_SHIFT), read_masks + 4 * (offset >> READ_SHIFT)
            before = load64(place)
            if before >> 40 == mine >> 40 and before & 0xFF == warp:
                lanes = load32(masks) if (before >> 8 & 0xFFFFFFFF) > met else EVERY_LANE
                store64(place, mine)
                store32(masks, lanes & there)
            elif before >> 40 != SEVERAL:
                # Of several readers only that there are several is kept, unless those before come first anyway.
                store64(place, SEVERAL << 40 if conflicts(context, before, lane, EVERY_LANE) else mine)
                store32(masks, there)
    return 0


def write_global(context: int, mask: int, present: int, width: int) -> int:
    """Lanes write global memory; as :func:`read_global`."""
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    shift = load64(context + 8 * GLOBAL_SHIFT)
    many = max(width >> shift, 1)
    writers, readers = load64(context + 8 * GLOBAL_WRITERS), load64(context + 8 * GLOBAL_READERS)
    write_masks, read_masks = load64(context + 8 * GLOBAL_WRITE_MASKS), load64(context + 8 * GLOBAL_READ_MASKS)
    strong, pages = load64(context + 8 * GLOBAL_STRONG), load64(context + 8 * GLOBAL_PAGES)
    there = lanes_there(context, present)
    mine = global_tag(context)
    for lane in range(32):
        if mask >> lane & 1:
            offset = load64(places + 8 * lane)
            near = offset >> READ_SHIFT
            if conflicts(context, load64(readers + 8 * near), lane, load32(read_masks + 4 * near)):
                return RACE
            granule = offset >> shift
            for k in range(granule, granule + many):
                if conflicts(context, load64(writers + 8 * k), lane, load32(write_masks + 4 * k)):
                    return RACE
                if strong != 0 and conflicts(context, load64(strong + 8 * k), lane, 0):
                    return RACE
                store64(writers + 8 * k, mine)
                store32(write_masks + 4 * k, there)
                if strong != 0:
                    store64(load64(context + 8 * GLOBAL_RELEASED) + 16 * k, 0)
            store8(pages + (offset >> GLOBAL_PAGE_SHIFT), 1)
    return 0


def update_global(context: int, mask: int, present: int, width: int, order: int) -> int:
    """Lanes update global memory atomically; as :func:`read_global`. ``order``: 1 acquires, 2 releases, 3 does both.

    Fences order nothing here: what relies on them is left to the reference engine.
    """
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    shift = load64(context + 8 * GLOBAL_SHIFT)
    writers, readers = load64(context + 8 * GLOBAL_WRITERS), load64(context + 8 * GLOBAL_READERS)
    write_masks, read_masks = load64(context + 8 * GLOBAL_WRITE_MASKS), load64(context + 8 * GLOBAL_READ_MASKS)
    strong, released = load64(context + 8 * GLOBAL_STRONG), load64(context + 8 * GLOBAL_RELEASED)
    mine = global_tag(context)
    warp = load64(context + 8 * CURRENT)
    # Of other warps, what came before the last barrier is passed on.
    passed = mine >> 40 << 40 | load64(load64(context + 8 * FLOORS) + 8 * warp) << 8 | warp
    for lane in range(32):
        if mask >> lane & 1:
            offset = load64(places + 8 * lane)
            near = offset >> READ_SHIFT
            if conflicts(context, load64(readers + 8 * near), lane, load32(read_masks + 4 * near)):
                return RACE
            granule = offset >> shift
            for k in range(granule, granule + max(width >> shift, 1)):
                if conflicts(context, load64(writers + 8 * k), lane, load32(write_masks + 4 * k)):
                    return RACE
                if order & 1:
                    follow(context, load64(released + 16 * k), load64(released + 16 * k + 8))
                before = load64(strong + 8 * k)
                several = before != mine and conflicts(context, before, lane, EVERY_LANE)
                store64(strong + 8 * k, SEVERAL << 40 if several else mine)
                store64(released + 16 * k, passed if order & 2 else 0)
                store64(released + 16 * k + 8, mine >> 8 & 0xFFFFFFFF)
            store8(load64(context + 8 * GLOBAL_PAGES) + (offset >> GLOBAL_PAGE_SHIFT), 1)
    if order & 1:
        current = load64(context + 8 * CURRENT_CTA) - 1
        store64(load64(context + 8 * FOLLOWERS) + 8 * current, warp)
        clock = load64(load64(context + 8 * CLOCKS) + 8 * warp)
        store64(load64(context + 8 * FOLLOWED_AT) + 8 * current, clock)
    now = load64(context + 8 * TIME) + 1
    store64(context + 8 * TIME, now)
    store64(load64(context + 8 * CLOCKS) + 8 * warp, now)
    return 0


def follow(context: int, tag: int, until: int) -> None:
    """The current CTA comes after the release of a tag (of its own warp, up to a later time), and after what that came
    after."""
    other, current = tag >> 40, load64(context + 8 * CURRENT_CTA)
    if other == 0 or other == current:
        return
    ctas = load64(context + 8 * GRID_CTAS)
    mine, before = 8 * ctas * (current - 1), 8 * ctas * (other - 1)
    take_later(load64(context + 8 * ORDERED) + mine, load64(context + 8 * ORDERED) + before, ctas)
    take_later(load64(context + 8 * ORDERED_WARPS) + mine, load64(context + 8 * ORDERED_WARPS) + before, ctas)
    place, time = load64(context + 8 * ORDERED) + mine + 8 * (other - 1), tag >> 8 & 0xFFFFFFFF
    store64(place, max(time, load64(place)))
    own = load64(context + 8 * ORDERED_WARPS) + mine + 8 * (other - 1)
    store64(own, max(until << 8 | (tag & 0xFF), load64(own)))


def take_later(row: int, other: int, many: int) -> None:
    """Each of a row's times becomes that of another row, if that is later."""
    for k in range(many):
        if load64(row + 8 * k) < load64(other + 8 * k):
            store64(row + 8 * k, load64(other + 8 * k))
