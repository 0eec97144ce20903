"""Register fragments of the tensor-core instructions as matrices (PTX ISA, "Matrix Fragments for mma.m16n8k16").

With g = laneid / 4 and t = laneid % 4, a register that packs two 16-bit elements holds row g, columns 2t and 2t + 1
of an 8 x 8 block, so that the 32 lanes of one register are such a block in row-major order. Fragments are built of
these blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np

from sdpalab.sim.collectives import PARTIAL_WARP
from sdpalab.sim.decode import Decoder
from sdpalab.sim.forms import SUMMED
from sdpalab.sim.ir import Instruction, Operand
from sdpalab.sim.selection import WARP, Array, Selection, count, split_warps
from sdpalab.sim.types import TYPES

__all__ = [
    "accumulator",
    "blocks",
    "factors",
    "float32",
    "integer_sum",
    "matrix_product",
    "pack_accumulator",
    "source_rows",
    "store_accumulator",
    "target_rows",
    "whole_warps",
]

_HALF_TO_FLOAT: Array = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
"""float32 value of every float16 pattern: a look-up is faster than NumPy's conversion."""
_FP8_TO_FLOAT: dict[str, Array] = {
    "e4m3": np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32),
    "e5m2": np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e5m2).astype(np.float32),
}
_TF32_BITS = np.uint32(0xFFFFE000)


def source_rows(decoder: Decoder, instruction: Instruction, operand: Operand, type_: str = "b32") -> list[Array]:
    """The registers of a fragment, to read."""
    return [decoder.src(instruction, item, TYPES[type_]) for item in decoder.vector(operand)]


def target_rows(decoder: Decoder, instruction: Instruction, operand: Operand, type_: str = "b32") -> list[Array]:
    """The registers of a fragment, to write."""
    return [decoder.dst(instruction, item, TYPES[type_]) for item in decoder.vector(operand)]


def float32(bits: Array, kind: str) -> Array:
    """16-bit patterns (uint16, any shape) of ``f16`` or ``bf16`` as float32, exactly."""
    if kind == "f16":
        values: Array = _HALF_TO_FLOAT.take(bits, mode="clip")
    else:
        values = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values


def factors(raw: Array, kind: str) -> Array:
    """Elements along the last axis of packed bytes as float32, exactly.

    Parameters
    ----------
    raw : ndarray of uint8 [..., bytes], contiguous
    kind : str
        f16, bf16, tf32 (whose last 13 bits are ignored), e4m3, e5m2, s8, u8, s4 or u4 (the low half of a byte first).
    """
    if kind in ("f16", "bf16"):
        return float32(raw.view(np.uint16), kind)
    if kind == "tf32":
        values: Array = (raw.view(np.uint32) & _TF32_BITS).view(np.float32)
        return values
    if kind in _FP8_TO_FLOAT:
        values = _FP8_TO_FLOAT[kind].take(raw)
        return values
    if kind in ("s8", "u8"):
        return raw.view(np.int8 if kind == "s8" else np.uint8).astype(np.float32)
    halves = np.stack([raw << np.uint8(4), raw & np.uint8(0xF0)], axis=-1).reshape(*raw.shape[:-1], -1)
    values = (halves.view(np.int8 if kind == "s4" else np.uint8) >> 4).astype(np.float32)
    return values


def matrix_product(left: Array, right: Array) -> Array:
    """Products [..., rows, columns] of float32 matrices [..., rows, k] and [..., columns, k], of one instruction.

    Sums over k are made in blocks of :data:`SUMMED`, each in ascending order from zero and rounded to nearest after
    each product. The host's matrix product would add in an order that depends on its shape and on the processor. A
    factor has at most 11 significant bits, so that float64 holds a product exactly, and its rounding changes no sum.
    """
    left, right = left.astype(np.float64), right.astype(np.float64)
    parts: list[Array] = []
    with np.errstate(all="ignore"):
        for at in range(0, left.shape[-1], SUMMED):
            part = np.zeros((*left.shape[:-1], right.shape[-2]), np.float32)
            for k in range(at, min(at + SUMMED, left.shape[-1])):
                part = (part + left[..., :, None, k] * right[..., None, :, k]).astype(np.float32)
            parts.append(part)
        total = parts[0]
        for part in parts[1:]:
            total = total + part
    return total


def integer_sum(product: Array, addend: Array, saturates: bool) -> Array:
    """int32 accumulator plus exact float32 products of integers: clamped to int32 (``.satfinite``), or wrapped."""
    total = addend.astype(np.int64) + product.astype(np.int64)
    if saturates:
        np.clip(total, -(1 << 31), (1 << 31) - 1, out=total)
    return total.astype(np.int32)


def blocks(rows: Sequence[Array], sel: Selection, grid: tuple[int, int], order: Sequence[tuple[int, int]]) -> Array:
    """16-bit elements of ``grid`` rows and columns of 8 x 8 blocks: uint16 [warps, 8 * grid[0], 8 * grid[1]].

    Register ``rows[i]`` (uint32, one value a lane) holds the block at ``order[i]``.
    """
    warps = count(sel) // WARP
    out = np.empty((warps, grid[0], 8, grid[1], 8), dtype=np.uint16)
    for row, (down, across) in zip(rows, order, strict=True):
        out[:, down, :, across, :] = row[sel].view(np.uint16).reshape(warps, 8, 8)
    return out.reshape(warps, 8 * grid[0], 8 * grid[1])


def accumulator(rows: Sequence[Array], sel: Selection, columns: int) -> Array:
    """A 16 x ``columns`` accumulator of float32 or int32, as the rows are: [warps, 16, columns].

    Each 8 columns take four registers: (row g, columns 2t and 2t + 1), then (row g + 8, the same columns).
    """
    warps = count(sel) // WARP
    out = np.empty((warps, 2, 8, columns // 8, 4, 2), dtype=rows[0].dtype)
    for i, row in enumerate(rows):
        out[:, i // 2 % 2, :, i // 4, :, i % 2] = row[sel].reshape(warps, 8, 4)
    return out.reshape(warps, 16, columns)


def store_accumulator(rows: Sequence[Array], sel: Selection, matrix: Array) -> None:
    """The inverse of :func:`accumulator`: write [warps, 16, columns] to the registers' rows."""
    warps, _, columns = matrix.shape
    parts = matrix.reshape(warps, 2, 8, columns // 8, 4, 2)
    for i, row in enumerate(rows):
        values = parts[:, i // 2 % 2, :, i // 4, :, i % 2]
        if isinstance(sel, slice):
            row[sel].reshape(warps, 8, 4)[...] = values
        else:
            row[sel] = values.reshape(-1)


def pack_accumulator(matrix: Array) -> list[Array]:
    """A float16 [warps, 16, columns] accumulator as packed registers (uint32, one value a lane), in register order."""
    warps, _, columns = matrix.shape
    parts = matrix.reshape(warps, 2, 8, columns // 8, 8)
    return [
        np.ascontiguousarray(parts[:, down, :, across, :]).view(np.uint32).reshape(-1)
        for across in range(columns // 8)
        for down in range(2)
    ]


def whole_warps(decoder: Decoder, instruction: Instruction) -> Callable[[Selection], Selection | None]:
    """A check for instructions that all lanes of a warp must execute together.

    The function returned gives the lanes of whole warps (None if there are none) and reports the others to the
    observers.
    """
    observers = decoder.machine.observers
    need = PARTIAL_WARP.format(instruction.opcode)

    def check(sel: Selection) -> Selection | None:
        whole, partial = split_warps(sel)
        if partial is not None:
            for observer in observers:
                observer.divergent(partial, instruction, need)
        return whole

    return check
