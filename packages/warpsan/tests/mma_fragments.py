"""Fragments of mma.sync with 16 rows and 8 columns, element by element from the manual's tables."""

from __future__ import annotations

import ml_dtypes
import numpy as np

DTYPES = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
}
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "s4": 4, "u4": 4}


def regs(prefix, first, count):
    return "{" + ", ".join(f"%{prefix}{first + i}" for i in range(count)) + "}"


def patterns(matrix, kind):
    """Bit patterns of the elements as Python-sized integers."""
    if kind[0] in "su":
        return matrix & (1 << BITS[kind]) - 1
    raw = matrix.astype(DTYPES[kind])
    return raw.view(f"u{raw.itemsize}").astype(np.int64)


def a_fragment(matrix, kind):
    """Register i: row g (+ 8 for odd i), and from column t * per (+ 4 * per for i >= 2) as many as fit a register."""
    per, bits = 32 // BITS[kind], patterns(matrix, kind)
    out = np.zeros((32, matrix.shape[1] // (2 * per)), np.uint32)
    for lane in range(32):
        for i in range(out.shape[1]):
            row, column = lane // 4 + 8 * (i % 2), lane % 4 * per + 4 * per * (i // 2)
            out[lane, i] = sum(int(bits[row, column + j]) << BITS[kind] * j for j in range(per))
    return out


def b_fragment(matrix, kind):
    """[n, k]: register i holds column g, rows from t * per + 4 * per * i."""
    per, bits = 32 // BITS[kind], patterns(matrix, kind)
    out = np.zeros((32, matrix.shape[1] // (4 * per)), np.uint32)
    for lane in range(32):
        for i in range(out.shape[1]):
            row = lane % 4 * per + 4 * per * i
            out[lane, i] = sum(int(bits[lane // 4, row + j]) << BITS[kind] * j for j in range(per))
    return out


def c_fragment(matrix):
    """Rows g, g, g + 8, g + 8 and columns 2t, 2t + 1, 2t, 2t + 1."""
    out = np.zeros((32, 4), matrix.dtype)
    for lane in range(32):
        row, column = lane // 4, 2 * (lane % 4)
        out[lane] = [*matrix[row, column : column + 2], *matrix[row + 8, column : column + 2]]
    return out


SUBNORMALS = [
    ("e4m3", "e4m3", 2.0**-9, 1, "f32", 2.0**-20, 0x3B000000),
    ("e4m3", "e4m3", 2.0**-9, 1, "f16", -(2.0**-20), 0x1800),
    ("e4m3", "e4m3", 2.0**-9, 2.0**-9, "f32", 2.0**-26, 0x36800000),
    ("e4m3", "e5m2", 7 * 2.0**-9, 1, "f32", 2.0**-20, 0x3C600000),
    ("e5m2", "e4m3", 1, 2.0**-9, "f16", -(2.0**-20), 0x1800),
    ("e4m3", "e5m2", 2.0**-9, 2.0**-16, "f32", 1.5 * 2.0**-33, 0x33008000),
    ("e4m3", "e5m2", 1, 2.0**-16, "f32", 9 * 2.0**-28, 0x37804000),
    ("e5m2", "e5m2", 2.0**-16, 1, "f32", 9 * 2.0**-28, 0x37804000),
]
"""Kinds and factors of one product, type of the sum, C, and bits of the sum, for tensor cores that multiply 8-bit
factors directly and keep 13 fraction bits.

A product's exponent is the sum of its factors', in which a subnormal of e4m3 counts as -6 and one of e5m2 as -14. The
bits are computed by hand: in the first row the product's exponent is -6 and the last digit is 2**-19, so C is lost,
although the product itself is 2**-9.
"""
