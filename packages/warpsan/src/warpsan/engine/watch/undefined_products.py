"""Undefined elements of matrix products: machine code (:mod:`.undefined_bytes`)."""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.memory import Record
from warpsan.engine.words import copy, fill, load8, load32, store8, store32

__all__ = ["shadows_of_product"]

A_ROWS, B_ROWS, C_ROWS, D_ROWS, ALL_ROWS = 0, 4, 6, 10, 14
"""Places of the rows of the fragments in the list of an instruction."""
ADDENDS = 64
"""Place of the shadows of C in the scratch."""


def shadows_of_product(registers: int, record: Record, mask: int, context: Context) -> int:
    """``mma`` of 16 by 8: operand 0 is the start of the list of its rows, 1 whether elements of C and D are halves. The
    list has the shadows of A (up to 4), B (2), C (4) and D (4), or -1, followed by their origins.

    An element of D is undefined if its addend, or an element of its row of A or its column of B, is.
    """
    rows = context.lists.at(record.operands[0])
    halves = record.operands[1]
    origin = 0
    total = 0
    place = context.scratch  # whether rows of A and columns of B are undefined: a byte each
    fill(place, 0, ADDENDS + 4 * 128)
    for k in range(D_ROWS if mask == 0xFFFFFFFF else 0):
        row, origins = rows[k], rows[ALL_ROWS + k]
        for lane in range(32 if row >= 0 else 0):
            bits = load32(registers + row + 4 * lane)
            if bits != 0:
                total = 1
                origin = max(origin, load32(registers + origins + 4 * lane))
                if k < C_ROWS:
                    store8(place + (lane >> 2) + (16 if k >= B_ROWS else 8 * (k & 1)), 1)
    for k in range(4 if total != 0 else 0):  # D may have the registers of C in another order
        addend = rows[C_ROWS + k]
        if addend >= 0:
            copy(place + ADDENDS + 128 * k, registers + addend, 128)
    for k in range(4):
        row, addends = rows[D_ROWS + k], place + ADDENDS + 128 * k
        if row < 0:
            continue
        origins = registers + rows[ALL_ROWS + D_ROWS + k]
        upper = k == 1 if halves else k > 1
        for lane in range(32):
            if mask >> lane & 1 == 0:
                continue
            bits = 0
            if total != 0:
                before = load32(addends + 4 * lane)
                line = load8(place + (lane >> 2) + 8 * upper)
                column = place + 16 + 2 * (lane & 3)
                if halves:
                    bits = 0xFFFF * ((line | load8(column)) != 0 or before & 0xFFFF != 0)
                    bits |= 0xFFFF0000 * ((line | load8(column + 1)) != 0 or before >> 16 & 0xFFFF != 0)
                elif (line | load8(column + (k & 1))) != 0 or before != 0:
                    bits = -1
                store32(origins + 4 * lane, origin)
            store32(registers + row + 4 * lane, bits)
    return 0
