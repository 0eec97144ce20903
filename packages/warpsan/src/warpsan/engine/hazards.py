"""Rows of hazards: machine code (:mod:`~warpsan.engine.translate`).

A rule fills in the row of :func:`hazard_row` and passes it to :func:`add_hazard`. The first run of a launch has no
space for rows: its first hazard ends it. A run that reports hazards (:mod:`~warpsan.engine.reporting`) has space, and
continues; :mod:`warpsan.report.rows` reports its rows.
"""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.layout import (
    BROKEN_RULE,
    DIVERGENT,
    ILLEGAL,
    IN_GLOBAL,
    IN_SHARED,
    RACE,
    UNDEFINED,
    UNSET,
)
from warpsan.engine.memory import HazardRow, Record
from warpsan.engine.rules import (
    FIRST_RACE,
    LAST_RACE,
    NEVER_SET,
    NO_SUCH_BARRIER,
    OUT_OF_BOUNDS,
    REACHED,
    STORED_UNSET,
    UNWRITTEN_READ,
)
from warpsan.engine.structs import Ptr, i64
from warpsan.engine.suspects import first_lane
from warpsan.engine.words import load32

__all__ = [
    "add_hazard",
    "break_rule",
    "has_row",
    "hazard_row",
    "note_fault",
    "note_reached",
    "note_stored",
    "note_undefined",
    "note_unwritten",
]


def hazard_row(context: Context, record: Record, rule: int, lanes: int) -> HazardRow:
    """A row for a hazard of the current warp at a record, which counts after :func:`add_hazard`."""
    row = context.hazards[context.hazard_count]
    row.rule = rule
    row.record = (record - context.records) >> 6
    row.lanes = lanes
    row.warp = context.current_warp.number
    row.cta = context.current_warp.linear_cta
    row.space = 0
    row.origin = 0
    row.offset = 0
    row.width = 0
    row.expected = 0
    row.actual = 0
    row.limit = 0
    row.other_pc = -1
    row.turn = context.turn - context.turn_began
    return row


def add_hazard(context: Context, row: HazardRow) -> int:
    """Keep a row, unless its record has one of the same rule, space and origin. Returns 0, or the status that ends the
    run."""
    if context.hazard_room == 0:
        return status_of(row.rule)
    if has_row(context, row):
        return 0
    count = context.hazard_count + 1
    if count > context.hazard_room:
        return status_of(row.rule)
    last = context.hazards_of.at(row.record)
    row.before = last[0]
    last[0] = count
    context.hazard_count = count
    return ILLEGAL if row.rule <= OUT_OF_BOUNDS and context.illegal_ends != 0 else 0


def break_rule(context: Context, rule: int, lanes: int) -> int:
    """Lanes of the current warp break a rule at the current instruction. Returns a status."""
    return add_hazard(context, hazard_row(context, context.current_record, rule, lanes)) if context.checked != 0 else 0


def has_row(context: Context, row: HazardRow) -> int:
    """Whether the record of a row has one of the same rule, space and origin."""
    before = context.hazards_of[row.record] if context.hazard_room != 0 else 0
    while before != 0:
        other = context.hazards[before - 1]
        if other.rule == row.rule and other.space == row.space and other.origin == row.origin:
            return 1
        before = other.before
    return 0


def status_of(rule: int) -> int:
    """The status with which a run without space for a row ends."""
    if rule >= FIRST_RACE and rule <= LAST_RACE:
        return RACE
    if rule >= NO_SUCH_BARRIER:
        return BROKEN_RULE
    if rule in (UNWRITTEN_READ, REACHED, STORED_UNSET):
        return UNDEFINED
    return UNSET if rule == NEVER_SET else ILLEGAL if rule < NEVER_SET else DIVERGENT


def note_fault(context: Context, record: Record, mask: int, rule: int, space: int) -> int:
    """Lanes break a rule, with offsets and widths in the context. Returns a status."""
    row, first = hazard_row(context, record, rule, mask), first_lane(mask)
    row.space = space
    row.width = context.fault_widths[first]
    row.offset = context.fault_offsets[first]
    return add_hazard(context, row)


def note_reached(context: Context, record: Record, mask: int, which: int, origins: int) -> int:
    """Lanes use an undefined register, the record's one of this number; ``origins`` is the row of the origins of its
    bits. Returns a status."""
    left = mask
    while left != 0:
        origin = load32(origins + 4 * first_lane(left))
        same = 0
        for lane in range(32):
            if left >> lane & 1 and load32(origins + 4 * lane) == origin:
                same |= 1 << lane
        left &= ~same
        row = hazard_row(context, record, NEVER_SET if origin == 0 else REACHED, same)
        row.space = which
        row.origin = origin
        status = add_hazard(context, row)
        if status != 0:
            return status
    return 0


def note_unwritten(context: Context, record: Record, mask: int, width: int, offsets: Ptr[i64]) -> int:
    """Lanes read undefined bytes of shared memory. Returns a status."""
    return note_bytes(context, record, mask, width, offsets, IN_SHARED)


def note_undefined(context: Context, record: Record, mask: int, width: int, offsets: Ptr[i64]) -> int:
    """Lanes read unwritten bytes of global memory. Returns a status."""
    return note_bytes(context, record, mask, width, offsets, IN_GLOBAL)


def note_bytes(context: Context, record: Record, mask: int, width: int, offsets: Ptr[i64], space: int) -> int:
    """Lanes read undefined bytes of a space at their offsets. Returns a status."""
    row = hazard_row(context, record, UNWRITTEN_READ, mask)
    row.space = space
    row.width = width
    row.offset = offsets[first_lane(mask)]
    return add_hazard(context, row)


def note_stored(context: Context, record: Record, mask: int, which: int) -> int:
    """Lanes store a register that was never set to shared memory, the record's one of this number. Returns a
    status."""
    row = hazard_row(context, record, STORED_UNSET, mask)
    row.space = which
    return add_hazard(context, row)
