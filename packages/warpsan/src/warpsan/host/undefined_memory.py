"""Which bytes of a device's memory nobody has written, from launch to launch.

New memory is undefined. Writes through :class:`~warpsan.host.device_array.DeviceArray` define bytes, copies between
arrays of one device pass on which bytes are undefined, and launches define what they write. What NumPy writes by other
ways (``out=``, ``np.copyto``, plain views) shows by bytes that are no longer what new memory holds: then the whole
buffer counts as written.
"""

from __future__ import annotations

from types import EllipsisType
from typing import Any

import numpy as np

from warpsan.engine.selection import Array

__all__ = ["UndefinedMemory"]

_AT_ONCE = 1 << 24
"""Bytes that are compared at a time."""
_WORD = 8
_BASIC = (int, np.integer, slice, EllipsisType, type(None))
"""Keys by which NumPy takes a part of an array, and not a copy."""


class UndefinedMemory:
    """Marks of the bytes that nobody has written.

    Parameters
    ----------
    memory : ndarray of uint8
        The device's.
    """

    def __init__(self, memory: Array) -> None:
        self._memory = memory
        self._marks: Array = np.zeros(0, np.uint8)
        """For each byte 1 where it is undefined; empty as long as none was."""
        self._copy: Array = self._marks
        """Those that a launch works on, which may be thrown away: 0 outside of the stretches."""
        self._stretches: dict[int, tuple[int, int]] = {}
        """Where there may be any: from which byte index to which, and what each byte held at first."""

    def add(self, begin: int, size: int, fill: int) -> None:
        """There is new memory, each byte of which holds ``fill``."""
        if size:
            self.watch(begin, size, fill)
            self._marks[begin : begin + size] = 1

    def watch(self, begin: int, size: int, fill: int) -> None:
        """Memory may become undefined in a launch, and hold ``fill`` then."""
        if not len(self._marks):
            self._marks, self._copy = (np.zeros(len(self._memory), np.uint8) for _ in range(2))
        self._stretches[begin] = begin + size, fill

    def define(self, begin: int, size: int) -> None:
        """Bytes have been written, or are no more."""
        for marks in (self._marks, self._copy):
            marks[begin : begin + size] = 0

    def define_all(self) -> None:
        """Whatever is there counts as written."""
        for begin, (end, _) in self._stretches.items():
            self.define(begin, end - begin)
        self._stretches.clear()

    def marks(self) -> Array:
        """The marks of all bytes, for a launch to change: a copy, uint8, which takes the place of the one before."""
        if not len(self._marks):
            return np.zeros(len(self._memory), np.uint8)
        for begin, (end, _) in self._stretches.items():
            self._copy[begin:end] = self._marks[begin:end]
        return self._copy

    def update(self) -> None:
        """The launch has run to its end with that copy."""
        for begin, (end, _) in self._stretches.items():
            self._marks[begin:end] = self._copy[begin:end]

    def there_is(self) -> bool:
        """Whether any byte is undefined."""
        for begin, (end, fill) in list(self._stretches.items()):
            if not self._marks[begin:end].view(bool).any() or self._written_unseen(begin, end, fill):
                self.define(begin, end - begin)
                del self._stretches[begin]
        return bool(self._stretches)

    def _written_unseen(self, begin: int, end: int, fill: int) -> bool:
        """Whether an undefined byte does not hold what it held at first."""
        for first in range(begin - begin % _WORD, end, _AT_ONCE):
            last = min(first + _AT_ONCE, -(-end // _WORD) * _WORD)
            words = self._memory[first:last].view(np.uint64)
            changed = np.flatnonzero(words != np.uint64(int.from_bytes(bytes([fill]) * _WORD, "little")))
            if len(changed):
                bytes_of, marks = (each[first:last].reshape(-1, _WORD) for each in (self._memory, self._marks))
                if ((bytes_of[changed] != fill) & (marks[changed] != 0)).any():
                    return True
        return False

    # ---- writes of the host -----------------------------------------------------------------------------------------

    def of(self, array: Array) -> Array | None:
        """The marks of an array's elements, with one more axis for the bytes of an element, as a view; None if the
        array is not in the memory, or nothing was ever undefined."""
        begin = int(array.ctypes.data - self._memory.ctypes.data)
        if not 0 <= begin < len(self._marks):
            return None
        shape, strides = (*array.shape, array.itemsize), (*array.strides, 1)
        view: Array = np.lib.stride_tricks.as_strided(self._marks[begin:], shape, strides)
        return view

    def assigned(self, array: Array, key: Any, value: Any) -> None:
        """``array[key] = value`` has been carried out. Undefined bytes of the device's memory remain so where they have
        been copied to."""
        target = self.of(array)
        if target is None:
            return
        keys = key if isinstance(key, tuple) else (key,)
        if not all(isinstance(each, _BASIC) and not isinstance(each, bool) for each in keys):
            target[...] = 0
            return
        if not any(each is Ellipsis for each in keys):
            keys = (*keys, Ellipsis)
        part, source = target[keys + (slice(None),)], None  # noqa: RUF005
        if isinstance(value, np.ndarray) and value.dtype == array.dtype:
            source = self.of(value)
        part[...] = 0 if source is None else source
