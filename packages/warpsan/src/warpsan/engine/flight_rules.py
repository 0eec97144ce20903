"""Accesses to shared memory that an asynchronous operation still uses: machine code (:mod:`~warpsan.engine.translate`).

No access may touch what an operation in flight writes, and no write what it reads, until the issuing lanes have waited
for it (PTX ISA, "Asynchronous Operations"). Only mbarrier instructions may touch an mbarrier. The ``async`` check
reports both.
"""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.hazards import add_hazard, has_row, hazard_row
from warpsan.engine.layout import (
    IN_FLIGHT,
    LOADS,
    MOST_COPIES,
    MOST_PRODUCTS,
    OPAQUE,
    READ_IN_FLIGHT,
    STORES,
    WAITED_FOR,
    WITHIN,
    WORDS,
)
from warpsan.engine.memory import HazardRow, TransferEntry
from warpsan.engine.product_rules import chunk_offset
from warpsan.engine.rules import OVERWRITES_SOURCE, OVERWRITES_TARGET, READS_TARGET, TOUCHES_MBARRIER

__all__ = ["COPIES", "disturbs"]

_CHUNK = 16
COPIES = 2
"""A kind of access: a write by a bulk copy."""


def disturbs(
    context: Context, warp: int, lane: int, cta: int, granule: int, offset: int, width: int, writes: int
) -> int:
    """A lane of a warp accesses bytes of a CTA's shared memory, where an operation in flight or an mbarrier is at a
    granule; ``writes`` is ``COPIES`` for a bulk copy, which is in flight itself. Returns a status."""
    place = context.granules * cta + granule
    flies, status = context.flying[place], 0
    if flies & OPAQUE:
        status = add_hazard(context, row_of_access(context, TOUCHES_MBARRIER, warp, lane, offset, width))
    if status != 0 or (flies & IN_FLIGHT == 0 and (writes == 0 or flies < READ_IN_FLIGHT)):
        return status
    if writes and flies & IN_FLIGHT:
        context.copies_overlap = 1  # if it is a copy
    rule = OVERWRITES_SOURCE if flies & IN_FLIGHT == 0 else OVERWRITES_TARGET if writes else READS_TARGET
    row = row_of_access(context, rule, warp, lane, offset, width)
    if context.hazard_room != 0 and has_row(context, row) == 0:
        if rule == OVERWRITES_SOURCE:
            name_reader(context, row, cta, granule << context.granule_shift)
        else:
            name_writer(context, row, cta, granule << context.granule_shift, writes == COPIES)
    return add_hazard(context, row)


def row_of_access(context: Context, rule: int, warp: int, lane: int, offset: int, width: int) -> HazardRow:
    """A row for an access of a lane of a warp."""
    row, state = hazard_row(context, context.current_record, rule, 1 << lane), context.warps[warp]
    row.warp = state.number
    row.cta = state.linear_cta
    row.offset = offset
    row.width = width
    return row


def name_other(context: Context, row: HazardRow, pc: int, warp: int, lane: int) -> None:
    """The operation in flight is that of a lane of a warp."""
    row.other_pc = pc
    row.other_warp = context.warps[warp].number
    row.other_lanes = 1 << lane
    row.other_cta = context.warps[warp].linear_cta


def name_writer(context: Context, row: HazardRow, cta: int, offset: int, copies: int) -> None:
    """The operation in flight is the last one that writes a place: a bulk copy, or a cp.async. With ``copies``, the
    last bulk copies are those of the instruction that is checked."""
    for k in range(context.transfer_first, context.transfer_count):
        entry = context.transfers[k]
        writes = entry.kind in (LOADS, WORDS, WITHIN) and entry.combine == 0
        writes = writes and (copies == 0 or entry.serial != context.transfer_serial)
        if writes and entry.cta == cta and entry.offset <= offset and offset < entry.offset + entry.bytes:
            name_other(context, row, entry.pc, entry.warp, entry.lane)
    last, place = 0, context.shared + cta * context.shared_stride + offset
    for warp in range(context.warp_count * cta, context.warp_count * (cta + 1) if context.copies != 0 else 0):
        for k in range(context.warps[warp].copies_in_flight):
            one = context.copies[MOST_COPIES * warp + k]
            for lane in range(32 if one.number > last else 0):
                if one.mask >> lane & 1 and one.target[lane] <= place and place < one.target[lane] + one.width:
                    last = one.number
                    name_other(context, row, one.pc, warp, lane)


def name_reader(context: Context, row: HazardRow, cta: int, offset: int) -> None:
    """The operation in flight is the last one that reads a place: a bulk copy, or a product."""
    for k in range(context.transfer_first, context.transfer_count):
        entry = context.transfers[k]
        if reads_place(entry, cta, offset):
            name_other(context, row, entry.pc, entry.warp, entry.lane)
    for group in range(context.warp_count * context.cta_count // 4 if row.other_pc < 0 and context.products else 0):
        if context.warps[4 * group].cta == cta:
            name_product(context, row, 4 * group, offset)


def reads_place(entry: TransferEntry, cta: int, offset: int) -> int:
    """Whether a bulk copy still reads a place."""
    if entry.kind == WITHIN:
        begin = entry.coordinates[0]
        return entry.coordinates[1] == cta and begin <= offset and offset < begin + entry.bytes
    if entry.kind != STORES or entry.state & WAITED_FOR:
        return 0
    return entry.cta == cta and entry.offset <= offset and offset < entry.offset + entry.bytes


def name_product(context: Context, row: HazardRow, first: int, offset: int) -> None:
    """The operation in flight is the last product of a warpgroup that reads a place, if there is one. Each warp reads
    its quarter of A and all of B, a chunk a lane."""
    for k in range(context.warps[first].product_count):
        entry = context.products[MOST_PRODUCTS * (first // 4) + k]
        words = entry.words
        for chunk in range(128 if words.a >= 0 else 0):
            if chunk_at(entry.a, words.major_a, chunk) == offset // _CHUNK * _CHUNK:
                name_other(context, row, entry.pc, first + chunk // 32, chunk % 32)
        for chunk in range(2 * words.columns):
            if chunk_at(entry.b, words.major_b, chunk) == offset // _CHUNK * _CHUNK:
                name_other(context, row, entry.pc, first + 3, chunk % 32)


def chunk_at(descriptor: int, k_major: int, chunk: int) -> int:
    """The offset of a chunk of an operand, by its number."""
    return chunk_offset(descriptor, k_major, chunk // 16, chunk // 8 % 2, chunk % 8)
