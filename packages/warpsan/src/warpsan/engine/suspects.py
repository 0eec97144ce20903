"""Notes of possible hazards in a launch that continues: machine code (:mod:`~warpsan.engine.translate`).

The first run of a launch has no rows for notes: the first suspicion ends it. A run that reports hazards
(:mod:`~warpsan.engine.reporting`) has them.
"""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.layout import (
    AT_ARRIVAL,
    AT_RULE,
    BARRIER_RULE,
    DIVERGENT,
    FA_BEFORE,
    FA_KIND,
    FA_LINEAR,
    FA_MASK,
    FA_OFFSETS,
    FA_ORIGIN,
    FA_RECORD,
    FA_SPACE,
    FA_TURN,
    FA_WARP,
    FA_WIDTH,
    FAULT_WORDS,
    ILLEGAL,
    IN_GLOBAL,
    IN_SHARED,
    MOST_FAULTS,
    MOST_SUSPECTS,
    NEVER_SET,
    OUT_OF_BOUNDS,
    RACE,
    REACHED,
    SCRATCH_FAULTS,
    SCRATCH_PLACES,
    SCRATCH_WIDTHS,
    STORED_UNSET,
    SU_CLUSTER,
    SU_GRANULE,
    SU_RECORD,
    SU_SPACE,
    SUSPECT_WORDS,
    SUSPECTS_OF_RECORD,
    UNDEFINED,
    UNSET,
    UNWRITTEN_READ,
)
from warpsan.engine.memory import Record
from warpsan.engine.words import copy, load32, load64, store64

__all__ = [
    "broken_rule",
    "current_instruction",
    "first_lane",
    "note_fault",
    "note_reached",
    "note_stored",
    "note_undefined",
    "note_unwritten",
    "suspect",
    "suspect_arrival",
    "suspect_lanes",
]


def current_instruction(context: Context, pc: int) -> None:
    """Later suspicions belong to an action of an instruction without a record of its own, or after its record."""
    number = context.record_count + pc
    context.current_record = context.records[number]


def suspect(context: Context, space: int, granule: int, status: int) -> int:
    """The checked access may be a hazard at a granule: returns 0 if it has been noted, otherwise the status that
    ends the run. A limited number of granules of each instruction is noted; further ones are only marked
    (:func:`mark`)."""
    suspects = context.suspects
    if suspects == 0:
        return status
    record = (context.current_record - context.records) >> 6
    many = context.suspects_of.at(record)
    count = context.suspect_count
    if many[0] >= SUSPECTS_OF_RECORD or (count >= MOST_SUSPECTS and many[0] > 0):
        mark(context, space, granule)
        return 0
    if count >= MOST_SUSPECTS:
        return status
    many[0] += 1
    context.suspect_count = count + 1
    row = suspects + 8 * SUSPECT_WORDS * count
    store64(row + 8 * SU_RECORD, record)
    store64(row + 8 * SU_SPACE, space)
    store64(row + 8 * SU_GRANULE, granule)
    store64(row + 8 * SU_CLUSTER, context.cluster)
    return 0


def mark(context: Context, space: int, granule: int) -> None:
    """Mark a suspicious granule if its instruction has many others, or a place where a rule may be broken."""
    cluster = context.marked_clusters.at(context.cluster)
    if space == IN_GLOBAL:
        context.marked_global[granule] = 1
        return
    cluster[0] |= 1 if space == IN_SHARED else 2
    if space == IN_SHARED:
        context.marked_shared[granule % context.granules] = 1


def broken_rule(context: Context, status: int) -> int:
    """The current instruction breaks a rule, and the launch may continue, as in :func:`suspect`; it does if events
    are recorded."""
    return suspect(context, AT_RULE, 0, status) if context.trace == 0 else 0


def suspect_lanes(context: Context, record: Record, mask: int, space: int) -> int:
    """Lanes have written different values to places in the scratch, in one step; as :func:`suspect`."""
    context.current_record = record
    shift = context.global_shift if space == IN_GLOBAL else context.granule_shift
    places = context.scratch + SCRATCH_PLACES
    for lane in range(32):
        if mask >> lane & 1:
            status = suspect(context, space, load64(places + 8 * lane) >> shift, RACE)
            if status != 0:
                return status
    return 0


