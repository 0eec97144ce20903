"""Which bytes of global memory a process touched, and whether the copies of several processes can be put together.

Processes that run different chunks of CTAs of one launch each have a copy of global memory. One process for all would
have done the same if no byte that one of them writes is read by another, and those that several write get the same
value from all of them and never another one.
"""

from __future__ import annotations

import numpy as np

from sdpalab.sim.hazards import ConflictingAccess
from sdpalab.sim.ir import Instruction
from sdpalab.sim.memory import WORDS, Space
from sdpalab.sim.observer import Access, TrafficObserver
from sdpalab.sim.selection import Array, Selection

__all__ = ["PLANES", "Footprint", "GivenUp", "put_together"]

PLANES = 3
"""Bytes that a footprint keeps for one of global memory: whether it was read, whether it was written, and its value."""

_ONCE, _AGAIN = 1, 2
"""Written: always the same value, or different ones."""


class GivenUp(Exception):
    """What happened has to be seen in the order in which one process runs all chunks."""


class Footprint(TrafficObserver):
    """What the machines of one process do to global memory. Whatever is wrong with them makes it give up.

    Parameters
    ----------
    planes : ndarray of uint8 [PLANES, bytes of the arena]
        Where it is kept, zero at first.
    """

    def __init__(self, planes: Array) -> None:
        size = planes.shape[1]
        self._read, self._written = (Space("footprint", size, size, data=plane) for plane in planes[:2])
        self._after = planes[2]

    def load(self, access: Access) -> None:
        """A read."""
        if access.space.name == "global":
            if access.width in WORDS:
                self._read.fill(access.index, access.width, _ONCE)
            else:  # cp.async reads any number of bytes
                self._read.data[access.index[:, None] + np.arange(access.width)] = _ONCE

    def store(self, access: Access, words: Array | None) -> None:
        """A write."""
        if access.space.name == "global":
            index, width = access.index, access.width
            level = self._written.load(index, width).view(np.uint8).reshape(-1, width)
            again = level.any(axis=1)
            if words is not None and again.any():
                again &= access.changes(words)
            level = np.maximum(level, _ONCE)
            level[again] = _AGAIN
            self._written.store(index, width, level.view(WORDS[width])[:, 0])

    def fault(self, kind: str, access: Access) -> None:
        """An illegal access."""
        raise GivenUp

    def divergent(self, sel: Selection, instruction: Instruction, need: str) -> None:
        """Part of a warp at a warp-wide instruction."""
        raise GivenUp

    def misuse(
        self,
        kind: str,
        sel: Selection,
        instruction: Instruction,
        what: str,
        usually: str,
        other: ConflictingAccess | None = None,
    ) -> None:
        """An asynchronous unit used against its rules."""
        raise GivenUp

    def close(self, space: Space) -> None:
        """Keep what the bytes that were written are in the end."""
        np.copyto(self._after, space.data, where=self._written.data != 0)


def put_together(footprints: Array) -> tuple[Array, Array] | None:
    """The global memory that one process would have left, if the processes did not depend on each other.

    Parameters
    ----------
    footprints : ndarray of uint8 [processes, PLANES, bytes]
        Of each process, closed.

    Returns
    -------
    (ndarray of uint8 [bytes], ndarray of bool [bytes]) or None
        The bytes, and which of them were written; None if the processes may have depended on each other.
    """
    read, written, after = footprints[0].copy()
    for reads, writes, values in footprints[1:]:
        if np.logical_and(read, writes).any() or np.logical_and(written, reads).any():
            return None
        both = np.flatnonzero(np.logical_and(written, writes))
        if (after[both] != values[both]).any() or (np.maximum(written[both], writes[both]) == _AGAIN).any():
            return None
        np.copyto(after, values, where=writes != 0)
        np.bitwise_or(read, reads, out=read)
        np.maximum(written, writes, out=written)
    return after, written != 0
