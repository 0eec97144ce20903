"""Exact rules of races in global memory, for a run that reports hazards: machine code.

Each granule has marks of each kind of access: the last weak write; and of weak reads, strong writes and strong reads
the last one, followed by earlier ones that do not come before it. One mark of another cluster stands for all others of
such clusters, unless clusters are ordered through memory. The first run of a launch suspects these races
(:mod:`.watch.global_memory`).
"""

from __future__ import annotations

from warpsan.checks.orders import SAME_GPU
from warpsan.engine.clocks import lanes_there, relation_together, vector_of, warps_of_cluster
from warpsan.engine.context import Context
from warpsan.engine.hazards import add_hazard, has_row, hazard_row
from warpsan.engine.lane_races import KINDS, READ, UPDATED, WATCHED, WROTE, lanes_race, note_lanes
from warpsan.engine.layout import IN_GLOBAL, MOST_MBARRIERS, OF_COPIES
from warpsan.engine.memory import GlobalMark
from warpsan.engine.missing import missing, weak_wait
from warpsan.engine.races import changed_lanes, is_together, party_of, record_of_party, warp_of_party
from warpsan.engine.rules import (
    LANE_READS,
    LANE_UPDATES,
    LANE_WRITES,
    OVERWRITES_READ,
    OVERWRITES_UPDATED,
    OVERWRITES_WRITTEN,
    READS_CONSTANT,
    READS_UPDATED,
    READS_WRITTEN,
    SCOPES_OF_READ,
    SCOPES_OF_UPDATE,
    SCOPES_OF_WRITE,
    UNFENCED_READ,
    UPDATES_READ,
    UPDATES_WRITTEN,
    USES_MAP_WRITTEN,
    WRITES_TOGETHER,
)
from warpsan.engine.tags import cta_of_tag, global_tag, global_time, warp_of_tag

__all__ = [
    "check_reads",
    "check_strong_reads",
    "check_updates",
    "check_writes",
    "has_kind",
    "mark_of",
    "resident",
    "unordered_map_write",
]

ATOMIC, ASYNCHRONOUS = 16, 32
"""Flags of a mark beside its scope: an atomic operation, an access in the async proxy."""
MOST_AFTER = 64
"""The most marks after the last one."""


def mark_of(context: Context, kind: int, granule: int) -> GlobalMark:
    """The last mark of a kind at a granule."""
    return context.global_marks[context.global_granules * kind + granule]


def has_kind(context: Context, kind: int) -> int:
    """Whether a kernel has accesses of a kind."""
    return kind < context.global_kinds


def resident(context: Context, mark: GlobalMark) -> int:
    """The number, plus one, of the CTA of a mark among the resident ones; 0 if it is not resident."""
    return context.positions[cta_of_tag(mark.tag) - 1]


def is_ordered(context: Context, warp: int, mark: GlobalMark) -> int:
    """Whether the access of a mark comes before a warp's next one; lanes of the same warp are compared elsewhere."""
    tag, place = mark.tag, resident(context, mark)
    number, time, warps = warp_of_tag(tag), global_time(tag), context.warp_count
    if number >= OF_COPIES:
        if place != 0:
            actor = 2 * warps_of_cluster(context) + MOST_MBARRIERS * (place - 1) + number - OF_COPIES
            return time <= vector_of(context, warp)[actor]
        number = warp_of_party(mark.party) % warps  # the warp that issued it
    if place != 0:
        other = warps * (place - 1) + number
        return other == warp or time <= vector_of(context, warp)[other]
    if context.grid_rows == 0:
        return 0
    return time <= context.grid_rows[context.grid_warps * warp + warps * (cta_of_tag(tag) - 1) + number]


def unordered_mark(context: Context, warp: int, kind: int, granule: int) -> GlobalMark:
    """The last mark of a kind at a granule that does not come before a warp's access; 0 if all do."""
    mark = mark_of(context, kind, granule)
    if mark.tag == 0:
        return GlobalMark(0)
    while mark != 0 and is_ordered(context, warp, mark):
        mark = mark.before
    return mark


def is_same_actor(one: int, other: int) -> int:
    """Whether two tags are of one warp, or of copies for one mbarrier."""
    return cta_of_tag(one) == cta_of_tag(other) and warp_of_tag(one) == warp_of_tag(other)


