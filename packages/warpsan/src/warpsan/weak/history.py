"""The writes to the words of a memory space, in coherence order.

The initial value of a word, which all warps have seen, precedes its first kept write. Several writes to a word in one
step leave only the last one. A change of memory by other means, such as asynchronous copies, ends the history of a
word.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from warpsan.host.memory import Space
from warpsan.weak.views import View

__all__ = ["History", "Release", "Write"]

_LONGEST = 64
"""Most writes of a word that a read may choose from."""


@dataclass(frozen=True, eq=False)
class Release:
    """The view that a release pattern makes visible, by the relation of the acquiring thread; None beyond its scope."""

    block: int
    views: tuple[View | None, View | None, View | None]


class Write:
    """A write of a word.

    Attributes
    ----------
    number : int
        Its number in the launch, from 1 on.
    value : int
        The word after it.
    warp, time : int
        The writing warp, by its number in the launch, and the time.
    level : int
        The scope of a strong write, -1 for a weak one.
    update : bool
        Whether an atomic operation wrote it, which has read the write before it.
    released : list of Release
        The releases that a read of it observes.
    """

    __slots__ = ("level", "number", "released", "time", "update", "value", "warp")

    def __init__(self, number: int, value: int, warp: int, time: int, level: int, *, update: bool) -> None:
        self.number, self.value, self.warp, self.time = number, value, warp, time
        self.level, self.update = level, update
        self.released: list[Release] = []


@dataclass(slots=True)
class _Word:
    before: int
    writes: list[Write]


class History:
    """The writes to each word of a space.

    Attributes
    ----------
    many : int
        The number of kept writes.
    """

    def __init__(self, space: Space) -> None:
        self.many = 0
        self._words: dict[int, _Word] = {}
        self._memory = space.views[4]

    def clear(self) -> None:
        """All warps have seen the present memory."""
        self._words.clear()
        self.many = 0

    def last(self, word: int) -> Write | None:
        """The last write to a word; None if memory has changed since by other means."""
        known = self._words.get(word)
        if known is None:
            return None
        last = known.writes[-1]
        if last.value == self._memory[word]:
            return last
        del self._words[word]
        self.many -= len(known.writes)
        return None

    def append(self, word: int, write: Write, before: int) -> None:
        """A write is now the last of its word; ``before`` it, memory had that value."""
        known = self._words.get(word)
        self.many += 1
        if known is None:
            self._words[word] = _Word(before, [write])
            return
        known.writes.append(write)
        if len(known.writes) > 2 * _LONGEST:
            del known.writes[:_LONGEST]
            self.many -= _LONGEST

    def insert(self, word: int, write: Write, after: Write | None) -> None:
        """Insert a write directly after ``after`` in the coherence order of its word, before the last one; None
        stands for the initial value."""
        writes = self._words[word].writes
        writes.insert(0 if after is None else writes.index(after) + 1, write)
        self.many += 1

    def backwards(self, word: int) -> Iterator[tuple[Write | None, int]]:
        """(write, value) of the writes of a word, the last one first, and of the initial value before them."""
        known = self._words[word]
        for write in known.writes[: -_LONGEST - 1 : -1]:
            yield write, write.value
        if len(known.writes) < _LONGEST:
            yield None, known.before
