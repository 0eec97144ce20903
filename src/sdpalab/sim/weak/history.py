"""The writes to the words of a memory space, in coherence order.

Each write has a number from 1 on; 0 is what was there before all of them, which all warps have seen. A write points to
the one before it in the coherence order of its word. Writes in one step to one word leave the last of them alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from sdpalab.sim.memory import Space
from sdpalab.sim.selection import Array, Indices
from sdpalab.sim.weak.views import View

__all__ = ["History", "Release", "Writes"]

_FIRST = 1 << 12
_LONGEST = 64
"""Writes of one word that a read may choose from."""
_TYPES = {
    **dict.fromkeys(("value", "before"), np.uint32),
    **dict.fromkeys(("warp", "previous"), np.int32),
    "time": np.int64,
    "level": np.int8,
    "update": np.bool_,
}


@dataclass(frozen=True, eq=False)
class Release:
    """What a release pattern makes visible, by the relation of the thread that acquires it; None where its scope does
    not reach."""

    block: int
    views: tuple[View | None, View | None, View | None]


@dataclass
class Writes:
    """All writes of a launch that a warp may not have seen yet, by number.

    Attributes
    ----------
    value, before : ndarray of uint32
        The word after the write, and what was in memory then.
    warp, time, previous : ndarray
        Who wrote it and when; the write before it in coherence order.
    level : ndarray of int8
        The scope of a strong write, -1 of a weak one.
    update : ndarray of bool
        Whether an atomic operation wrote it, which has read ``previous``.
    released : dict
        The releases that a read of it observes.
    """

    value: Array = field(default_factory=lambda: np.zeros(_FIRST, np.uint32))
    before: Array = field(default_factory=lambda: np.zeros(_FIRST, np.uint32))
    warp: Array = field(default_factory=lambda: np.zeros(_FIRST, np.int32))
    previous: Array = field(default_factory=lambda: np.zeros(_FIRST, np.int32))
    time: Array = field(default_factory=lambda: np.zeros(_FIRST, np.int64))
    level: Array = field(default_factory=lambda: np.zeros(_FIRST, np.int8))
    update: Array = field(default_factory=lambda: np.zeros(_FIRST, np.bool_))
    released: dict[int, list[Release]] = field(default_factory=dict)
    many: int = 0

    def add(self, many: int, **columns: Array | int) -> Array:
        """``many`` new writes: their numbers."""
        numbers = np.arange(self.many + 1, self.many + many + 1)
        self.many += many
        while self.many >= len(self.value):
            for name in _TYPES:
                column = getattr(self, name)
                setattr(self, name, np.concatenate((column, np.zeros_like(column))))
        for name, values in columns.items():
            getattr(self, name)[numbers] = values
        return numbers

    def clear(self) -> None:
        """All warps have seen everything."""
        self.many = 0
        self.released.clear()


class History:
    """The last write to each word of a space."""

    def __init__(self, space: Space, writes: Writes) -> None:
        self.writes = writes
        self._last = np.zeros(len(space.data) // 4, np.int32)
        self._memory = space.views[4]

    def clear(self) -> None:
        """What is in memory now has been seen by all warps."""
        self._last.fill(0)

    def last(self, words: Indices) -> Array:
        """The last write to each of these words; 0 where something else than writes has changed it since."""
        last: Array = self._last[words]
        if last.any():
            foreign = (last > 0) & (self.writes.value[last] != self._memory[words])
            if foreign.any():
                self._last[words[foreign]] = 0
                last = np.where(foreign, 0, last)
        return last

    def append(self, words: Indices, numbers: Array) -> None:
        """These writes are the last of their words now."""
        self.writes.previous[numbers] = self._last[words]
        self._last[words] = numbers

    def insert(self, word: int, number: int, after: int) -> None:
        """A write goes right behind ``after`` in the coherence order of its word, before the last one."""
        later = int(self._last[word])
        while self.writes.previous[later] != after:
            later = int(self.writes.previous[later])
        self.writes.previous[number] = after
        self.writes.before[number] = self.writes.before[later] if not after else self.writes.value[after]
        self.writes.previous[later] = number

    def backwards(self, last: int) -> Iterator[tuple[int, int]]:
        """(number, value) of the writes from ``last`` on backwards, and of what was there before them."""
        number, writes = last, self.writes
        for _ in range(_LONGEST):
            yield number, int(writes.value[number])
            earlier = int(writes.previous[number])
            if not earlier:
                yield 0, int(writes.before[number])
                return
            number = earlier
