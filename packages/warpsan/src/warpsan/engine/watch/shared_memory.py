"""The checks of accesses to shared memory: machine code.

A page of shared memory has a summary of its granules, so that most accesses need no check of them.
"""

from __future__ import annotations

from warpsan.engine.clocks import lanes_there, lanes_with, warps_of_cluster
from warpsan.engine.context import Context
from warpsan.engine.flight_rules import disturbs
from warpsan.engine.hazards import note_unwritten
from warpsan.engine.lane_order import lanes_before
from warpsan.engine.lane_races import KINDS, READ, UPDATED, WROTE, lanes_race, note_lanes
from warpsan.engine.layout import (
    EVERY_LANE,
    IN_FLIGHT,
    IN_SHARED,
    MOST_COPIES,
    NOT_READABLE,
    PAGE_SHIFT,
    RACE,
)
from warpsan.engine.missing import forget_links
from warpsan.engine.pages import page_of, page_written, write_page
from warpsan.engine.races import (
    changed_lanes,
    in_flight,
    is_together,
    mark_flight,
    mark_party,
    party_of,
    race,
    reader_at,
    warp_of_party,
)
from warpsan.engine.rules import (
    COPIES_READ,
    COPIES_UPDATED,
    COPIES_WRITTEN,
    FROM_GLOBAL,
    LANE_READS,
    LANE_UPDATES,
    LANE_WRITES,
    OVERWRITES_READ,
    OVERWRITES_UPDATED,
    OVERWRITES_WRITTEN,
    READS_UPDATED,
    READS_WRITTEN,
    UPDATES_READ,
    UPDATES_WRITTEN,
)
from warpsan.engine.structs import Ptr, u8
from warpsan.engine.suspects import is_status
from warpsan.engine.tags import actor_of_tag, shared_tag, time_of_tag
from warpsan.engine.updates import mark_updated, mark_watched, page_updated, updates_before, watches_before
from warpsan.engine.watch.releases import observe, release_to_place
from warpsan.engine.words import load32, load64

__all__ = [
    "copies_landed",
    "copies_still_fly",
    "copy_begins",
    "look_at_pages",
    "look_before_write",
    "mark_flying",
    "mark_pages",
    "mark_written",
    "read_followed",
    "read_shared",
    "read_strong_shared",
    "update_shared",
    "write_shared",
    "write_strong_shared",
]


OF_BYTES, OF_WRITES, OF_COPIES_THERE, OF_READS, OF_PARTIAL_READS, OF_UPDATES, OF_NOTES = 1, 2, 4, 8, 16, 32, 64
"""Checks of granules, as bits: whether the bytes have been written; whether writes, copies in flight, reads, reads
without some lanes of the warp, and atomic operations come before; and whether the access must be noted lane by
lane."""


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
    needs |= OF_NOTES if context.read_parties != 0 else 0
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
    needs, status = look_at_pages(context, cta, low, high, width), 0
    if needs & (OF_WRITES | OF_COPIES_THERE):
        status = writes_before(context, mask, width, warp, cta, NOT_READABLE, READS_WRITTEN)
    if status == 0 and needs & OF_UPDATES:
        status = updates_before(context, cta, mask, width, READS_UPDATED)
    if status == 0 and needs & OF_NOTES:
        status = lanes_race(context, IN_SHARED, cta, mask, width, -1, 1 << WROTE | 1 << UPDATED, LANE_READS, 0)
    if needs & OF_NOTES:
        mark_readers(context, cta, mask, width)
    return status


def mark_readers(context: Context, cta: int, mask: int, width: int) -> None:
    """Note the current record as the reader of the places in the context."""
    number, shift = (context.current_record - context.records) >> 6, context.granule_shift
    places = context.places
    parties = context.read_parties.at(context.granules * (context.planes * cta + context.current))
    for lane in range(32):
        if mask >> lane & 1:
            granule = places[lane] >> shift
            for k in range(granule, granule + max(width >> shift, 1)):
                parties[k] = number


