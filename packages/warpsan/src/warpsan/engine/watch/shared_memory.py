"""The checks of accesses to shared memory: machine code.

A page of shared memory has a summary of its granules, so that most accesses need no check of them.
"""

from __future__ import annotations

from warpsan.engine.clocks import lanes_there, lanes_with
from warpsan.engine.context import Context
from warpsan.engine.hazards import note_unwritten
from warpsan.engine.lane_order import lanes_before
from warpsan.engine.layout import (
    ASYNC,
    EVERY_LANE,
    IN_SHARED,
    NOT_READABLE,
    PAGE_SHIFT,
    RACE,
    SCRATCH_PLACES,
)
from warpsan.engine.pages import page_of, page_written, write_page
from warpsan.engine.rules import FROM_GLOBAL
from warpsan.engine.structs import Ptr, u8
from warpsan.engine.suspects import suspect
from warpsan.engine.tags import actor_of_tag, shared_tag, time_of_tag
from warpsan.engine.updates import mark_updated, page_updated, updates_before
from warpsan.engine.words import load32, load64

__all__ = [
    "copies_landed",
    "copy_begins",
    "look_at_pages",
    "look_before_write",
    "mark_pages",
    "mark_written",
    "read_followed",
    "read_shared",
    "update_shared",
    "write_shared",
]


OF_BYTES, OF_WRITES, OF_COPIES_THERE, OF_READS, OF_PARTIAL_READS, OF_UPDATES = 1, 2, 4, 8, 16, 32
"""Checks of granules, as bits: whether the bytes have been written; whether writes, copies in flight, reads, reads
without some lanes of the warp, and atomic operations come before."""


def read_shared(context: Context, cta: int, mask: int, low: int, high: int, width: int) -> int:
    """Lanes read; their offsets are in the scratch, and the least and the greatest are arguments. Returns a status.

    The calling operation marks the granules that are read.
    """
    if look_at_pages(context, cta, low, high, width) & OF_BYTES:
        status = defined(context, mask, width, cta)
        if status != 0:
            return status
    return read_followed(context, cta, mask, low, high, width)


def look_at_pages(context: Context, cta: int, low: int, high: int, width: int) -> int:
    """Note a read in its pages. Returns the checks of granules that it needs, as bits."""
    warp, last = context.current, high + width - 1
    now, floor = context.clocks[warp], context.floors[warp]
    first = context.pages * cta
    read, flying = context.page_read.at(first), context.page_flying.at(first)
    written, full = context.page_written.at(first), context.page_full.at(first)
    needs = OF_UPDATES if page_updated(context, cta, low, last, floor) else 0
    for page in range(low >> PAGE_SHIFT, (last >> PAGE_SHIFT) + 1):
        if full[page] == 0 and note_full(context, cta, page) == 0:
            needs |= OF_BYTES
        if flying[page] != 0:
            needs |= OF_COPIES_THERE
        if written[page] > floor and page_written(context, cta, page, warp):
            needs |= OF_WRITES
        if read[page] < now:
            read[page] = now
    context.last_read[warp] = now
    return needs


def note_full(context: Context, cta: int, page: int) -> int:
    """Note whether all of a page has been written. Returns it."""
    begin = context.written.at(context.written_bytes * cta + (page << PAGE_SHIFT - 3))
    for k in range(1 << PAGE_SHIFT - 6):
        if load64(begin + 8 * k) != -1:
            return 0
    context.page_full[page_of(context, cta, page)] = 1
    return 1


def read_followed(context: Context, cta: int, mask: int, low: int, high: int, width: int) -> int:
    """Lanes read bytes that may be unwritten: undefined bytes are tracked. Otherwise as :func:`read_shared`."""
    warp = context.current
    needs = look_at_pages(context, cta, low, high, width)
    status = (
        writes_before(context, mask, width, warp, cta, NOT_READABLE) if needs & (OF_WRITES | OF_COPIES_THERE) else 0
    )
    return status if status != 0 else updates_before(context, cta, mask, low, high, width)


def writes_before(context: Context, mask: int, width: int, warp: int, cta: int, forbidden: int) -> int:
    """Whether all writes of the places in the scratch come before the current warp's access. Returns a status.

    ``forbidden`` has the bits of operations that must not be in flight there.
    """
    places = context.scratch + SCRATCH_PLACES
    shift = context.granule_shift
    many = max(width >> shift, 1)
    first = context.granules * cta
    writers, flying = context.writers.at(first), context.flying.at(first)
    masks = context.write_masks.at(first)
    vector = context.vectors.at(context.actors * warp)
    fine = 0  # the last tag that was found to be ordered before
    for lane in range(32):
        if mask >> lane & 1:
            granule = load64(places + 8 * lane) >> shift
            for k in range(granule, granule + many):
                if flying[k] & forbidden:
                    status = suspect(context, IN_SHARED, first + k, ASYNC)
                    if status != 0:
                        return status
                tag = writers[k]
                if tag == fine:
                    continue
                if time_of_tag(tag) <= vector[actor_of_tag(tag)]:
                    fine = tag
                    continue
                lanes = masks[k]
                if actor_of_tag(tag) == warp and (
                    lanes >> lane & 1 or lanes_before(context, warp, lanes, time_of_tag(tag))
                ):
                    continue
                status = suspect(context, IN_SHARED, first + k, RACE)
                if status != 0:
                    return status
    return 0


