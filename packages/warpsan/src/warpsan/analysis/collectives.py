"""Warp-wide instructions: which they are, and which lanes of a warp each must have together.

A thread waits at one until all threads that its member mask names have come, or exited (PTX ISA, "vote.sync",
"shfl.sync", ...); the matrix instructions need the whole warp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from warpsan.analysis.fusion import registers_written
from warpsan.engine.selection import WARP, Array, Indices, Mask
from warpsan.ptx.ir import Immediate, Instruction, Operand, Register
from warpsan.ptx.opcodes import opcode_of

__all__ = [
    "LEAVES_OUT",
    "MEMBER_MASK",
    "NAMES_ABSENT",
    "PARTIAL_WARP",
    "is_collective",
    "meets_at_barrier",
    "member_mask",
    "pack_warps",
    "warp_words",
]


PARTIAL_WARP = "{} needs all 32 lanes of a warp"
MEMBER_MASK = "the member mask {1:#010x}"
NAMES_ABSENT = "names threads {2:#010x} too"
LEAVES_OUT = "leaves out a thread that executes this"
"""What hazards say of missing lanes: of the opcode, a member mask, and the lanes that are missing of it."""


def is_collective(instruction: Instruction) -> bool:
    """Whether an instruction needs lanes of a warp together; ``bar.warp.sync`` has a member mask, too."""
    return opcode_of(instruction).lanes != "each" or instruction.mods[:1] == ("warp",)


def meets_at_barrier(instruction: Instruction) -> bool:
    """Whether a warp comes to a barrier of its CTA as a whole, and is counted once.

    All threads of a warp execute the same ``.aligned`` one, and a number of threads is one of whole warps (PTX ISA,
    "bar, barrier"). Lanes that are late, such as an elected one that has waited for an mbarrier, are waited for.
    Without a number each thread counts for itself.
    """
    mods = instruction.mods
    aligned = instruction.opcode == "bar" or (instruction.opcode == "barrier" and "aligned" in mods)
    operands = len(instruction.operands) - (2 if "red" in mods else 0)
    return aligned and operands > 1 and not {"warp", "cluster"} & set(mods)


def member_mask(body: Sequence[Instruction]) -> tuple[Instruction, Operand] | None:
    """The member mask of all the warp-wide instructions in straight-line code, and the first of these instructions.

    None where there is not one mask for all, or it is not known before the code runs: then they need the whole warp.
    """
    first: tuple[Instruction, Operand] | None = None
    written: set[str] = set()
    constants: dict[str, Immediate] = {}
    for instruction in body:
        if is_collective(instruction):
            if opcode_of(instruction).lanes == "warp" or not instruction.operands:
                return None
            mask = instruction.operands[-1]
            if isinstance(mask, Register) and mask.name in written:
                if mask.name not in constants:
                    return None
                mask = constants[mask.name]
            if first is not None and first[1] != mask:
                return None
            first = first or (instruction, mask)
        names = registers_written(instruction)
        written.update(names)
        for name in names:
            constants.pop(name, None)
        if instruction.opcode == "mov" and instruction.guard is None and len(instruction.operands) == 2:
            target, value = instruction.operands
            if isinstance(target, Register) and isinstance(value, Immediate):
                constants[target.name] = value
    return first


def warp_words(lanes: Indices, count: int, flags: Mask | None = None) -> Array:
    """For every warp of ``count`` lanes a word with the bits of ``lanes`` set, or of those whose flag is."""
    bits = np.zeros(count, dtype=np.bool_)
    bits[lanes] = True if flags is None else flags
    return pack_warps(bits)


def pack_warps(bits: Mask) -> Array:
    """Booleans by warp, any shape that ends in 32 or is flat, as one word a warp."""
    return np.packbits(bits.reshape(-1, WARP), axis=1, bitorder="little").view(np.uint32)[:, 0]
