"""The checks of accesses to global memory: machine code."""

from __future__ import annotations

from warpsan.engine.clocks import lanes_there, lanes_with, vector_of, warps_of_cluster
from warpsan.engine.context import Context
from warpsan.engine.global_races import check_reads, check_strong_reads, check_updates, check_writes
from warpsan.engine.lane_order import lanes_before
from warpsan.engine.layout import (
    CONTINUES,
    EVERY_LANE,
    EVERY_WARP,
    GLOBAL_PAGE_SHIFT,
    MOST_MBARRIERS,
    OF_COPIES,
    PAGE_STRONG,
    PAGE_WRITTEN,
    RACE,
    READ_SHIFT,
    SCOPE_SHIFT,
    SEVERAL,
)
from warpsan.engine.missing import forget_links
from warpsan.engine.rules import EARLY_READ, EARLY_UPDATE, EARLY_WRITE
from warpsan.engine.structs import Ptr, i64
from warpsan.engine.suspects import is_status
from warpsan.engine.tags import cta_of_tag, global_tag, global_time, warp_of_tag
from warpsan.engine.watch.prerequisites import access_in_time
from warpsan.engine.watch.releases import observe, release_to_place, row_of
from warpsan.engine.watch.scopes import keep_scope, relation_of, scope_at

