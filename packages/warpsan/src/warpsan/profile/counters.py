"""Counters of a profiler, from the simulation: instructions by pipe, sectors, wavefronts, FLOPs, divergence.

Sources: CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory" (32-byte sectors) and "Shared Memory and
Memory Banks" (32 banks of 4 bytes; a warp's access of 4, 8 or 16 bytes a lane is served in phases of 32, 16 or 8
lanes, 128 bytes each).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from warpsan.analysis.program import Program
from warpsan.engine.machine import frames_of, source_of
from warpsan.engine.selection import WARP, Indices
from warpsan.profile.tally import SECTOR, Tally
from warpsan.ptx.ir import Entry, Instruction, PtxModule
from warpsan.ptx.opcodes import opcode_of

__all__ = ["BANKS", "Counters", "InstructionCount", "counted", "pipe_of", "wavefronts"]

BANKS = 32
"""Of shared memory, 4 bytes wide each."""

_FLOAT_TYPES = {"f16": "half", "f16x2": "half", "bf16": "half", "bf16x2": "half", "f32": "float", "f64": "double"}


def pipe_of(instruction: Instruction) -> str:
    """The kind of unit that executes an instruction: tensor, special, float, half, integer, global, shared, ..."""
    pipe = opcode_of(instruction).pipe
    if pipe == "space":
        spaces = {mod.split("::")[0] for mod in instruction.mods}
        return next((space for space in ("global", "shared", "local", "param", "const") if space in spaces), "generic")
    return pipe or next((_FLOAT_TYPES[mod] for mod in instruction.mods if mod in _FLOAT_TYPES), "integer")


@dataclass
class InstructionCount:
    """One instruction's share.

    Attributes
    ----------
    lanes, warps : int
        Executions, counted once a lane and once a warp (a guarded-off lane counts: it was issued).
    sectors, ideal_sectors : int
        32-byte sectors of global memory that its warps touched, and that they would touch if their bytes lay together.
    wavefronts, ideal_wavefronts : int
        128-byte passes of shared memory that its accesses took, and that they would take without bank conflicts.
    tensor_flops : int
        Multiplications and additions, if it is a matrix instruction.
    frames : tuple of str
        ``file:line:column`` of the instruction and of the calls through which it was inlined, outwards.
    """

    pc: int
    ptx_line: int
    source: str
    text: str
    pipe: str
    lanes: int = 0
    warps: int = 0
    sectors: int = 0
    ideal_sectors: int = 0
    wavefronts: int = 0
    ideal_wavefronts: int = 0
    tensor_flops: int = 0
    frames: tuple[str, ...] = ()


@dataclass
class Counters:
    """Counts of a whole launch; ``by_instruction`` is in the order of the code.

    Attributes
    ----------
    tensor_flops : int
        Multiplications and additions of the matrix instructions.
    exponentials : int
        Lanes that executed ex2.
    compulsory_read_bytes, compulsory_write_bytes : int
        Distinct 32-byte sectors of global memory that were read or written at all, in bytes: the least DRAM traffic.
    divergence : float
        Share of issued lanes that were switched off: 0 if every warp always ran whole.
    by_cta : list of int
        Warp instructions of each CTA, by its linear index in the grid: how even the work is.
    by_warp : list of list of int
        How often each instruction was run by the warps of one number in their CTA, of all CTAs: one list a number. They
        tell warps with different tasks apart.
    """

    by_instruction: list[InstructionCount] = field(default_factory=list)
    tensor_flops: int = 0
    exponentials: int = 0
    barriers: int = 0
    compulsory_read_bytes: int = 0
    compulsory_write_bytes: int = 0
    divergence: float = 0.0
    by_cta: list[int] = field(default_factory=list)
    by_warp: list[list[int]] = field(default_factory=list)

    def total(self, name: str, pipe: str | None = None) -> int:
        """Sum of one count over all instructions, or over those of a pipe."""
        return sum(getattr(each, name) for each in self.by_instruction if pipe in (None, each.pipe))

    def mix(self) -> dict[str, int]:
        """Warp instructions by pipe, most frequent first."""
        totals: dict[str, int] = {}
        for each in self.by_instruction:
            totals[each.pipe] = totals.get(each.pipe, 0) + each.warps
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, without ``by_warp``."""
        content = {**asdict(self), "mix": self.mix()}
        del content["by_warp"]
        return content

    def listing(self) -> str:
        """A line for each source line (or PTX line without line information): what ran there and what it cost."""
        groups: dict[str, list[InstructionCount]] = {}
        for each in self.by_instruction:
            groups.setdefault(each.source or f"PTX line {each.ptx_line}", []).append(each)
        head = f"{'warp instr.':>12} {'sectors':>9} {'of ideal':>8} {'wavefronts':>10} {'of ideal':>8}  where"
        lines = [head]
        for where, members in groups.items():
            warps, sectors, waves = (sum(getattr(m, n) for m in members) for n in ("warps", "sectors", "wavefronts"))
            over_sectors = _ratio(sectors, sum(member.ideal_sectors for member in members))
            over_waves = _ratio(waves, sum(member.ideal_wavefronts for member in members))
            opcodes = ", ".join(sorted({member.text.split(".")[0] for member in members}))
            numbers = f"{warps:>12} {sectors:>9} {over_sectors:>8} {waves:>10} {over_waves:>8}"
            lines.append(f"{numbers}  {where}: {opcodes}")
        return "\n".join(lines)


