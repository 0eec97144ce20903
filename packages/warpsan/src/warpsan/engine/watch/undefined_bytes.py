"""Tracking of undefined bytes of shared memory through registers: machine code.

A register's shadow has a bit for each of its bits, 1 if it is undefined; a byte of shared memory is undefined if it is
unwritten, or was written from a register with undefined bits (:mod:`warpsan.report.undefined`). Both have an
origin: the pc, plus one, of the load from which the undefined bits came, or of the store of a register that was never
set; for such a register 0.
"""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.hazards import note_fault, note_reached, note_stored, note_unwritten
from warpsan.engine.layout import (
    PAGE_SHIFT,
    SCRATCH_CHUNKS,
)
from warpsan.engine.memory import Record
from warpsan.engine.rules import NEVER_SET
from warpsan.engine.structs import Ptr, i32, i64
from warpsan.engine.suspects import first_lane
from warpsan.engine.unit_addresses import cta_of, offset_of
from warpsan.engine.words import fill, load8, load32, load64, store8, store32, store64

__all__ = [
    "shadows_from_memory",
    "shadows_of_matrices",
    "shadows_to_global",
    "shadows_to_matrices",
    "shadows_to_memory",
]

ITEM_WORDS = 3
"""Words per register in a list of registers: the rows of its shadow and of its origin (or -1), and its bytes."""


def written_bytes(context: Context, cta: int) -> int:
    """The bits of the shared memory of a CTA: 1 for a byte that is defined."""
    return context.written + context.written_bytes * cta


def origins_of(context: Context, cta: int) -> int:
    """The origins of the shared memory of a CTA."""
    return context.origins + context.shared_stride * cta


def undefined_bits(written: int, offset: int, size: int) -> int:
    """A mask of up to eight bytes at an offset: all ones in each undefined byte."""
    bits = 0
    for k in range(size):
        at = offset + k
        if load8(written + (at >> 3)) >> (at & 7) & 1 == 0:
            bits |= 0xFF << 8 * k
    return bits


def all_written(written: int, offset: int, size: int) -> int:
    """Whether bytes at an offset, a multiple of their number, are all defined."""
    if size == 16:
        return load8(written + (offset >> 3)) == 0xFF and load8(written + (offset >> 3) + 1) == 0xFF
    need = (1 << size) - 1
    return load8(written + (offset >> 3)) >> (offset & 7) & need == need


def origin_in(context: Context, cta: int, offset: int, size: int, reader: int) -> int:
    """The origin of the undefined bits of a range: the reader itself, if they are unwritten."""
    origin = 0
    for k in range(offset >> 2, (offset + size - 1 >> 2) + 1):
        origin = max(origin, load32(origins_of(context, cta) + 4 * k))
    return origin if origin != 0 else reader


def store_lane(row: int, lane: int, size: int, bits: int) -> None:
    """Write a lane's element of a row of elements of so many bytes."""
    if size == 8:
        store64(row + 8 * lane, bits)
    elif size == 4:
        store32(row + 4 * lane, bits)
    else:
        for k in range(size):
            store8(row + size * lane + k, bits >> 8 * k & 0xFF)


def load_lane(row: int, lane: int, size: int) -> int:
    """A lane's element of a row of elements of so many bytes."""
    if size == 8:
        return load64(row + 8 * lane)
    bits = 0
    for k in range(size):
        bits |= load8(row + size * lane + k) << 8 * k
    return bits


def undefine(context: Context, cta: int, offset: int, size: int, bits: int) -> None:
    """Mark the bytes with a set bit as undefined, among up to eight bytes at an offset."""
    written = written_bytes(context, cta)
    full = context.page_full.at(context.pages * cta)
    for k in range(size if bits != 0 else 0):
        at = offset + k
        if bits >> 8 * k & 0xFF:
            store8(written + (at >> 3), load8(written + (at >> 3)) & ~(1 << (at & 7)))
            full[at >> PAGE_SHIFT] = 0


def put_origin(context: Context, cta: int, offset: int, size: int, origin: int) -> None:
    """Set the origin of the undefined bits of a range."""
    for k in range(offset >> 2, (offset + size - 1 >> 2) + 1):
        store32(origins_of(context, cta) + 4 * k, origin)


# ---- loads and stores ------------------------------------------------------------------------------------------------


