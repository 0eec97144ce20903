"""The checks of accesses to shared and global memory: machine code (:mod:`~sdpalab.sim.native.translate`).

One warp acts at a time, so happens-before needs no more than this (FastTrack, Flanagan and Freund 2009): a time that
grows with every release; for each granule of memory, the warp and the time of its last write, and when each warp last
read it; for each warp, up to which time every warp's accesses come before its own. A page of shared memory sums up what
is known of its granules, so that most accesses need no look at them.

Nothing is reported here. What might be a hazard ends the native run, and the reference engine decides and reports: so
what is suspected may be more than what is wrong, but never less.
"""

from __future__ import annotations

from sdpalab.sim.native.layout import (
    ACTORS,
    ASYNC,
    CLOCKS,
    CURRENT,
    CURRENT_CTA,
    CURRENT_LIVE,
    CURRENT_STATE,
    EVERY_LANE,
    FLOORS,
    FLYING,
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
    GRANULE_SHIFT,
    GRANULES,
    GRID_CTAS,
    LAST_READ,
    NOT_READABLE,
    ORDERED,
    ORDERED_WARPS,
    PAGE_FLYING,
    PAGE_FULL,
    PAGE_GENERIC,
    PAGE_READ,
    PAGE_READING,
    PAGE_SHIFT,
    PAGE_TAG,
    PAGE_WRITTEN,
    PAGES,
    PARTIAL_MASKS,
    PARTIAL_READS,
    PARTIAL_TAGS,
    PLANES,
    RACE,
    READ_SHIFT,
    READERS,
    SCRATCH,
    SCRATCH_PLACES,
    SEVERAL,
    TIME,
    UNDEFINED,
    VECTORS,
    WARP_CTA,
    WRITE_MASKS,
    WRITERS,
    WRITTEN,
    WRITTEN_BYTES,
)
from sdpalab.sim.native.updates import mark_updated, updates_before
from sdpalab.sim.native.words import load8, load32, load64, store8, store32, store64

__all__ = [
    "copies_landed",
    "copy_begins",
    "mark_written",
    "read_global",
    "read_shared",
    "update_global",
    "update_shared",
    "write_global",
    "write_shared",
]


# ---- shared memory ---------------------------------------------------------------------------------------------------


def read_shared(context: int, mask: int, present: int, low: int, high: int, width: int) -> int:
    """Lanes read; their offsets are in the scratch, the least and the greatest here. A status.

    ``present`` are all lanes that execute the instruction. The operation that calls this marks the granules that are
    read.
    """
    warp = load64(context + 8 * CURRENT)
    cta = load64(load64(context + 8 * CURRENT_STATE) + 8 * WARP_CTA)
    floor = load64(load64(context + 8 * FLOORS) + 8 * warp)
    now = load64(load64(context + 8 * CLOCKS) + 8 * warp)
    first = 8 * load64(context + 8 * PAGES) * cta
    written, read = load64(context + 8 * PAGE_WRITTEN) + first, load64(context + 8 * PAGE_READ) + first
    flying, full = load64(context + 8 * PAGE_FLYING) + first, load64(context + 8 * PAGE_FULL) + first
    there = lanes_there(context, present)
    if there != EVERY_LANE:
        note_partial_read(context, mask, there, width)
    suspect = 0
    missing = 0
    for page in range(low >> PAGE_SHIFT, (high + width - 1 >> PAGE_SHIFT) + 1):
        if load64(written + 8 * page) > floor or load64(flying + 8 * page) != 0:
            suspect = 1
        if load64(full + 8 * page) == 0:
            missing = 1
        if load64(read + 8 * page) < now:
            store64(read + 8 * page, now)
    store64(load64(context + 8 * LAST_READ) + 8 * warp, now)
    if missing:
        status = defined(context, mask, width, cta, low, high)
        if status != 0:
            return status
    status = writes_before(context, mask, width, warp, cta, NOT_READABLE) if suspect else 0
    return status if status != 0 else updates_before(context, mask, low, high, width)