def _ratio(count: int, ideal: int) -> str:
    return f"{count / ideal:.2f}x" if ideal else ""


def counted(module: PtxModule, entry: Entry, program: Program, tally: Tally) -> Counters:
    """The counts of a launch, from what it has added up."""
    code = entry.instructions
    sizes = [block.size for block in program.blocks]
    numbers = np.column_stack(
        [np.repeat(tally.lanes, sizes), np.repeat(tally.warps, sizes), tally.sectors, tally.wavefronts]
    )
    counts = [
        InstructionCount(i.pc, i.line, source_of(module, i), i.text, pipe_of(i), *row)
        for i, row in zip(code, numbers.tolist(), strict=True)
    ]
    for instruction, count in zip(code, counts, strict=True):
        count.tensor_flops = tensor_flops(instruction) * count.warps
        count.frames = frames_of(module, instruction)
    issued = WARP * sum(count.warps for count in counts)
    read, written = tally.touched
    return Counters(
        counts,
        sum(count.tensor_flops for count in counts),
        sum(count.lanes for i, count in zip(code, counts, strict=True) if i.opcode == "ex2"),
        sum(count.warps for i, count in zip(code, counts, strict=True) if i.opcode in ("bar", "barrier")),
        SECTOR * int(read.sum()),
        SECTOR * int(written.sum()),
        1 - sum(count.lanes for count in counts) / issued if issued else 0.0,
        tally.issued.tolist(),
        np.repeat(tally.by_warp, sizes, axis=1).tolist(),
    )


def wavefronts(warp: Indices, laneid: Indices, offset: Indices, width: int) -> int:
    """Passes of 128 bytes that shared memory takes for one access of each lane.

    Parameters
    ----------
    warp, laneid, offset : ndarray of int64 [lanes]
        The lanes and the bytes of their CTA's shared memory.
    width : int
        Bytes a lane: those of 4, 8 or 16 are served 32, 16 or 8 lanes at a time.

    Returns
    -------
    int
        For each such phase, the largest number of different words that one bank must deliver; summed.
    """
    words = max(1, width // 4)
    phase = warp * 64 + laneid // (WARP // words)
    word = offset // 4
    keys = (phase[:, None] << 24 | word[:, None] + np.arange(words)).reshape(-1)
    distinct = np.unique(keys)
    phases, place = np.unique(distinct >> 24, return_inverse=True)
    banks = np.bincount(place * BANKS + distinct % BANKS, minlength=len(phases) * BANKS)
    return int(banks.reshape(-1, BANKS).max(axis=1).sum())


def tensor_flops(instruction: Instruction) -> int:
    """FLOPs of one warp's execution of a matrix instruction, from its shape: 2 * m * n * k; 0 for anything else.

    A wgmma is four warps' work.
    """
    if opcode_of(instruction).pipe != "tensor":
        return 0
    if instruction.opcode != "mma" and not {"mma", "mma_async"} & set(instruction.mods):
        return 0
    for mod in instruction.mods:
        if mod.startswith("m") and mod[1:2].isdigit():
            m, rest = mod[1:].split("n")
            n, k = rest.split("k")
            return 2 * int(m) * int(n) * int(k) // (4 if instruction.opcode == "wgmma" else 1)
    return 0
