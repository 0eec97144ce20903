"""Profiler counters of a simulated launch: instructions by pipe, sectors, wavefronts, FLOPs, divergence.

Sources: CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory" (32-byte sectors) and "Shared Memory and
Memory Banks" (32 banks of 4 bytes; a warp's access of 4, 8 or 16 bytes a lane is served in phases of 32, 16 or 8
lanes, 128 bytes each).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any

import numpy as np

from warpsan.analysis.program import Program
from warpsan.analysis.tensor_memory import product_size
from warpsan.engine.arrays import WARP, Indices
from warpsan.profile.tally import SECTOR, Tally
from warpsan.ptx.grammar import Form, known_form
from warpsan.ptx.ir import Entry, Instruction, PtxModule
from warpsan.ptx.matrices import WarpProduct, WmmaProduct
from warpsan.ptx.modifiers import types_of
from warpsan.ptx.opcodes import opcode_of, spaces_of
from warpsan.ptx.source_lines import frames_of, source_of
from warpsan.ptx.synchronising import Product

__all__ = ["BANKS", "Counters", "InstructionCount", "counted", "flops_of", "pipe_of", "wavefronts"]

BANKS = 32
"""Number of shared memory banks, each 4 bytes wide."""

_ARITHMETIC = {"add": 1, "sub": 1, "mul": 1, "fma": 2, "min": 1, "max": 1, "div": 1}
_FLOAT_TYPES = {"f16": "half", "f16x2": "half", "bf16": "half", "bf16x2": "half", "f32": "float", "f64": "double"}


def pipe_of(instruction: Instruction) -> str:
    """Execution unit of an instruction: tensor, special, float, half, integer, global, shared, ..."""
    pipe = opcode_of(instruction).pipe
    if pipe == "space":
        return next(iter(spaces_of(instruction)), "generic")
    names = (each.name for each in types_of(instruction))
    return pipe or next((_FLOAT_TYPES[name] for name in names if name in _FLOAT_TYPES), "integer")


@dataclass
class InstructionCount:
    """Counts of one instruction.

    Attributes
    ----------
    lanes, warps : int
        Executions, counted once per lane and once per warp (a lane with a false guard counts, because it was issued).
    sectors, ideal_sectors : int
        32-byte sectors of global memory touched by its warps, and the number for contiguous bytes.
    wavefronts, ideal_wavefronts : int
        128-byte passes of its shared memory accesses, and the number without bank conflicts.
    tensor_flops : int
        Multiplications and additions of a matrix instruction.
    frames : tuple of str
        ``file:line:column`` of the instruction and of the calls that inlined it, innermost first.
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
    """Counts of a whole launch; ``by_instruction`` is in code order.

    Attributes
    ----------
    tensor_flops : int
        Multiplications and additions of the matrix instructions.
    exponentials : int
        Lanes that executed ex2.
    compulsory_read_bytes, compulsory_write_bytes : int
        Bytes of the distinct 32-byte sectors of global memory read or written: the minimum DRAM traffic.
    divergence : float
        Fraction of inactive lanes among issued lanes: 0 for fully active warps.
    by_cta : list of int
        Warp instructions of each CTA by linear index, a measure of load balance.
    by_warp : list of list of int
        Executions of each instruction by the warps with one index in all CTAs: one list per index. The lists separate
        warps with different roles.
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
        """Sum of one count over all instructions, or over the instructions of a pipe."""
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
        """A line per source line (or PTX line without line information), with its instructions and costs."""
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
    """Counts of a launch from its tally."""
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
        count.tensor_flops = tensor_flops(entry, instruction) * count.warps
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


def flops_of(entry: Entry, program: Program, tally: Tally) -> int:
    """Floating-point operations of a launch, without conversions and special functions."""
    if flops_of not in entry.derived:
        code = (entry.instructions[block.first : block.first + block.size] for block in program.blocks)
        counts = [(sum(map(_lane_flops, block)), sum(tensor_flops(entry, each) for each in block)) for block in code]
        entry.derived[flops_of] = np.array(counts, np.int64)
    by_lane, by_warp = entry.derived[flops_of].T
    return int(by_lane @ tally.lanes + by_warp @ tally.warps)


def _lane_flops(instruction: Instruction) -> int:
    """Floating-point operations of one lane's execution of an instruction of the arithmetic units."""
    if instruction.opcode not in _ARITHMETIC or pipe_of(instruction) not in _FLOAT_TYPES.values():
        return 0
    return _ARITHMETIC[instruction.opcode] * types_of(instruction)[-1].lanes


def wavefronts(warp: Indices, laneid: Indices, offset: Indices, width: int) -> int:
    """128-byte passes of shared memory for one access of each lane.

    Parameters
    ----------
    warp, laneid, offset : ndarray of int64 [lanes]
        Lanes, and byte offsets in the shared memory of their CTA.
    width : int
        Bytes per lane; accesses of 4, 8 or 16 bytes take 32, 16 or 8 lanes per phase.

    Returns
    -------
    int
        Sum over phases of the most distinct words that one bank delivers.
    """
    words = max(1, width // 4)
    phase = warp * 64 + laneid // (WARP // words)
    word = offset // 4
    keys = (phase[:, None] << 24 | word[:, None] + np.arange(words)).reshape(-1)
    distinct = np.unique(keys)
    phases, place = np.unique(distinct >> 24, return_inverse=True)
    banks = np.bincount(place * BANKS + distinct % BANKS, minlength=len(phases) * BANKS)
    return int(banks.reshape(-1, BANKS).max(axis=1).sum())


def tensor_flops(entry: Entry, instruction: Instruction) -> int:
    """FLOPs of one warp's execution of a matrix instruction, from its shape: 2 * m * n * k; 0 for other instructions.

    A wgmma is the work of four warps. A tcgen05.mma counts if its instruction descriptor is a constant.
    """
    size = product_size(entry, instruction)
    if size is not None:
        return 2 * prod(size)
    form = known_form(instruction, Form)
    if not isinstance(form, WarpProduct | WmmaProduct | Product):
        return 0
    return 2 * prod(form.size) // (4 if isinstance(form, Product) else 1)