def writes_before(context: int, mask: int, width: int, warp: int, cta: int, forbidden: int) -> int:
    """Whether all writes of the places in the scratch come before the current warp's access; a status.

    ``forbidden`` are the bits of what may not be in flight there.
    """
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    shift = load64(context + 8 * GRANULE_SHIFT)
    many = max(width >> shift, 1)
    first = load64(context + 8 * GRANULES) * cta
    writers, flying = load64(context + 8 * WRITERS) + 8 * first, load64(context + 8 * FLYING) + 4 * first
    masks = load64(context + 8 * WRITE_MASKS) + 4 * first
    vector = load64(context + 8 * VECTORS) + 8 * load64(context + 8 * ACTORS) * warp
    for lane in range(32):
        if mask >> lane & 1:
            granule = load64(places + 8 * lane) >> shift
            for k in range(granule, granule + many):
                if load32(flying + 4 * k) & forbidden:
                    return ASYNC
                tag = load64(writers + 8 * k)
                late = tag >> 16 > load64(vector + 8 * (tag & 0xFFFF))
                if late and (tag & 0xFFFF != warp or load32(masks + 4 * k) >> lane & 1 == 0):
                    return RACE
    return 0


def lanes_there(context: int, present: int) -> int:
    """Lanes that execute an instruction, or have exited: all that come after it in their own programs."""
    return present | (EVERY_LANE ^ load64(context + 8 * CURRENT_LIVE))


def note_partial_read(context: int, mask: int, there: int, width: int) -> None:
    """Lanes read while others of their warp were elsewhere."""
    warp = load64(context + 8 * CURRENT)
    cta = load64(load64(context + 8 * CURRENT_STATE) + 8 * WARP_CTA)
    tag = load64(load64(context + 8 * CLOCKS) + 8 * warp) << 16 | warp
    met = load64(load64(context + 8 * VECTORS) + 8 * (load64(context + 8 * ACTORS) + 1) * warp)
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    shift, first = load64(context + 8 * GRANULE_SHIFT), load64(context + 8 * GRANULES) * cta
    tags, masks = load64(context + 8 * PARTIAL_TAGS) + 8 * first, load64(context + 8 * PARTIAL_MASKS) + 4 * first
    store64(context + 8 * PARTIAL_READS, 1)
    for lane in range(32):
        if mask >> lane & 1:
            granule = load64(places + 8 * lane) >> shift
            for k in range(granule, granule + max(width >> shift, 1)):
                before = load64(tags + 8 * k)
                lanes = there
                if before & 0xFFFF == warp and before >> 16 > met:
                    lanes = there & load32(masks + 4 * k)
                store64(tags + 8 * k, tag)
                store32(masks + 4 * k, lanes)


def partial_reads_before(context: int, mask: int, width: int, warp: int, cta: int) -> int:
    """Whether lanes write what others of their warp read while they were elsewhere; a status."""
    met = load64(load64(context + 8 * VECTORS) + 8 * (load64(context + 8 * ACTORS) + 1) * warp)
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    shift, first = load64(context + 8 * GRANULE_SHIFT), load64(context + 8 * GRANULES) * cta
    tags, masks = load64(context + 8 * PARTIAL_TAGS) + 8 * first, load64(context + 8 * PARTIAL_MASKS) + 4 * first
    for lane in range(32):
        if mask >> lane & 1:
            granule = load64(places + 8 * lane) >> shift
            for k in range(granule, granule + max(width >> shift, 1)):
                tag = load64(tags + 8 * k)
                if tag & 0xFFFF == warp and tag >> 16 > met and load32(masks + 4 * k) >> lane & 1 == 0:
                    return RACE
    return 0


