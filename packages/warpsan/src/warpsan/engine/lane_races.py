"""Races between the lanes of a warp: machine code (:mod:`~warpsan.engine.translate`).

Lanes of a warp need not run together (sm_70 and later). A lane that executed an instruction together with another comes
after it in its own program; a lane that was absent, because the warp had diverged, does not. ``__syncwarp()`` orders
the lanes of its mask, and a barrier orders the lanes that arrive (PTX ISA, "Axioms"; CUDA C++ Programming Guide,
"Independent Thread Scheduling"). Only accesses with absent lanes are marked; the ``lanes`` check does not assume that
lanes which run together stay together.

The first run of a launch suspects such races (:mod:`.watch.shared_memory`); a run that reports hazards has marks with
the lane of each access, and finds them exactly.
"""

from __future__ import annotations

from warpsan.engine.clocks import begin_time, lanes_with, vector_of
from warpsan.engine.context import Context
from warpsan.engine.hazards import add_hazard, hazard_row
from warpsan.engine.layout import EVERY_LANE, IN_SHARED
from warpsan.engine.memory import LaneMark, Record
from warpsan.engine.races import changed_lanes, party_of, record_of_party, warp_of_party
from warpsan.engine.rules import LANES_TOGETHER
from warpsan.engine.suspects import first_lane
from warpsan.engine.words import load32

__all__ = [
    "KINDS",
    "MOST_MARKS",
    "READ",
    "UPDATED",
    "WATCHED",
    "WROTE",
    "lanes_race",
    "meet_partly",
    "note_lanes",
    "race_in_step",
]

WROTE, READ, UPDATED, WATCHED = range(4)
KINDS = 4
MOST_MARKS, MOST_PROBES = 1 << 18, 64
"""Kinds of accesses: weak writes, weak reads, atomic operations and strong writes, strong reads."""


def mark_at(context: Context, space: int, kind: int, place: int, adds: int) -> LaneMark:
    """The mark of the last access of a kind to a granule of a space (of shared memory, numbered over all CTAs) with
    absent lanes, in the running cluster; 0 if there is none and it is not added, or too many others are there."""
    key = (KINDS * space + kind) << 48 | place
    first = (key ^ key >> 17) * 0x9E3779B1 >> 12
    for k in range(MOST_PROBES):
        mark = context.lane_marks[first + k & MOST_MARKS - 1]
        if mark.cluster != context.cluster + 1:
            if adds == 0:
                return LaneMark(0)
            mark.key = key
            mark.cluster = context.cluster + 1
            mark.party = -1
            return mark
        if mark.key == key:
            return mark
    return LaneMark(0)


def is_of_warp(mark: LaneMark, warp: int) -> int:
    """Whether a mark is of an access of a warp."""
    return mark != 0 and mark.party >= 0 and warp_of_party(mark.party) == warp


def known_time(context: Context, warp: int, lane: int, other: int) -> int:
    """The time up to which the accesses of another lane of a warp come before those of a lane."""
    time = max(vector_of(context, warp)[warp], context.lanes_known[32 * (32 * warp + lane) + other])
    return max(time, context.lanes_seen[32 * warp + other]) if context.lanes_seen != 0 else time


def comes_after(context: Context, warp: int, lane: int, mark: LaneMark) -> int:
    """Whether the access of a mark comes before the next one of a lane of its warp."""
    if mark.several == 0:
        return mark.time <= known_time(context, warp, lane, mark.party & 31)
    for other in range(32):
        if mark.time > known_time(context, warp, lane, other):
            return 0
    return 1


def comes_after_all(context: Context, warp: int, mark: LaneMark) -> int:
    """Whether the access of a mark comes before the next ones of all lanes of its warp."""
    for lane in range(32):
        if comes_after(context, warp, lane, mark) == 0:
            return 0
    return 1


def lanes_race(
    context: Context,
    space: int,
    cta: int,
    mask: int,
    width: int,
    issuer: int,
    against: int,
    rule: int,
    stores: int,
) -> int:
    """Compare accesses of lanes, or of an issuer (otherwise -1), to the places in the context with those of absent
    lanes, of the kinds whose bits are in ``against``. ``rule`` is that of the first kind; with ``stores``, only writes
    that change the stored value count. Returns a status."""
    counts = -1 if stores else mask
    for kind in range(KINDS if context.lane_step != 0 else 0):  # without a step, there are no marks
        if against >> kind & 1:
            status = compare_lanes(context, space, cta, mask, width, issuer, kind, rule + kind, counts)
            if status != 0:
                return status
    return 0


