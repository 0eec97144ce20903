"""Notes of possible hazards in a launch that continues: machine code (:mod:`~warpsan.engine.translate`).

The first run of a launch has no rows for notes: the first suspicion ends it. A run that reports hazards
(:mod:`~warpsan.engine.reporting`) has them.
"""

from __future__ import annotations

from warpsan.engine.layout import (
    ARRIVALS_OF,
    AT_ARRIVAL,
    AT_RULE,
    BARRIER_RULE,
    CLUSTER,
    CURRENT,
    CURRENT_RECORD,
    CURRENT_STATE,
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
    FAULT_COUNT,
    FAULT_ENDS,
    FAULT_WORDS,
    FAULTS,
    FAULTS_OF,
    GLOBAL_SHIFT,
    GRANULE_SHIFT,
    GRANULES,
    ILLEGAL,
    IN_GLOBAL,
    IN_SHARED,
    MARKED_CLUSTERS,
    MARKED_GLOBAL,
    MARKED_SHARED,
    MOST_FAULTS,
    MOST_SUSPECTS,
    NEVER_SET,
    OUT_OF_BOUNDS,
    RACE,
    REACHED,
    RECORD_COUNT,
    RECORDS,
    SCRATCH,
    SCRATCH_FAULTS,
    SCRATCH_PLACES,
    SCRATCH_WIDTHS,
    STORED_UNSET,
    SU_CLUSTER,
    SU_GRANULE,
    SU_RECORD,
    SU_SPACE,
    SUSPECT_COUNT,
    SUSPECT_WORDS,
    SUSPECTS,
    SUSPECTS_OF,
    SUSPECTS_OF_RECORD,
    TRACE,
    TURN,
    TURN_BEGAN,
    UNDEFINED,
    UNSET,
    UNWRITTEN_READ,
    WARP_LINEAR,
)
from warpsan.engine.words import copy, load8, load32, load64, store8, store32, store64

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


def current_instruction(context: int, pc: int) -> None:
    """Later suspicions belong to an action of an instruction without a record of its own, or after its record."""
    number = load64(context + 8 * RECORD_COUNT) + pc
    store64(context + 8 * CURRENT_RECORD, load64(context + 8 * RECORDS) + (number << 6))


def suspect(context: int, space: int, granule: int, status: int) -> int:
    """The checked access may be a hazard at a granule: returns 0 if it has been noted, otherwise the status that
    ends the run. A limited number of granules of each instruction is noted; further ones are only marked
    (:func:`mark`)."""
    suspects = load64(context + 8 * SUSPECTS)
    if suspects == 0:
        return status
    record = (load64(context + 8 * CURRENT_RECORD) - load64(context + 8 * RECORDS)) >> 6
    many = load64(context + 8 * SUSPECTS_OF) + 4 * record
    count = load64(context + 8 * SUSPECT_COUNT)
    if load32(many) >= SUSPECTS_OF_RECORD or (count >= MOST_SUSPECTS and load32(many) > 0):
        mark(context, space, granule)
        return 0
    if count >= MOST_SUSPECTS:
        return status
    store32(many, load32(many) + 1)
    store64(context + 8 * SUSPECT_COUNT, count + 1)
    row = suspects + 8 * SUSPECT_WORDS * count
    store64(row + 8 * SU_RECORD, record)
    store64(row + 8 * SU_SPACE, space)
    store64(row + 8 * SU_GRANULE, granule)
    store64(row + 8 * SU_CLUSTER, load64(context + 8 * CLUSTER))
    return 0


def mark(context: int, space: int, granule: int) -> None:
    """Mark a suspicious granule if its instruction has many others, or a place where a rule may be broken."""
    cluster = load64(context + 8 * MARKED_CLUSTERS) + load64(context + 8 * CLUSTER)
    if space == IN_GLOBAL:
        store8(load64(context + 8 * MARKED_GLOBAL) + granule, 1)
        return
    store8(cluster, load8(cluster) | (1 if space == IN_SHARED else 2))
    if space == IN_SHARED:
        store8(load64(context + 8 * MARKED_SHARED) + granule % load64(context + 8 * GRANULES), 1)


def broken_rule(context: int, status: int) -> int:
    """The current instruction breaks a rule, and the launch may continue, as in :func:`suspect`; it does if events
    are recorded."""
    return suspect(context, AT_RULE, 0, status) if load64(context + 8 * TRACE) == 0 else 0


