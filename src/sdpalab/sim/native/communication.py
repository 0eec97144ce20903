"""Whether blocks of a launch may pass something on to each other through global memory."""

from __future__ import annotations

from sdpalab.sim.checks.orders import SAME_GPU, memory_order
from sdpalab.sim.checks.scopes import synchronises
from sdpalab.sim.ir import Entry, Instruction
from sdpalab.sim.opcodes import opcode_of, updates_memory

__all__ = ["communicates", "is_communication", "orders_blocks", "reaches_all_blocks"]


def is_communication(instruction: Instruction) -> bool:
    """Whether it is a strong access that may be to global memory."""
    if not (opcode_of(instruction).memory or updates_memory(instruction)) or not memory_order(instruction).strong:
        return False
    spaces = {mod.split("::")[0] for mod in instruction.mods} & {"global", "shared", "local", "param", "const"}
    return not spaces or "global" in spaces


def reaches_all_blocks(instruction: Instruction) -> bool:
    """Whether the scope of a strong access has all blocks in it: such accesses do not race with each other."""
    return memory_order(instruction).level >= SAME_GPU


def communicates(entry: Entry) -> bool:
    """Whether there is a strong access to global memory."""
    return any(map(is_communication, entry.instructions))


def orders_blocks(entry: Entry) -> bool:
    """Whether a block may come after another by what it reads of it."""
    return synchronises(entry) and communicates(entry)