def compare_lanes(
    context: Context,
    space: int,
    cta: int,
    mask: int,
    width: int,
    issuer: int,
    kind: int,
    rule: int,
    given: int,
) -> int:
    """Compare accesses of lanes with those of one kind. Returns a status."""
    warp, counts, places = context.current, given, context.places
    shift, first, memory = context.global_shift, 0, context.arena
    if space == IN_SHARED:
        shift, first = context.granule_shift, context.granules * cta
        memory = context.shared + cta * context.shared_stride
    for k in range(max(width >> shift, 1)):
        for number in range(32):
            if mask >> number & 1 == 0:
                continue
            offset, lane = places[number], number if issuer < 0 else issuer
            mark = mark_at(context, space, kind, first + (offset >> shift) + k, 0)
            if is_of_warp(mark, warp) == 0 or mark.mask >> lane & 1:
                continue
            if mark.several == 0 and mark.party & 31 == lane:
                continue
            if comes_after(context, warp, lane, mark):
                continue
            if counts < 0:
                counts = changed_lanes(context, mask, width, memory)
            if counts >> number & 1 == 0:
                continue
            other = -1 if mark.several else mark.party & 31
            return lane_race(context, space, rule, lane, offset, width, other, context.pcs[record_of_party(mark.party)])
    return 0


def lane_race(context: Context, space: int, rule: int, lane: int, offset: int, width: int, other: int, pc: int) -> int:
    """A lane's access races with one of another lane of its warp, or of several (-1). Returns a status."""
    row = hazard_row(context, context.current_record, rule, 1 << lane)
    row.space = space
    row.offset = offset
    row.width = width
    row.other_pc = pc
    row.other_lanes = 0 if other < 0 else 1 << other
    row.other_warp = row.warp
    row.other_cta = row.cta
    return add_hazard(context, row)


def note_lanes(
    context: Context, space: int, kind: int, cta: int, mask: int, there: int, width: int, issuer: int
) -> None:
    """Mark accesses of a kind to the places in the context; ``there`` has the lanes that come after them in program
    order (:func:`~.clocks.lanes_there`)."""
    if context.lane_marks == 0 or there == EVERY_LANE:
        return
    warp, places, reads = context.current, context.places, kind in (READ, WATCHED)
    shift, first = context.global_shift, 0
    if space == IN_SHARED:
        shift, first = context.granule_shift, context.granules * cta
    context.lane_step += 1
    for number in range(32):
        if mask >> number & 1 == 0:
            continue
        lane, granule = number if issuer < 0 else issuer, first + (places[number] >> shift)
        for k in range(granule, granule + max(width >> shift, 1)):
            mark, lanes, several = mark_at(context, space, kind, k, 1), lanes_with(there, lane), 0
            if mark == 0:
                continue
            if is_of_warp(mark, warp):
                if mark.step == context.lane_step:
                    several = there == 0 and mark.party & 31 != lane
                    lanes = 0 if several else lanes & mark.mask if reads else lanes
                elif reads and comes_after_all(context, warp, mark) == 0:
                    lanes = lanes & mark.mask  # a write must come after all of these reads
            mark.time = context.clocks[warp]
            mark.party = party_of(context, lane)
            mark.mask = lanes
            mark.step = context.lane_step
            mark.several = several


def race_in_step(context: Context, record: Record, mask: int, space: int, present: int, width: int) -> int:
    """Lanes have found another lane's value at the places in the context that they have just written; ``present`` are
    all that wrote. Returns a status."""
    context.current_record = record
    places, lane = context.places, first_lane(mask)
    offset, winner = places[lane], lane
    for other in range(32):
        apart = places[other] - offset
        if (present & ~mask) >> other & 1 and apart < width and apart > -width:
            winner = other
    pc = context.pcs[(context.current_record - context.records) >> 6] if context.pcs != 0 else 0
    return lane_race(context, space, LANES_TOGETHER, lane, offset, width, winner, pc)


def meet_partly(registers: int, record: Record, mask: int, context: Context) -> int:
    """Lanes have converged in groups, without others of their warp: the members of each come after each other. The
    operand is the row of the member masks."""
    if context.lanes_known == 0:
        return 0
    warp, row, left = context.current, registers + record.operands[0], mask
    now, known = context.clocks[warp], context.lanes_known.at(1024 * warp)
    while left != 0:
        members = load32(row + 4 * first_lane(left)) & mask
        left &= ~members
        for other in range(32):
            time = now if members >> other & 1 else 0
            for lane in range(32):
                if members >> lane & 1:
                    time = max(time, known[32 * lane + other])
            for lane in range(32):
                if members >> lane & 1:
                    known[32 * lane + other] = time
    begin_time(context, warp)
    return 0
