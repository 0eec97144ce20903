"""Places of wgmma operands in shared memory (PTX ISA, "Asynchronous Warpgroup Level Matrix", the sections "Shared
Memory Matrix Layout", "Strides", "Canonical Layouts" and "Matrix Descriptor Format").

An operand of one instruction is ``rows`` lines (of M or N) by 32 bytes of K, in chunks of 16 bytes. K-major, a chunk is
half a line, and 8 lines of it make a core matrix; MN-major, a chunk is 8 lines of 16-bit elements at one k. The
canonical layouts place the chunks. A swizzle then exchanges chunks by address bits: bits 4 to 6 are XORed with bits 7
to 9, within the width of the mode.
"""

from __future__ import annotations

import numpy as np

from warpsan.engine.selection import Array, Indices

__all__ = ["BASE_OFFSET", "CHUNK", "chunk_offsets"]

CHUNK = 16
"""Bytes that are contiguous in every layout."""
BASE_OFFSET = np.uint64(7 << 49)
"""The field of the descriptor that is not modelled."""
_ADDRESS_BITS = np.uint64(0x3FFF)
_SWIZZLE_BYTES = (16, 128, 64, 32)
"""Width of the repeating pattern by the descriptor's mode: none, 128, 64, 32 bytes."""


def chunk_offsets(descriptors: Array, rows: int, *, k_major: bool) -> Indices:
    """Offsets of an operand's chunks in the CTA's shared memory.

    Parameters
    ----------
    descriptors : ndarray of uint64 [n]
        One for each CTA.
    rows : int
        Lines of the operand, a multiple of 8.
    k_major : bool
        Whether K is contiguous.

    Returns
    -------
    ndarray of int64 [n, 2 * rows]
        Chunks in the order [rows / 8, 2, 8]: by eight lines, by half of K, and the eight chunks of a core matrix.
    """
    start, leading, stride = (_field(descriptors, shift) for shift in (0, 16, 32))
    modes = (descriptors >> np.uint64(62)).astype(np.int64)
    out = np.empty((len(descriptors), rows // 8, 2, 8), dtype=np.int64)
    outer, half, inner = (np.asarray(axis, dtype=np.int64) for axis in np.ogrid[: rows // 8, :2, :8])
    for mode in np.unique(modes):
        mine = modes == mode
        lbo, sbo = leading[mine, None, None, None], stride[mine, None, None, None]
        width: int = _SWIZZLE_BYTES[int(mode)]
        across = width // CHUNK
        place: Indices
        if k_major:
            place = inner * width + outer * sbo + half * (CHUNK if mode else lbo)
        elif mode:
            place = outer % across * CHUNK + outer // across * lbo + inner * width + half * sbo
        else:
            place = outer * sbo + inner * CHUNK + half * lbo
        address = start[mine, None, None, None] + place
        out[mine] = address ^ (address >> 7 & across - 1) << 4
    return out.reshape(len(descriptors), 2 * rows)


def _field(descriptors: Array, shift: int) -> Indices:
    """A field of the descriptor, which omits the lowest four bits of its value."""
    field: Indices = (descriptors >> np.uint64(shift) & _ADDRESS_BITS).astype(np.int64) << 4
    return field
