"""The checks of accesses to shared memory: machine code.

A page of shared memory has a summary of its granules, so that most accesses need no check of them.
"""

from __future__ import annotations

from warpsan.engine.clocks import lanes_there, lanes_with
from warpsan.engine.lane_order import lanes_before
from warpsan.engine.layout import (
    ACTORS,
    ASYNC,
    CLOCKS,
    CURRENT,
    CURRENT_RECORD,
    CURRENT_STATE,
    EVERY_LANE,
    FAULTS,
    FLOORS,
    FLYING,
    FROM_GLOBAL,
    GRANULE_SHIFT,
    GRANULES,
    IN_SHARED,
    LAST_READ,
    NOT_READABLE,
    ORIGINS,
    PAGE_FLYING,
    PAGE_FULL,
    PAGE_GENERIC,
    PAGE_OTHERS,
    PAGE_OWNER,
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
    READERS,
    SCRATCH,
    SCRATCH_PLACES,
    SHARED_STRIDE,
    VECTORS,
    WARP_CTA,
    WRITE_MASKS,
    WRITERS,
    WRITTEN,
    WRITTEN_BYTES,
)
from warpsan.engine.pages import page_word, page_written
from warpsan.engine.suspects import note_unwritten, suspect
from warpsan.engine.updates import mark_updated, page_updated, updates_before
from warpsan.engine.words import load8, load32, load64, store8, store32, store64

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


def read_shared(context: int, mask: int, low: int, high: int, width: int) -> int:
    """Lanes read; their offsets are in the scratch, and the least and the greatest are arguments. Returns a status.

    The calling operation marks the granules that are read.
    """
    if look_at_pages(context, low, high, width) & OF_BYTES:
        cta = load64(load64(context + 8 * CURRENT_STATE) + 8 * WARP_CTA)
        status = defined(context, mask, width, cta)
        if status != 0:
            return status
    return read_followed(context, mask, low, high, width)


def look_at_pages(context: int, low: int, high: int, width: int) -> int:
    """Note a read in its pages. Returns the checks of granules that it needs, as bits."""
    warp = load64(context + 8 * CURRENT)
    cta = load64(load64(context + 8 * CURRENT_STATE) + 8 * WARP_CTA)
    now = load64(load64(context + 8 * CLOCKS) + 8 * warp)
    floor = load64(load64(context + 8 * FLOORS) + 8 * warp)
    first, last = 8 * load64(context + 8 * PAGES) * cta, high + width - 1
    read, flying = load64(context + 8 * PAGE_READ) + first, load64(context + 8 * PAGE_FLYING) + first
    written, full = load64(context + 8 * PAGE_WRITTEN) + first, load64(context + 8 * PAGE_FULL) + first
    needs = OF_UPDATES if page_updated(context, cta, low, last, floor) else 0
    for page in range(low >> PAGE_SHIFT, (last >> PAGE_SHIFT) + 1):
        if load64(full + 8 * page) == 0 and note_full(context, cta, page) == 0:
            needs |= OF_BYTES
        if load64(flying + 8 * page) != 0:
            needs |= OF_COPIES_THERE
        if load64(written + 8 * page) > floor and page_written(context, cta, page, warp):
            needs |= OF_WRITES
        if load64(read + 8 * page) < now:
            store64(read + 8 * page, now)
    store64(load64(context + 8 * LAST_READ) + 8 * warp, now)
    return needs


def note_full(context: int, cta: int, page: int) -> int:
    """Note whether all of a page has been written. Returns it."""
    begin = load64(context + 8 * WRITTEN) + load64(context + 8 * WRITTEN_BYTES) * cta + (page << PAGE_SHIFT - 3)
    for k in range(1 << PAGE_SHIFT - 6):
        if load64(begin + 8 * k) != -1:
            return 0
    store64(page_word(context, PAGE_FULL, cta, page), 1)
    return 1


def read_followed(context: int, mask: int, low: int, high: int, width: int) -> int:
    """Lanes read bytes that may be unwritten: undefined bytes are tracked. Otherwise as :func:`read_shared`."""
    warp = load64(context + 8 * CURRENT)
    cta = load64(load64(context + 8 * CURRENT_STATE) + 8 * WARP_CTA)
    needs = look_at_pages(context, low, high, width)
    status = (
        writes_before(context, mask, width, warp, cta, NOT_READABLE) if needs & (OF_WRITES | OF_COPIES_THERE) else 0
    )
    return status if status != 0 else updates_before(context, mask, low, high, width)