def writes_before(context: Context, mask: int, width: int, warp: int, cta: int, forbidden: int, rule: int) -> int:
    """Whether all writes of the places in the context come before the current warp's access, which otherwise breaks a
    rule. Returns a status.

    ``forbidden`` has the bits of operations that must not be in flight there.
    """
    places = context.places
    shift = context.granule_shift
    many = max(width >> shift, 1)
    first = context.granules * cta
    writers, flying = context.writers.at(first), context.flying.at(first)
    masks = context.write_masks.at(first)
    vector = context.vectors.at(context.actors * warp)
    parties, memory = context.write_parties.at(first), context.shared + cta * context.shared_stride
    fine = 0  # the last tag that was found to be ordered before
    warps, counts, raced = warps_of_cluster(context), -1 if rule == OVERWRITES_WRITTEN else mask, 0
    for lane in range(32):
        if mask >> lane & 1:
            offset = places[lane]
            granule = offset >> shift
            for k in range(granule, granule + many):
                flies, copy = flying[k], context.flight_parties[first + k] if context.write_parties != 0 else 1
                if flies & forbidden and context.flights_checked != 0:
                    status = disturbs(context, warp, lane, cta, k, offset, width, forbidden < 0)
                    if status != 0:
                        return status
                    if flies & IN_FLIGHT and copy != 0 and is_together(context, copy, party_of(context, lane)) == 0:
                        continue
                tag = writers[k]
                actor = actor_of_tag(tag)
                party = parties[k] if context.write_parties != 0 else 0
                if flies & IN_FLIGHT and copy != 0 and context.flights_checked == 0:  # the last write
                    actor, party = warps + warp_of_party(copy), copy
                elif tag == fine:
                    continue
                elif time_of_tag(tag) <= vector[actor]:
                    fine = tag
                    continue
                if actor == warp:
                    if context.lane_marks != 0:
                        continue
                    lanes = masks[k]
                    if lanes >> lane & 1 or lanes_before(context, warp, lanes, time_of_tag(tag)):
                        continue
                    return RACE
                if raced or (context.flights_checked != 0 and in_flight(context, actor, time_of_tag(tag))):
                    continue
                if counts < 0:
                    counts = changed_lanes(context, mask, width, memory)
                if counts >> lane & 1 == 0:
                    continue
                status = race(context, rule, warp, lane, offset, width, actor, time_of_tag(tag), party)
                if status != 0:
                    return status
                raced = 1
    return 0


def partial_reads_before(context: Context, mask: int, width: int, warp: int, cta: int) -> int:
    """Whether lanes write places that absent lanes of their warp have read. Returns a status."""
    if context.lane_marks != 0:
        return 0
    met = context.vectors[(context.actors + 1) * warp]
    places = context.places
    shift, first = context.granule_shift, context.granules * cta
    tags, masks = context.partial_tags.at(first), context.partial_masks.at(first)
    for lane in range(32):
        if mask >> lane & 1:
            granule = places[lane] >> shift
            for k in range(granule, granule + max(width >> shift, 1)):
                tag = tags[k]
                if time_of_tag(tag) > met and actor_of_tag(tag) == warp and masks[k] >> lane & 1 == 0:
                    return RACE
    return 0


def defined(context: Context, mask: int, width: int, cta: int) -> int:
    """Whether all bytes that lanes read have been written. Returns a status."""
    places = context.places
    written = context.written.at(context.written_bytes * cta)
    need = (1 << width) - 1
    bad = 0
    for lane in range(32):
        if mask >> lane & 1:
            offset = places[lane]
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
    needs = look_before_write(context, cta, low, high, width)
    status = reads_before(context, mask, width, cta, OVERWRITES_READ) if needs & OF_READS else 0
    if status == 0:
        status = may_write(context, cta, mask, width, needs, OVERWRITES_WRITTEN)
    if status == 0 and needs & OF_UPDATES:
        status = updates_before(context, cta, mask, width, OVERWRITES_UPDATED)
        if status == 0:
            status = watches_before(context, cta, mask, width)
    if status == 0:
        status = lanes_race(context, IN_SHARED, cta, mask, width, -1, (1 << KINDS) - 1, LANE_WRITES, 1)
    if status == 0:
        there = lanes_there(context, present)
        note_lanes(context, IN_SHARED, WROTE, cta, mask, there, width, -1)
        mark_written(context, cta, mask, there, width)
    return status


