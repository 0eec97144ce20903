"""Warp-wide instructions, and the lanes of a warp that must execute each one together.

A thread waits at such an instruction until all threads in its member mask have arrived or exited (PTX ISA, "vote.sync",
"shfl.sync", ...); matrix instructions need the whole warp.
"""

from __future__ import annotations

from collections.abc import Sequence

from warpsan.analysis.fusion import registers_written
from warpsan.ptx.grammar import Form, known_form
from warpsan.ptx.ir import Immediate, Instruction, Operand, Register
from warpsan.ptx.opcodes import is_warp_barrier, opcode_of
from warpsan.ptx.synchronising import BarrierReduction, BlockBarrier

__all__ = [
    "is_collective",
    "meets_at_barrier",
    "member_mask",
]


def is_collective(instruction: Instruction) -> bool:
    """Whether an instruction needs lanes of a warp together; ``bar.warp.sync`` also has a member mask."""
    return opcode_of(instruction).lanes != "each" or is_warp_barrier(instruction)


def meets_at_barrier(instruction: Instruction) -> bool:
    """Whether a warp arrives at a barrier of its CTA as a whole, and counts once.

    All threads of a warp execute the same ``.aligned`` barrier, and a thread count is a multiple of the warp size (PTX
    ISA, "bar, barrier"). The barrier waits for late lanes, such as an elected lane after an mbarrier wait. Without a
    thread count each thread counts separately.
    """
    form = known_form(instruction, Form)
    if not isinstance(form, BlockBarrier | BarrierReduction):
        return False
    return form.aligned and len(instruction.operands) - (2 if isinstance(form, BarrierReduction) else 0) > 1


def member_mask(body: Sequence[Instruction]) -> tuple[Instruction, Operand] | None:
    """The common member mask of the warp-wide instructions in straight-line code, and the first of these instructions.

    None if the masks differ or are unknown before execution: the instructions then need the whole warp.
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