def writes_before(context: int, mask: int, width: int, warp: int, cta: int, forbidden: int) -> int:
    """Whether all writes of the places in the scratch come before the current warp's access. Returns a status.

    ``forbidden`` has the bits of operations that must not be in flight there.
    """
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    shift = load64(context + 8 * GRANULE_SHIFT)
    many = max(width >> shift, 1)
    first = load64(context + 8 * GRANULES) * cta
    writers, flying = load64(context + 8 * WRITERS) + 8 * first, load64(context + 8 * FLYING) + 4 * first
    masks = load64(context + 8 * WRITE_MASKS) + 4 * first
    vector = load64(context + 8 * VECTORS) + 8 * load64(context + 8 * ACTORS) * warp
    fine = 0  # the last tag that was found to be ordered before
    for lane in range(32):
        if mask >> lane & 1:
            granule = load64(places + 8 * lane) >> shift
            for k in range(granule, granule + many):
                if load32(flying + 4 * k) & forbidden:
                    status = suspect(context, IN_SHARED, first + k, ASYNC)
                    if status != 0:
                        return status
                tag = load64(writers + 8 * k)
                if tag == fine:
                    continue
                if tag >> 16 <= load64(vector + 8 * (tag & 0xFFFF)):
                    fine = tag
                    continue
                lanes = load32(masks + 4 * k)
                if tag & 0xFFFF == warp and (lanes >> lane & 1 or lanes_before(context, warp, lanes, tag >> 16)):
                    continue
                status = suspect(context, IN_SHARED, first + k, RACE)
                if status != 0:
                    return status
    return 0


def partial_reads_before(context: int, mask: int, width: int, warp: int, cta: int) -> int:
    """Whether lanes write places that absent lanes of their warp have read. Returns a status."""
    met = load64(load64(context + 8 * VECTORS) + 8 * (load64(context + 8 * ACTORS) + 1) * warp)
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    shift, first = load64(context + 8 * GRANULE_SHIFT), load64(context + 8 * GRANULES) * cta
    tags, masks = load64(context + 8 * PARTIAL_TAGS) + 8 * first, load64(context + 8 * PARTIAL_MASKS) + 4 * first
    for lane in range(32):
        if mask >> lane & 1:
            granule = load64(places + 8 * lane) >> shift
            for k in range(granule, granule + max(width >> shift, 1)):
                tag = load64(tags + 8 * k)
                if tag >> 16 > met and tag & 0xFFFF == warp and load32(masks + 4 * k) >> lane & 1 == 0:
                    status = suspect(context, IN_SHARED, first + k, RACE)
                    if status != 0:
                        return status
    return 0


def defined(context: int, mask: int, width: int, cta: int) -> int:
    """Whether all bytes that lanes read have been written. Returns a status."""
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    written = load64(context + 8 * WRITTEN) + load64(context + 8 * WRITTEN_BYTES) * cta
    need = (1 << width) - 1
    bad = 0
    for lane in range(32):
        if mask >> lane & 1:
            offset = load64(places + 8 * lane)
            undefined = load32(written + (offset >> 3)) >> (offset & 7) & need != need
            if undefined and comes_from_global(context, cta, offset, width) == 0:
                bad |= 1 << lane
    if bad != 0:
        return note_unwritten(context, load64(context + 8 * CURRENT_RECORD), bad, width, places)
    return 0


def comes_from_global(context: int, cta: int, offset: int, width: int) -> int:
    """Whether undefined bytes come from global memory: they then count as written if they cannot be tracked."""
    if load64(context + 8 * ORIGINS) == 0:
        return 0
    origins = load64(context + 8 * ORIGINS) + load64(context + 8 * SHARED_STRIDE) * cta
    origin = 0
    for k in range(offset >> 2, (offset + width - 1 >> 2) + 1):
        origin = max(origin, load32(origins + 4 * k))
    return origin & FROM_GLOBAL


def write_shared(context: int, mask: int, present: int, low: int, high: int, width: int) -> int:
    """Lanes write; as :func:`read_shared`. ``present`` are all lanes that execute the instruction."""
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
        status = defined(context, mask, width, cta)
    if status == 0:
        mark_updated(context, mask, width)
        places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
        written = load64(context + 8 * WRITTEN) + load64(context + 8 * WRITTEN_BYTES) * cta
        for lane in range(32 if load64(context + 8 * FAULTS) != 0 else 0):  # after a noted undefined byte
            if mask >> lane & 1:
                mark_bytes(written, load64(places + 8 * lane), width)
    return status


def may_write(context: int, mask: int, present: int, low: int, high: int, width: int) -> int:
    """Whether the writes come after all other accesses but updates. Returns a status."""
    warp = load64(context + 8 * CURRENT)
    cta = load64(load64(context + 8 * CURRENT_STATE) + 8 * WARP_CTA)
    needs = look_before_write(context, low, high, width)
    if needs & (OF_WRITES | OF_COPIES_THERE):
        status = writes_before(context, mask, width, warp, cta, -1)
        if status != 0:
            return status
    if needs & OF_PARTIAL_READS:
        status = partial_reads_before(context, mask, width, warp, cta)
        if status != 0:
            return status
    return reads_before(context, mask, width, warp, cta) if needs & OF_READS else 0


