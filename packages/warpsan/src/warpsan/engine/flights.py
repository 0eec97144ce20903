"""The checks of asynchronous operations on shared memory: machine code (:mod:`~warpsan.engine.translate`).

An operation's accesses are checked and marked at issue, for the warps that issue it. Its own time comes before later
accesses once they have waited for it. Until then, no access may touch its destination, and no write its source
(:mod:`.flight_rules`). A race is a row (:mod:`.races`).
"""

from __future__ import annotations

from warpsan.engine.clocks import comes_before, operation_time, vector_of, warps_of_cluster
from warpsan.engine.context import Context
from warpsan.engine.flight_rules import COPIES, disturbs
from warpsan.engine.hazards import add_hazard, hazard_row, note_reached, note_unwritten
from warpsan.engine.layout import (
    IN_FLIGHT,
    LOADS,
    NOT_READABLE,
    OPAQUE,
    PAGE_SHIFT,
    RACE,
    READ_IN_FLIGHT,
    SCRATCH_POISON,
    WITHIN,
    WORDS,
)
from warpsan.engine.pages import page_of, write_page
from warpsan.engine.races import (
    in_flight,
    is_generic,
    is_together,
    mark_landed,
    mark_party,
    party_of,
    race,
    reader_at,
    record_of_party,
    warp_of_party,
)
from warpsan.engine.rules import (
    AFTER_EXIT,
    COPIES_READ,
    COPIES_TOGETHER,
    COPIES_UPDATED,
    COPIES_WRITTEN,
    FROM_GLOBAL,
    READS_UPDATED,
    READS_WRITTEN,
    UNFENCED_READ,
    UNFENCED_WRITE,
)
from warpsan.engine.tags import actor_of_tag, shared_tag, time_of_tag
from warpsan.engine.updates import page_updated, updater_at
from warpsan.engine.words import fill, load32, load64, store32, store64

__all__ = [
    "copy_came",
    "copy_issued",
    "mark_copy",
    "mark_mbarrier",
    "others_know",
    "read_chunks",
    "read_range",
    "reads_complete",
    "reads_range_complete",
    "touch_remote",
    "unmark_mbarrier",
]

_CHUNK = 16


def flying_of(context: Context, cta: int) -> int:
    """The operations in flight for each granule of a CTA."""
    return context.flying + 4 * context.granules * cta


def change_flying(context: Context, cta: int, begin: int, many: int, without: int, by: int) -> None:
    """Remove bits from the operations in flight of granules, and then add a number to each."""
    place, both = flying_of(context, cta) + 4 * begin, (1 << 32) + 1
    for k in range(many >> 1):
        store64(place + 8 * k, (load64(place + 8 * k) & ~(without * both)) + by * both)
    if many & 1:
        place += 4 * (many - 1)
        store32(place, (load32(place) & ~without) + by)


# ---- reads -----------------------------------------------------------------------------------------------------------


def read_chunks(
    context: Context, places: int, many: int, cta: int, first: int, warps: int, async_actor: int, time: int
) -> int:
    """An operation of ``warps`` warps from ``first`` on will read 16-byte chunks at these addresses, one for each lane
    in turn. Returns a status."""
    begin = context.shared + cta * context.shared_stride
    poison = context.scratch + SCRATCH_POISON
    shift, number = context.granule_shift, page_of(context, cta, 0)
    readers = context.readers.at(context.granules * (context.planes * cta + async_actor))
    last = -1
    closely = 0
    for k in range(many):
        if load64(places + 8 * k) == poison:  # an illegal address
            continue
        offset = load64(places + 8 * k) - begin
        page = offset >> PAGE_SHIFT
        if page != last:
            last = page
            closely = needs_look(context, cta, page, first, warps)
        if closely == 0 and context.read_parties == 0:  # the marks of :func:`read_chunk` alone
            context.last_read[async_actor] = time
            granule = offset >> shift
            for each in range(granule, granule + (_CHUNK >> shift)):
                readers[each] = time
            change_flying(context, cta, granule, _CHUNK >> shift, 0, READ_IN_FLIGHT)
            context.page_read[number + page] = time
            context.page_reading[number + page] += 1
            continue
        status = read_chunk(context, cta, offset, first, warps, k % 32, async_actor, time, closely, 0)
        if status != 0:
            return status
    return 0