def shadows_from_memory(registers: int, record: Record, mask: int, context: Context) -> int:
    """Lanes load from shared memory: operand 3 is the bytes of an element, 4 the number of elements, 5 the start of
    the list of their registers, 6 the pc plus one. Their places are in the scratch. Returns a status."""
    places = context.places
    size, many = record.operands[3], record.operands[4]
    items = context.lists.at(record.operands[5])
    reader, bad = record.operands[6], 0
    for lane in range(32):
        if mask >> lane & 1:
            cta, offset = cta_of(context, places[lane]), offset_of(places[lane])
            written = written_bytes(context, cta)
            clean = all_written(written, offset, size * many)
            origin = 0
            if clean == 0:
                bad |= 1 << lane
                origin = origin_in(context, cta, offset, size * many, reader)
            for k in range(many):
                item = items.at(ITEM_WORDS * k)
                if item[0] >= 0:
                    bits = 0 if clean else undefined_bits(written, offset + size * k, size)
                    store_lane(registers + item[0], lane, item[2], bits)
                    store32(registers + item[1] + 4 * lane, origin)
    return note_read(context, record, bad, size * many, places)


def note_read(context: Context, record: Record, bad: int, width: int, places: Ptr[i64]) -> int:
    """Lanes have read undefined bytes, which are tracked: if faults are noted, the first such read is noted."""
    if bad == 0 or context.hazard_room == 0:
        return 0
    return note_unwritten(context, record, bad, width, places)


def stored_bits(registers: int, item: Ptr[i32], lane: int) -> int:
    """The shadow of a lane's register in a list."""
    row = item[0]
    return load_lane(registers + row, lane, item[2]) if row >= 0 else 0


def stored_origin(registers: int, items: Ptr[i32], many: int, lane: int) -> int:
    """The origins of the undefined bits of a lane's registers in a list."""
    origin = 0
    for k in range(many):
        item = items.at(ITEM_WORDS * k)
        if stored_bits(registers, item, lane) != 0:
            origin = max(origin, load32(registers + item[1] + 4 * lane))
    return origin


def lanes_stored(registers: int, item: Ptr[i32], low: int, lanes: int) -> int:
    """The lanes, of some, in which a register of a list has undefined bits among its low ones."""
    stored = 0
    for lane in range(32):
        if lanes >> lane & 1 and stored_bits(registers, item, lane) & low:
            stored |= 1 << lane
    return stored


def first_stored(registers: int, items: Ptr[i32], many: int, low: int, lanes: int) -> int:
    """The first register of a list with undefined bits in any of some lanes."""
    first = 0
    while first < many - 1 and lanes_stored(registers, items.at(ITEM_WORDS * first), low, lanes) == 0:
        first += 1
    return first


def note_unset(context: Context, registers: int, record: Record, low: int, lanes: int, matters: int) -> int:
    """Lanes have stored registers that were never set: if faults are noted, the first of these is noted. With
    ``matters``, it is a separate fault. Returns a status."""
    if lanes == 0:
        return 0
    items = context.lists.at(record.operands[5])
    first = first_stored(registers, items, record.operands[4], low, lanes)
    mine = lanes_stored(registers, items.at(ITEM_WORDS * first), low, lanes)
    status = note_stored(context, record, mine, first) if context.hazard_room != 0 else 0
    return note_fault(context, record, mine, NEVER_SET, first) if matters and status == 0 else status


def shadows_to_memory(registers: int, record: Record, mask: int, context: Context) -> int:
    """Lanes have stored to shared memory; operands as those of :func:`shadows_from_memory`. Returns a status."""
    places = context.places
    size, many = record.operands[3], record.operands[4]
    items = context.lists.at(record.operands[5])
    low = (1 << 8 * size) - 1 if size < 8 else -1
    unset = 0
    for lane in range(32):
        if mask >> lane & 1:
            cta, offset = cta_of(context, places[lane]), offset_of(places[lane])
            undefined = 0
            for k in range(many):
                bits = stored_bits(registers, items.at(ITEM_WORDS * k), lane) & low
                undefine(context, cta, offset + size * k, size, bits)
                undefined |= bits
            if undefined != 0:
                origin = stored_origin(registers, items, many, lane)
                if origin == 0:
                    unset |= 1 << lane
                    origin = record.operands[6]
                put_origin(context, cta, offset, size * many, origin)
    return note_unset(context, registers, record, low, unset, 0)