def suspect_arrival(context: Context, block: int) -> int:
    """An arrival by the end of a block may break a rule of barriers; as :func:`suspect`."""
    if context.trace != 0:
        return 0
    suspects, count = context.suspects, context.suspect_count
    if suspects == 0 or count >= MOST_SUSPECTS:
        return BARRIER_RULE
    place, number = context.arrivals_of.at(block), context.cluster + 1
    if place[0] != number:
        place[0] = number
        context.suspect_count = count + 1
        row = suspects + 8 * SUSPECT_WORDS * count
        store64(row + 8 * SU_RECORD, -1)
        store64(row + 8 * SU_SPACE, AT_ARRIVAL)
        store64(row + 8 * SU_GRANULE, block)
        store64(row + 8 * SU_CLUSTER, context.cluster)
    return 0


def note_fault(context: Context, record: Record, mask: int, kind: int, space: int) -> int:
    """Lanes have a fault, with offsets and widths in the scratch. Returns 0 if it has been noted, otherwise a
    status."""
    scratch = context.scratch
    width = load64(scratch + SCRATCH_WIDTHS + 8 * first_lane(mask))
    return add_fault(context, record, mask, kind, space, width, scratch + SCRATCH_FAULTS, 0)


def note_reached(context: Context, record: Record, mask: int, which: int, origins: int) -> int:
    """Lanes use an undefined register, the record's one of this number; ``origins`` is the row of the origins of its
    bits. As :func:`note_fault`."""
    left = mask
    while left != 0:
        origin = load32(origins + 4 * first_lane(left))
        same = 0
        for lane in range(32):
            if left >> lane & 1 and load32(origins + 4 * lane) == origin:
                same |= 1 << lane
        left &= ~same
        kind = NEVER_SET if origin == 0 else REACHED
        status = add_fault(context, record, same, kind, which, 0, 0, origin)
        if status != 0:
            return status
    return 0


def note_unwritten(context: Context, record: Record, mask: int, width: int, offsets: int) -> int:
    """Lanes read undefined bytes of shared memory. As :func:`note_fault`."""
    return add_fault(context, record, mask, UNWRITTEN_READ, IN_SHARED, width, offsets, 0)


def note_undefined(context: Context, record: Record, mask: int, width: int, offsets: int) -> int:
    """Lanes read unwritten bytes of global memory. As :func:`note_fault`."""
    return add_fault(context, record, mask, UNWRITTEN_READ, IN_GLOBAL, width, offsets, 0)


def note_stored(context: Context, record: Record, mask: int, which: int) -> int:
    """Lanes store a register that was never set to shared memory, the record's one of this number. As
    :func:`note_fault`."""
    return add_fault(context, record, mask, STORED_UNSET, which, 0, 0, 0)


def first_lane(mask: int) -> int:
    """The first of some lanes."""
    first = 0
    while mask >> first & 1 == 0:
        first += 1
    return first


def status_of(kind: int) -> int:
    """The status with which the run ends if faults are not noted."""
    if kind in (UNWRITTEN_READ, REACHED, STORED_UNSET):
        return UNDEFINED
    return UNSET if kind == NEVER_SET else ILLEGAL if kind < NEVER_SET else DIVERGENT


def add_fault(
    context: Context, record: Record, mask: int, kind: int, space: int, width: int, offsets: int, origin: int
) -> int:
    """Append a row, unless the record has an equal one. Returns 0, or a status if there is no space."""
    faults = context.faults
    if faults == 0:
        return status_of(kind)
    number = (record - context.records) >> 6
    last = context.faults_of.at(number)
    before = last[0]
    while before != 0:
        row = faults + 8 * FAULT_WORDS * (before - 1)
        if (
            load64(row + 8 * FA_KIND) == kind
            and load64(row + 8 * FA_SPACE) == space
            and load64(row + 8 * FA_ORIGIN) == origin
        ):
            return 0
        before = load64(row + 8 * FA_BEFORE)
    count = context.fault_count
    if count >= MOST_FAULTS:
        return status_of(kind)
    context.fault_count = count + 1
    row = faults + 8 * FAULT_WORDS * count
    store64(row + 8 * FA_RECORD, number)
    store64(row + 8 * FA_KIND, kind)
    store64(row + 8 * FA_SPACE, space)
    store64(row + 8 * FA_WARP, context.current)
    store64(row + 8 * FA_LINEAR, context.current_warp.linear_cta)
    store64(row + 8 * FA_MASK, mask)
    store64(row + 8 * FA_WIDTH, width)
    store64(row + 8 * FA_ORIGIN, origin)
    store64(row + 8 * FA_TURN, context.turn - context.turn_began)
    store64(row + 8 * FA_BEFORE, last[0])
    last[0] = count + 1
    if offsets != 0:
        copy(row + 8 * FA_OFFSETS, offsets, 8 * 32)
    return ILLEGAL if kind <= OUT_OF_BOUNDS and context.fault_ends != 0 else 0
