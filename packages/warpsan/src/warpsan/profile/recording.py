"""Recorders of the bytes that lanes of a warp access at chosen instructions, for pictures of a profile.

The counters give the sectors and wavefronts of an instruction. The recorder keeps the addresses of one block at the
chosen instructions, which show the cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from warpsan.engine.arrays import WARP, Indices
from warpsan.host.geometry import Dim3
from warpsan.host.memory import Extent
from warpsan.profile.counters import wavefronts
from warpsan.profile.tally import SECTOR
from warpsan.ptx.ir import Instruction, PtxModule
from warpsan.ptx.source_lines import frames_of

__all__ = ["AccessRecorder", "RecordedAccess", "SeenAccess"]


@dataclass(frozen=True)
class RecordedAccess:
    """Accesses of one block at one instruction to one memory space.

    Attributes
    ----------
    entry : str
        Name of the launched entry in the PTX.
    pc : int
    text : str
        Opcode with modifiers.
    places : tuple of str
        ``file:line`` of the instruction and of the calls that inlined it, innermost first.
    space : str
        ``shared`` or ``global``.
    block : (int, int, int)
        First block of the grid that executed the instruction.
    warp : int
        Warp of the block with the most wavefronts or sectors; the first maximum.
    lanes : ndarray of int64 [accesses]
        Lane of each access, 0 to 31; a lane with several accesses is repeated.
    offset : ndarray of int64 [accesses]
        First byte of each access, in the block's shared memory or in the buffer.
    width : int
        Bytes per access.
    cost : int
        Wavefronts or sectors of the access.
    buffer : Extent, optional
        The buffer of a global memory access.
    touched : ndarray of int64 [accesses]
        Distinct first bytes of all accesses of the block at this instruction.
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
    """Simultaneous accesses of one block's lanes to one memory space.

    Attributes
    ----------
    entry, module
        The code.
    instruction : Instruction
    space : str
        ``shared`` or ``global``.
    linear : int
        Linear index of the block in the grid.
    thread : ndarray of int64 [accesses]
        Thread of each access.
    offset : ndarray of int64 [accesses]
        First byte of each access, in the block's shared memory or in global memory.
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
    """Recorder of accesses at the instructions of a source line, including wrappers that it calls.

    Parameters
    ----------
    place : str
        ``file:line``.

    Pass it to a launch in ``watchers``; one recorder may serve several launches.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self._records: dict[tuple[str, int, str], RecordedAccess] = {}
        self._touched: dict[tuple[str, int, str], list[Indices]] = {}

    def watches(self, module: PtxModule, instruction: Instruction) -> bool:
        """Whether the recorder collects the accesses of an instruction."""
        return self.place in _places_of(module, instruction)

    @property
    def records(self) -> tuple[RecordedAccess, ...]:
        """Records in code order."""
        joined = {key: np.unique(np.concatenate(parts)) for key, parts in self._touched.items()}
        return tuple(
            replace(record, touched=joined[key] - (record.buffer.begin if record.buffer else 0))
            for key, record in sorted(self._records.items())
        )

    def see(self, seen: SeenAccess, grid: Dim3, extents: Sequence[Extent]) -> None:
        """Record accesses of the first block of the grid: the most expensive one (of the first warp, if equal), and all
        touched bytes.
        """
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
        """Add the records of another process."""
        for record in records:
            key = record.entry, record.pc, record.space
            self._records[key] = record
            self._touched[key] = [record.touched + (record.buffer.begin if record.buffer else 0)]

    def block_of(self, entry: str, pc: int, space: str) -> Dim3 | None:
        """The recorded block; None before the first access."""
        record = self._records.get((entry, pc, space))
        return record.block if record else None


def _places_of(module: PtxModule, instruction: Instruction) -> tuple[str, ...]:
    """``file:line`` of an instruction and of the calls that inlined it, innermost first."""
    return tuple(frame.rpartition(":")[0] for frame in frames_of(module, instruction))


def _cost(space: str, thread: Indices, offset: Indices, width: int) -> int:
    """Wavefronts of one warp's shared memory access, or sectors of a global memory access."""
    if space == "shared":
        return wavefronts(np.zeros_like(thread), thread % WARP, offset, width)
    return len(np.unique(np.concatenate([offset // SECTOR, (offset + width - 1) // SECTOR])))


def _linear(block: Dim3, grid: Dim3) -> int:
    return block[0] + grid[0] * (block[1] + grid[1] * block[2])


def _unravelled(linear: int, grid: Dim3) -> Dim3:
    return linear % grid[0], linear // grid[0] % grid[1], linear // (grid[0] * grid[1])