def shadows_to_global(registers: int, record: Record, mask: int, context: Context) -> int:
    """Lanes have stored to global memory by generic addresses, where undefined bits are a use. Operands as those of
    :func:`shadows_from_memory`. Returns a status."""
    size, many = record.operands[3], record.operands[4]
    items = context.lists.at(record.operands[5])
    origins = context.scratch + SCRATCH_CHUNKS
    low = (1 << 8 * size) - 1 if size < 8 else -1
    bad, unset = 0, 0
    for lane in range(32):
        if mask >> lane & 1:
            undefined = 0
            for k in range(many):
                undefined |= stored_bits(registers, items.at(ITEM_WORDS * k), lane) & low
            origin = stored_origin(registers, items, many, lane) if undefined != 0 else 0
            store32(origins + 4 * lane, origin)
            if origin != 0:
                bad |= 1 << lane
            elif undefined != 0:
                unset |= 1 << lane
    status = note_reached(context, record, bad, 0, origins)
    return note_unset(context, registers, record, low, unset, 1) if status == 0 else status


# ---- matrices --------------------------------------------------------------------------------------------------------


def shadows_of_matrices(registers: int, record: Record, mask: int, context: Context) -> int:
    """``ldmatrix``: operand 3 is the number of matrices, 4 whether they are transposed, 5 the start of the list of
    the registers, 6 the pc plus one. Returns a status."""
    places = context.places
    many, transposed = record.operands[3], record.operands[4]
    items = context.lists.at(record.operands[5])
    reader, bad, most = record.operands[6], 0, 0
    for lane in range(8 * many):
        if mask >> lane & 1:
            cta, offset = cta_of(context, places[lane]), offset_of(places[lane])
            if all_written(written_bytes(context, cta), offset, 16) == 0:
                bad |= 1 << lane
                most = max(most, origin_in(context, cta, offset, 16, reader))
    for k in range(many):
        item = items.at(ITEM_WORDS * k)
        if item[0] < 0:
            continue
        fill(registers + item[0], 0, 128)
        for lane in range(32):
            store32(registers + item[1] + 4 * lane, most)
        for lane in range(32 if bad >> 8 * k & 0xFF else 0):
            bits = 0
            for half in range(2):
                line, column = lane >> 2, 2 * (lane & 3) + half
                if transposed:
                    line, column = column, line
                if bad >> 8 * k + line & 1:
                    place = places[8 * k + line]
                    written = written_bytes(context, cta_of(context, place))
                    bits |= undefined_bits(written, offset_of(place) + 2 * column, 2) << 16 * half
            store32(registers + item[0] + 4 * lane, bits)
    return note_read(context, record, bad, 16, places)


def shadows_to_matrices(registers: int, record: Record, mask: int, context: Context) -> int:
    """``stmatrix`` has stored; operands as those of :func:`shadows_of_matrices`."""
    places = context.places
    many, transposed = record.operands[3], record.operands[4]
    items = context.lists.at(record.operands[5])
    origin, unset = 0, 0
    for lane in range(32):
        origin = max(origin, stored_origin(registers, items, many, lane))
    never_set = origin == 0
    if never_set:
        origin = record.operands[6]
    for lane in range(8 * many):
        if mask >> lane & 1 == 0:
            continue
        cta, offset = cta_of(context, places[lane]), offset_of(places[lane])
        undefined = 0
        for column in range(8):
            line, across = lane & 7, column
            if transposed:
                line, across = column, lane & 7
            word = stored_bits(registers, items.at(ITEM_WORDS * (lane >> 3)), 4 * line + (across >> 1))
            bits = word >> 16 * (across & 1) & 0xFFFF
            undefine(context, cta, offset + 2 * column, 2, bits)
            undefined |= bits
        if undefined != 0:
            put_origin(context, cta, offset, 16, origin)
            if never_set:
                unset |= 1 << lane
    return note_rows(context, record, unset)


def note_rows(context: Context, record: Record, lanes: int) -> int:
    """Lanes address rows that were stored from a register that was never set; as :func:`note_unset`."""
    if lanes == 0 or context.hazard_room == 0:
        return 0
    first = first_lane(lanes) >> 3
    return note_stored(context, record, lanes & 0xFF << 8 * first, first)
