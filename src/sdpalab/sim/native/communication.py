"""Whether blocks of a launch may pass something on to each other through global memory."""

from __future__ import annotations

from sdpalab.sim.checks.orders import SAME_GPU, is_communication, memory_order
from sdpalab.sim.checks.scopes import synchronises
from sdpalab.sim.ir import Entry, Instruction

__all__ = ["communicates", "orders_blocks", "reaches_all_blocks"]


def reaches_all_blocks(instruction: Instruction) -> bool:
    """Whether the scope of a strong access has all blocks in it: such accesses do not race with each other."""
    return memory_order(instruction).level >= SAME_GPU


def communicates(entry: Entry) -> bool:
    """Whether there is a strong access to global memory."""
    return any(map(is_communication, entry.instructions))


def orders_blocks(entry: Entry) -> bool:
    """Whether a block may come after another by what it reads of it."""
    return synchronises(entry) and communicates(entry)
