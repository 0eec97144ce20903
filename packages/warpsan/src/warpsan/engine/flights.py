"""The checks of asynchronous operations on shared memory: machine code (:mod:`~warpsan.engine.translate`).

An operation's accesses are checked and marked at issue, for the warps that issue it. Its own time comes before later
accesses once they have waited for it (:mod:`warpsan.checks.race`, ``issue``). Until then, no access may touch its
destination, and no write its source (:mod:`warpsan.checks.async_copy`). A possible hazard is a suspicion
(:mod:`.suspects`).
"""

from __future__ import annotations

from warpsan.engine.clocks import comes_before, operation_time, vector_of, warps_of_cluster
from warpsan.engine.layout import (
    ASYNC,
    AT_UNIT,
    CLUSTER_RULE,
    COLUMNS,
    CTA_COUNT,
    CURRENT_RECORD,
    EARLY,
    FENCED_FLOORS,
    FLOORS,
    FLYING,
    FROM_GLOBAL,
    GRANULE_SHIFT,
    GRANULES,
    IN_FLIGHT,
    IN_SHARED,
    LAST_READ,
    NOT_READABLE,
    OPAQUE,
    ORIGINS,
    PAGE_FLYING,
    PAGE_FULL,
    PAGE_GENERIC,
    PAGE_READ,
    PAGE_READING,
    PAGE_SHIFT,
    PAGE_TAG,
    PAGE_WRITTEN,
    PLANES,
    RACE,
    READ_IN_FLIGHT,
    READERS,
    REMOTE,
    SCRATCH,
    SCRATCH_FAULTS,
    SCRATCH_POISON,
    SHARED,
    SHARED_STRIDE,
    WARP_COUNT,
    WRITERS,
    WRITTEN,
    WRITTEN_BYTES,
)
from warpsan.engine.pages import page_word, write_page
from warpsan.engine.suspects import current_instruction, note_reached, note_unwritten, suspect
from warpsan.engine.updates import page_updated
from warpsan.engine.words import fill, load8, load32, load64, store8, store32, store64