def set_mark(mark: GlobalMark, tag: int, party: int, info: int) -> None:
    """Replace the access of a mark."""
    mark.tag = tag
    mark.party = party
    mark.info = info


def add_mark(context: Context, warp: int, kind: int, granule: int, tag: int, party: int, info: int) -> None:
    """A warp's access is the last of a kind at a granule."""
    last = mark_of(context, kind, granule)
    if kind == WROTE or last.tag == 0:
        last.before = GlobalMark(0)
    elif is_same_actor(last.tag, tag) == 0 and is_ordered(context, warp, last) == 0:
        keep_earlier(context, last)
    set_mark(last, tag, party, info)


def keep_earlier(context: Context, last: GlobalMark) -> None:
    """The last mark has a successor that does not come after it."""
    mark, many, alone = last.before, 0, context.grid_rows == 0 and resident(context, last) == 0
    while mark != 0:
        if is_same_actor(mark.tag, last.tag) or (alone and resident(context, mark) == 0):
            set_mark(mark, last.tag, last.party, last.info)
            return
        mark = mark.before
        many += 1
    if many < MOST_AFTER and context.mark_count < context.mark_room:
        mark = context.marks_after[context.mark_count]
        context.mark_count += 1
        set_mark(mark, last.tag, last.party, last.info)
        mark.before = last.before
        last.before = mark


# ---- rows ------------------------------------------------------------------------------------------------------------


def race_at(
    context: Context, rule: int, space: int, lane: int, offset: int, width: int, mark: GlobalMark, together: int
) -> int:
    """An access of a lane of the current warp breaks a rule of its order after that of a mark. Returns a status."""
    row, warp = hazard_row(context, context.current_record, rule, 1 << lane), context.current
    row.space = space
    row.offset = offset
    row.width = width
    if has_row(context, row) == 0:
        tag, place = mark.tag, resident(context, mark)
        number, copy = warp_of_tag(tag), warp_of_tag(tag) >= OF_COPIES
        row.other_pc = context.pcs[record_of_party(mark.party)]
        row.other_cta = cta_of_tag(tag) - 1
        row.other_warp = warp_of_party(mark.party) % context.warp_count if copy else number
        row.other_lanes = 1 << (mark.party & 31) if copy or together else 0
        row.actual = copy and place != 0
        if row.actual:
            row.expected = weak_wait(context, warp)
        else:
            row.expected = missing(context, warp, row.other_cta, place - 1, global_time(tag))
    return add_hazard(context, row)


def compare(context: Context, mask: int, width: int, issuer: int, kind: int, rule: int, stores: int) -> int:
    """Compare accesses of lanes to the places in the context with those of a kind; with ``stores``, writes that do not
    change the stored value are left out. Returns a status."""
    if has_kind(context, kind) == 0:
        return 0
    warp, shift, places = context.current, context.global_shift, context.places
    counts = -1 if stores else mask
    for number in range(32):
        if mask >> number & 1 == 0:
            continue
        offset, lane = places[number], number if issuer < 0 else issuer
        for k in range(offset >> shift, (offset >> shift) + max(width >> shift, 1)):
            mark = unordered_mark(context, warp, kind, k)
            if mark == 0 or (kind == UPDATED and is_behind_update(context, mark, k)):
                continue
            if counts < 0:
                counts = changed_lanes(context, mask, width, context.arena)
            if counts >> number & 1:
                mine = party_of(context, lane)
                together = rule == OVERWRITES_WRITTEN and is_together(context, mark.party, mine)
                here = WRITES_TOGETHER if together and resident(context, mark) != 0 else rule
                return race_at(context, here, IN_GLOBAL, lane, offset, width, mark, here == WRITES_TOGETHER)
    return 0


def is_behind_update(context: Context, mark: GlobalMark, granule: int) -> int:
    """Whether the current warp's own atomic operation is the last at a granule, and so comes after that of a mark in
    the place's coherence order (PTX ISA, "Coherence"; the counter that the last block resets in the CUDA C++
    Programming Guide, "Memory Fence Functions")."""
    last = mark_of(context, UPDATED, granule)
    mine = global_tag(context.current_cta, 0, context.current % context.warp_count)
    return mark != last and last.info & ATOMIC and is_same_actor(last.tag, mine)


