"""The checks of accesses to global memory: machine code."""

from __future__ import annotations

from warpsan.engine.clocks import lanes_there, lanes_with, vector_of, warps_of_cluster
from warpsan.engine.lane_order import arrive_lanes, lanes_before
from warpsan.engine.layout import (
    ACQUIRES,
    ACTORS,
    CHAINS,
    CLOCKS,
    CONTINUES,
    CTA_COUNT,
    CURRENT,
    CURRENT_CTA,
    EVERY_LANE,
    EVERY_WARP,
    FLOORS,
    GLOBAL_PAGE_SHIFT,
    GLOBAL_PAGES,
    GLOBAL_READ_MASKS,
    GLOBAL_READERS,
    GLOBAL_SCOPES,
    GLOBAL_SHIFT,
    GLOBAL_STRONG,
    GLOBAL_WATCHED,
    GLOBAL_WRITE_MASKS,
    GLOBAL_WRITERS,
    GRID_ROWS,
    IN_GLOBAL,
    MOST_MBARRIERS,
    OBSERVES,
    OF_COPIES,
    POSITIONS,
    RACE,
    READ_SHIFT,
    READ_TAG,
    RELEASES,
    SCOPE_SHIFT,
    SCRATCH,
    SCRATCH_PLACES,
    SEVERAL,
    VECTORS,
    WARP_COUNT,
)
from warpsan.engine.suspects import suspect
from warpsan.engine.watch.prerequisites import access_in_time
from warpsan.engine.watch.releases import continue_chain, morally_strong, observe, release_for, row_of
from warpsan.engine.watch.scopes import keep_scope, relation_of, scope_at
from warpsan.engine.words import load8, load32, load64, store8, store32, store64

__all__ = [
    "read_constant",
    "read_global",
    "read_pieces",
    "read_strong",
    "update_pieces",
    "write_global",
    "write_pieces",
    "write_strong",
    "written_nearby",
]


def global_tag(context: int) -> int:
    """The tag of the current warp's access in global memory: its CTA, its time, and its number in the CTA."""
    warp = load64(context + 8 * CURRENT)
    time = load64(load64(context + 8 * CLOCKS) + 8 * warp)
    return load64(context + 8 * CURRENT_CTA) << 40 | time << 8 | warp % load64(context + 8 * WARP_COUNT)


def conflicts(context: int, tag: int, lane: int, there: int) -> int:
    """Whether the access of a tag, with these lanes present, may be unordered before the current warp's access by a
    lane: an unordered warp's access, or one of diverged lanes."""
    if tag == 0:
        return 0
    cta, number, time = tag >> 40, tag & 0xFF, tag >> 8 & 0xFFFFFFFF
    if cta == SEVERAL:
        return 1
    warp, place = load64(context + 8 * CURRENT), of_cluster(context, cta)
    if number >= OF_COPIES and number != EVERY_WARP:
        if place == 0:  # its acquirers are not kept
            return 1
        actor = 2 * warps_of_cluster(context) + MOST_MBARRIERS * (place - 1) + number - OF_COPIES
        return 1 if time > load64(vector_of(context, warp) + 8 * actor) else 0
    if place == 0:
        return 0 if comes_after(context, warp, cta, number, time) else 1
    if number == EVERY_WARP:
        return 1 if time > load64(load64(context + 8 * FLOORS) + 8 * warp) else 0
    other = load64(context + 8 * WARP_COUNT) * (place - 1) + number
    if time <= load64(vector_of(context, warp) + 8 * other):
        return 0
    return 1 if warp != other or (there >> lane & 1 == 0 and lanes_before(context, warp, there, time) == 0) else 0


def of_cluster(context: int, cta: int) -> int:
    """The rank, plus one, of a resident CTA, by its linear index plus one; 0 for any other."""
    return 0 if cta == SEVERAL else load32(load64(context + 8 * POSITIONS) + 4 * (cta - 1))


def comes_after(context: int, warp: int, cta: int, other: int, time: int) -> int:
    """Whether accesses of a warp (or every warp) of a CTA of another cluster up to a time come before a warp's
    access."""
    if load64(context + 8 * GRID_ROWS) == 0:
        return 0
    warps = load64(context + 8 * WARP_COUNT)
    row = row_of(context, warp) + 8 * warps * (cta - 1)
    if other != EVERY_WARP:
        return time <= load64(row + 8 * other)
    if load64(context + 8 * CTA_COUNT) > 1:  # their CTA is not kept
        return 0
    for k in range(warps):
        if time > load64(row + 8 * k):
            return 0
    return 1