__all__ = [
    "copy_came",
    "copy_issued",
    "doubt",
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


def flying_of(context: int, cta: int) -> int:
    """The operations in flight for each granule of a CTA."""
    return load64(context + 8 * FLYING) + 4 * load64(context + 8 * GRANULES) * cta


def doubt(context: int, cta: int, granule: int, status: int) -> int:
    """The operation may be a hazard at a granule of a CTA; as :func:`~.suspects.suspect`."""
    return suspect(context, IN_SHARED, load64(context + 8 * GRANULES) * cta + granule, status)


# ---- reads -----------------------------------------------------------------------------------------------------------


def read_chunks(context: int, places: int, many: int, cta: int, first: int, warps: int, twin: int, time: int) -> int:
    """An operation of ``warps`` warps from ``first`` on will read 16-byte chunks at these addresses. Returns a
    status."""
    begin = load64(context + 8 * SHARED) + cta * load64(context + 8 * SHARED_STRIDE)
    poison = load64(context + 8 * SCRATCH) + SCRATCH_POISON
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
        status = read_chunk(context, cta, offset, first, warps, twin, time, closely, 0)
        if status != 0:
            return status
    return 0


def read_range(context: int, cta: int, offset: int, size: int, warp: int, twin: int, time: int, all_out: int) -> int:
    """An operation of a warp will read a range of whole chunks; ``all_out`` is whether it writes all of it to global
    memory. Returns a status."""
    for chunk in range(size // _CHUNK):
        place = offset + _CHUNK * chunk
        closely = needs_look(context, cta, place >> PAGE_SHIFT, warp, 1)
        status = read_chunk(context, cta, place, warp, 1, twin, time, closely, all_out)
        if status != 0:
            return status
    return 0


def needs_look(context: int, cta: int, page: int, first: int, warps: int) -> int:
    """Whether a read of a page in the async proxy needs a check of its granules; 2 if it may race with an atomic
    operation."""
    if load64(page_word(context, PAGE_FULL, cta, page)) == 0 or load64(page_word(context, PAGE_FLYING, cta, page)) != 0:
        return 1
    tag, written = load64(page_word(context, PAGE_TAG, cta, page)), load64(page_word(context, PAGE_WRITTEN, cta, page))
    generic = load64(page_word(context, PAGE_GENERIC, cta, page))
    for warp in range(first, first + warps):
        floor = load64(load64(context + 8 * FLOORS) + 8 * warp)
        if page_updated(context, cta, page << PAGE_SHIFT, page << PAGE_SHIFT, floor):
            return 2
        if generic > load64(load64(context + 8 * FENCED_FLOORS) + 8 * warp):
            return 1
        if written > load64(load64(context + 8 * FLOORS) + 8 * warp) and (
            tag == 0 or comes_before(context, warp, tag) == 0
        ):
            return 1
    return 0


def read_chunk(
    context: int, cta: int, offset: int, first: int, warps: int, twin: int, time: int, closely: int, all_out: int
) -> int:
    """An operation will read one chunk; ``all_out`` as in :func:`read_range`. Returns a status."""
    shift = load64(context + 8 * GRANULE_SHIFT)
    granule, many = offset >> shift, _CHUNK >> shift
    flying = flying_of(context, cta)
    if closely == 2:
        status = doubt(context, cta, granule, RACE)
        if status != 0:
            return status
    if closely:
        for k in range(granule, granule + many):
            if load32(flying + 4 * k) & NOT_READABLE:
                status = doubt(context, cta, k, ASYNC)
                if status != 0:
                    return status
        status = written_before(context, cta, granule, granule + many, first, warps, 1)
        if status != 0:
            return status
        written = load64(context + 8 * WRITTEN) + load64(context + 8 * WRITTEN_BYTES) * cta + (offset >> 3)
        if load8(written) != 0xFF or load8(written + 1) != 0xFF:
            status = read_undefined_chunk(context, cta, offset, all_out)
            if status != 0:
                return status
    plane = load64(context + 8 * PLANES) * cta + twin
    readers = load64(context + 8 * READERS) + 4 * load64(context + 8 * GRANULES) * plane
    for k in range(granule, granule + many):
        store32(readers + 4 * k, time)
        store32(flying + 4 * k, load32(flying + 4 * k) + READ_IN_FLIGHT)
    store64(load64(context + 8 * LAST_READ) + 8 * twin, time)
    store64(page_word(context, PAGE_READ, cta, offset >> PAGE_SHIFT), time)
    reading = page_word(context, PAGE_READING, cta, offset >> PAGE_SHIFT)
    store64(reading, load64(reading) + 1)
    return 0


def read_undefined_chunk(context: int, cta: int, offset: int, all_out: int) -> int:
    """An operation will read a chunk with undefined bytes: unwritten, or written with an undefined value. Bytes from
    global memory count if ``all_out``; whether a product uses all its operands is unknown. Returns a status."""
    place, record = load64(context + 8 * SCRATCH) + SCRATCH_FAULTS, load64(context + 8 * CURRENT_RECORD)
    origin = 0
    if load64(context + 8 * ORIGINS) != 0:
        origins = load64(context + 8 * ORIGINS) + load64(context + 8 * SHARED_STRIDE) * cta
        for k in range(offset >> 2, offset + _CHUNK >> 2):
            origin = max(origin, load32(origins + 4 * k))
    if origin & FROM_GLOBAL and all_out == 0:
        return 0
    if origin != 0:
        store32(place, origin)
        return note_reached(context, record, 1, 0, place)
    store64(place, offset)
    return note_unwritten(context, record, 1, _CHUNK, place)


def written_before(context: int, cta: int, begin: int, end: int, first: int, warps: int, proxy: int) -> int:
    """Whether the last writes of granules come before an operation of these warps. Returns a status.

    In the async proxy (``proxy``), writes of the generic proxy must also have passed a fence. The first granule stands
    for all granules that one operation has written.
    """
    writers = load64(context + 8 * WRITERS) + 8 * load64(context + 8 * GRANULES) * cta
    generic, columns = warps_of_cluster(context), load64(context + 8 * COLUMNS)
    good, doubted = 0, 0
    for k in range(begin, end):
        tag = load64(writers + 8 * k)
        if tag in (good, doubted):
            continue
        bad = 0
        for warp in range(first, first + warps):
            if comes_before(context, warp, tag) == 0:
                bad = 1
            actor = tag & 0xFFFF
            if proxy and actor < generic and tag >> 16 > load64(vector_of(context, warp) + 8 * (columns + actor)):
                bad = 1
        status = doubt(context, cta, k, RACE) if bad else 0
        if status != 0:
            return status
        if bad:
            doubted = tag
        else:
            good = tag
    return 0


def reads_complete(context: int, places: int, many: int, cta: int) -> None:
    """An operation no longer reads these chunks."""
    begin = load64(context + 8 * SHARED) + cta * load64(context + 8 * SHARED_STRIDE)
    poison = load64(context + 8 * SCRATCH) + SCRATCH_POISON
    for k in range(many):
        if load64(places + 8 * k) != poison:
            reads_range_complete(context, cta, load64(places + 8 * k) - begin, _CHUNK)


def reads_range_complete(context: int, cta: int, offset: int, size: int) -> None:
    """An operation no longer reads a range of whole chunks."""
    shift = load64(context + 8 * GRANULE_SHIFT)
    flying = flying_of(context, cta)
    for k in range(offset >> shift, offset + size >> shift):
        store32(flying + 4 * k, load32(flying + 4 * k) - READ_IN_FLIGHT)
    for chunk in range(size // _CHUNK):
        reading = page_word(context, PAGE_READING, cta, offset + _CHUNK * chunk >> PAGE_SHIFT)
        store64(reading, load64(reading) - 1)


# ---- writes ----------------------------------------------------------------------------------------------------------


def copy_issued(context: int, warp: int, cta: int, offset: int, size: int, actor: int, proxy: int) -> int:
    """A warp issues a copy whose mbarrier's actor writes a range of shared memory.

    Returns
    -------
    int
        The operation's time, or a status below 64.
    """
    shift = load64(context + 8 * GRANULE_SHIFT)
    floor = load64(load64(context + 8 * FLOORS) + 8 * warp)
    fenced = load64(load64(context + 8 * FENCED_FLOORS) + 8 * warp)
    if page_updated(context, cta, offset, offset + size - 1, floor):
        status = doubt(context, cta, offset >> shift, RACE)
        if status != 0:
            return status
    for page in range(offset >> PAGE_SHIFT, (offset + size - 1 >> PAGE_SHIFT) + 1):
        low = max(offset, page << PAGE_SHIFT) >> shift
        high = (min(offset + size, page + 1 << PAGE_SHIFT) - 1 >> shift) + 1
        if (
            load64(page_word(context, PAGE_FLYING, cta, page)) != 0
            or load64(page_word(context, PAGE_READING, cta, page)) != 0
        ):
            for k in range(low, high):
                status = doubt(context, cta, k, ASYNC) if flies_first(context, cta, low, k) else 0
                if status != 0:
                    return status
        tag = load64(page_word(context, PAGE_TAG, cta, page))
        ordered = load64(page_word(context, PAGE_WRITTEN, cta, page)) <= floor
        if not ordered and tag != 0:
            ordered = comes_before(context, warp, tag) != 0
        if not ordered or (proxy and load64(page_word(context, PAGE_GENERIC, cta, page)) > fenced):
            status = written_before(context, cta, low, high, warp, 1, proxy)
            if status != 0:
                return status
        if load64(page_word(context, PAGE_READ, cta, page)) > floor:
            status = read_before(context, warp, cta, low, high)
            if status != 0:
                return status
    time = operation_time(context, actor)
    mark_copy(context, cta, offset, size, time << 16 | actor)
    touch_remote(context, warp, cta, actor, time)
    return time


def flies_first(context: int, cta: int, low: int, granule: int) -> int:
    """Whether a granule from ``low`` on has operations in flight other than those of the one before it: one granule
    stands for a range."""
    writers = load64(context + 8 * WRITERS) + 8 * load64(context + 8 * GRANULES) * cta
    flying, mine = flying_of(context, cta) + 4 * granule, writers + 8 * granule
    if load32(flying) == 0:
        return 0
    return granule == low or load32(flying - 4) != load32(flying) or load64(mine - 8) != load64(mine)


def read_before(context: int, warp: int, cta: int, begin: int, end: int) -> int:
    """Whether all reads of granules come before a warp's next access. For reads in one step, the first granule
    stands for all. Returns a status."""
    planes, granules = load64(context + 8 * PLANES), load64(context + 8 * GRANULES)
    vector = vector_of(context, warp)
    for other in range(planes):
        known = load64(vector + 8 * other)
        if other == warp or load64(load64(context + 8 * LAST_READ) + 8 * other) <= known:
            continue
        readers = load64(context + 8 * READERS) + 4 * granules * (planes * cta + other)
        last = 0
        for k in range(begin, end):
            time = load32(readers + 4 * k)
            status = doubt(context, cta, k, RACE) if time > known and time != last else 0
            last = time
            if status != 0:
                return status
    return 0


def mark_copy(context: int, cta: int, offset: int, size: int, tag: int) -> None:
    """A copy writes a range from now on; in the late mode, no access may touch it until the copy has landed."""
    shift = load64(context + 8 * GRANULE_SHIFT)
    begin, end = offset >> shift, (offset + size - 1 >> shift) + 1
    writers = load64(context + 8 * WRITERS) + 8 * load64(context + 8 * GRANULES) * cta
    for k in range(begin, end):
        store64(writers + 8 * k, tag)
    if load64(context + 8 * EARLY) == 0:
        flying = flying_of(context, cta)
        for k in range(begin, end):
            store32(flying + 4 * k, load32(flying + 4 * k) | IN_FLIGHT)
    written = load64(context + 8 * WRITTEN) + load64(context + 8 * WRITTEN_BYTES) * cta
    if size % _CHUNK == 0:
        fill(written + (offset >> 3), 0xFF, size >> 3)
    else:
        place = written + (offset >> 3)  # less than 16 bytes, aligned
        store8(place, load8(place) | ((1 << size) - 1) << (offset & 7))
    for page in range(offset >> PAGE_SHIFT, (offset + size - 1 >> PAGE_SHIFT) + 1):
        whole = offset <= page << PAGE_SHIFT and offset + size >= page + 1 << PAGE_SHIFT
        write_page(context, cta, page, tag & 0xFFFF, tag >> 16)
        store64(page_word(context, PAGE_TAG, cta, page), tag if whole else 0)
        if whole:
            store64(page_word(context, PAGE_FULL, cta, page), 1)
    if load64(context + 8 * EARLY) == 0:
        count_flying(context, cta, offset, size, 1)


def count_flying(context: int, cta: int, offset: int, size: int, by: int) -> None:
    """Count the granules of a range in their pages."""
    shift = load64(context + 8 * GRANULE_SHIFT)
    for page in range(offset >> PAGE_SHIFT, (offset + size - 1 >> PAGE_SHIFT) + 1):
        low = max(offset, page << PAGE_SHIFT) >> shift
        high = (min(offset + size, page + 1 << PAGE_SHIFT) - 1 >> shift) + 1
        place = page_word(context, PAGE_FLYING, cta, page)
        store64(place, load64(place) + by * (high - low))


def copy_came(context: int, cta: int, offset: int, size: int) -> None:
    """A copy has landed."""
    if load64(context + 8 * EARLY) != 0:
        return
    shift = load64(context + 8 * GRANULE_SHIFT)
    flying = flying_of(context, cta)
    for k in range(offset >> shift, (offset + size - 1 >> shift) + 1):
        store32(flying + 4 * k, load32(flying + 4 * k) & ~IN_FLIGHT)
    count_flying(context, cta, offset, size, -1)


def mark_mbarrier(context: int, cta: int, offset: int) -> None:
    """From now on, only mbarrier instructions may touch these eight bytes."""
    shift = load64(context + 8 * GRANULE_SHIFT)
    flying = flying_of(context, cta)
    for k in range(offset >> shift, offset + 8 >> shift):
        store32(flying + 4 * k, load32(flying + 4 * k) | OPAQUE)
    count_flying(context, cta, offset, 8, 1)


def unmark_mbarrier(context: int, cta: int, offset: int) -> None:
    """All instructions may touch the eight bytes again."""
    shift = load64(context + 8 * GRANULE_SHIFT)
    flying = flying_of(context, cta)
    for k in range(offset >> shift, offset + 8 >> shift):
        store32(flying + 4 * k, load32(flying + 4 * k) & ~OPAQUE)
    count_flying(context, cta, offset, 8, -1)


# ---- the shared memory of other CTAs ---------------------------------------------------------------------------------


def touch_remote(context: int, warp: int, cta: int, actor: int, time: int) -> None:
    """An actor accesses the shared memory of a CTA on behalf of a warp, possibly of another CTA."""
    if load64(context + 8 * REMOTE) != 0 and warp // load64(context + 8 * WARP_COUNT) != cta:
        store64(load64(context + 8 * REMOTE) + 8 * (load64(context + 8 * COLUMNS) * cta + actor), time)


def others_know(context: int) -> int:
    """A CTA's shared memory lasts until its last thread exits: accesses of other CTAs must come before one of its
    warps.

    Returns a status.
    """
    if load64(context + 8 * REMOTE) == 0:
        return 0
    columns, warps = load64(context + 8 * COLUMNS), load64(context + 8 * WARP_COUNT)
    for cta in range(load64(context + 8 * CTA_COUNT)):
        for actor in range(columns):
            time = load64(load64(context + 8 * REMOTE) + 8 * (columns * cta + actor))
            latest = 0
            for warp in range(warps if time != 0 else 0):
                latest = max(latest, load64(vector_of(context, warps * cta + warp) + 8 * actor))
            if time > latest:
                current_instruction(context, 0)  # an instruction of another warp
                return suspect(context, AT_UNIT, 0, CLUSTER_RULE)
    return 0
