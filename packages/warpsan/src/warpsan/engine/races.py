"""Rows of races between accesses to memory: machine code (:mod:`~warpsan.engine.translate`).

The shadows of a run that reports hazards also hold the party of each access: the turn of lockstep, the number of its
record, its warp among the resident ones, and its lane.
"""

from __future__ import annotations

from warpsan.engine.clocks import vector_of, warps_of_cluster
from warpsan.engine.context import Context
from warpsan.engine.hazards import add_hazard, has_row, hazard_row
from warpsan.engine.layout import IN_SHARED, MATRIX_ROWS, TOGETHER, TRANSPOSED_ROWS
from warpsan.engine.missing import missing, weak_wait
from warpsan.engine.rules import OVERWRITES_WRITTEN, WRITES_TOGETHER
from warpsan.engine.words import load8, load32

__all__ = [
    "SHAPE",
    "changed_lanes",
    "in_flight",
    "is_generic",
    "is_together",
    "mark_flight",
    "mark_landed",
    "mark_party",
    "party_of",
    "race",
    "reader_at",
    "warp_of_party",
]

SHAPE = 13
"""The operand of a record before a write that has the bytes of an element of the written value, and the number of
elements << 8; their rows are from operand 4 on."""


GENERIC_COPY = 1 << 62
"""Bit of the party of a cp.async that has landed for an mbarrier."""


def party_of(context: Context, lane: int) -> int:
    """The party of an access by a lane of the current warp."""
    number = (context.current_record - context.records) >> 6
    return (context.turn & 0xFFFFF) << 40 | number << 20 | context.current << 5 | lane


def is_together(context: Context, party: int, mine: int) -> int:
    """Whether a party has executed the same instruction in the same turn of lockstep."""
    return context.order == TOGETHER and party >> 20 == mine >> 20


def record_of_party(party: int) -> int:
    """The number of the record of a party."""
    return party >> 20 & 0xFFFFF


def warp_of_party(party: int) -> int:
    """The warp of a party."""
    return party >> 5 & 0x7FFF


def mark_party(context: Context, begin: int, many: int, party: int) -> None:
    """A party has written granules of shared memory, numbered over all CTAs."""
    for k in range(begin, begin + many if context.write_parties != 0 else begin):
        context.write_parties[k] = party
        context.flight_parties[k] = 0


def mark_flight(context: Context, begin: int, many: int, party: int) -> None:
    """A party copies to granules by cp.async."""
    for k in range(begin, begin + many if context.write_parties != 0 else begin):
        context.flight_parties[k] = party


def is_generic(context: Context, actor: int, party: int) -> int:
    """Whether an actor's write by a party is of the generic proxy: by a warp, or by a cp.async with an mbarrier."""
    warps = warps_of_cluster(context)
    if actor < 2 * warps:
        return actor < warps
    return context.mbarriers[actor - 2 * warps].generic and (context.write_parties == 0 or party & GENERIC_COPY != 0)


def mark_landed(context: Context, begin: int, many: int) -> None:
    """A cp.async to granules has landed for an mbarrier."""
    for k in range(begin, begin + many if context.write_parties != 0 else begin):
        context.write_parties[k] = context.flight_parties[k] | GENERIC_COPY
        context.flight_parties[k] = 0


def reader_at(context: Context, place: int) -> int:
    """The party of the last read at a place of the shadow of reads; 0 if parties are not kept."""
    return context.read_parties[place] << 20 if context.read_parties != 0 else 0


def in_flight(context: Context, actor: int, time: int) -> int:
    """Whether an asynchronous operation has not landed, or is not complete for the warp that issued it."""
    warps = warps_of_cluster(context)
    if actor >= 2 * warps:
        return time > context.landed[actor]
    return actor >= warps and time > vector_of(context, actor - warps)[actor]


def race(
    context: Context, rule: int, warp: int, lane: int, offset: int, width: int, actor: int, time: int, party: int
) -> int:
    """An access to shared memory by a lane of a warp breaks a rule of its order after one of an actor at a time.
    Returns a status."""
    together = rule == OVERWRITES_WRITTEN and is_together(context, party, party_of(context, lane))
    row = hazard_row(context, context.current_record, WRITES_TOGETHER if together else rule, 1 << lane)
    state, warps = context.warps[warp], warps_of_cluster(context)
    row.warp = state.number
    row.cta = state.linear_cta
    row.space = IN_SHARED
    row.offset = offset
    row.width = width
    if context.write_parties != 0 and has_row(context, row) == 0:
        other = actor if actor < warps else actor - warps if actor < 2 * warps else warp_of_party(party)
        cta = context.warps[other].linear_cta
        row.other_pc = context.pcs[record_of_party(party)]
        row.other_lanes = 1 << (party & 31) if actor >= 2 * warps or together else 0
        row.other_warp = context.warps[other].number
        row.other_cta = cta
        row.actual = 1 if actor >= warps else 0
        near = other // context.warp_count
        row.expected = weak_wait(context, warp) if actor >= warps else missing(context, warp, cta, near, time)
    return add_hazard(context, row)


def changed_lanes(context: Context, mask: int, width: int, memory: int) -> int:
    """The lanes whose write changes the stored value: others are benign in a race. Their offsets in ``memory`` are in
    the scratch, and the values are those of the current record.

    Without space for rows, all lanes: the order of a run that reports hazards may be another one, in which a read comes
    after the write.
    """
    record = context.current_record
    shape = record.operands[SHAPE] if (record - context.records) >> 6 < context.record_count else 0
    if shape == 0 or context.values_count != 0 or context.hazard_room == 0:
        return mask
    registers = context.registers + context.register_bytes * context.current
    places, changed = context.places, 0
    element = shape & 0xFF
    row = registers + record.operands[4]
    for lane in range(32):
        if mask >> lane & 1 == 0:
            continue
        before = memory + places[lane]
        if width == 4 and element == 4:  # most accesses are of one word
            changed |= (load32(row + 4 * lane) != load32(before)) << lane
            continue
        for k in range(width):
            if element in (MATRIX_ROWS, TRANSPOSED_ROWS):
                matrix, line = registers + record.operands[4 + (lane >> 3)], lane & 7
                chunk = 16 * line + k if element == MATRIX_ROWS else 16 * (k >> 1) + 2 * line + (k & 1)
                value = matrix + chunk
            else:
                value = registers + record.operands[4 + k // element] + element * lane + k % element
            if load8(value) != load8(before + k):
                changed |= 1 << lane
                break
    return changed
