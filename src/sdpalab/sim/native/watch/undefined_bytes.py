"""Undefined bytes of shared memory on their way through registers: machine code.

A register's shadow has a bit for each of its bits, 1 where that is undefined; a byte of shared memory is undefined if
it has not been written, or was written from a register with undefined bits (:mod:`sdpalab.sim.checks.tracking`).
"""

from __future__ import annotations

from sdpalab.sim.native.layout import (
    CURRENT_STATE,
    OPERANDS,
    PAGE_FULL,
    PAGE_SHIFT,
    PAGES,
    SCRATCH,
    SCRATCH_PLACES,
    WARP_CTA,
    WRITTEN,
    WRITTEN_BYTES,
)
from sdpalab.sim.native.words import fill, load8, load32, load64, store8, store32, store64

__all__ = ["shadows_from_memory", "shadows_of_matrices", "shadows_of_product", "shadows_to_memory"]


def written_bytes(context: int) -> int:
    """The bits of the current CTA's shared memory: 1 for a byte that is defined."""
    cta = load64(load64(context + 8 * CURRENT_STATE) + 8 * WARP_CTA)
    return load64(context + 8 * WRITTEN) + load64(context + 8 * WRITTEN_BYTES) * cta


def undefined_bits(written: int, offset: int, size: int) -> int:
    """All ones in each of up to eight bytes at an offset that are not defined."""
    bits = 0
    for k in range(size):
        at = offset + k
        if load8(written + (at >> 3)) >> (at & 7) & 1 == 0:
            bits |= 0xFF << 8 * k
    return bits


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


def shadows_from_memory(registers: int, record: int, mask: int, context: int) -> int:
    """Lanes load from shared memory: operand 3 are the bytes of an element, 4 how many there are, 5 the bytes of a
    register, and from 6 on the rows of the registers' shadows (or -1). Their offsets are in the scratch."""
    places, written = load64(context + 8 * SCRATCH) + SCRATCH_PLACES, written_bytes(context)
    size, many = load32(record + 4 * (OPERANDS + 3)), load32(record + 4 * (OPERANDS + 4))
    wide = load32(record + 4 * (OPERANDS + 5))
    for lane in range(32):
        if mask >> lane & 1:
            offset = load64(places + 8 * lane)
            for k in range(many):
                row = load32(record + 4 * (OPERANDS + 6 + k))
                if row >= 0:
                    store_lane(registers + row, lane, wide, undefined_bits(written, offset + size * k, size))
    return 0


def shadows_to_memory(registers: int, record: int, mask: int, context: int) -> int:
    """Lanes have stored to shared memory; operands as those of :func:`shadows_from_memory`."""
    places, written = load64(context + 8 * SCRATCH) + SCRATCH_PLACES, written_bytes(context)
    size, many = load32(record + 4 * (OPERANDS + 3)), load32(record + 4 * (OPERANDS + 4))
    wide = load32(record + 4 * (OPERANDS + 5))
    cta = load64(load64(context + 8 * CURRENT_STATE) + 8 * WARP_CTA)
    full = load64(context + 8 * PAGE_FULL) + 8 * load64(context + 8 * PAGES) * cta
    for lane in range(32):
        if mask >> lane & 1:
            offset = load64(places + 8 * lane)
            for k in range(many):
                row = load32(record + 4 * (OPERANDS + 6 + k))
                bits = load_lane(registers + row, lane, wide) if row >= 0 else 0
                for j in range(size):
                    at = offset + size * k + j
                    if bits >> 8 * j & 0xFF:
                        store8(written + (at >> 3), load8(written + (at >> 3)) & ~(1 << (at & 7)))
                        store64(full + 8 * (at >> PAGE_SHIFT), 0)
    return 0


def shadows_of_matrices(registers: int, record: int, mask: int, context: int) -> int:
    """``ldmatrix``: operand 3 says how many matrices, 4 whether they are transposed; from 5 on the rows of shadows."""
    places, written = load64(context + 8 * SCRATCH) + SCRATCH_PLACES, written_bytes(context)
    many, transposed = load32(record + 4 * (OPERANDS + 3)), load32(record + 4 * (OPERANDS + 4))
    for k in range(many):
        row = load32(record + 4 * (OPERANDS + 5 + k))
        for lane in range(32 if row >= 0 else 0):
            bits = 0
            for half in range(2):
                line, column = lane >> 2, 2 * (lane & 3) + half
                if transposed:
                    line, column = column, line
                offset = load64(places + 8 * (8 * k + line)) + 2 * column
                bits |= undefined_bits(written, offset, 2) << 16 * half
            store32(registers + row + 4 * lane, bits)
    return 0


def shadows_of_product(registers: int, record: int, mask: int, context: int) -> int:
    """``mma`` of 16 by 8: operands are the rows of the shadows of A (up to 4), B (2), C (4) and D (4), or -1; the last
    one is -2 if elements of C and D are halves.

    An element of D is undefined if one of its row of A, of its column of B, or its addend is.
    """
    place = load64(context + 8 * SCRATCH)  # whether rows of A are undefined, and columns of B: a byte each
    fill(place, 0, 24)
    total = 0
    for k in range(14):
        row = load32(record + 4 * (OPERANDS + k))
        if row >= 0 and k < 10:
            for lane in range(32):
                bits = load32(registers + row + 4 * lane)
                total |= bits
                if bits and k < 6:
                    store8(place + (lane >> 2) + (16 if k > 3 else 8 * (k & 1)), 1)
    halves = load32(record + 4 * (OPERANDS + 13)) == -2
    for k in range(10, 14):
        row = load32(record + 4 * (OPERANDS + k))
        if row < 0:
            continue
        if total == 0:
            fill(registers + row, 0, 128)
            continue
        addend = load32(record + 4 * (OPERANDS + k - 4))
        upper = k == 11 if halves else k > 11
        for lane in range(32):
            before = load32(registers + addend + 4 * lane) if addend >= 0 else 0
            column = 2 * (lane & 3)
            line = load8(place + (lane >> 2) + 8 * upper)
            if halves:
                low = line | load8(place + 16 + column) | ((before & 0xFFFF) != 0)
                high = line | load8(place + 17 + column) | ((before >> 16 & 0xFFFF) != 0)
                store32(registers + row + 4 * lane, 0xFFFF * (low != 0) | 0xFFFF0000 * (high != 0))
            else:
                bad = line | load8(place + 16 + column + (k & 1)) | (before != 0)
                store32(registers + row + 4 * lane, -1 if bad else 0)
    return 0
