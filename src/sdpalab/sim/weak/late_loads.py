"""Loads that read later than their place in the program, as load buffering needs it (PTX ISA, "No Thin Air").

A weak or relaxed load may wait while its thread goes on to loads and stores of other places that nothing orders behind
it and that do not depend on it. It never waits past a use of its register, an access to the same place, an atomic
operation, a fence, a barrier, an acquire or a release, a branch or a label; nothing is executed on speculation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from sdpalab.sim.checks.orders import memory_order
from sdpalab.sim.collectives import is_collective
from sdpalab.sim.fusion import registers_read, registers_written
from sdpalab.sim.ir import Entry, Instruction
from sdpalab.sim.observer import Access
from sdpalab.sim.selection import WARP, Indices, Selection, indices

__all__ = ["LateLoads"]

_LEAVES = frozenset({"bra", "brx", "call", "ret", "exit", "trap", "brkpt"})
_ORDERS = frozenset({"bar", "barrier", "fence", "membar", "atom", "red", "mbarrier", "cp", "wgmma", "griddepcontrol"})
_ENDS = _LEAVES | _ORDERS | {"setmaxnreg", "discard", "ldmatrix", "stmatrix", "wmma"}
_NOT_SHARED = frozenset({"param", "const", "local", "nc"})


@dataclass(eq=False)
class _LateLoad:
    pc: int
    parts: Sequence[Access]
    deliver: Callable[[], None]


class LateLoads:
    """The loads of a machine that are waiting.

    Parameters
    ----------
    entry : Entry
    draw : Random
        Decides which loads wait.
    """

    def __init__(self, entry: Entry, draw: Random) -> None:
        self._draw = draw
        self._until = {load.pc: end for load in entry.instructions if (end := _window(entry, load)) is not None}
        """For each load that may wait, the instruction before which it must have read."""
        self._waiting: list[_LateLoad] = []
        self._settling = False

    def clear(self) -> None:
        """None waits."""
        self._waiting.clear()

    def may_wait(self, instruction: Instruction) -> bool:
        """Whether this load ever waits."""
        return instruction.pc in self._until

    def add(self, instruction: Instruction, parts: Sequence[Access], deliver: Callable[[], None]) -> None:
        """A load, whose value ``deliver`` reads: now, or later."""
        if self._draw.random() < 0.5:
            deliver()
        else:
            self._waiting.append(_LateLoad(instruction.pc, parts, deliver))

    def before(self, instructions: Sequence[Instruction]) -> Callable[[Selection], None] | None:
        """A function to call before these instructions, or None."""
        here = {each.pc for each in instructions}
        ended = {load for load, end in self._until.items() if end in here}
        if not ended:
            return None

        def settle(sel: Selection) -> None:
            if self._waiting:
                self._settle([each for each in self._waiting if each.pc in ended])

        return settle

    def settle_overlapping(self, access: Access) -> None:
        """Loads of the same place come first."""
        if self._waiting and not self._settling:
            self._settle([each for each in self._waiting if any(_overlap(part, access) for part in each.parts)])

    def _settle(self, loads: list[_LateLoad]) -> None:
        """These read now, in the order of the program, and before them earlier loads of the same places."""
        chosen: list[_LateLoad] = []
        for each in reversed(self._waiting):
            earlier = any(_overlap(part, other) for part in each.parts for load in chosen for other in load.parts)
            if each in loads or earlier:
                chosen.append(each)
        self._waiting = [each for each in self._waiting if each not in chosen]
        self._settling = True
        for load in reversed(chosen):
            load.deliver()
        self._settling = False


def _overlap(one: Access, other: Access) -> bool:
    """Whether two steps of accesses may touch the same word in the same warp."""
    return one.space is other.space and bool(np.isin(_touched(one), _touched(other)).any())


def _touched(access: Access) -> Indices:
    """A number for each word and warp."""
    words = access.index[:, None] // 4 + np.arange(-(-access.width // 4))
    return np.asarray(words << 24 | (indices(access.sel) // WARP)[:, None]).reshape(-1)


def _window(entry: Entry, load: Instruction) -> int | None:
    """The instruction before which a load must have read, if any other may come before that."""
    if load.opcode != "ld" or _NOT_SHARED & set(load.mods) or memory_order(load).acquire:
        return None
    code, targets, mine = entry.instructions, set(entry.labels.values()), set(registers_written(load))
    end = None
    for each in code[load.pc + 1 :]:
        touches = not mine.isdisjoint(registers_read(each)) or not mine.isdisjoint(registers_written(each))
        stops = touches or each.pc in targets or each.opcode in _ENDS or is_collective(each)
        if not stops and each.opcode in ("ld", "st"):
            stops = memory_order(each).acquire or memory_order(each).release
        if stops and end is None:
            end = each.pc
        if not mine.isdisjoint(registers_read(each)):
            return end if end is not None and end > load.pc + 1 else None  # its row is its own up to here
        if each.pc in targets or each.opcode in _LEAVES or not mine.isdisjoint(registers_written(each)):
            return None
    return None