def compare_scopes(context: Context, mask: int, width: int, issuer: int, scope: int, rule: int) -> int:
    """The scopes of strong accesses and of unordered strong writes must include each other's threads. Returns a
    status."""
    if has_kind(context, UPDATED) == 0 or context.global_scopes == 0:
        return 0
    warp, shift, places = context.current, context.global_shift, context.places
    for number in range(32):
        if mask >> number & 1 == 0:
            continue
        offset, lane = places[number], number if issuer < 0 else issuer
        for k in range(offset >> shift, (offset >> shift) + max(width >> shift, 1)):
            mark = mark_of(context, UPDATED, k)
            while mark != 0 and mark.tag != 0:
                relation, place = SAME_GPU, resident(context, mark)
                if place != 0:
                    relation = relation_together(context, place - 1, warp // context.warp_count)
                if relation > min(mark.info & 15, scope) and is_ordered(context, warp, mark) == 0:
                    return race_at(context, rule, IN_GLOBAL, lane, offset, width, mark, 0)
                mark = mark.before
    return 0


def mark_all(context: Context, kind: int, mask: int, width: int, issuer: int, tag: int, info: int) -> None:
    """Mark accesses of lanes to the places in the context."""
    warp, shift, places = context.current, context.global_shift, context.places
    mine = tag
    if mine == 0:
        mine = global_tag(context.current_cta, context.clocks[warp], warp % context.warp_count)
    for number in range(32):
        if mask >> number & 1:
            granule, party = places[number] >> shift, party_of(context, number if issuer < 0 else issuer)
            for k in range(granule, granule + max(width >> shift, 1)):
                add_mark(context, warp, kind, k, mine, party, info)


# ---- accesses --------------------------------------------------------------------------------------------------------


def check_reads(context: Context, mask: int, present: int, width: int, issuer: int, constant: int) -> int:
    """Lanes, or the issuer of a copy (otherwise -1), read the places in the context; ``constant`` is whether through a
    cache that is not coherent. Returns a status."""
    if context.global_marks == 0:
        return 0
    status = compare(context, mask, width, issuer, WROTE, READS_WRITTEN, 0)
    if status == 0 and constant:
        status = check_written(context, mask, width, READS_CONSTANT)
    if status == 0 and context.read_tag != 0:
        status = check_fences(context, mask, width, issuer)
    if status == 0:
        status = compare(context, mask, width, issuer, UPDATED, READS_UPDATED, 0)
    if status == 0:
        status = lanes_race(context, IN_GLOBAL, 0, mask, width, issuer, 1 << WROTE | 1 << UPDATED, LANE_READS, 0)
    if status == 0:
        if context.read_tag == 0:
            note_lanes(context, IN_GLOBAL, READ, 0, mask, lanes_there(context, present), width, issuer)
        mark_all(context, READ, mask, width, issuer, context.read_tag, 0)
    return status


def check_writes(context: Context, mask: int, present: int, width: int, issuer: int) -> int:
    """Lanes, or the issuer of a copy, write; as :func:`check_reads`."""
    if context.global_marks == 0:
        return 0
    status = compare(context, mask, width, issuer, WROTE, OVERWRITES_WRITTEN, 1)
    if status == 0:
        status = compare(context, mask, width, issuer, READ, OVERWRITES_READ, 1)
    if status == 0:
        status = compare(context, mask, width, issuer, UPDATED, OVERWRITES_UPDATED, 1)
    if status == 0:
        status = compare(context, mask, width, issuer, WATCHED, OVERWRITES_READ, 1)
    if status == 0:
        status = lanes_race(context, IN_GLOBAL, 0, mask, width, issuer, (1 << KINDS) - 1, LANE_WRITES, 1)
    if status == 0:
        note_lanes(context, IN_GLOBAL, WROTE, 0, mask, lanes_there(context, present), width, issuer)
        mark_all(context, WROTE, mask, width, issuer, 0, 0 if issuer < 0 else ASYNCHRONOUS)
    return status


def check_strong_reads(context: Context, mask: int, present: int, width: int, scope: int) -> int:
    """Lanes read strongly; as :func:`check_reads`."""
    if context.global_marks == 0:
        return 0
    status = compare(context, mask, width, -1, WROTE, READS_WRITTEN, 0)
    if status == 0:
        status = compare_scopes(context, mask, width, -1, scope, SCOPES_OF_READ)
    if status == 0:
        status = lanes_race(context, IN_GLOBAL, 0, mask, width, -1, 1 << WROTE, LANE_READS, 0)
    if status == 0:
        note_lanes(context, IN_GLOBAL, WATCHED, 0, mask, lanes_there(context, present), width, -1)
        mark_all(context, WATCHED, mask, width, -1, 0, scope)
    return status


def check_updates(context: Context, mask: int, present: int, width: int, scope: int, atomic: int, issuer: int) -> int:
    """Lanes, or the issuer of a copy, update atomically, or write strongly without ``atomic``; as
    :func:`check_reads`."""
    if context.global_marks == 0:
        return 0
    status = compare(context, mask, width, issuer, WROTE, UPDATES_WRITTEN if atomic else OVERWRITES_WRITTEN, not atomic)
    if status == 0:
        status = compare(context, mask, width, issuer, READ, UPDATES_READ if atomic else OVERWRITES_READ, not atomic)
    if status == 0:
        rule = SCOPES_OF_UPDATE if atomic else SCOPES_OF_WRITE
        status = compare_scopes(context, mask, width, issuer, scope, rule)
    if status == 0:
        rule = LANE_UPDATES if atomic else LANE_WRITES
        against = 1 << WROTE | 1 << READ
        status = lanes_race(context, IN_GLOBAL, 0, mask, width, issuer, against, rule, not atomic)
    if status == 0:
        note_lanes(context, IN_GLOBAL, UPDATED, 0, mask, lanes_there(context, present), width, issuer)
        info = scope | (ATOMIC if atomic and issuer < 0 else 0) | (0 if issuer < 0 else ASYNCHRONOUS)
        mark_all(context, UPDATED, mask, width, issuer, 0, info)
    return status


def check_written(context: Context, mask: int, width: int, rule: int) -> int:
    """Whether this launch has written places in the context. Returns a status."""
    shift, places = context.global_shift, context.places
    for lane in range(32):
        if mask >> lane & 1 == 0:
            continue
        offset = places[lane]
        for k in range(offset >> shift, (offset >> shift) + max(width >> shift, 1)):
            for turn in range(2):
                kind = UPDATED if turn else WROTE
                if has_kind(context, kind) and mark_of(context, kind, k).tag != 0:
                    return race_at(context, rule, IN_GLOBAL, lane, offset, width, mark_of(context, kind, k), 0)
    return 0


def check_fences(context: Context, mask: int, width: int, issuer: int) -> int:
    """A copy in the async proxy reads places in the context: writes of its cluster in the generic proxy must have
    passed a fence between the proxies. Returns a status."""
    warp, shift, places = context.current, context.global_shift, context.places
    passed = vector_of(context, warp).at(2 * context.columns)
    for number in range(32):
        if mask >> number & 1 == 0:
            continue
        offset = places[number]
        for k in range(offset >> shift, (offset >> shift) + max(width >> shift, 1)):
            for turn in range(2):
                kind = UPDATED if turn else WROTE
                if has_kind(context, kind) == 0:
                    continue
                mark = mark_of(context, kind, k)
                if mark.tag == 0 or mark.info & ASYNCHRONOUS or resident(context, mark) == 0:
                    continue
                actor = context.warp_count * (resident(context, mark) - 1) + warp_of_tag(mark.tag)
                if is_ordered(context, warp, mark) and global_time(mark.tag) > passed[actor]:
                    return race_at(context, UNFENCED_READ, IN_GLOBAL, issuer, offset, width, mark, 0)
    return 0


def unordered_map_write(context: Context, lane: int, begin: int, end: int) -> int:
    """A copy of a lane reads the tensor map in a range: whether it comes after all writes there.

    Returns
    -------
    int
        0 if it does, -1 if the hazard has been noted, or a status.
    """
    shift, warp = context.global_shift, context.current
    for turn in range(2):
        kind = UPDATED if turn else WROTE
        for k in range(begin >> shift, (end - 1 >> shift) + 1 if has_kind(context, kind) else begin >> shift):
            mark = unordered_mark(context, warp, kind, k)
            if mark != 0:
                place = begin + ((k << shift) - begin) // 16 * 16
                status = race_at(context, USES_MAP_WRITTEN, IN_GLOBAL, lane, place, 16, mark, 0)
                return status if status != 0 else -1
    return 0
