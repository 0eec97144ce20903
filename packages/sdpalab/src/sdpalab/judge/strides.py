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
from numpy.lib.stride_tricks import as_strided

__all__ = ["Strides", "expandable", "guarded", "lay_out"]

Array = npt.NDArray[Any]

_GUARD = 4096
"""Bytes before and after the memory of an array."""
_ANY_STRIDE = 3331333
"""Stride of an axis of size 1, in elements: a prime, and no multiple of any alignment."""
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
    SINGLE = "single"
    """Contiguous, but axes of size 1 have an arbitrary stride, which never reaches an element."""
    ONE_HEAD = "one_head"
    """K and V are one head, expanded with a stride of 0: all heads have the same values."""
    ONE_ENTRY = "one_entry"
    """K and V are one batch entry, expanded with a stride of 0: all entries have the same values."""
    APPENDED = "appended"
    """The last keys and values are arguments of their own, which the function writes into the cache."""

    @property
    def shared_axis(self) -> int | None:
        """Axis of K and V [B, H, S, D] with a stride of 0."""
        return {Strides.ONE_ENTRY: 0, Strides.ONE_HEAD: 1}.get(self)

    @property
    def says(self) -> str:
        """Strides of Q, K and V, in words."""
        return {
            Strides.CONTIGUOUS: "contiguous",
            Strides.BSHD: "in memory with the axes of heads and rows in the other order",
            Strides.PADDED: "within larger memory whose padding is NaN, with an offset and gaps",
            Strides.SINGLE: f"contiguous, with a stride of {_ANY_STRIDE} on each axis of size 1",
            Strides.ONE_HEAD: "contiguous, and K and V have a stride of 0 across heads",
            Strides.ONE_ENTRY: "contiguous, and K and V have a stride of 0 across batch entries",
            Strides.APPENDED: "in a cache, to which the call appends the last keys",
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


def expandable(array: Array, strides: Strides) -> Array:
    """``array`` [B, H, S, D] with the values of the first entry of the axis that ``strides`` expand, if any, in all."""
    axis = strides.shared_axis
    return array if axis is None else np.broadcast_to(array.take([0], axis), array.shape).copy()


def lay_out(array: Array, strides: Strides) -> tuple[Array, Array]:
    """Copy ``array`` [B, H, S, D] into memory of its own; an axis of stride 0 has the values of its first entry.

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
    if strides.shared_axis is not None:
        storage, view = guarded(array.take([0], strides.shared_axis))
        steps = [0 if axis == strides.shared_axis else step for axis, step in enumerate(view.strides)]
        return storage, as_strided(view, array.shape, steps)
    storage, view = guarded(array)
    if strides is Strides.SINGLE:
        steps = [
            _ANY_STRIDE * array.itemsize if size == 1 else step
            for size, step in zip(array.shape, view.strides, strict=True)
        ]
        view = as_strided(view, array.shape, steps)
    return storage, view