def defined(context: int, mask: int, width: int, cta: int, low: int, high: int) -> int:
    """Whether all bytes that lanes read have been written; a status."""
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    written = load64(context + 8 * WRITTEN) + load64(context + 8 * WRITTEN_BYTES) * cta
    need = (1 << width) - 1
    for lane in range(32):
        if mask >> lane & 1:
            offset = load64(places + 8 * lane)
            if load32(written + (offset >> 3)) >> (offset & 7) & need != need:
                return UNDEFINED
    pages = load64(context + 8 * PAGE_FULL) + 8 * load64(context + 8 * PAGES) * cta
    for page in range(low >> PAGE_SHIFT, (high + width - 1 >> PAGE_SHIFT) + 1):
        begin = written + (page << PAGE_SHIFT - 3)
        full = 1
        for k in range(1 << PAGE_SHIFT - 6):
            if load64(begin + 8 * k) != -1:
                full = 0
                break
        store64(pages + 8 * page, full)
    return 0


def write_shared(context: int, mask: int, present: int, low: int, high: int, width: int) -> int:
    """Lanes write; as :func:`read_shared`."""
    status = may_write(context, mask, present, low, high, width)
    if status == 0:
        status = updates_before(context, mask, low, high, width)
    if status == 0:
        mark_written(context, mask, lanes_there(context, present), width)
    return status


def update_shared(context: int, mask: int, present: int, low: int, high: int, width: int) -> int:
    """Lanes update shared memory atomically; as :func:`read_shared`."""
    cta = load64(load64(context + 8 * CURRENT_STATE) + 8 * WARP_CTA)
    status = may_write(context, mask, present, low, high, width)
    if status == 0:
        status = defined(context, mask, width, cta, low, high)
    if status == 0:
        mark_updated(context, mask, width)
    return status


def may_write(context: int, mask: int, present: int, low: int, high: int, width: int) -> int:
    """Whether the writes come after all other accesses; a status."""
    warp = load64(context + 8 * CURRENT)
    cta = load64(load64(context + 8 * CURRENT_STATE) + 8 * WARP_CTA)
    floor = load64(load64(context + 8 * FLOORS) + 8 * warp)
    first = 8 * load64(context + 8 * PAGES) * cta
    written, read = load64(context + 8 * PAGE_WRITTEN) + first, load64(context + 8 * PAGE_READ) + first
    flying, reading = load64(context + 8 * PAGE_FLYING) + first, load64(context + 8 * PAGE_READING) + first
    after_writes = 0
    after_reads = 0
    for page in range(low >> PAGE_SHIFT, (high + width - 1 >> PAGE_SHIFT) + 1):
        if load64(written + 8 * page) > floor or (load64(flying + 8 * page) | load64(reading + 8 * page)) != 0:
            after_writes = 1
        if load64(read + 8 * page) > floor:
            after_reads = 1
    if after_writes:
        status = writes_before(context, mask, width, warp, cta, -1)
        if status != 0:
            return status
    if load64(context + 8 * PARTIAL_READS) != 0:
        status = partial_reads_before(context, mask, width, warp, cta)
        if status != 0:
            return status
    return reads_before(context, mask, width, warp, cta) if after_reads else 0


def reads_before(context: int, mask: int, width: int, warp: int, cta: int) -> int:
    """Whether all reads of the places in the scratch come before the current warp's access; a status."""
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    shift = load64(context + 8 * GRANULE_SHIFT)
    many = max(width >> shift, 1)
    planes, granules = load64(context + 8 * PLANES), load64(context + 8 * GRANULES)
    vector = load64(context + 8 * VECTORS) + 8 * load64(context + 8 * ACTORS) * warp
    for other in range(planes):
        known = load64(vector + 8 * other)
        if other == warp or load64(load64(context + 8 * LAST_READ) + 8 * other) <= known:
            continue
        plane = load64(context + 8 * READERS) + 4 * granules * (planes * cta + other)
        for lane in range(32):
            if mask >> lane & 1:
                granule = load64(places + 8 * lane) >> shift
                for k in range(granule, granule + many):
                    if load32(plane + 4 * k) > known:
                        return RACE
    return 0


