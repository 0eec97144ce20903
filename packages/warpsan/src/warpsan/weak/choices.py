"""Writes that a read may return, and places of a write in the coherence order (PTX ISA, "Axioms")."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from warpsan.checks.orders import MemoryOrder
from warpsan.weak.history import History, Write
from warpsan.weak.warps import WarpTable, WarpViews

__all__ = ["Choices"]

_Read = tuple[Write | None, int]
"""The write that is read, or None for unwritten memory, and its value."""


class Choices:
    """Draws the writes that reads return, and the places of writes in the coherence order.

    Parameters
    ----------
    warps : WarpTable
    draw : Random
        The random generator of all choices.
    """

    def __init__(self, warps: WarpTable, draw: Random) -> None:
        self.warps, self.draw = warps, draw
        self.newest = False
        """Whether reads are temporarily not stale, because no thread could continue otherwise."""

    def morally_strong(self, warp: WarpViews, order: MemoryOrder, write: Write | None) -> bool:
        """Whether an operation of a warp and an overlapping write are morally strong to each other."""
        if write is None or write.warp == warp.number:
            return write is not None
        if not order.strong:
            return False
        relation = self.warps.relation(warp, write.warp // self.warps.threads.warps)
        return relation <= min(order.level, write.level)

    def is_open(self, warp: WarpViews, last: Write | None, order: MemoryOrder) -> bool:
        """Whether a read may return an older value than the last write, or observes a write that its warp has not
        seen."""
        if last is None:
            return False
        if last.warp != warp.number and last.time > warp.view.clock.get(last.warp, 0):
            return True
        return order.strong and last.update

    def possible(self, warp: WarpViews, history: History, word: int) -> list[_Read]:
        """The writes of a word that may be read, the last write first."""
        possible: list[_Read] = []
        for write, value in history.backwards(word):
            possible.append((write, value))
            if write is not None and (
                write.warp == warp.number or warp.view.knows(write.warp, write.time, write.number)
            ):
                break
        return possible

    def choose(
        self, warp: WarpViews, history: History, words: Sequence[int], held: Sequence[int | None]
    ) -> list[_Read]:
        """The words of an access at one moment; ``held`` has the unwritten ones."""
        possible: list[list[_Read]] = [
            self.possible(warp, history, word) if value is None else [(None, value)]
            for word, value in zip(words, held, strict=True)
        ]
        if self.newest:
            return [choices[0] for choices in possible]
        if len(possible) == 1:
            return [self.draw.choice(possible[0])]
        least = max(_time(choices[-1][0]) for choices in possible)
        times = {_time(write) for choices in possible for write, _ in choices} | {least}
        moment = self.draw.choice(sorted(each for each in times if each >= least))
        return [next(each for each in choices if _time(each[0]) <= moment) for choices in possible]

    def update_reads(self, warp: WarpViews, history: History, word: int, order: MemoryOrder) -> _Read:
        """The write that an atomic operation reads: none before a write that is morally strong to it."""
        readable: list[_Read] = []
        for write, value in self.possible(warp, history, word):
            readable.append((write, value))
            if self.newest or self.morally_strong(warp, order, write):
                break
        return self.draw.choice(readable)

    def overtaken(self, warp: WarpViews, history: History, word: int) -> tuple[bool, Write | None]:
        """Whether a write of a word that others have written last comes before the last one in coherence order; and
        the write that it then follows."""
        possible = self.possible(warp, history, word)
        after = self.draw.randrange(len(possible))
        over = possible[after - 1][0] if after else None
        return (over is not None and not over.update), possible[after][0]


def _time(write: Write | None) -> int:
    return 0 if write is None else write.time