def both(context: int, before: int) -> int:
    """The mark of the current warp's access and of an earlier one that is not ordered before it."""
    mine = global_tag(context)
    if before >> 40 == SEVERAL or of_cluster(context, before >> 40) == 0:
        return SEVERAL << 40
    return mine >> 40 << 40 | max(mine >> 8 & 0xFFFFFFFF, before >> 8 & 0xFFFFFFFF) << 8 | EVERY_WARP


def mark_strong(context: int, marks: int, granule: int, many: int, lane: int) -> None:
    """Write the current warp's mark to granules; if the earlier mark is not ordered before it, one for both."""
    mine = global_tag(context)
    for k in range(granule, granule + many):
        before = load64(marks + 8 * k)
        several = before != mine and conflicts(context, before, lane, EVERY_LANE)
        store64(marks + 8 * k, both(context, before) if several else mine)


def written_nearby(context: int, begin: int, end: int) -> int:
    """Whether the running cluster was the last to write in a range of global memory."""
    shift, pages = load64(context + 8 * GLOBAL_SHIFT), load64(context + 8 * GLOBAL_PAGES)
    writers, strong = load64(context + 8 * GLOBAL_WRITERS), load64(context + 8 * GLOBAL_STRONG)
    for page in range(begin >> GLOBAL_PAGE_SHIFT, (end - 1 >> GLOBAL_PAGE_SHIFT) + 1):
        if load8(pages + page) == 0:
            continue
        low = max(begin, page << GLOBAL_PAGE_SHIFT) >> shift
        high = (min(end, page + 1 << GLOBAL_PAGE_SHIFT) - 1 >> shift) + 1
        for k in range(low, high):
            if of_cluster(context, load64(writers + 8 * k) >> 40):
                return 1
            if strong != 0 and of_cluster(context, load64(strong + 8 * k) >> 40):
                return 1
    return 0


def read_constant(context: int, mask: int, present: int, width: int) -> int:
    """Lanes read global memory that the kernel does not write, through a cache that is not coherent; as
    :func:`read_global`."""
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    shift, pages = load64(context + 8 * GLOBAL_SHIFT), load64(context + 8 * GLOBAL_PAGES)
    writers, strong = load64(context + 8 * GLOBAL_WRITERS), load64(context + 8 * GLOBAL_STRONG)
    for lane in range(32):
        if mask >> lane & 1:
            offset = load64(places + 8 * lane)
            if load8(pages + (offset >> GLOBAL_PAGE_SHIFT)) == 0:
                continue
            granule = offset >> shift
            for k in range(granule, granule + max(width >> shift, 1)):
                if load64(writers + 8 * k) != 0 or (strong != 0 and load64(strong + 8 * k) != 0):
                    status = suspect(context, IN_GLOBAL, k, RACE)
                    if status != 0:
                        return status
    return read_global(context, mask, present, width)


def read_global(context: int, mask: int, present: int, width: int) -> int:
    """Lanes read global memory; their offsets in the arena are in the scratch. Returns a status."""
    return read_pieces(context, mask, present, width, -1)


def read_pieces(context: int, mask: int, present: int, width: int, issuer: int) -> int:
    """One lane, the issuer, reads all places in the scratch that are in ``mask``; without an issuer (-1), a separate
    lane reads each. As :func:`read_global`."""
    status = access_in_time(context, mask, width, 0)
    if status != 0:
        return status
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    shift = load64(context + 8 * GLOBAL_SHIFT)
    many = max(width >> shift, 1)
    writers, readers = load64(context + 8 * GLOBAL_WRITERS), load64(context + 8 * GLOBAL_READERS)
    write_masks, read_masks = load64(context + 8 * GLOBAL_WRITE_MASKS), load64(context + 8 * GLOBAL_READ_MASKS)
    strong, pages = load64(context + 8 * GLOBAL_STRONG), load64(context + 8 * GLOBAL_PAGES)
    there = lanes_there(context, present)
    mine = load64(context + 8 * READ_TAG)
    if mine == 0:
        mine = global_tag(context)
    warp = load64(context + 8 * CURRENT)
    met = load64(load64(context + 8 * VECTORS) + 8 * (load64(context + 8 * ACTORS) + 1) * warp)
    for number in range(32):
        if mask >> number & 1:
            offset, lane = load64(places + 8 * number), number if issuer < 0 else issuer
            if load8(pages + (offset >> GLOBAL_PAGE_SHIFT)) != 0:
                granule = offset >> shift
                for k in range(granule, granule + many):
                    race = conflicts(context, load64(writers + 8 * k), lane, load32(write_masks + 4 * k))
                    if strong != 0 and conflicts(context, load64(strong + 8 * k), lane, 0):
                        race = 1
                    status = suspect(context, IN_GLOBAL, k, RACE) if race else 0
                    if status != 0:
                        return status
            place, masks = readers + 8 * (offset >> READ_SHIFT), read_masks + 4 * (offset >> READ_SHIFT)
            before = load64(place)
            if before >> 40 == mine >> 40 and before & 0xFF == mine & 0xFF:
                lanes, time = load32(masks), before >> 8 & 0xFFFFFFFF
                if time <= met or lanes_before(context, warp, lanes, time):
                    lanes = EVERY_LANE
                store64(place, mine)
                store32(masks, lanes & lanes_with(there, lane))
            elif before >> 40 != SEVERAL:
                # The identity of several readers is not kept, unless the earlier ones come first anyway.
                store64(place, both(context, before) if conflicts(context, before, lane, EVERY_LANE) else mine)
                store32(masks, lanes_with(there, lane))
    return 0