def suspect_lanes(context: int, record: int, mask: int, space: int) -> int:
    """Lanes have written different values to places in the scratch, in one step; as :func:`suspect`."""
    store64(context + 8 * CURRENT_RECORD, record)
    shift = load64(context + 8 * GLOBAL_SHIFT) if space == IN_GLOBAL else load64(context + 8 * GRANULE_SHIFT)
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    for lane in range(32):
        if mask >> lane & 1:
            status = suspect(context, space, load64(places + 8 * lane) >> shift, RACE)
            if status != 0:
                return status
    return 0


def suspect_arrival(context: int, block: int) -> int:
    """An arrival by the end of a block may break a rule of barriers; as :func:`suspect`."""
    if load64(context + 8 * TRACE) != 0:
        return 0
    suspects, count = load64(context + 8 * SUSPECTS), load64(context + 8 * SUSPECT_COUNT)
    if suspects == 0 or count >= MOST_SUSPECTS:
        return BARRIER_RULE
    place, number = load64(context + 8 * ARRIVALS_OF) + 4 * block, load64(context + 8 * CLUSTER) + 1
    if load32(place) != number:
        store32(place, number)
        store64(context + 8 * SUSPECT_COUNT, count + 1)
        row = suspects + 8 * SUSPECT_WORDS * count
        store64(row + 8 * SU_RECORD, -1)
        store64(row + 8 * SU_SPACE, AT_ARRIVAL)
        store64(row + 8 * SU_GRANULE, block)
        store64(row + 8 * SU_CLUSTER, load64(context + 8 * CLUSTER))
    return 0


def note_fault(context: int, record: int, mask: int, kind: int, space: int) -> int:
    """Lanes have a fault, with offsets and widths in the scratch. Returns 0 if it has been noted, otherwise a
    status."""
    scratch = load64(context + 8 * SCRATCH)
    width = load64(scratch + SCRATCH_WIDTHS + 8 * first_lane(mask))
    return add_fault(context, record, mask, kind, space, width, scratch + SCRATCH_FAULTS, 0)


def note_reached(context: int, record: int, mask: int, which: int, origins: int) -> int:
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


def note_unwritten(context: int, record: int, mask: int, width: int, offsets: int) -> int:
    """Lanes read undefined bytes of shared memory. As :func:`note_fault`."""
    return add_fault(context, record, mask, UNWRITTEN_READ, IN_SHARED, width, offsets, 0)


def note_undefined(context: int, record: int, mask: int, width: int, offsets: int) -> int:
    """Lanes read unwritten bytes of global memory. As :func:`note_fault`."""
    return add_fault(context, record, mask, UNWRITTEN_READ, IN_GLOBAL, width, offsets, 0)


def note_stored(context: int, record: int, mask: int, which: int) -> int:
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
    context: int, record: int, mask: int, kind: int, space: int, width: int, offsets: int, origin: int
) -> int:
    """Append a row, unless the record has an equal one. Returns 0, or a status if there is no space."""
    faults = load64(context + 8 * FAULTS)
    if faults == 0:
        return status_of(kind)
    number = (record - load64(context + 8 * RECORDS)) >> 6
    last = load64(context + 8 * FAULTS_OF) + 4 * number
    before = load32(last)
    while before != 0:
        row = faults + 8 * FAULT_WORDS * (before - 1)
        if (
            load64(row + 8 * FA_KIND) == kind
            and load64(row + 8 * FA_SPACE) == space
            and load64(row + 8 * FA_ORIGIN) == origin
        ):
            return 0
        before = load64(row + 8 * FA_BEFORE)
    count = load64(context + 8 * FAULT_COUNT)
    if count >= MOST_FAULTS:
        return status_of(kind)
    store64(context + 8 * FAULT_COUNT, count + 1)
    row = faults + 8 * FAULT_WORDS * count
    store64(row + 8 * FA_RECORD, number)
    store64(row + 8 * FA_KIND, kind)
    store64(row + 8 * FA_SPACE, space)
    store64(row + 8 * FA_WARP, load64(context + 8 * CURRENT))
    store64(row + 8 * FA_LINEAR, load64(load64(context + 8 * CURRENT_STATE) + 8 * WARP_LINEAR))
    store64(row + 8 * FA_MASK, mask)
    store64(row + 8 * FA_WIDTH, width)
    store64(row + 8 * FA_ORIGIN, origin)
    store64(row + 8 * FA_TURN, load64(context + 8 * TURN) - load64(context + 8 * TURN_BEGAN))
    store64(row + 8 * FA_BEFORE, load32(last))
    store32(last, count + 1)
    if offsets != 0:
        copy(row + 8 * FA_OFFSETS, offsets, 8 * 32)
    return ILLEGAL if kind <= OUT_OF_BOUNDS and load64(context + 8 * FAULT_ENDS) != 0 else 0