def read_range(
    context: Context, cta: int, offset: int, size: int, warp: int, lane: int, async_actor: int, time: int, all_out: int
) -> int:
    """An operation of a lane will read a range of whole chunks; ``all_out`` is whether it writes all of it to global
    memory. Returns a status."""
    for chunk in range(size // _CHUNK):
        place = offset + _CHUNK * chunk
        closely = needs_look(context, cta, place >> PAGE_SHIFT, warp, 1)
        status = read_chunk(context, cta, place, warp, 1, lane, async_actor, time, closely, all_out)
        if status != 0:
            return status
    return 0


def needs_look(context: Context, cta: int, page: int, first: int, warps: int) -> int:
    """Whether a read of a page in the async proxy needs a check of its granules; 2 if it may race with an atomic
    operation."""
    if context.page_full[page_of(context, cta, page)] == 0 or context.page_flying[page_of(context, cta, page)] != 0:
        return 1
    tag, written = context.page_tag[page_of(context, cta, page)], context.page_written[page_of(context, cta, page)]
    generic = context.page_generic[page_of(context, cta, page)]
    for warp in range(first, first + warps):
        floor = context.floors[warp]
        if page_updated(context, cta, page << PAGE_SHIFT, page << PAGE_SHIFT, floor):
            return 2
        if generic > context.fenced_floors[warp]:
            return 1
        if written > context.floors[warp] and (tag == 0 or comes_before(context, warp, tag) == 0):
            return 1
    return 0


def read_chunk(
    context: Context,
    cta: int,
    offset: int,
    first: int,
    warps: int,
    lane: int,
    async_actor: int,
    time: int,
    closely: int,
    all_out: int,
) -> int:
    """An operation will read one chunk for a lane; ``all_out`` as in :func:`read_range`. Returns a status."""
    shift = context.granule_shift
    granule, many = offset >> shift, _CHUNK >> shift
    if closely:
        for k in range(granule, granule + many):
            if load32(flying_of(context, cta) + 4 * k) & NOT_READABLE and context.flights_checked != 0:
                status = disturbs(context, first, lane, cta, k, offset, _CHUNK, 0)
                if status != 0:
                    return status
        for warp in range(first, first + warps):
            status = written_before(context, cta, offset, _CHUNK, granule, many, warp, lane, 1, READS_WRITTEN)
            if status == 0 and closely == 2:
                status = updated_before(context, cta, offset, _CHUNK, warp, lane, READS_UPDATED)
            if status != 0:
                return status
        written = context.written.at(context.written_bytes * cta + (offset >> 3))
        if written[0] != 0xFF or written[1] != 0xFF:
            status = read_undefined_chunk(context, cta, offset, all_out)
            if status != 0:
                return status
    plane = context.planes * cta + async_actor
    readers = context.readers.at(context.granules * plane + granule)
    for k in range(many):
        readers[k] = time
    for k in range(many if context.read_parties != 0 else 0):
        context.read_parties[context.granules * plane + granule + k] = (context.current_record - context.records) >> 6
    change_flying(context, cta, granule, many, 0, READ_IN_FLIGHT)
    context.last_read[async_actor] = time
    context.page_read[page_of(context, cta, offset >> PAGE_SHIFT)] = time
    reading = context.page_reading.at(page_of(context, cta, offset >> PAGE_SHIFT))
    reading[0] = reading[0] + 1
    return 0


def read_undefined_chunk(context: Context, cta: int, offset: int, all_out: int) -> int:
    """An operation will read a chunk with undefined bytes: unwritten, or written with an undefined value. Bytes from
    global memory count if ``all_out``; whether a product uses all its operands is unknown. Returns a status."""
    place, record = context.fault_offsets, context.current_record
    origin = 0
    if context.origins != 0:
        origins = context.origins + context.shared_stride * cta
        for k in range(offset >> 2, offset + _CHUNK >> 2):
            origin = max(origin, load32(origins + 4 * k))
    if origin & FROM_GLOBAL and all_out == 0:
        return 0
    if origin != 0:
        store32(place, origin)
        return note_reached(context, record, 1, 0, place.address)
    place[0] = offset
    return note_unwritten(context, record, 1, _CHUNK, place)


def written_before(
    context: Context,
    cta: int,
    offset: int,
    size: int,
    begin: int,
    many: int,
    warp: int,
    lane: int,
    proxy: int,
    rule: int,
) -> int:
    """Whether the last writes of granules come before an operation of a warp on a range, which otherwise breaks a rule.
    Returns a status.

    In the async proxy (``proxy``), writes of the generic proxy must also have passed a fence. The first granule stands
    for all granules that one operation has written.
    """
    first, warps, vector = context.granules * cta, warps_of_cluster(context), vector_of(context, warp)
    good, bad = 0, 0
    for k in range(first + begin, first + begin + many):
        tag, flies = context.writers[k], context.flying[k] & IN_FLIGHT
        if (flies and context.flights_checked != 0) or (flies == 0 and tag in (good, bad)):
            continue
        actor = actor_of_tag(tag)
        party = context.write_parties[k] if context.write_parties != 0 else 0
        copy = context.flight_parties[k] if context.write_parties != 0 and flies else 0
        broken = 0
        if flies or comes_before(context, warp, tag) == 0:
            broken = rule
            if copy != 0:  # a cp.async
                actor, party = warps + warp_of_party(copy), copy
        elif proxy and time_of_tag(tag) > vector[context.columns + actor] and is_generic(context, actor, party):
            broken = UNFENCED_READ if rule == READS_WRITTEN else UNFENCED_WRITE
        if broken == 0 or (context.flights_checked != 0 and in_flight(context, actor, time_of_tag(tag))):
            good = tag
            continue
        status = race_in_range(context, broken, warp, lane, offset, size, k - first, actor, time_of_tag(tag), party)
        if status != 0:
            return status
        bad = tag
    return 0


def race_in_range(
    context: Context,
    rule: int,
    warp: int,
    lane: int,
    offset: int,
    size: int,
    granule: int,
    actor: int,
    time: int,
    party: int,
) -> int:
    """An operation on a range breaks a rule at a granule: the chunk that contains it races. Returns a status."""
    place = offset + ((granule << context.granule_shift) - offset) // _CHUNK * _CHUNK
    return race(context, rule, warp, lane, place, min(size, _CHUNK), actor, time, party)


def updated_before(context: Context, cta: int, offset: int, size: int, warp: int, lane: int, rule: int) -> int:
    """Whether all atomic operations on a range come before an operation of a warp, which otherwise breaks a rule.
    Returns a status."""
    shift, warps, granules = context.granule_shift, warps_of_cluster(context), context.granules
    for other in range(warps if context.updaters != 0 else 0):
        first = granules * (warps * cta + other)
        for k in range(offset >> shift, (offset + size - 1 >> shift) + 1):
            if other != warp and context.updaters[first + k] > vector_of(context, warp)[other]:
                party = updater_at(context, first + k)
                return race_in_range(
                    context, rule, warp, lane, offset, size, k, other, context.updaters[first + k], party
                )
    return 0


def reads_complete(context: Context, places: int, many: int, cta: int) -> None:
    """An operation no longer reads these chunks."""
    begin = context.shared + cta * context.shared_stride
    poison = context.scratch + SCRATCH_POISON
    for k in range(many):
        if load64(places + 8 * k) != poison:
            reads_range_complete(context, cta, load64(places + 8 * k) - begin, _CHUNK)


def reads_range_complete(context: Context, cta: int, offset: int, size: int) -> None:
    """An operation no longer reads a range of whole chunks."""
    shift = context.granule_shift
    change_flying(context, cta, offset >> shift, size >> shift, 0, -READ_IN_FLIGHT)
    for chunk in range(size // _CHUNK):
        reading = context.page_reading.at(page_of(context, cta, offset + _CHUNK * chunk >> PAGE_SHIFT))
        reading[0] = reading[0] - 1


# ---- writes ----------------------------------------------------------------------------------------------------------


def copy_issued(
    context: Context, warp: int, lane: int, cta: int, offset: int, size: int, actor: int, proxy: int
) -> int:
    """A lane of a warp issues a copy whose mbarrier's actor writes a range of shared memory.

    Returns
    -------
    int
        The operation's time, or a status below 64.
    """
    shift = context.granule_shift
    floor = context.floors[warp]
    fenced = context.fenced_floors[warp]
    for page in range(offset >> PAGE_SHIFT, (offset + size - 1 >> PAGE_SHIFT) + 1):
        low = max(offset, page << PAGE_SHIFT) >> shift
        high = (min(offset + size, page + 1 << PAGE_SHIFT) - 1 >> shift) + 1
        flown = context.page_flying[page_of(context, cta, page)] | context.page_reading[page_of(context, cta, page)]
        if flown != 0:
            status = copies_before(context, warp, lane, cta, offset, size, low, high)
            if status != 0:
                return status
        tag = context.page_tag[page_of(context, cta, page)]
        ordered = context.page_written[page_of(context, cta, page)] <= floor
        if not ordered and tag != 0:
            ordered = comes_before(context, warp, tag) != 0
        if flown or not ordered or (proxy and context.page_generic[page_of(context, cta, page)] > fenced):
            status = written_before(context, cta, offset, size, low, high - low, warp, lane, proxy, COPIES_WRITTEN)
            if status != 0:
                return status
        if context.page_read[page_of(context, cta, page)] > floor:
            status = read_before(context, warp, lane, cta, offset, size, low, high)
            if status != 0:
                return status
    if page_updated(context, cta, offset, offset + size - 1, floor):
        status = updated_before(context, cta, offset, size, warp, lane, COPIES_UPDATED)
        if status != 0:
            return status
    time = operation_time(context, actor)
    mark_copy(context, cta, offset, size, shared_tag(actor, time), party_of(context, lane))
    touch_remote(context, warp, cta, actor, time, lane)
    return time


def copies_before(context: Context, warp: int, lane: int, cta: int, offset: int, size: int, low: int, high: int) -> int:
    """Whether operations in flight use granules that a copy will write; those of the same instruction race. Returns a
    status."""
    first, status = context.granules * cta, 0
    for k in range(low, high):
        tag = context.writers[first + k]
        party = context.write_parties[first + k] if context.write_parties != 0 else 0
        together = time_of_tag(tag) > context.step_began or is_together(context, party, party_of(context, lane))
        if context.flying[first + k] & IN_FLIGHT and together:
            actor = actor_of_tag(tag)
            return race_in_range(context, COPIES_TOGETHER, warp, lane, offset, size, k, actor, time_of_tag(tag), party)
        if context.flights_checked != 0 and context.flying[first + k] != 0:
            place = offset + ((k << context.granule_shift) - offset) // _CHUNK * _CHUNK
            status = disturbs(context, warp, lane, cta, k, place, min(size, _CHUNK), COPIES)
        if status != 0:
            return status
    return 0


def read_before(context: Context, warp: int, lane: int, cta: int, offset: int, size: int, begin: int, end: int) -> int:
    """Whether all reads of granules come before a copy of a lane. Returns a status."""
    planes, granules = context.planes, context.granules
    vector = vector_of(context, warp)
    for other in range(planes):
        known = vector[other]
        if other == warp or context.last_read[other] <= known:
            continue
        first = granules * (planes * cta + other)
        for k in range(first + begin, first + end):
            time = context.readers[k]
            if time > known and not (context.flights_checked != 0 and in_flight(context, other, time)):
                party = reader_at(context, k)
                return race_in_range(context, COPIES_READ, warp, lane, offset, size, k - first, other, time, party)
    return 0


def mark_copy(context: Context, cta: int, offset: int, size: int, tag: int, party: int) -> None:
    """A copy of a party writes a range from now on; in the late mode, no access may touch it until the copy has
    landed. Party -1: the cp.async in flight there."""
    shift = context.granule_shift
    begin, end = offset >> shift, (offset + size - 1 >> shift) + 1
    if party >= 0:
        mark_party(context, context.granules * cta + begin, end - begin, party)
    else:
        mark_landed(context, context.granules * cta + begin, end - begin)
    writers = context.writers.at(context.granules * cta)
    for k in range(begin, end):
        writers[k] = tag
    if context.early == 0:
        change_flying(context, cta, begin, end - begin, IN_FLIGHT, IN_FLIGHT)
    written = context.written.at(context.written_bytes * cta)
    if size % _CHUNK == 0:
        fill(written + (offset >> 3), 0xFF, size >> 3)
    else:
        place = written.at(offset >> 3)  # less than 16 bytes, aligned
        place[0] |= ((1 << size) - 1) << (offset & 7)
    for page in range(offset >> PAGE_SHIFT, (offset + size - 1 >> PAGE_SHIFT) + 1):
        whole = offset <= page << PAGE_SHIFT and offset + size >= page + 1 << PAGE_SHIFT
        write_page(context, cta, page, actor_of_tag(tag), time_of_tag(tag))
        context.page_tag[page_of(context, cta, page)] = tag if whole else 0
        if whole:
            context.page_full[page_of(context, cta, page)] = 1
    if context.early == 0:
        count_flying(context, cta, offset, size, 1)


def count_flying(context: Context, cta: int, offset: int, size: int, by: int) -> None:
    """Count the granules of a range in their pages."""
    shift = context.granule_shift
    for page in range(offset >> PAGE_SHIFT, (offset + size - 1 >> PAGE_SHIFT) + 1):
        low = max(offset, page << PAGE_SHIFT) >> shift
        high = (min(offset + size, page + 1 << PAGE_SHIFT) - 1 >> shift) + 1
        place = context.page_flying.at(page_of(context, cta, page))
        place[0] = place[0] + by * (high - low)


def copy_came(context: Context, cta: int, offset: int, size: int) -> None:
    """A copy has landed."""
    if context.early != 0:
        return
    shift = context.granule_shift
    begin, end = offset >> shift, (offset + size - 1 >> shift) + 1
    change_flying(context, cta, begin, end - begin, IN_FLIGHT, 0)
    count_flying(context, cta, offset, size, -1)
    for number in range(context.transfer_first, context.transfer_count if context.copies_overlap else 0):
        entry = context.transfers[number]
        if entry.kind in (LOADS, WORDS, WITHIN) and entry.combine == 0 and entry.cta == cta:  # still in flight
            low, high = max(offset, entry.offset), min(offset + size, entry.offset + entry.bytes)
            if low < high:
                begin, end = low >> shift, (high - 1 >> shift) + 1
                change_flying(context, cta, begin, end - begin, IN_FLIGHT, IN_FLIGHT)


def mark_mbarrier(context: Context, cta: int, offset: int) -> None:
    """From now on, only mbarrier instructions may touch these eight bytes."""
    shift = context.granule_shift
    change_flying(context, cta, offset >> shift, (offset + 8 >> shift) - (offset >> shift), OPAQUE, OPAQUE)
    count_flying(context, cta, offset, 8, 1)


def unmark_mbarrier(context: Context, cta: int, offset: int) -> None:
    """All instructions may touch the eight bytes again."""
    shift = context.granule_shift
    change_flying(context, cta, offset >> shift, (offset + 8 >> shift) - (offset >> shift), OPAQUE, 0)
    count_flying(context, cta, offset, 8, -1)


# ---- the shared memory of other CTAs ---------------------------------------------------------------------------------


def touch_remote(context: Context, warp: int, cta: int, actor: int, time: int, lane: int) -> None:
    """An actor accesses the shared memory of a CTA on behalf of a lane of the current warp, possibly of another CTA."""
    if context.remote != 0 and warp // context.warp_count != cta:
        place = context.columns * cta + actor
        context.remote[place] = time
        if context.write_parties != 0:
            context.remote_parties[place] = party_of(context, lane)


def others_know(context: Context) -> int:
    """A CTA's shared memory lasts until its last thread exits: accesses of other CTAs must come before one of its
    warps.

    Returns a status.
    """
    if context.remote == 0:
        return 0
    columns, warps = context.columns, context.warp_count
    for cta in range(context.cta_count):
        for actor in range(columns):
            time = context.remote[columns * cta + actor]
            latest = 0
            for warp in range(warps if time != 0 else 0):
                latest = max(latest, vector_of(context, warps * cta + warp)[actor])
            status = remote_access_ends(context, cta, columns * cta + actor) if time > latest else 0
            if status != 0:
                return status
    return 0


def remote_access_ends(context: Context, cta: int, place: int) -> int:
    """No thread of a CTA comes after an access of another CTA to its shared memory. Returns a status."""
    if context.write_parties == 0:
        return RACE
    party = context.remote_parties[place]
    row = hazard_row(context, context.records[record_of_party(party)], AFTER_EXIT, 1 << (party & 31))
    state = context.warps[warp_of_party(party)]
    row.warp = state.number
    row.cta = state.linear_cta
    row.expected = cta % context.cluster_size
    return add_hazard(context, row)
