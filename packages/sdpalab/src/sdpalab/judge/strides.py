"""Memory layouts of arrays: the same values with other strides and another offset, surrounded by NaN.

A function on torch tensors must accept any strides: the output of a projection is rarely contiguous as [B, H, S, D]. A
function that assumes contiguous memory reads other numbers here, or NaN.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Strides", "guarded", "lay_out"]

Array = npt.NDArray[Any]

_GUARD = 4096
"""Bytes before and after the memory of an array."""
_BEFORE, _AFTER, _BESIDE = 2, 3, 8
"""Rows of padding before and after each head, and columns on either side. Eight elements keep rows of a multiple of 16
bytes aligned to 16 bytes, as in a slice of a packed tensor."""


class Strides(str, Enum):
    """An arrangement of [B, H, S, D] in memory."""

    CONTIGUOUS = "contiguous"
    BSHD = "bshd"
    """Memory in the order [B, S, H, D], the result of a projection, viewed as [B, H, S, D]."""
    PADDED = "padded"
    """Heads, rows and columns within larger memory filled with NaN: an offset, and gaps after each row and head."""

    @property
    def says(self) -> str:
        """Strides of Q, K and V, in words."""
        return {
            Strides.CONTIGUOUS: "contiguous as [B, H, S, D]",
            Strides.BSHD: "in memory in the order [B, S, H, D]",
            Strides.PADDED: "within larger memory whose padding is NaN, with an offset and gaps",
        }[self]


def guarded(array: Array) -> tuple[Array, Array]:
    """Copy ``array`` into memory of its own, within larger memory with all bits set: NaN, True, or -1 as an integer.

    Returns
    -------
    storage, view
        All of the memory, one axis; and the contiguous view of it with the values and shape of ``array``.
    """
    guard = _GUARD // array.itemsize
    storage = np.empty(array.size + 2 * guard, array.dtype)
    storage.view(np.uint8)[:] = 0xFF
    view = storage[guard : guard + array.size].reshape(array.shape)
    view[...] = array
    return storage, view


def lay_out(array: Array, strides: Strides) -> tuple[Array, Array]:
    """Copy ``array`` [B, H, S, D] into memory of its own.

    Returns
    -------
    storage, view
        All of the memory, contiguous, with NaN before, between and after the values; and the view of it with the values
        of ``array``, [B, H, S, D].
    """
    batch, heads, seq, dim = array.shape
    if strides is Strides.BSHD:
        storage, swapped = guarded(array.swapaxes(1, 2))
        return storage, swapped.swapaxes(1, 2)
    if strides is Strides.PADDED:
        storage = np.full((batch + 1, heads + 1, _BEFORE + seq + _AFTER, dim + 2 * _BESIDE), math.nan, array.dtype)
        view = storage[1:, 1:, _BEFORE : _BEFORE + seq, _BESIDE : _BESIDE + dim]
        view[...] = array
        return storage, view
    return guarded(array)