def partial_reads_before(context: Context, mask: int, width: int, warp: int, cta: int) -> int:
    """Whether lanes write places that absent lanes of their warp have read. Returns a status."""
    met = context.vectors[(context.actors + 1) * warp]
    places = context.scratch + SCRATCH_PLACES
    shift, first = context.granule_shift, context.granules * cta
    tags, masks = context.partial_tags.at(first), context.partial_masks.at(first)
    for lane in range(32):
        if mask >> lane & 1:
            granule = load64(places + 8 * lane) >> shift
            for k in range(granule, granule + max(width >> shift, 1)):
                tag = tags[k]
                if time_of_tag(tag) > met and actor_of_tag(tag) == warp and masks[k] >> lane & 1 == 0:
                    status = suspect(context, IN_SHARED, first + k, RACE)
                    if status != 0:
                        return status
    return 0


def defined(context: Context, mask: int, width: int, cta: int) -> int:
    """Whether all bytes that lanes read have been written. Returns a status."""
    places = context.scratch + SCRATCH_PLACES
    written = context.written.at(context.written_bytes * cta)
    need = (1 << width) - 1
    bad = 0
    for lane in range(32):
        if mask >> lane & 1:
            offset = load64(places + 8 * lane)
            undefined = load32(written + (offset >> 3)) >> (offset & 7) & need != need
            if undefined and comes_from_global(context, cta, offset, width) == 0:
                bad |= 1 << lane
    if bad != 0:
        return note_unwritten(context, context.current_record, bad, width, places)
    return 0


def comes_from_global(context: Context, cta: int, offset: int, width: int) -> int:
    """Whether undefined bytes come from global memory: they then count as written if they cannot be tracked."""
    if context.origins == 0:
        return 0
    origins = context.origins + context.shared_stride * cta
    origin = 0
    for k in range(offset >> 2, (offset + width - 1 >> 2) + 1):
        origin = max(origin, load32(origins + 4 * k))
    return origin & FROM_GLOBAL


def write_shared(context: Context, cta: int, mask: int, present: int, low: int, high: int, width: int) -> int:
    """Lanes write; as :func:`read_shared`. ``present`` are all lanes that execute the instruction."""
    status = may_write(context, cta, mask, present, low, high, width)
    if status == 0:
        status = updates_before(context, cta, mask, low, high, width)
    if status == 0:
        mark_written(context, cta, mask, lanes_there(context, present), width)
    return status


def update_shared(context: Context, cta: int, mask: int, present: int, low: int, high: int, width: int) -> int:
    """Lanes update shared memory atomically; as :func:`read_shared`."""
    status = may_write(context, cta, mask, present, low, high, width)
    if status == 0:
        status = defined(context, mask, width, cta)
    if status == 0:
        mark_updated(context, cta, mask, width)
        places = context.scratch + SCRATCH_PLACES
        written = context.written.at(context.written_bytes * cta)
        for lane in range(32 if context.hazard_room != 0 else 0):  # after a noted undefined byte
            if mask >> lane & 1:
                mark_bytes(written, load64(places + 8 * lane), width)
    return status


def may_write(context: Context, cta: int, mask: int, present: int, low: int, high: int, width: int) -> int:
    """Whether the writes come after all other accesses but updates. Returns a status."""
    warp = context.current
    needs = look_before_write(context, cta, low, high, width)
    if needs & (OF_WRITES | OF_COPIES_THERE):
        status = writes_before(context, mask, width, warp, cta, -1)
        if status != 0:
            return status
    if needs & OF_PARTIAL_READS:
        status = partial_reads_before(context, mask, width, warp, cta)
        if status != 0:
            return status
    return reads_before(context, mask, width, warp, cta) if needs & OF_READS else 0


def look_before_write(context: Context, cta: int, low: int, high: int, width: int) -> int:
    """The checks of granules that writes to pages need, as bits."""
    warp, last = context.current, high + width - 1
    floor = context.floors[warp]
    first = context.pages * cta
    read, written = context.page_read.at(first), context.page_written.at(first)
    flying, reading = context.page_flying.at(first), context.page_reading.at(first)
    met = context.vectors[(context.actors + 1) * warp]
    needs = OF_UPDATES if page_updated(context, cta, low, last, floor) else 0
    for page in range(low >> PAGE_SHIFT, (last >> PAGE_SHIFT) + 1):
        if (flying[page] | reading[page]) != 0:
            needs |= OF_COPIES_THERE
        if written[page] > floor and page_written(context, cta, page, warp):
            needs |= OF_WRITES
        if read[page] > floor:
            needs |= OF_READS
        if read[page] > met and context.partial_reads != 0:
            needs |= OF_PARTIAL_READS
    return needs


