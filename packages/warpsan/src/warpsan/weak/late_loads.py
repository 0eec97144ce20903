"""Loads that read later than their place in the program, as in load buffering (PTX ISA, "No Thin Air").

A weak or relaxed load may wait while its thread continues to later loads and stores of other places that are
independent of it and not ordered after it. It never waits past a use of its register, an access to the same place, an
atomic operation, a fence, a barrier, an acquire or a release, a branch or a label; there is no speculation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

from warpsan.analysis.collectives import is_collective
from warpsan.analysis.fusion import registers_read, registers_written
from warpsan.checks.orders import memory_order
from warpsan.engine.observer import Access
from warpsan.engine.selection import WARP, Selection, indices
from warpsan.ptx.ir import Entry, Instruction
from warpsan.weak.warps import warps_of

__all__ = ["LateLoads", "late_windows"]

_LEAVES = frozenset({"bra", "brx", "call", "ret", "exit", "trap", "brkpt"})
_ORDERS = frozenset({"bar", "barrier", "fence", "membar", "atom", "red", "mbarrier", "cp", "wgmma", "griddepcontrol"})
_ENDS = _LEAVES | _ORDERS | {"setmaxnreg", "discard", "ldmatrix", "stmatrix", "wmma"}
_NOT_SHARED = frozenset({"param", "const", "local", "nc"})


_Touched = tuple[str, int, int]
"""A space, the place of a warp among the resident ones, and a word."""


@dataclass(eq=False)
class _LateLoad:
    pc: int
    deliver: Callable[[], None]
    warps: frozenset[int]
    touches: frozenset[_Touched]
    number: int
    """Order in which loads began to wait."""


def late_windows(entry: Entry) -> dict[int, int]:
    """For each load that may wait, by its pc, the pc of the instruction before which it must have read."""
    return {load.pc: end for load in entry.instructions if (end := _window(entry, load)) is not None}


class LateLoads:
    """The waiting loads of the resident threads.

    Parameters
    ----------
    draw : Random
        The random generator that selects the loads that wait.
    """

    def __init__(self, draw: Random) -> None:
        self._draw = draw
        self._waiting: dict[int, list[_LateLoad]] = {}
        """The waiting loads, by warp."""
        self._many = 0
        self._settling = False

    def clear(self) -> None:
        """Reset: no load waits."""
        self._waiting.clear()

    def add(self, instruction: Instruction, parts: Sequence[Access], deliver: Callable[[], None]) -> None:
        """A load; ``deliver`` reads its value, now or later."""
        if not parts or self._draw.random() < 0.5:
            deliver()
            return
        warps = frozenset[int]().union(*(warps_of(part.sel) for part in parts))
        self._many += 1
        touches = frozenset[_Touched]().union(*map(_touched, parts))
        load = _LateLoad(instruction.pc, deliver, warps, touches, self._many)
        for warp in load.warps:
            self._waiting.setdefault(warp, []).append(load)

    def settle(self, ended: frozenset[int], sel: Selection) -> None:
        """Execute those of these loads that warps of these lanes have made."""
        if self._waiting:
            self._settle([each for each in self._of_warps(warps_of(sel)) if each.pc in ended])

    def settle_overlapping(self, access: Access) -> None:
        """Loads of the same place come first."""
        if self._waiting and not self._settling:
            loads = self._of_warps(warps_of(access.sel))
            if loads:
                touched = _touched(access)
                self._settle([each for each in loads if not touched.isdisjoint(each.touches)])

    def _of_warps(self, warps: Iterable[int]) -> set[_LateLoad]:
        return {each for warp in warps for each in self._waiting.get(warp, ())}

    def _settle(self, loads: list[_LateLoad]) -> None:
        """Execute these loads now, in program order, after earlier ones of the same places."""
        if not loads:
            return
        chosen, latest = set(loads), set(loads)
        while latest:
            near = self._of_warps({warp for each in latest for warp in each.warps}) - chosen
            latest = {
                each
                for each in near
                if any(each.number < later.number and not each.touches.isdisjoint(later.touches) for later in latest)
            }
            chosen |= latest
        for warp in {warp for each in chosen for warp in each.warps}:
            left = [each for each in self._waiting.pop(warp) if each not in chosen]
            if left:
                self._waiting[warp] = left
        self._settling = True
        for load in sorted(chosen, key=lambda each: each.number):
            load.deliver()
        self._settling = False


def _touched(access: Access) -> set[_Touched]:
    """Each word that is accessed, with its warp."""
    space, words = access.space.name, -(-access.width // 4)
    rows = zip(indices(access.sel).tolist(), access.index.tolist(), strict=True)
    return {(space, lane // WARP, index // 4 + k) for lane, index in rows for k in range(words)}


def _window(entry: Entry, load: Instruction) -> int | None:
    """The instruction before which a load must have read, if any other may precede it."""
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
            return end if end is not None and end > load.pc + 1 else None  # its row is unchanged up to here
        if each.pc in targets or each.opcode in _LEAVES or not mine.isdisjoint(registers_written(each)):
            return None
    return None
