"""Shadows of matrix fragments: undefined elements through ldmatrix, stmatrix and mma."""

from __future__ import annotations

import numpy as np

from sdpalab.sim.forms import A_ORDER, B_ORDER
from sdpalab.sim.ir import Instruction
from sdpalab.sim.isa.fragments import accumulator, blocks, pack_accumulator, store_accumulator
from sdpalab.sim.selection import WARP, Array, Indices, Mask

__all__ = ["matrix_fragments", "matrix_rows", "product_shadows"]

_ALL = np.uint32(0xFFFFFFFF)


def product_shadows(a: list[Array], b: list[Array], c: list[Array], d: list[Array], lanes: Indices) -> None:
    """Set the shadows of D [16, 8] of each warp from those of A, B and C."""
    deep = len(b)
    rows: Mask = np.asarray(blocks(a, lanes, (2, deep), A_ORDER[: len(a)]).any(axis=2))
    columns: Mask = np.asarray(blocks(b, lanes, (1, deep), B_ORDER[:deep]).any(axis=2))
    bad = rows[:, :, None] | columns[:, None, :]
    if len(d) == 2:  # halves
        bad |= blocks(c, lanes, (2, 1), ((0, 0), (1, 0))) != 0
        halves = np.where(bad, np.uint16(0xFFFF), np.uint16(0))
        for target, values in zip(d, pack_accumulator(halves), strict=True):
            target[lanes] = values
        return
    bad |= accumulator(c, lanes, 8) != 0
    store_accumulator(d, lanes, np.where(bad, _ALL, np.uint32(0)))


def matrix_fragments(lanes: Indices, words: Array, origins: Array, transposed: bool) -> tuple[Indices, Array, Array]:
    """What ldmatrix spreads over its warps.

    Parameters
    ----------
    lanes : ndarray of int64 [rows]
        The lane that points to each row of a matrix.
    words : ndarray of uint8 [rows, 16]
        The shadow of the row.
    origins : ndarray of uint32 [rows]
    transposed : bool

    Returns
    -------
    (lanes, fragments, origins)
        All lanes of these warps, four shadows of registers [4, lanes] of uint32, and an origin for each lane.
    """
    warps = np.unique(lanes // WARP)
    rows = np.zeros((len(warps), 4, 8, 8), np.uint16)
    place = np.searchsorted(warps, lanes // WARP)
    rows[place, lanes % WARP // 8, lanes % 8] = words.view(np.uint16)
    rows = rows.swapaxes(2, 3) if transposed else rows
    fragments = np.ascontiguousarray(rows).view(np.uint32).reshape(len(warps), 4, WARP)
    most = np.zeros(len(warps), np.uint32)
    np.maximum.at(most, place, origins)
    everyone = (warps[:, None] * WARP + np.arange(WARP)).reshape(-1)
    return everyone, fragments.swapaxes(0, 1).reshape(4, -1), np.repeat(most, WARP)


def matrix_rows(instruction: Instruction, words: Array, origins: Array, lanes: Indices) -> tuple[Array, Array, Indices]:
    """What stmatrix stores at the address of each lane: a row of a matrix, from the lanes of its warp."""
    number = words.shape[1] // 4
    warps = len(lanes) // WARP
    matrices = words.view(np.uint32).reshape(warps, WARP, number).swapaxes(1, 2)
    elements = np.ascontiguousarray(matrices).view(np.uint16).reshape(warps, number, 8, 8)
    if "trans" in instruction.mods:
        elements = np.ascontiguousarray(elements.swapaxes(2, 3))
    rows = elements.reshape(warps, number * 8, 8).view(np.uint8).reshape(-1, 16)
    most = origins.reshape(warps, WARP).max(axis=1)
    pointing = lanes.reshape(warps, WARP)[:, : 8 * number].reshape(-1)
    return rows, np.repeat(most, 8 * number), pointing