def write_global(context: int, mask: int, present: int, width: int) -> int:
    """Lanes write global memory; as :func:`read_global`."""
    return write_pieces(context, mask, present, width, -1)


def write_pieces(context: int, mask: int, present: int, width: int, issuer: int) -> int:
    """One lane writes all places in the scratch; as :func:`read_pieces`."""
    status = access_in_time(context, mask, width, 1)
    if status != 0:
        return status
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    shift = load64(context + 8 * GLOBAL_SHIFT)
    many = max(width >> shift, 1)
    writers, readers = load64(context + 8 * GLOBAL_WRITERS), load64(context + 8 * GLOBAL_READERS)
    write_masks, read_masks = load64(context + 8 * GLOBAL_WRITE_MASKS), load64(context + 8 * GLOBAL_READ_MASKS)
    strong, pages = load64(context + 8 * GLOBAL_STRONG), load64(context + 8 * GLOBAL_PAGES)
    watched, chains = load64(context + 8 * GLOBAL_WATCHED), load64(context + 8 * CHAINS)
    there = lanes_there(context, present)
    mine = global_tag(context)
    for number in range(32):
        if mask >> number & 1:
            offset, lane = load64(places + 8 * number), number if issuer < 0 else issuer
            near = offset >> READ_SHIFT
            before = load64(readers + 8 * near)
            read = 1 if before != 0 and conflicts(context, before, lane, load32(read_masks + 4 * near)) else 0
            granule = offset >> shift
            for k in range(granule, granule + many):
                race = read
                before = load64(writers + 8 * k)
                if before != 0 and conflicts(context, before, lane, load32(write_masks + 4 * k)):
                    race = 1
                if strong != 0 and conflicts(context, load64(strong + 8 * k), lane, 0):
                    race = 1
                if watched != 0 and conflicts(context, load64(watched + 8 * k), lane, 0):
                    race = 1
                status = suspect(context, IN_GLOBAL, k, RACE) if race else 0
                if status != 0:
                    return status
                store64(writers + 8 * k, mine)
                store32(write_masks + 4 * k, lanes_with(there, lane))
                if chains != 0:
                    store64(chains + 8 * k, 0)
            store8(pages + (offset >> GLOBAL_PAGE_SHIFT), 1)
    return 0


# ---- strong operations -----------------------------------------------------------------------------------------------


def read_strong(context: int, mask: int, present: int, width: int, does: int) -> int:
    """Lanes read global memory strongly, which conflicts only with weak writes; as :func:`read_global`.

    ``does`` has the bit ``ACQUIRES`` if the read acquires, and the scope.
    """
    status = access_in_time(context, mask, width, 0)
    if status != 0:
        return status
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    shift, chains = load64(context + 8 * GLOBAL_SHIFT), load64(context + 8 * CHAINS)
    warp, many = load64(context + 8 * CURRENT), max(width >> shift, 1)
    for lane in range(32):
        if mask >> lane & 1:
            granule = load64(places + 8 * lane) >> shift
            status = weakly_written(context, granule, many, lane)
            if status == 0:
                status = too_narrow(context, granule, many, lane, does >> SCOPE_SHIFT)
            if status != 0:
                return status
            mark_strong(context, load64(context + 8 * GLOBAL_WATCHED), granule, many, lane)
            status = observe(context, warp, granule, does) if chains != 0 else 0
            if status != 0:
                return status
    return 0