def read_strong_shared(
    context: Context, cta: int, mask: int, low: int, high: int, width: int, does: int, followed: int
) -> int:
    """Lanes read strongly, which conflicts only with weak writes; as :func:`read_shared`. ``does`` has the effects of
    the read (:func:`~.global_memory.read_strong`), and with ``followed``, the bytes may be unwritten."""
    needs, status = look_at_pages(context, cta, low, high, width), 0
    if followed == 0 and needs & OF_BYTES:
        status = defined(context, mask, width, cta)
    if status == 0 and needs & (OF_WRITES | OF_COPIES_THERE):
        status = writes_before(context, mask, width, context.current, cta, NOT_READABLE, READS_WRITTEN)
    if status == 0:
        status = lanes_race(context, IN_SHARED, cta, mask, width, -1, 1 << WROTE, LANE_READS, 0)
    if status != 0:
        return status
    mark_watched(context, cta, mask, width)
    return order_by_reads(context, cta, mask, does)


def write_strong_shared(
    context: Context, cta: int, mask: int, present: int, low: int, high: int, width: int, does: int
) -> int:
    """Lanes write strongly, which conflicts only with weak accesses; as :func:`read_strong_shared`."""
    needs = look_before_write(context, cta, low, high, width)
    status = reads_before(context, mask, width, cta, OVERWRITES_READ) if needs & OF_READS else 0
    if status == 0:
        status = may_write(context, cta, mask, width, needs, OVERWRITES_WRITTEN)
    if status == 0:
        status = lanes_race(context, IN_SHARED, cta, mask, width, -1, 1 << WROTE | 1 << READ, LANE_WRITES, 1)
    if status != 0:
        return status
    note_lanes(context, IN_SHARED, UPDATED, cta, mask, lanes_there(context, present), width, -1)
    mark_updated(context, cta, mask, width)
    places = context.places
    written = context.written.at(context.written_bytes * cta)
    for lane in range(32):
        if mask >> lane & 1:
            mark_bytes(written, places[lane], width)
    return order_by_writes(context, cta, mask, does)


def order_by_reads(context: Context, cta: int, mask: int, does: int) -> int:
    """Lanes of the current warp read the places in the context strongly, and may come after their releases. Returns a
    status."""
    places, shift = context.places, context.granule_shift
    for lane in range(32 if context.shared_chains != 0 else 0):
        if mask >> lane & 1:
            granule = context.granules * cta + (places[lane] >> shift)
            chain, links = context.shared_chains.at(granule), context.shared_links.at(granule)
            status = observe(context, context.current, chain, links, does)
            if status != 0:
                return status
    return 0


def order_by_writes(context: Context, cta: int, mask: int, does: int) -> int:
    """Lanes of the current warp write the places in the context strongly, and may release their accesses. Returns a
    status."""
    places, shift = context.places, context.granule_shift
    release = 0
    for lane in range(32 if context.shared_chains != 0 else 0):
        if mask >> lane & 1:
            granule = context.granules * cta + (places[lane] >> shift)
            chain, links = context.shared_chains.at(granule), context.shared_links.at(granule)
            release = release_to_place(context, context.current, lane, chain, links, does, release, 1)
            if release > 0 and is_status(release):
                return release
    return 0


