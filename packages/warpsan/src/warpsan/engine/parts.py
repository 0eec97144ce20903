"""The parts of a warp, each a set of lanes in front of one block: machine code
(:mod:`~warpsan.engine.translate`).
"""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.layout import (
    PARKED,
    READY,
)
from warpsan.engine.memory import Path, Warp
from warpsan.engine.words import copy

__all__ = [
    "add_part",
    "begin_wait",
    "lowest_other",
    "lowest_parked",
    "lowest_ready",
    "polls",
    "pop_lanes",
    "ready_elsewhere",
]


def lowest_ready(state: Warp) -> int:
    """The lowest block that has ready lanes; -1 if there are none."""
    low = -1
    for k in range(state.path_count):
        part = state.paths[k]
        if part.status == READY:
            block = part.block
            if low < 0 or block < low:
                low = block
    return low


def lowest_parked(state: Warp) -> int:
    """The lowest block at which lanes wait for others of their warp; -1 if there are none."""
    low = -1
    for k in range(state.path_count):
        part = state.paths[k]
        if part.status == PARKED:
            block = part.block
            if low < 0 or block < low:
                low = block
    return low


def polls(context: Context, block: int) -> int:
    """Whether a block is part of a polling loop; 2 if only memory can end it."""
    return context.blocks[block].polls


def lowest_other(context: Context, state: Warp) -> int:
    """The lowest block outside polling loops that has ready lanes; -1 if there are none."""
    low = -1
    for k in range(state.path_count):
        part = state.paths[k]
        block = part.block
        if part.status == READY and polls(context, block) == 0 and (low < 0 or block < low):
            low = block
    return low


def ready_elsewhere(context: Context, state: Warp) -> int:
    """Whether lanes of a warp are ready for a block outside the polling loops that only memory can end."""
    for k in range(state.path_count):
        part = state.paths[k]
        if part.status == READY and polls(context, part.block) != 2:
            return 1
    return 0


def pop_lanes(state: Warp, block: int) -> int:
    """Remove the lanes that are ready for a block or parked there. Returns the lanes."""
    mask = 0
    left = 0
    for k in range(state.path_count):
        part = state.paths[k]
        status = part.status
        if part.block == block and status in (READY, PARKED):
            mask |= part.mask
            continue
        if left != k:
            copy(state.paths[left], part, Path.byte_size)
        left += 1
    state.path_count = left
    return mask


def add_part(state: Warp, block: int, mask: int, status: int) -> Path:
    """Lanes continue with a block, or wait at it. Returns the address of the part."""
    number = state.path_count
    part = state.paths[number]
    part.block = block
    part.mask = mask
    part.status = status
    state.path_count = number + 1
    return part


def begin_wait(context: Context, part: Path, status: int) -> None:
    """The lanes of a part wait from now on."""
    context.wait_count += 1
    part.since = context.wait_count
    part.status = status
