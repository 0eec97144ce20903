"""Records which bytes the lanes of a warp access at chosen instructions: the pictures of a profile.

The counters say how many sectors and wavefronts an instruction took. This keeps one block's addresses at the few
instructions that were asked for, so that a reader sees why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sdpalab.sim.counters import wavefronts
from sdpalab.sim.ir import Instruction
from sdpalab.sim.machine import Machine
from sdpalab.sim.memory import Extent
from sdpalab.sim.observer import Access, CompletionBarrier, Observer
from sdpalab.sim.selection import WARP, Array, Indices, indices
from sdpalab.sim.tally import SECTOR

__all__ = ["AccessRecorder", "RecordedAccess"]


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
        The first block that ran the instruction.
    warp : int
        Of that block, the warp whose access took most wavefronts or sectors.
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


class AccessRecorder:
    """Collects the accesses at the instructions of a source line, wrappers that it calls included.

    Parameters
    ----------
    place : str
        ``file:line``.

    Give ``recorder.watch`` to a launch as one of its ``watchers``; one recorder may watch several launches.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self._records: dict[tuple[str, int, str], RecordedAccess] = {}
        self._touched: dict[tuple[str, int, str], list[Indices]] = {}

    def watch(self, machine: Machine) -> Observer:
        """The observer of one machine."""
        return _Recording(machine, self)

    @property
    def records(self) -> tuple[RecordedAccess, ...]:
        """In the order of the code."""
        joined = {key: np.unique(np.concatenate(parts)) for key, parts in self._touched.items()}
        return tuple(
            replace(record, touched=joined[key] - (record.buffer.begin if record.buffer else 0))
            for key, record in sorted(self._records.items())
        )

    def add(self, record: RecordedAccess) -> None:
        """Keep the access of most cost at each instruction of its first block, and all that the block touched there."""
        key = record.entry, record.pc, record.space
        known = self._records.setdefault(key, record)
        if record.block == known.block:
            self._touched.setdefault(key, []).append(np.unique(record.touched))
            if record.cost > known.cost:
                self._records[key] = record

    def block_of(self, entry: str, pc: int, space: str) -> tuple[int, int, int] | None:
        """The block whose accesses are recorded; None before the first."""
        record = self._records.get((entry, pc, space))
        return record.block if record else None


class _Recording(Observer):
    def __init__(self, machine: Machine, recorder: AccessRecorder) -> None:
        self.machine, self.recorder = machine, recorder
        self._places: dict[int, tuple[str, ...]] = {}

    def load(self, access: Access) -> None:
        """A read."""
        self._record(access)

    def store(self, access: Access, words: Array | None) -> None:
        """A write."""
        self._record(access)

    def atomic(self, access: Access) -> None:
        """A read-modify-write."""
        self._record(access)

    def issue(self, access: Access, *, writes: bool, barrier: CompletionBarrier | None = None) -> Array | None:
        """An asynchronous access; in shared memory, the copy engine's and wgmma's do not go by warps and lanes."""
        instruction = access.instruction
        if not (access.space.name == "shared" and ("bulk" in instruction.mods or instruction.opcode == "wgmma")):
            self._record(access)
        return None

    def _record(self, access: Access) -> None:
        space, instruction, machine = access.space.name, access.instruction, self.machine
        places = self._places_of(instruction)
        if space not in ("shared", "global") or self.recorder.place not in places:
            return
        lane = indices(access.sel)
        cta = machine.cta[lane]
        block = self.recorder.block_of(machine.entry.name, instruction.pc, space)
        linear = int(machine.cta_ids[cta].min()) if block is None else _linear(block, machine.geometry.grid)
        mine = machine.cta_ids[cta] == linear
        if not mine.any():
            return
        lane, offset = lane[mine], access.offset[mine]
        warps = machine.thread[lane] // WARP
        cost = {
            int(warp): _cost(space, lane[warps == warp], offset[warps == warp], access.width) for warp in set(warps)
        }
        worst = max(sorted(cost), key=lambda warp: cost[warp])
        of_warp = warps == worst
        buffer = _buffer_of(access, int(offset[of_warp][0])) if space == "global" else None
        begin = buffer.begin if buffer else 0
        record = RecordedAccess(
            entry=machine.entry.name,
            pc=instruction.pc,
            text=instruction.text,
            places=places,
            space=space,
            block=_unravelled(linear, machine.geometry.grid),
            warp=worst,
            lanes=lane[of_warp] % WARP,
            offset=offset[of_warp] - begin,
            width=access.width,
            cost=cost[worst],
            buffer=buffer,
            touched=offset,
        )
        self.recorder.add(record)

    def _places_of(self, instruction: Instruction) -> tuple[str, ...]:
        if instruction.pc not in self._places:
            frames = self.machine.frames(instruction)
            self._places[instruction.pc] = tuple(frame.rpartition(":")[0] for frame in frames)
        return self._places[instruction.pc]


def _cost(space: str, lane: Indices, offset: Indices, width: int) -> int:
    """Wavefronts of one warp's access of shared memory, or sectors of one of global memory."""
    if space == "shared":
        return wavefronts(np.zeros_like(lane), lane % WARP, offset, width)
    return len(np.unique(np.concatenate([offset // SECTOR, (offset + width - 1) // SECTOR])))


def _buffer_of(access: Access, offset: int) -> Extent | None:
    return next((each for each in access.space.extents if each.begin <= offset < each.end), None)


def _linear(block: tuple[int, int, int], grid: tuple[int, int, int]) -> int:
    return block[0] + grid[0] * (block[1] + grid[1] * block[2])


def _unravelled(linear: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    return linear % grid[0], linear // grid[0] % grid[1], linear // (grid[0] * grid[1])
