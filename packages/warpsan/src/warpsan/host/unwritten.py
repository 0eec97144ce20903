"""Which bytes of an array nobody has written: an argument of launches beside the array itself."""

from __future__ import annotations

import numpy as np

from warpsan.engine.selection import Array

__all__ = ["Unwritten"]


class Unwritten:
    """An array whose bytes nobody has written yet, for ``launch(..., unwritten=[...])``.

    Kernels that read such bytes, and use them, are reported (``uninitialised``). What a launch writes counts as written
    in the next one that is given the same object.

    Parameters
    ----------
    array : ndarray
        Contiguous; an argument of a launch, or a part of one.

    Attributes
    ----------
    bytes : ndarray of uint8
        For each byte of the array 1, or 0 once it has been written; the caller may write here, too.
    """

    def __init__(self, array: Array) -> None:
        self.array = array
        self.bytes: Array = np.ones(array.nbytes, np.uint8)
