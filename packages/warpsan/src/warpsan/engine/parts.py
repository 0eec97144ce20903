"""The parts of a warp, each a set of lanes in front of one block: machine code
(:mod:`~warpsan.engine.translate`).
"""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.layout import (
    BLOCK_WORDS,
    FIRST_PART,
    PARKED,
    PART_BLOCK,
    PART_MASK,
    PART_STATUS,
    PART_WORDS,
    PARTS,
    POLLS,
    READY,
)
from warpsan.engine.words import load32, load64, store64

__all__ = ["add_part", "lowest_other", "lowest_parked", "lowest_ready", "polls", "ready_elsewhere", "take"]


def lowest_ready(state: int) -> int:
    """The lowest block that has ready lanes; -1 if there are none."""
    low = -1
    for k in range(load64(state + 8 * PARTS)):
        part = state + 8 * (FIRST_PART + PART_WORDS * k)
        if load64(part + 8 * PART_STATUS) == READY:
            block = load64(part + 8 * PART_BLOCK)
            if low < 0 or block < low:
                low = block
    return low


def lowest_parked(state: int) -> int:
    """The lowest block at which lanes wait for others of their warp; -1 if there are none."""
    low = -1
    for k in range(load64(state + 8 * PARTS)):
        part = state + 8 * (FIRST_PART + PART_WORDS * k)
        if load64(part + 8 * PART_STATUS) == PARKED:
            block = load64(part + 8 * PART_BLOCK)
            if low < 0 or block < low:
                low = block
    return low


def polls(context: Context, block: int) -> int:
    """Whether a block is part of a polling loop; 2 if only memory can end it."""
    return load32(context.blocks + 4 * (BLOCK_WORDS * block + POLLS))


def lowest_other(context: Context, state: int) -> int:
    """The lowest block outside polling loops that has ready lanes; -1 if there are none."""
    low = -1
    for k in range(load64(state + 8 * PARTS)):
        part = state + 8 * (FIRST_PART + PART_WORDS * k)
        block = load64(part + 8 * PART_BLOCK)
        if load64(part + 8 * PART_STATUS) == READY and polls(context, block) == 0 and (low < 0 or block < low):
            low = block
    return low


def ready_elsewhere(context: Context, state: int) -> int:
    """Whether lanes of a warp are ready for a block outside the polling loops that only memory can end."""
    for k in range(load64(state + 8 * PARTS)):
        part = state + 8 * (FIRST_PART + PART_WORDS * k)
        if load64(part + 8 * PART_STATUS) == READY and polls(context, load64(part + 8 * PART_BLOCK)) != 2:
            return 1
    return 0


def take(state: int, block: int) -> int:
    """Remove the lanes that are ready for a block or parked there. Returns the lanes."""
    mask = 0
    left = 0
    for k in range(load64(state + 8 * PARTS)):
        part = state + 8 * (FIRST_PART + PART_WORDS * k)
        status = load64(part + 8 * PART_STATUS)
        if load64(part + 8 * PART_BLOCK) == block and status in (READY, PARKED):
            mask |= load64(part + 8 * PART_MASK)
            continue
        if left != k:
            to = state + 8 * (FIRST_PART + PART_WORDS * left)
            for word in range(PART_WORDS):
                store64(to + 8 * word, load64(part + 8 * word))
        left += 1
    store64(state + 8 * PARTS, left)
    return mask


def add_part(state: int, block: int, mask: int, status: int) -> int:
    """Lanes continue with a block, or wait at it. Returns the address of the part."""
    number = load64(state + 8 * PARTS)
    part = state + 8 * (FIRST_PART + PART_WORDS * number)
    store64(part + 8 * PART_BLOCK, block)
    store64(part + 8 * PART_MASK, mask)
    store64(part + 8 * PART_STATUS, status)
    store64(state + 8 * PARTS, number + 1)
    return part