def update_shared(
    context: Context, cta: int, mask: int, present: int, low: int, high: int, width: int, does: int
) -> int:
    """Lanes update shared memory atomically; as :func:`read_strong_shared`."""
    needs = look_before_write(context, cta, low, high, width)
    status = may_write(context, cta, mask, width, needs, UPDATES_WRITTEN)
    if status == 0 and needs & OF_READS:
        status = reads_before(context, mask, width, cta, UPDATES_READ)
    if status == 0:
        status = defined(context, mask, width, cta)
    if status == 0:
        status = lanes_race(context, IN_SHARED, cta, mask, width, -1, 1 << WROTE | 1 << READ, LANE_UPDATES, 0)
    if status == 0:
        note_lanes(context, IN_SHARED, UPDATED, cta, mask, lanes_there(context, present), width, -1)
        mark_updated(context, cta, mask, width)
        places = context.places
        written = context.written.at(context.written_bytes * cta)
        for lane in range(32 if context.hazard_room != 0 else 0):  # after a noted undefined byte
            if mask >> lane & 1:
                mark_bytes(written, places[lane], width)
        status = order_by_writes(context, cta, mask, does)
    return status


def may_write(context: Context, cta: int, mask: int, width: int, needs: int, rule: int) -> int:
    """Whether writes come after the plain writes of all other accesses, and after reads of absent lanes of their warp.
    Returns a status."""
    warp, status = context.current, 0
    if needs & (OF_WRITES | OF_COPIES_THERE):
        status = writes_before(context, mask, width, warp, cta, -1, rule)
    if status == 0 and needs & OF_PARTIAL_READS:
        status = partial_reads_before(context, mask, width, warp, cta)
    return status


def look_before_write(context: Context, cta: int, low: int, high: int, width: int) -> int:
    """The checks of granules that writes to pages need, as bits; ``OF_BYTES`` if bytes may be unwritten before."""
    warp, last = context.current, high + width - 1
    floor = context.floors[warp]
    first = context.pages * cta
    read, written = context.page_read.at(first), context.page_written.at(first)
    flying, reading = context.page_flying.at(first), context.page_reading.at(first)
    full = context.page_full.at(first)
    met = context.vectors[(context.actors + 1) * warp]
    needs = OF_UPDATES if page_updated(context, cta, low, last, floor) else 0
    needs |= OF_NOTES if context.write_parties != 0 or context.shared_chains != 0 else 0
    for page in range(low >> PAGE_SHIFT, (last >> PAGE_SHIFT) + 1):
        if full[page] == 0:
            needs |= OF_BYTES
        if (flying[page] | reading[page]) != 0:
            needs |= OF_COPIES_THERE
        if written[page] > floor and page_written(context, cta, page, warp):
            needs |= OF_WRITES
        if read[page] > floor:
            needs |= OF_READS
        if read[page] > met and context.partial_reads != 0:
            needs |= OF_PARTIAL_READS
    return needs


def reads_before(context: Context, mask: int, width: int, cta: int, rule: int) -> int:
    """Whether all reads of the places in the context come before the current warp's access, which otherwise breaks a
    rule. Returns a status."""
    places = context.places
    shift, warp = context.granule_shift, context.current
    many = max(width >> shift, 1)
    planes, granules = context.planes, context.granules
    vector = context.vectors.at(context.actors * warp)
    counts = -1 if rule == OVERWRITES_READ else mask
    for other in range(planes):
        known = vector[other]
        if other == warp or context.last_read[other] <= known:
            continue
        first = granules * (planes * cta + other)
        plane = context.readers.at(first)
        for lane in range(32):
            if mask >> lane & 1:
                offset = places[lane]
                for k in range(offset >> shift, (offset >> shift) + many):
                    if plane[k] <= known or (context.flights_checked != 0 and in_flight(context, other, plane[k])):
                        continue
                    if counts < 0:
                        counts = changed_lanes(context, mask, width, context.shared + cta * context.shared_stride)
                    if counts >> lane & 1:
                        party = reader_at(context, first + k)
                        return race(context, rule, warp, lane, offset, width, other, plane[k], party)
    return 0


