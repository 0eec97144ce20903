"""The writes to the words of a memory space, in coherence order.

Before the first write of a word that is kept stands what was there, which all warps have seen. Writes in one step to
one word leave the last of them alone. What changes memory by other ways, such as asynchronous copies, ends the history
of a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from warpsan.host.memory import Space
from warpsan.weak.views import View

__all__ = ["History", "Release", "Write"]

_LONGEST = 64
"""Writes of one word that a read may choose from."""


@dataclass(frozen=True, eq=False)
class Release:
    """What a release pattern makes visible, by the relation of the thread that acquires it; None where its scope does
    not reach."""

    block: int
    views: tuple[View | None, View | None, View | None]


class Write:
    """A write of a word.

    Attributes
    ----------
    number : int
        Its own in the launch, from 1 on.
    value : int
        The word after it.
    warp, time : int
        Who wrote it, by the number in the launch, and when.
    level : int
        The scope of a strong write, -1 of a weak one.
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
        Writes that are kept.
    """

    def __init__(self, space: Space) -> None:
        self.many = 0
        self._words: dict[int, _Word] = {}
        self._memory = space.views[4]

    def clear(self) -> None:
        """What is in memory now has been seen by all warps."""
        self._words.clear()
        self.many = 0

    def last(self, word: int) -> Write | None:
        """The last write to a word; None where something else than writes has changed it since."""
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
        """A write is the last of its word now; ``before`` it memory held that."""
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
        """A write goes right behind ``after`` in the coherence order of its word, before the last one; behind what was
        there before all writes, if that is None."""
        writes = self._words[word].writes
        writes.insert(0 if after is None else writes.index(after) + 1, write)
        self.many += 1

    def backwards(self, word: int) -> Iterator[tuple[Write | None, int]]:
        """(write, value) of the writes of a word from the last one on backwards, and of what was there before them."""
        known = self._words[word]
        for write in known.writes[: -_LONGEST - 1 : -1]:
            yield write, write.value
        if len(known.writes) < _LONGEST:
            yield None, known.before
