"""Pages of memory shared by host and device: closed to the host while unsynchronized operations access them, so that
host accesses are detected.

A page is readable if pending operations only read it, and closed if they write it. Pages are smaller than allocations
and larger than the accessed bytes: a host access to a closed page is checked, and continues without a conflict.
"""

from __future__ import annotations

import mmap

import numpy as np

from warpsan import Device
from warpsan.engine.arrays import Array
from warpsan.program.wire import Page

__all__ = ["SharedPages"]

_PAGE = mmap.PAGESIZE
_CLOSED, _READ, _OPEN = 0, 1, 2


class SharedPages:
    """Page states of shared allocations for the host."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._states: dict[int, Array] = {}
        """State of each page as in the program, by address of the allocation."""
        self._closing: list[Page] = []

    def add(self, address: int, size: int) -> None:
        """Add shared memory."""
        self._states[address] = np.full(size // _PAGE, _CLOSED, np.uint8)

    def remove(self, address: int) -> None:
        """Remove freed memory."""
        states = self._states.pop(address)
        self._closing.append((address, len(states) * _PAGE, _CLOSED))

    def changes(self, excused: int = 0) -> list[Page]:
        """Pages that the program must open or close; the page with the address ``excused`` is opened in any case."""
        pages, self._closing = self._closing, []
        if not self._states:
            return pages
        read, written = self._device.pending()
        for address, states in self._states.items():
            wanted = np.full(len(states), _OPEN, np.uint8)
            wanted[_touched(read, address, len(states))] = _READ
            wanted[_touched(written, address, len(states))] = _CLOSED
            if address <= excused < address + len(states) * _PAGE:
                wanted[(excused - address) // _PAGE] = _OPEN
            pages += _runs(address, states, wanted)
            states[:] = wanted
        return pages


def _touched(stretches: Array, address: int, many: int) -> Array:
    """Mask of the ``many`` pages from an address that address ranges [n, 2] touch."""
    first = np.clip((stretches[:, 0] - address) // _PAGE, 0, many)
    behind = np.clip((stretches[:, 1] - 1 - address) // _PAGE + 1, 0, many)
    inside = behind > first
    steps = np.zeros(many + 1, np.int64)
    np.add.at(steps, first[inside], 1)
    np.add.at(steps, behind[inside], -1)
    touched: Array = np.cumsum(steps)[:many] > 0
    return touched


def _runs(address: int, before: Array, after: Array) -> list[Page]:
    """Page ranges with a changed state."""
    changed = np.flatnonzero(before != after)
    if not len(changed):
        return []
    breaks = np.flatnonzero((np.diff(changed) != 1) | (np.diff(after[changed].astype(int)) != 0)) + 1
    return [
        (address + int(part[0]) * _PAGE, len(part) * _PAGE, int(after[part[0]])) for part in np.split(changed, breaks)
    ]
