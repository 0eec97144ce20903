"""Device memory of the stand-in driver: allocations that hold garbage, and torch's CPU tensors that count as the GPU's.

Addresses of allocations are unmapped in this process, so that the host cannot use them by mistake; none is given twice.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right, insort
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["BadAddress", "Memory", "Region"]

FIRST = 0x10_0000_0000
"""Address of the first allocation: far below what Linux maps for a process."""
ALIGN = 512
"""Bytes: between allocations, and what their sizes are rounded to."""
GARBAGE = 0xA5

Array = np.ndarray[Any, np.dtype[np.uint8]]


class BadAddress(Exception):
    """Bytes that are not in one allocation."""


@dataclass(frozen=True, eq=False)
class Region:
    """Memory that belongs together: an allocation, or a tensor's storage."""

    begin: int
    size: int
    bytes: Array

    @property
    def end(self) -> int:
        return self.begin + self.size


class Memory:
    """All of it, ``total`` bytes at most."""

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0
        self._next = FIRST
        self._begins: list[int] = []
        self._regions: dict[int, Region] = {}
        self._own: set[int] = set()

    @property
    def allocations(self) -> int:
        """How many are not freed."""
        return len(self._own)

    def allocate(self, size: int) -> int | None:
        """The address of ``size`` bytes of garbage; None if there are not so many."""
        room = -(-size // ALIGN) * ALIGN
        if self.used + room > self.total:
            return None
        begin, self._next = self._next, self._next + room + ALIGN
        self.used += room
        self._add(Region(begin, size, np.full(room, GARBAGE, np.uint8)))
        self._own.add(begin)
        return begin

    def free(self, address: int) -> None:
        """Raises BadAddress if no allocation begins there, or it is freed already."""
        if address not in self._own:
            raise BadAddress(f"no allocation begins at {address:#x}")
        self._own.remove(address)
        self.used -= len(self._regions[address].bytes)
        self._remove(address)

    def lend(self, address: int, size: int) -> None:
        """Count ``size`` bytes of this process at ``address`` as device memory: a tensor's storage."""
        known = self._regions.get(address)
        if size == 0 or (known is not None and known.size == size):
            return
        # Whatever else was lent there is freed: storages of tensors that are alive do not overlap.
        for begin in [begin for begin in self._begins if begin < address + size and address < self._regions[begin].end]:
            self._remove(begin)
        array = np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)
        self._add(Region(address, size, array))

    def region(self, address: int) -> Region | None:
        """Region that holds the byte at ``address``, or ends there."""
        place = bisect_right(self._begins, address) - 1
        if place < 0:
            return None
        candidate = self._regions[self._begins[place]]
        return candidate if address <= candidate.end else None

    def bytes(self, address: int, size: int) -> Array:
        """``size`` bytes at ``address``, to be read and written; raises BadAddress if they are not in one region."""
        region = self.region(address)
        if region is None or address + size > region.end:
            raise BadAddress(f"{size} bytes at {address:#x} are not allocated")
        return region.bytes[address - region.begin : address - region.begin + size]

    def _add(self, region: Region) -> None:
        insort(self._begins, region.begin)
        self._regions[region.begin] = region

    def _remove(self, begin: int) -> None:
        self._begins.remove(begin)
        del self._regions[begin]