def mark_written(context: int, mask: int, there: int, width: int) -> None:
    """The places in the scratch have just been written by the current warp, of which those lanes were there."""
    warp = load64(context + 8 * CURRENT)
    cta = load64(load64(context + 8 * CURRENT_STATE) + 8 * WARP_CTA)
    now = load64(load64(context + 8 * CLOCKS) + 8 * warp)
    tag = now << 16 | warp
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    shift = load64(context + 8 * GRANULE_SHIFT)
    many = max(width >> shift, 1)
    writers = load64(context + 8 * WRITERS) + 8 * load64(context + 8 * GRANULES) * cta
    masks = load64(context + 8 * WRITE_MASKS) + 4 * load64(context + 8 * GRANULES) * cta
    written = load64(context + 8 * WRITTEN) + load64(context + 8 * WRITTEN_BYTES) * cta
    pages = load64(context + 8 * PAGE_WRITTEN) + 8 * load64(context + 8 * PAGES) * cta
    generic = load64(context + 8 * PAGE_GENERIC) + 8 * load64(context + 8 * PAGES) * cta
    tags = load64(context + 8 * PAGE_TAG) + 8 * load64(context + 8 * PAGES) * cta
    last = -1
    for lane in range(32):
        if mask >> lane & 1:
            offset = load64(places + 8 * lane)
            for k in range(offset >> shift, (offset >> shift) + many):
                store64(writers + 8 * k, tag)
                store32(masks + 4 * k, there)
            place = written + (offset >> 3)
            if width == 16:
                store8(place, 0xFF)
                store8(place + 1, 0xFF)
            else:
                store8(place, load8(place) | ((1 << width) - 1) << (offset & 7))
            if offset >> PAGE_SHIFT != last:
                last = offset >> PAGE_SHIFT
                store64(pages + 8 * last, max(now, load64(pages + 8 * last)))
                store64(generic + 8 * last, max(now, load64(generic + 8 * last)))
                store64(tags + 8 * last, 0)


# ---- copies in flight ------------------------------------------------------------------------------------------------


def copy_begins(context: int, mask: int, present: int, low: int, high: int, width: int) -> int:
    """Lanes issue copies that write these places until they land: nobody may touch them before. A status."""
    status = may_write(context, mask, present, low, high, width)
    if status == 0:
        status = updates_before(context, mask, low, high, width)
    if status == 0:
        mark_flying(context, mask, width, 1)
    return status


def mark_flying(context: int, mask: int, width: int, flies: int) -> None:
    """Copies to the places in the scratch are in flight from now on (1), or no longer (0)."""
    cta = load64(load64(context + 8 * CURRENT_STATE) + 8 * WARP_CTA)
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    shift = load64(context + 8 * GRANULE_SHIFT)
    many = max(width >> shift, 1)
    flying = load64(context + 8 * FLYING) + 4 * load64(context + 8 * GRANULES) * cta
    pages = load64(context + 8 * PAGE_FLYING) + 8 * load64(context + 8 * PAGES) * cta
    by = 1 if flies else -1
    last = -1
    count = 0
    for lane in range(32):
        if mask >> lane & 1:
            offset = load64(places + 8 * lane)
            granule = flying + 4 * (offset >> shift)
            for k in range(many):
                store32(granule + 4 * k, flies)
            if offset >> PAGE_SHIFT != last:
                if count != 0:
                    store64(pages + 8 * last, load64(pages + 8 * last) + count)
                last = offset >> PAGE_SHIFT
                count = 0
            count += by
    if count != 0:
        store64(pages + 8 * last, load64(pages + 8 * last) + count)


def copies_landed(context: int, mask: int, width: int) -> None:
    """The current warp has waited for copies to the places in the scratch: as if it had written the data now."""
    mark_flying(context, mask, width, 0)
    mark_written(context, mask, EVERY_LANE, width)


# ---- global memory ---------------------------------------------------------------------------------------------------


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