def reads_before(context: Context, mask: int, width: int, warp: int, cta: int) -> int:
    """Whether all reads of the places in the scratch come before the current warp's access. Returns a status."""
    places = context.scratch + SCRATCH_PLACES
    shift = context.granule_shift
    many = max(width >> shift, 1)
    planes, granules = context.planes, context.granules
    vector = context.vectors.at(context.actors * warp)
    for other in range(planes):
        known = vector[other]
        if other == warp or context.last_read[other] <= known:
            continue
        plane = context.readers.at(granules * (planes * cta + other))
        for lane in range(32):
            if mask >> lane & 1:
                granule = load64(places + 8 * lane) >> shift
                for k in range(granule, granule + many):
                    if plane[k] > known:
                        status = suspect(context, IN_SHARED, granules * cta + k, RACE)
                        if status != 0:
                            return status
    return 0


def mark_written(context: Context, cta: int, mask: int, there: int, width: int) -> None:
    """The current warp has just written the places in the scratch, with these lanes present."""
    warp = context.current
    now = context.clocks[warp]
    tag = shared_tag(warp, now)
    places = context.scratch + SCRATCH_PLACES
    shift = context.granule_shift
    many = max(width >> shift, 1)
    writers = context.writers.at(context.granules * cta)
    masks = context.write_masks.at(context.granules * cta)
    written = context.written.at(context.written_bytes * cta)
    last = -1
    for lane in range(32):
        if mask >> lane & 1:
            offset = load64(places + 8 * lane)
            for k in range(offset >> shift, (offset >> shift) + many):
                lanes = lanes_with(there, lane)
                if there == 0 and writers[k] == tag:  # several lanes write it: none comes after all
                    lanes = lanes & masks[k]
                writers[k] = tag
                masks[k] = lanes
            mark_bytes(written, offset, width)
            if offset >> PAGE_SHIFT != last:
                last = offset >> PAGE_SHIFT
                mark_pages(context, cta, last, 1, warp, now)


def mark_pages(context: Context, cta: int, first: int, pages: int, warp: int, now: int) -> None:
    """A warp has written to pages at a time: those from the first one on whose bits are set."""
    page = first
    while pages != 0:
        if pages & 1:
            number = page_of(context, cta, page)
            write_page(context, cta, page, warp, now)
            context.page_generic[number] = max(now, context.page_generic[number])
            context.page_tag[number] = 0
        pages = pages >> 1 & (1 << 63) - 1
        page += 1


def mark_bytes(written: Ptr[u8], offset: int, width: int) -> None:
    """Mark bytes as written."""
    place = written.at(offset >> 3)
    if width == 16:
        place[0] = 0xFF
        place[1] = 0xFF
    else:
        place[0] |= ((1 << width) - 1) << (offset & 7)


# ---- copies in flight ------------------------------------------------------------------------------------------------


def copy_begins(context: Context, cta: int, mask: int, present: int, low: int, high: int, width: int) -> int:
    """Lanes issue copies that write these places until they land: no earlier access is allowed. Returns a status."""
    status = may_write(context, cta, mask, present, low, high, width)
    if status == 0:
        status = updates_before(context, cta, mask, low, high, width)
    if status == 0:
        mark_flying(context, cta, mask, width, 1)
    return status


def mark_flying(context: Context, cta: int, mask: int, width: int, flies: int) -> None:
    """Copies to the places in the scratch are in flight from now on (1), or no longer (0).

    Places of copies in flight count as written: a read is too early, which is a separate hazard.
    """
    places = context.scratch + SCRATCH_PLACES
    shift = context.granule_shift
    many = max(width >> shift, 1)
    flying = context.flying.at(context.granules * cta)
    pages = context.page_flying.at(context.pages * cta)
    written = context.written.at(context.written_bytes * cta)
    by = 1 if flies else -1
    last = -1
    count = 0
    for lane in range(32):
        if mask >> lane & 1:
            offset = load64(places + 8 * lane)
            if flies:
                mark_bytes(written, offset, width)
            granule = flying.at(offset >> shift)
            for k in range(many):
                granule[k] = flies
            if offset >> PAGE_SHIFT != last:
                if count != 0:
                    pages[last] += count
                last = offset >> PAGE_SHIFT
                count = 0
            count += by
    if count != 0:
        pages[last] += count


def copies_landed(context: Context, cta: int, mask: int, width: int) -> None:
    """The current warp has waited for copies to the places in the scratch, which count as written by it now."""
    mark_flying(context, cta, mask, width, 0)
    mark_written(context, cta, mask, EVERY_LANE, width)
