"""Unwritten bytes of an array that is a launch argument."""

from __future__ import annotations

import numpy as np

from warpsan.engine.arrays import Array

__all__ = ["Unwritten"]


class Unwritten:
    """An array with unwritten bytes, for ``launch(..., unwritten=[...])``.

    Kernels that read and use such bytes are reported (``uninitialised``). Bytes written by a launch count as written in
    later launches with the same object.

    Parameters
    ----------
    array : ndarray
        Contiguous array: a launch argument, or a part of one.

    Attributes
    ----------
    bytes : ndarray of uint8
        Mark of each byte: 1 if unwritten, 0 if written. The caller may change the marks.
    """

    def __init__(self, array: Array) -> None:
        self.array = array
        self.bytes: Array = np.ones(array.nbytes, np.uint8)
