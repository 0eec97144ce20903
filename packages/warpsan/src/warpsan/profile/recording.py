"""Records which bytes the lanes of a warp access at chosen instructions: the pictures of a profile.

The counters say how many sectors and wavefronts an instruction took. This keeps one block's addresses at the few
instructions that were asked for, so that a reader sees why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from warpsan.engine.machine import frames_of
from warpsan.engine.selection import WARP, Indices
from warpsan.host.geometry import Dim3
from warpsan.host.memory import Extent
from warpsan.profile.counters import wavefronts
from warpsan.profile.tally import SECTOR
from warpsan.ptx.ir import Instruction, PtxModule

__all__ = ["AccessRecorder", "RecordedAccess", "SeenAccess"]


@dataclass(frozen=True)
class RecordedAccess:
    """What one block accesses at one instruction in one memory space.

    Attributes
    ----------
    entry : str
        Of the launch, as it stands in the PTX.
    pc : int
    text : str
        The opcode with its modifiers.
    places : tuple of str
        ``file:line`` of the instruction and of the calls through which it was inlined, outwards.
    space : str
        ``shared`` or ``global``.
    block : (int, int, int)
        The first block of the grid that ran the instruction.
    warp : int
        Of that block, the warp whose access took most wavefronts or sectors; the first of several.
    lanes : ndarray of int64 [accesses]
        Numbers of its lanes, 0 to 31; a lane that accesses several places is in it once for each.
    offset : ndarray of int64 [accesses]
        The first byte of each access: of the block's shared memory, or of the buffer.
    width : int
        Bytes of each access.
    cost : int
        Wavefronts of that access, or sectors.
    buffer : Extent, optional
        Of global memory, the buffer.
    touched : ndarray of int64 [accesses]
        The different first bytes of the block's accesses at this instruction, all of its executions together.
    """

    entry: str
    pc: int
    text: str
    places: tuple[str, ...]
    space: str
    block: tuple[int, int, int]
    warp: int
    lanes: Indices
    offset: Indices
    width: int
    cost: int
    buffer: Extent | None
    touched: Indices


@dataclass(frozen=True)
class SeenAccess:
    """What lanes of one block access in one memory space, at once.

    Attributes
    ----------
    entry, module
        The code.
    instruction : Instruction
    space : str
        ``shared`` or ``global``.
    linear : int
        The linear index of the block in the grid.
    thread : ndarray of int64 [accesses]
        The thread of each access.
    offset : ndarray of int64 [accesses]
        The first byte of each: of the block's shared memory, or of global memory.
    width : int
    """

    module: PtxModule
    entry: str
    instruction: Instruction
    space: str
    linear: int
    thread: Indices
    offset: Indices
    width: int


class AccessRecorder:
    """Collects the accesses at the instructions of a source line, wrappers that it calls included.

    Parameters
    ----------
    place : str
        ``file:line``.

    Give it to a launch as one of its ``watchers``; one recorder may watch several launches.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self._records: dict[tuple[str, int, str], RecordedAccess] = {}
        self._touched: dict[tuple[str, int, str], list[Indices]] = {}

    def watches(self, module: PtxModule, instruction: Instruction) -> bool:
        """Whether it collects the accesses of an instruction."""
        return self.place in _places_of(module, instruction)

    @property
    def records(self) -> tuple[RecordedAccess, ...]:
        """In the order of the code."""
        joined = {key: np.unique(np.concatenate(parts)) for key, parts in self._touched.items()}
        return tuple(
            replace(record, touched=joined[key] - (record.buffer.begin if record.buffer else 0))
            for key, record in sorted(self._records.items())
        )

    def see(self, seen: SeenAccess, grid: Dim3, extents: Sequence[Extent]) -> None:
        """Keep the access of most cost at each instruction of the first block of the grid, of equal ones that of the
        first warp, and all that the block touched there."""
        key = seen.entry, seen.instruction.pc, seen.space
        known, block = self._records.get(key), _unravelled(seen.linear, grid)
        if known is not None and known.block != block:
            if seen.linear > _linear(known.block, grid):
                return
            known, self._touched[key] = None, []
        warps = seen.thread // WARP
        cost = {
            warp: _cost(seen.space, seen.thread[warps == warp], seen.offset[warps == warp], seen.width)
            for warp in sorted(set(warps.tolist()))
        }
        worst = max(cost, key=lambda warp: cost[warp])
        self._touched.setdefault(key, []).append(np.unique(seen.offset))
        if known is not None and (cost[worst], -worst) <= (known.cost, -known.warp):
            return
        mine = warps == worst
        first, is_global = int(seen.offset[mine][0]), seen.space == "global"
        buffer = next((each for each in extents if is_global and each.begin <= first < each.end), None)
        self._records[key] = RecordedAccess(
            entry=seen.entry,
            pc=seen.instruction.pc,
            text=seen.instruction.text,
            places=_places_of(seen.module, seen.instruction),
            space=seen.space,
            block=block,
            warp=worst,
            lanes=seen.thread[mine] % WARP,
            offset=seen.offset[mine] - (buffer.begin if buffer else 0),
            width=seen.width,
            cost=cost[worst],
            buffer=buffer,
            touched=seen.offset,
        )

    def take(self, records: Sequence[RecordedAccess]) -> None:
        """Take over what a recorder of another process has seen."""
        for record in records:
            key = record.entry, record.pc, record.space
            self._records[key] = record
            self._touched[key] = [record.touched + (record.buffer.begin if record.buffer else 0)]

    def block_of(self, entry: str, pc: int, space: str) -> Dim3 | None:
        """The block whose accesses are recorded; None before the first."""
        record = self._records.get((entry, pc, space))
        return record.block if record else None


def _places_of(module: PtxModule, instruction: Instruction) -> tuple[str, ...]:
    """``file:line`` of an instruction and of the calls through which it was inlined, outwards."""
    return tuple(frame.rpartition(":")[0] for frame in frames_of(module, instruction))


def _cost(space: str, thread: Indices, offset: Indices, width: int) -> int:
    """Wavefronts of one warp's access of shared memory, or sectors of one of global memory."""
    if space == "shared":
        return wavefronts(np.zeros_like(thread), thread % WARP, offset, width)
    return len(np.unique(np.concatenate([offset // SECTOR, (offset + width - 1) // SECTOR])))


def _linear(block: Dim3, grid: Dim3) -> int:
    return block[0] + grid[0] * (block[1] + grid[1] * block[2])


def _unravelled(linear: int, grid: Dim3) -> Dim3:
    return linear % grid[0], linear // grid[0] % grid[1], linear // (grid[0] * grid[1])