def mark_written(context: Context, cta: int, mask: int, there: int, width: int) -> None:
    """The current warp has just written the places in the context, with these lanes present."""
    warp = context.current
    now = context.clocks[warp]
    tag = shared_tag(warp, now)
    places = context.places
    shift = context.granule_shift
    many = max(width >> shift, 1)
    writers = context.writers.at(context.granules * cta)
    masks = context.write_masks.at(context.granules * cta)
    written = context.written.at(context.written_bytes * cta)
    last = -1
    simple = there != 0 and context.write_parties == 0 and context.shared_chains == 0
    for lane in range(32):
        if mask >> lane & 1:
            offset = places[lane]
            begin = offset >> shift
            if simple:
                for k in range(begin, begin + many):
                    writers[k] = tag
                    masks[k] = there
            else:
                mark_granules(context, cta, begin, many, lane, tag, there)
            mark_bytes(written, offset, width)
            if offset >> PAGE_SHIFT != last:
                last = offset >> PAGE_SHIFT
                mark_pages(context, cta, last, 1, warp, now)


def mark_granules(context: Context, cta: int, begin: int, many: int, lane: int, tag: int, there: int) -> None:
    """A lane of the current warp has just written granules, with these lanes present."""
    first = context.granules * cta
    writers, masks = context.writers.at(first), context.write_masks.at(first)
    mark_party(context, first + begin, many, party_of(context, lane))
    for k in range(begin, begin + many):
        lanes = lanes_with(there, lane)
        if there == 0 and writers[k] == tag:  # several lanes write it: none comes after all
            lanes = lanes & masks[k]
        writers[k] = tag
        masks[k] = lanes
        if context.shared_chains != 0:
            context.shared_chains[first + k] = 0
            forget_links(context, context.shared_links.at(first + k))


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
    needs = look_before_write(context, cta, low, high, width)
    status = may_write(context, cta, mask, width, needs, COPIES_WRITTEN)
    if status == 0 and needs & OF_UPDATES:
        status = updates_before(context, cta, mask, width, COPIES_UPDATED)
    if status == 0 and needs & OF_READS:
        status = reads_before(context, mask, width, cta, COPIES_READ)
    if status == 0:
        mark_flying(context, cta, mask, width, 1)
    return status


def mark_flying(context: Context, cta: int, mask: int, width: int, flies: int) -> None:
    """Copies to the places in the context are in flight from now on (1), or no longer (0).

    Places of copies in flight count as written: a read is too early, which is a separate hazard.
    """
    places = context.places
    shift = context.granule_shift
    many = max(width >> shift, 1)
    flying = context.flying.at(context.granules * cta)
    pages = context.page_flying.at(context.pages * cta)
    written = context.written.at(context.written_bytes * cta)
    by = 1 if flies else -1
    parties = flies and context.write_parties != 0
    last = -1
    count = 0
    for lane in range(32):
        if mask >> lane & 1:
            offset = places[lane]
            if flies:
                mark_bytes(written, offset, width)
            granule = flying.at(offset >> shift)
            if parties:
                mark_flight(context, context.granules * cta + (offset >> shift), many, party_of(context, lane))
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
    """The current warp has waited for copies of the current record to the places in the context, which count as written
    by it now."""
    mark_flying(context, cta, mask, width, 0)
    mark_written(context, cta, mask, EVERY_LANE, width)


def copies_still_fly(context: Context, cta: int) -> None:
    """Copies of cp.async of a CTA have landed where others may be in flight: mark these again."""
    shared, shift = context.shared + cta * context.shared_stride, context.granule_shift
    flying = context.flying.at(context.granules * cta)
    for warp in range(context.warp_count * cta, context.warp_count * (cta + 1)):
        for k in range(context.warps[warp].copies_in_flight if context.copies_overlap else 0):
            one = context.copies[MOST_COPIES * warp + k]
            for lane in range(32):
                begin = one.target[lane] - shared >> shift
                for granule in range(begin, begin + max(one.width >> shift, 1) if one.mask >> lane & 1 else begin):
                    flying[granule] |= IN_FLIGHT