__all__ = [
    "conflicts",
    "plain_tag",
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


def own_tag(context: Context) -> int:
    """The tag of the current warp's access in global memory: its CTA, its time, and its number in the CTA."""
    warp = context.current
    time = context.clocks[warp]
    return global_tag(context.current_cta, time, warp % context.warp_count)


def conflicts(context: Context, tag: int, lane: int, there: int) -> int:
    """Whether the access of a tag, with these lanes present, may be unordered before the current warp's access by a
    lane: an unordered warp's access, or one of diverged lanes."""
    if tag == 0 or context.global_marks != 0:  # those decide exactly
        return 0
    cta, number, time = cta_of_tag(tag), warp_of_tag(tag), global_time(tag)
    if cta == SEVERAL:
        return 1
    warp, place = context.current, of_cluster(context, cta)
    if number >= OF_COPIES and number != EVERY_WARP:
        if place == 0:  # its acquirers are not kept
            return 1
        actor = 2 * warps_of_cluster(context) + MOST_MBARRIERS * (place - 1) + number - OF_COPIES
        return 1 if time > vector_of(context, warp)[actor] else 0
    if place == 0:
        return 0 if comes_after(context, warp, cta, number, time) else 1
    if number == EVERY_WARP:
        return 1 if time > context.floors[warp] else 0
    other = context.warp_count * (place - 1) + number
    if time <= vector_of(context, warp)[other]:
        return 0
    return 1 if warp != other or (there >> lane & 1 == 0 and lanes_before(context, warp, there, time) == 0) else 0


def of_cluster(context: Context, cta: int) -> int:
    """The rank, plus one, of a resident CTA, by its linear index plus one; 0 for any other."""
    return 0 if cta == SEVERAL else context.positions[cta - 1]


def comes_after(context: Context, warp: int, cta: int, other: int, time: int) -> int:
    """Whether accesses of a warp (or every warp) of a CTA of another cluster up to a time come before a warp's
    access."""
    if context.grid_rows == 0:
        return 0
    warps = context.warp_count
    row = row_of(context, warp).at(warps * (cta - 1))
    if other != EVERY_WARP:
        return time <= row[other]
    if context.cta_count > 1:  # their CTA is not kept
        return 0
    for k in range(warps):
        if time > row[k]:
            return 0
    return 1


def both(context: Context, before: int) -> int:
    """The mark of the current warp's access and of an earlier one that is not ordered before it."""
    mine = own_tag(context)
    if cta_of_tag(before) == SEVERAL or of_cluster(context, cta_of_tag(before)) == 0:
        return global_tag(SEVERAL, 0, 0)
    return global_tag(cta_of_tag(mine), max(global_time(mine), global_time(before)), EVERY_WARP)


def mark_strong(context: Context, marks: Ptr[i64], granule: int, many: int, lane: int) -> None:
    """Write the current warp's mark to granules; if the earlier mark is not ordered before it, one for both."""
    mine = own_tag(context)
    for k in range(granule, granule + many):
        before = marks[k]
        several = before != mine and conflicts(context, before, lane, EVERY_LANE)
        marks[k] = both(context, before) if several else mine


def written_nearby(context: Context, begin: int, end: int) -> int:
    """Whether the running cluster was the last to write in a range of global memory."""
    shift, pages = context.global_shift, context.global_pages
    writers, strong = context.global_writers, context.global_strong
    for page in range(begin >> GLOBAL_PAGE_SHIFT, (end - 1 >> GLOBAL_PAGE_SHIFT) + 1):
        if pages[page] == 0:
            continue
        low = max(begin, page << GLOBAL_PAGE_SHIFT) >> shift
        high = (min(end, page + 1 << GLOBAL_PAGE_SHIFT) - 1 >> shift) + 1
        for k in range(low, high):
            if of_cluster(context, cta_of_tag(writers[k])):
                return 1
            if strong != 0 and of_cluster(context, cta_of_tag(strong[k])):
                return 1
    return 0


def plain_tag(context: Context) -> int:
    """The tag of the current warp's access, if marks alone decide about plain accesses; or 0."""
    if context.strict != 0 or context.read_tag != 0 or context.prerequisites != 0 or context.global_marks != 0:
        return 0
    return own_tag(context)


def read_constant(context: Context, mask: int, present: int, width: int) -> int:
    """Lanes read global memory that the kernel does not write, through a cache that is not coherent; as
    :func:`read_global`."""
    places = context.places
    shift, pages = context.global_shift, context.global_pages
    writers, strong = context.global_writers, context.global_strong
    for lane in range(32 if context.global_marks == 0 else 0):
        if mask >> lane & 1:
            offset = places[lane]
            if pages[offset >> GLOBAL_PAGE_SHIFT] == 0:
                continue
            granule = offset >> shift
            for k in range(granule, granule + max(width >> shift, 1)):
                if writers[k] != 0 or (strong != 0 and strong[k] != 0):
                    return RACE
    return read_marked(context, mask, present, width, -1, 1)


def read_global(context: Context, mask: int, present: int, width: int) -> int:
    """Lanes read global memory; their offsets in the arena are in the scratch. Returns a status."""
    return read_pieces(context, mask, present, width, -1)


def read_pieces(context: Context, mask: int, present: int, width: int, issuer: int) -> int:
    """One lane, the issuer, reads all places in the context that are in ``mask``; without an issuer (-1), a separate
    lane reads each. As :func:`read_global`."""
    return read_marked(context, mask, present, width, issuer, 0)


def read_marked(context: Context, mask: int, present: int, width: int, issuer: int, constant: int) -> int:
    """As :func:`read_pieces`; ``constant`` is whether through a cache that is not coherent."""
    status = access_in_time(context, mask, width, issuer, EARLY_READ)
    if status == 0:
        status = check_reads(context, mask, present, width, issuer, constant)
    if status != 0:
        return status
    places = context.places
    shift = context.global_shift
    many = max(width >> shift, 1)
    writers, readers = context.global_writers, context.global_readers
    write_masks, read_masks = context.global_write_masks, context.global_read_masks
    strong, pages = context.global_strong, context.global_pages
    there = lanes_there(context, present)
    mine = context.read_tag
    if mine == 0:
        mine = own_tag(context)
    warp = context.current
    met = context.vectors[(context.actors + 1) * warp]
    last = -1
    for number in range(32):
        if mask >> number & 1:
            offset, lane = places[number], number if issuer < 0 else issuer
            if pages[offset >> GLOBAL_PAGE_SHIFT] != 0:
                granule = offset >> shift
                for k in range(granule, granule + many):
                    race = conflicts(context, writers[k], lane, write_masks[k])
                    if strong != 0 and conflicts(context, strong[k], lane, 0):
                        race = 1
                    status = RACE if race else 0
                    if status != 0:
                        return status
            if offset >> READ_SHIFT == last and there != 0:  # the lane before has marked it
                continue
            last = offset >> READ_SHIFT
            place, masks = readers.at(last), read_masks.at(last)
            before = place[0]
            if cta_of_tag(before) == cta_of_tag(mine) and warp_of_tag(before) == warp_of_tag(mine):
                lanes, time = masks[0], global_time(before)
                if time <= met or lanes_before(context, warp, lanes, time):
                    lanes = EVERY_LANE
                place[0] = mine
                masks[0] = lanes & lanes_with(there, lane)
            elif cta_of_tag(before) != SEVERAL:
                # The identity of several readers is not kept, unless the earlier ones come first anyway.
                place[0] = both(context, before) if conflicts(context, before, lane, EVERY_LANE) else mine
                masks[0] = lanes_with(there, lane)
    return 0


def write_global(context: Context, mask: int, present: int, width: int) -> int:
    """Lanes write global memory; as :func:`read_global`."""
    return write_pieces(context, mask, present, width, -1)


def write_pieces(context: Context, mask: int, present: int, width: int, issuer: int) -> int:
    """One lane writes all places in the context; as :func:`read_pieces`."""
    status = access_in_time(context, mask, width, issuer, EARLY_WRITE)
    if status == 0:
        status = check_writes(context, mask, present, width, issuer)
    if status != 0:
        return status
    places = context.places
    shift = context.global_shift
    many = max(width >> shift, 1)
    writers, readers = context.global_writers, context.global_readers
    write_masks, read_masks = context.global_write_masks, context.global_read_masks
    strong, pages = context.global_strong, context.global_pages
    watched, chains = context.global_watched, context.chains
    there = lanes_there(context, present)
    mine = own_tag(context)
    for number in range(32):
        if mask >> number & 1:
            offset, lane = places[number], number if issuer < 0 else issuer
            near = offset >> READ_SHIFT
            before = readers[near]
            read = 1 if before != 0 and conflicts(context, before, lane, read_masks[near]) else 0
            granule = offset >> shift
            for k in range(granule, granule + many):
                race = read
                before = writers[k]
                if before != 0 and conflicts(context, before, lane, write_masks[k]):
                    race = 1
                if strong != 0 and conflicts(context, strong[k], lane, 0):
                    race = 1
                if watched != 0 and conflicts(context, watched[k], lane, 0):
                    race = 1
                status = RACE if race else 0
                if status != 0:
                    return status
                writers[k] = mine
                write_masks[k] = lanes_with(there, lane)
                if chains != 0:
                    chains[k] = 0
                    forget_links(context, context.global_links.at(k))
            pages[offset >> GLOBAL_PAGE_SHIFT] |= PAGE_WRITTEN
    return 0


# ---- strong operations -----------------------------------------------------------------------------------------------


def read_strong(context: Context, mask: int, present: int, width: int, does: int) -> int:
    """Lanes read global memory strongly, which conflicts only with weak writes; as :func:`read_global`.

    ``does`` has the bit ``ACQUIRES`` if the read acquires, and the scope.
    """
    status = access_in_time(context, mask, width, -1, EARLY_READ)
    if status == 0:
        status = check_strong_reads(context, mask, present, width, does >> SCOPE_SHIFT)
    if status != 0:
        return status
    places = context.places
    shift, chains = context.global_shift, context.chains
    warp, many = context.current, max(width >> shift, 1)
    for lane in range(32):
        if mask >> lane & 1:
            granule = places[lane] >> shift
            status = weakly_written(context, granule, many, lane)
            if status == 0:
                status = too_narrow(context, granule, many, lane, does >> SCOPE_SHIFT)
            if status != 0:
                return status
            mark_strong(context, context.global_watched, granule, many, lane)
            context.global_pages[granule << shift >> GLOBAL_PAGE_SHIFT] |= PAGE_STRONG
            status = (
                observe(context, warp, chains.at(granule), context.global_links.at(granule), does) if chains != 0 else 0
            )
            if status != 0:
                return status
    return 0


def write_strong(context: Context, mask: int, present: int, width: int, does: int) -> int:
    """Lanes write global memory strongly, or update it atomically, which conflicts only with weak accesses; as
    :func:`read_global`.

    ``does`` has the bits ``ACQUIRES`` and ``RELEASES``, ``OBSERVES`` for operations that return the old value,
    ``CONTINUES`` for all that read and write, and the scope.
    """
    return update_pieces(context, mask, present, width, does, -1)


def update_pieces(context: Context, mask: int, present: int, width: int, does: int, issuer: int) -> int:
    """One lane updates all places in the context; as :func:`read_pieces` and :func:`write_strong`."""
    status = access_in_time(context, mask, width, issuer, EARLY_UPDATE if does & CONTINUES else EARLY_WRITE)
    if status == 0:
        scope, atomic = does >> SCOPE_SHIFT, does & CONTINUES != 0
        status = check_updates(context, mask, present, width, scope, atomic, issuer)
    if status != 0:
        return status
    places = context.places
    shift, chains = context.global_shift, context.chains
    readers, masks = context.global_readers, context.global_read_masks
    warp, many = context.current, max(width >> shift, 1)
    release = 0
    for number in range(32):
        if mask >> number & 1:
            offset, lane = places[number], number if issuer < 0 else issuer
            near, granule = offset >> READ_SHIFT, offset >> shift
            status = weakly_written(context, granule, many, lane)
            if status == 0 and conflicts(context, readers[near], lane, masks[near]):
                status = RACE
            if status == 0:
                status = too_narrow(context, granule, many, lane, does >> SCOPE_SHIFT)
            if status != 0:
                return status
            context.global_pages[offset >> GLOBAL_PAGE_SHIFT] |= PAGE_WRITTEN | PAGE_STRONG
            if chains != 0:
                narrow = context.global_scopes != 0
                links = context.global_links.at(granule)
                release = release_to_place(context, warp, lane, chains.at(granule), links, does, release, narrow)
                if release > 0 and is_status(release):
                    return release
            mark_scopes(context, granule, many, lane, does >> SCOPE_SHIFT)
            mark_strong(context, context.global_strong, granule, many, lane)
    return 0


def too_narrow(context: Context, granule: int, many: int, lane: int, scope: int) -> int:
    """Whether the scopes of a strong access of the current warp and of unordered strong writes at its places include
    each other's threads. Returns a status."""
    marks = context.global_strong
    if context.global_scopes == 0 or marks == 0:
        return 0
    for k in range(granule, granule + many):
        tag = marks[k]
        if conflicts(context, tag, lane, EVERY_LANE):
            relation = relation_of(context, tag, of_cluster(context, cta_of_tag(tag)))
            status = RACE if relation > min(scope, scope_at(context, k)) else 0
            if status != 0:
                return status
    return 0


def mark_scopes(context: Context, granule: int, many: int, lane: int, scope: int) -> None:
    """Write the scope of the current warp's strong write to granules, before its mark."""
    if context.global_scopes != 0:
        for k in range(granule, granule + many):
            tag = context.global_strong[k]
            keep_scope(context, k, scope, conflicts(context, tag, lane, EVERY_LANE))


def weakly_written(context: Context, granule: int, many: int, lane: int) -> int:
    """Whether the last weak write of all of the granules comes before the current warp's access by a lane. Returns a
    status."""
    writers, masks = context.global_writers, context.global_write_masks
    for k in range(granule, granule + many):
        if conflicts(context, writers[k], lane, masks[k]):
            return RACE
    return 0