def write_strong(context: int, mask: int, present: int, width: int, does: int) -> int:
    """Lanes write global memory strongly, or update it atomically, which conflicts only with weak accesses; as
    :func:`read_global`.

    ``does`` has the bits ``ACQUIRES`` and ``RELEASES``, ``OBSERVES`` for operations that return the old value,
    ``CONTINUES`` for all that read and write, and the scope.
    """
    return update_pieces(context, mask, width, does, -1)


def update_pieces(context: int, mask: int, width: int, does: int, issuer: int) -> int:
    """One lane updates all places in the scratch; as :func:`read_pieces` and :func:`write_strong`."""
    status = access_in_time(context, mask, width, 1)
    if status != 0:
        return status
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    shift, chains = load64(context + 8 * GLOBAL_SHIFT), load64(context + 8 * CHAINS)
    readers, masks = load64(context + 8 * GLOBAL_READERS), load64(context + 8 * GLOBAL_READ_MASKS)
    warp, many = load64(context + 8 * CURRENT), max(width >> shift, 1)
    release = 0
    for number in range(32):
        if mask >> number & 1:
            offset, lane = load64(places + 8 * number), number if issuer < 0 else issuer
            near, granule = offset >> READ_SHIFT, offset >> shift
            status = weakly_written(context, granule, many, lane)
            if status == 0 and conflicts(context, load64(readers + 8 * near), lane, load32(masks + 4 * near)):
                status = suspect(context, IN_GLOBAL, granule, RACE)
            if status == 0:
                status = too_narrow(context, granule, many, lane, does >> SCOPE_SHIFT)
            if status != 0:
                return status
            store8(load64(context + 8 * GLOBAL_PAGES) + (offset >> GLOBAL_PAGE_SHIFT), 1)
            if chains != 0:
                status = observe(context, warp, granule, does) if does & OBSERVES else 0
                if does & RELEASES:
                    arrive_lanes(context, warp, 1 << lane)
                if status == 0 and (release == 0 or does & ACQUIRES):
                    release = release_for(context, warp, does & RELEASES)
                    status = release if release < 64 else 0
                if status == 0:
                    before = load64(chains + 8 * granule) if does & CONTINUES else 0
                    if load64(context + 8 * GLOBAL_SCOPES) != 0:
                        before = morally_strong(context, warp, before, does >> SCOPE_SHIFT)
                    status = continue_chain(context, warp, granule, release, before, does)
                if status != 0:
                    return status
            mark_scopes(context, granule, many, lane, does >> SCOPE_SHIFT)
            mark_strong(context, load64(context + 8 * GLOBAL_STRONG), granule, many, lane)
    return 0


def too_narrow(context: int, granule: int, many: int, lane: int, scope: int) -> int:
    """Whether the scopes of a strong access of the current warp and of unordered strong writes at its places include
    each other's threads. Returns a status."""
    marks = load64(context + 8 * GLOBAL_STRONG)
    if load64(context + 8 * GLOBAL_SCOPES) == 0 or marks == 0:
        return 0
    for k in range(granule, granule + many):
        tag = load64(marks + 8 * k)
        if conflicts(context, tag, lane, EVERY_LANE):
            relation = relation_of(context, tag, of_cluster(context, tag >> 40))
            status = suspect(context, IN_GLOBAL, k, RACE) if relation > min(scope, scope_at(context, k)) else 0
            if status != 0:
                return status
    return 0


def mark_scopes(context: int, granule: int, many: int, lane: int, scope: int) -> None:
    """Write the scope of the current warp's strong write to granules, before its mark."""
    if load64(context + 8 * GLOBAL_SCOPES) != 0:
        for k in range(granule, granule + many):
            tag = load64(load64(context + 8 * GLOBAL_STRONG) + 8 * k)
            keep_scope(context, k, scope, conflicts(context, tag, lane, EVERY_LANE))


def weakly_written(context: int, granule: int, many: int, lane: int) -> int:
    """Whether the last weak write of all of the granules comes before the current warp's access by a lane. Returns a
    status."""
    writers, masks = load64(context + 8 * GLOBAL_WRITERS), load64(context + 8 * GLOBAL_WRITE_MASKS)
    for k in range(granule, granule + many):
        if conflicts(context, load64(writers + 8 * k), lane, load32(masks + 4 * k)):
            status = suspect(context, IN_GLOBAL, k, RACE)
            if status != 0:
                return status
    return 0