def look_before_write(context: int, low: int, high: int, width: int) -> int:
    """The checks of granules that writes to pages need, as bits."""
    warp = load64(context + 8 * CURRENT)
    cta = load64(load64(context + 8 * CURRENT_STATE) + 8 * WARP_CTA)
    floor = load64(load64(context + 8 * FLOORS) + 8 * warp)
    first, last = 8 * load64(context + 8 * PAGES) * cta, high + width - 1
    read, written = load64(context + 8 * PAGE_READ) + first, load64(context + 8 * PAGE_WRITTEN) + first
    flying, reading = load64(context + 8 * PAGE_FLYING) + first, load64(context + 8 * PAGE_READING) + first
    met = load64(load64(context + 8 * VECTORS) + 8 * (load64(context + 8 * ACTORS) + 1) * warp)
    needs = OF_UPDATES if page_updated(context, cta, low, last, floor) else 0
    for page in range(low >> PAGE_SHIFT, (last >> PAGE_SHIFT) + 1):
        if (load64(flying + 8 * page) | load64(reading + 8 * page)) != 0:
            needs |= OF_COPIES_THERE
        if load64(written + 8 * page) > floor and page_written(context, cta, page, warp):
            needs |= OF_WRITES
        if load64(read + 8 * page) > floor:
            needs |= OF_READS
        if load64(read + 8 * page) > met and load64(context + 8 * PARTIAL_READS) != 0:
            needs |= OF_PARTIAL_READS
    return needs


def reads_before(context: int, mask: int, width: int, warp: int, cta: int) -> int:
    """Whether all reads of the places in the scratch come before the current warp's access. Returns a status."""
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
                        status = suspect(context, IN_SHARED, granules * cta + k, RACE)
                        if status != 0:
                            return status
    return 0


def mark_written(context: int, mask: int, there: int, width: int) -> None:
    """The current warp has just written the places in the scratch, with these lanes present."""
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
    last = -1
    for lane in range(32):
        if mask >> lane & 1:
            offset = load64(places + 8 * lane)
            for k in range(offset >> shift, (offset >> shift) + many):
                lanes = lanes_with(there, lane)
                if there == 0 and load64(writers + 8 * k) == tag:  # several lanes write it: none comes after all
                    lanes = lanes & load32(masks + 4 * k)
                store64(writers + 8 * k, tag)
                store32(masks + 4 * k, lanes)
            mark_bytes(written, offset, width)
            if offset >> PAGE_SHIFT != last:
                last = offset >> PAGE_SHIFT
                mark_pages(context, cta, last, 1, warp, now)


def mark_pages(context: int, cta: int, first: int, pages: int, warp: int, now: int) -> None:
    """A warp has written to pages at a time: those from the first one on whose bits are set."""
    written, generic = page_word(context, PAGE_WRITTEN, cta, first), page_word(context, PAGE_GENERIC, cta, first)
    owner, others = page_word(context, PAGE_OWNER, cta, first), page_word(context, PAGE_OTHERS, cta, first)
    tags = page_word(context, PAGE_TAG, cta, first)
    page = 0
    while pages != 0:
        if pages & 1:
            before = load64(written + page)
            if load64(owner + page) != warp:
                store64(owner + page, warp)
                store64(others + page, before)
            store64(written + page, max(now, before))
            store64(generic + page, max(now, load64(generic + page)))
            store64(tags + page, 0)
        pages = pages >> 1 & (1 << 63) - 1
        page += 8


def mark_bytes(written: int, offset: int, width: int) -> None:
    """Mark bytes as written."""
    place = written + (offset >> 3)
    if width == 16:
        store8(place, 0xFF)
        store8(place + 1, 0xFF)
    else:
        store8(place, load8(place) | ((1 << width) - 1) << (offset & 7))


# ---- copies in flight ------------------------------------------------------------------------------------------------


def copy_begins(context: int, mask: int, present: int, low: int, high: int, width: int) -> int:
    """Lanes issue copies that write these places until they land: no earlier access is allowed. Returns a status."""
    status = may_write(context, mask, present, low, high, width)
    if status == 0:
        status = updates_before(context, mask, low, high, width)
    if status == 0:
        mark_flying(context, mask, width, 1)
    return status


def mark_flying(context: int, mask: int, width: int, flies: int) -> None:
    """Copies to the places in the scratch are in flight from now on (1), or no longer (0).

    Places of copies in flight count as written: a read is too early, which is a separate hazard.
    """
    cta = load64(load64(context + 8 * CURRENT_STATE) + 8 * WARP_CTA)
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    shift = load64(context + 8 * GRANULE_SHIFT)
    many = max(width >> shift, 1)
    flying = load64(context + 8 * FLYING) + 4 * load64(context + 8 * GRANULES) * cta
    pages = load64(context + 8 * PAGE_FLYING) + 8 * load64(context + 8 * PAGES) * cta
    written = load64(context + 8 * WRITTEN) + load64(context + 8 * WRITTEN_BYTES) * cta
    by = 1 if flies else -1
    last = -1
    count = 0
    for lane in range(32):
        if mask >> lane & 1:
            offset = load64(places + 8 * lane)
            if flies:
                mark_bytes(written, offset, width)
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
    """The current warp has waited for copies to the places in the scratch, which count as written by it now."""
    mark_flying(context, mask, width, 0)
    mark_written(context, mask, EVERY_LANE, width)
