"""Memory spaces: byte buffers with aligned word views, bounds, and the windows of the generic address space.

Addresses in registers are offsets for shared and local memory (as in PTX), and absolute for global memory. Inside the
simulator an access is an index into one byte array per space: one range per CTA for shared memory, one per lane for
local memory, and one per buffer for global memory. Guard zones separate the buffers, so an overrun never reaches the
next buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from warpsan.engine.arrays import Array, Indices, Mask

__all__ = [
    "FUNCTION_BASE",
    "GLOBAL_BASE",
    "LOCAL_BASE",
    "POISON",
    "RANK_SHIFT",
    "SHARED_BASE",
    "WINDOW_BITS",
    "WORDS",
    "Extent",
    "Space",
    "generic_base",
]

GLOBAL_BASE = 0x7F00_0000_0000
SHARED_BASE = 0x7B00_0000_0000
LOCAL_BASE = 0x7900_0000_0000
FUNCTION_BASE = 0x7700_0000_0000
"""First address of functions."""
WINDOW_BITS = 40
"""Addresses with equal bits above this one lie in the same window of the generic address space."""
RANK_SHIFT = 24
"""Lowest bit of the CTA rank plus one in a shared::cluster address; 0 is the executing CTA."""

POISON = 0xFF
"""Byte that fills uninitialised memory and registers: NaN in every float type, -1 in every integer type."""

_MOST_SPARE = 1 << 28
"""Most bytes of memory that a process keeps for its next space."""

WORDS: dict[int, np.dtype[np.generic]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
    16: np.dtype(np.complex128),  # NumPy's only native 16-byte element with a fast gather; never used in arithmetic
}
"""Element type of a view, by access width in bytes."""
_NEAR = 1 << 30
_SHIFTS = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4}


@dataclass(frozen=True)
class Extent:
    """A named range of a space, in byte indices; in global memory, a buffer.

    ``shape`` and ``itemsize`` describe the array in the buffer, if the launch names it.
    """

    name: str
    begin: int
    end: int
    shape: tuple[int, ...] = ()
    itemsize: int = 1


class Space:
    """A memory space as bytes, with a view for each access width.

    Parameters
    ----------
    name : str
        ``global``, ``shared`` or ``local``.
    size : int
        Total bytes.
    limit : int
        Addressable bytes per CTA (shared) or lane (local); the whole arena for global memory.
    extents : sequence of Extent
        Accessible ranges, sorted; shared and local memory use the limit only.
    data : ndarray of uint8, optional
        Existing memory: a multiple of 16 bytes, aligned to 16.
    """

    def __init__(
        self, name: str, size: int, limit: int, extents: Sequence[Extent] = (), data: Array | None = None
    ) -> None:
        self.name = name
        self.limit = limit
        self.undefined: Array | None = None
        """uint8 mark for each byte of global memory, 1 while it is unwritten; None without tracking."""
        self.data: Array = _fresh(size) if data is None else data
        self.views: dict[int, Array] = {width: self.data.view(dtype) for width, dtype in WORDS.items()}
        self.set_extents(extents)

    def set_extents(self, extents: Sequence[Extent]) -> None:
        """Allow accesses in the given ranges, sorted, and nowhere else."""
        self.extents = tuple(extents)
        self._begins = np.array([extent.begin for extent in self.extents], dtype=np.int64)
        self._ends = np.array([extent.end for extent in self.extents], dtype=np.int64)

    def load(self, index: Indices, width: int) -> Array:
        """Load words of ``width`` bytes at the byte indices ``index``, which are in bounds and aligned."""
        return self.views[width].take(index >> _SHIFTS[width])

    def store(self, index: Indices, width: int, values: Array) -> None:
        """Store words; if two lanes store to one address, the last lane wins (the order is undefined on hardware)."""
        self.views[width][index >> _SHIFTS[width]] = values

    def fill(self, index: Indices, width: int, byte: int = POISON) -> None:
        """Set ``width`` bytes at each index to ``byte``."""
        word = np.frombuffer(bytes([byte]) * width, dtype=WORDS[width])[0]
        self.views[width][index >> _SHIFTS[width]] = word

    def out_of_bounds(self, offset: Indices, width: int) -> Mask | None:
        """Mask of accesses outside all accessible ranges; None if all are inside. ``offset`` is relative to the CTA or
        lane.
        """
        low, high = int(offset.min()), int(offset.max()) + width
        if not self.extents:
            if low >= 0 and high <= self.limit:
                return None
            return (offset < 0) | (offset > self.limit - width)
        if self.holds(low, high - low):
            return None
        place = np.searchsorted(self._begins, offset, side="right") - 1
        bad: Mask = (place < 0) | (offset + width > self._ends[place])
        return bad if bad.any() else None

    def holds(self, begin: int, size: int) -> bool:
        """Whether one range contains these bytes."""
        place = int(np.searchsorted(self._begins, begin, side="right")) - 1
        return place >= 0 and begin + size <= int(self._ends[place])

    def extent_near(self, offset: int) -> Extent | None:
        """The range that contains or is nearest to ``offset``, for messages; None beyond a distance of 1 GiB."""

        def distance(extent: Extent) -> int:
            return max(extent.begin - offset, offset - extent.end + 1, 0)

        nearest = min(self.extents, key=distance, default=None)
        return nearest if nearest is not None and distance(nearest) < _NEAR else None


class _SpareMemory:
    """The memory of one space after the other: fresh memory costs its first accesses a page fault each."""

    spare: ClassVar[list[Array]] = []

    def __init__(self, size: int) -> None:
        try:
            raw = self.spare.pop()
        except IndexError:
            raw = np.empty(0, np.uint8)
        self.raw = raw if size <= len(raw) <= 2 * size else np.empty(size, np.uint8)
        self.__array_interface__ = self.raw.__array_interface__

    def __del__(self) -> None:
        if len(self.raw) <= _MOST_SPARE:
            self.spare[:] = [self.raw]


def _fresh(size: int) -> Array:
    """Bytes with padding for a view of the widest word, and for one access at the end."""
    bytes_ = -(-(size + 16) // 16) * 16
    raw = np.asarray(_SpareMemory(bytes_ + 16))
    skip = -raw.ctypes.data % 16
    return raw[skip : skip + bytes_]


def generic_base(space: str) -> int:
    """Base of a space in the generic address space (0 for global memory)."""
    return {"global": 0, "const": 0, "local": LOCAL_BASE}.get(space, SHARED_BASE)
