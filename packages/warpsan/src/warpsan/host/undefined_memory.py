"""Unwritten bytes of a device's memory, across launches.

New memory is undefined. Writes through :class:`~warpsan.host.device_array.DeviceArray` define bytes, copies between
arrays of one device copy the marks, and launches define the bytes they write. Other NumPy writes (``out=``,
``np.copyto``, plain views) are detected by bytes that differ from new memory; the whole buffer then counts as written.
"""

from __future__ import annotations

from types import EllipsisType
from typing import Any

import numpy as np

from warpsan.engine.arrays import Array

__all__ = ["UndefinedMemory"]

_AT_ONCE = 1 << 24
"""Bytes per comparison."""
_WORD = 8
_BASIC = (int, np.integer, slice, EllipsisType, type(None))
"""Key types for which NumPy returns a view instead of a copy."""


class UndefinedMemory:
    """Marks of unwritten bytes.

    Parameters
    ----------
    memory : ndarray of uint8
        Memory of the device.
    """

    def __init__(self, memory: Array) -> None:
        self._memory = memory
        self._marks: Array = np.zeros(0, np.uint8)
        """Mark of each byte, 1 if undefined; empty while no byte was ever undefined."""
        self._copy: Array = self._marks
        """Marks that the current launch changes, and that an error discards; 0 outside the ranges."""
        self._stretches: dict[int, tuple[int, int]] = {}
        """Ranges with possibly undefined bytes: end index and initial byte, by begin index."""

    def add(self, begin: int, size: int, fill: int) -> None:
        """Add new memory; each of its bytes is ``fill``."""
        if size:
            self.watch(begin, size, fill)
            self._marks[begin : begin + size] = 1

    def watch(self, begin: int, size: int, fill: int) -> None:
        """Add memory that may become undefined during a launch; its bytes are then ``fill``."""
        if not len(self._marks):
            self._marks, self._copy = (np.zeros(len(self._memory), np.uint8) for _ in range(2))
        self._stretches[begin] = begin + size, fill

    def define(self, begin: int, size: int) -> None:
        """Mark written or removed bytes as defined."""
        for marks in (self._marks, self._copy):
            marks[begin : begin + size] = 0

    def define_all(self) -> None:
        """Mark all bytes as defined."""
        for begin, (end, _) in self._stretches.items():
            self.define(begin, end - begin)
        self._stretches.clear()

    def marks(self) -> Array:
        """Copy of the marks of all bytes, uint8, for a launch to change; replaces the previous copy."""
        if not len(self._marks):
            return np.zeros(len(self._memory), np.uint8)
        for begin, (end, _) in self._stretches.items():
            self._copy[begin:end] = self._marks[begin:end]
        return self._copy

    def update(self) -> None:
        """Adopt the marks of a completed launch."""
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
        """Whether an undefined byte differs from its initial value."""
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
        """Marks of an array's elements as a view, with one more axis for the bytes of an element; None if the array is
        outside the memory, or no byte was ever undefined.
        """
        begin = int(array.ctypes.data - self._memory.ctypes.data)
        if not 0 <= begin < len(self._marks):
            return None
        shape, strides = (*array.shape, array.itemsize), (*array.strides, 1)
        view: Array = np.lib.stride_tricks.as_strided(self._marks[begin:], shape, strides)
        return view

    def assigned(self, array: Array, key: Any, value: Any) -> None:
        """Update the marks after ``array[key] = value``. Copies of undefined bytes of the device stay undefined."""
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
