"""The pages of memory that host and device share: closed to the host while an operation that it has not waited for
accesses them, so that its own access is noticed.

A page that pending operations only read may be read; one that they write is closed altogether. This is finer than the
program's allocations, and coarser than their bytes: an access in a closed page asks, and goes on if it does not
conflict.
"""

from __future__ import annotations

import mmap

import numpy as np

from warpsan import Device
from warpsan.engine.selection import Array
from warpsan.program.wire import Page

__all__ = ["SharedPages"]

_PAGE = mmap.PAGESIZE
_CLOSED, _READ, _OPEN = 0, 1, 2


class SharedPages:
    """Which pages of shared allocations are open to the host."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._states: dict[int, Array] = {}
        """By the address of the allocation: the state of each page, as the program has it."""
        self._closing: list[Page] = []

    def add(self, address: int, size: int) -> None:
        """Memory that is shared from now on."""
        self._states[address] = np.full(size // _PAGE, _CLOSED, np.uint8)

    def remove(self, address: int) -> None:
        """Memory that was freed."""
        states = self._states.pop(address)
        self._closing.append((address, len(states) * _PAGE, _CLOSED))

    def changes(self, excused: int = 0) -> list[Page]:
        """What the program has to open or to close; the page with the address ``excused`` is opened in any case."""
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
    """Which of ``many`` pages from an address on stretches [n, 2] of addresses touch."""
    first = np.clip((stretches[:, 0] - address) // _PAGE, 0, many)
    behind = np.clip((stretches[:, 1] - 1 - address) // _PAGE + 1, 0, many)
    inside = behind > first
    steps = np.zeros(many + 1, np.int64)
    np.add.at(steps, first[inside], 1)
    np.add.at(steps, behind[inside], -1)
    touched: Array = np.cumsum(steps)[:many] > 0
    return touched


def _runs(address: int, before: Array, after: Array) -> list[Page]:
    """The stretches of pages whose state changes."""
    changed = np.flatnonzero(before != after)
    if not len(changed):
        return []
    breaks = np.flatnonzero((np.diff(changed) != 1) | (np.diff(after[changed].astype(int)) != 0)) + 1
    return [
        (address + int(part[0]) * _PAGE, len(part) * _PAGE, int(after[part[0]])) for part in np.split(changed, breaks)
    ]
