"""Frames of recursive functions: machine code (:mod:`~warpsan.engine.translate`).

The rules are those of :mod:`warpsan.semantics.frames`. A warp has a stack for each call cycle: at each depth, a frame
with a row of 32 elements for each register of the functions, and for each ``.param`` variable.
"""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.layout import (
    FRAME_BASE,
    FRAME_BYTES,
    FRAME_DEPTH,
    FRAME_ITEMS,
    FRAME_LOCAL,
    FRAME_MOST,
    FRAME_MOVING,
    FRAME_ROWS,
    FRAME_VARIABLES,
    TOO_DEEP,
)
from warpsan.engine.memory import Record
from warpsan.engine.structs import Ptr, i32
from warpsan.engine.words import copy, load8, load32, load64, store8, store32, store64

__all__ = ["pop_frame", "push_frame"]


def push_frame(registers: int, record: Record, mask: int, context: Context) -> int:
    """Lanes call a function of a call cycle from within it: operand 0 is the start of the frame's list. Returns a
    status."""
    frame = context.lists.at(record.operands[0])
    depths = registers + frame[FRAME_DEPTH]
    for lane in range(32):
        if mask >> lane & 1:
            depth = load32(depths + 4 * lane)
            if depth + 1 >= frame[FRAME_MOST]:
                context.ended_by = lane
                context.end_number = depth + 1
                return TOO_DEEP
            move_frame(context, registers, frame, lane, depth, 1)
            store32(depths + 4 * lane, depth + 1)
            move_variables(registers, frame, lane, frame[FRAME_LOCAL])
    return 0


def pop_frame(registers: int, record: Record, mask: int, context: Context) -> int:
    """Lanes return into a call cycle; as :func:`push_frame`."""
    frame = context.lists.at(record.operands[0])
    depths = registers + frame[FRAME_DEPTH]
    for lane in range(32):
        if mask >> lane & 1:
            depth = load32(depths + 4 * lane) - 1
            store32(depths + 4 * lane, depth)
            move_frame(context, registers, frame, lane, depth, 0)
            move_variables(registers, frame, lane, -frame[FRAME_LOCAL])
    return 0


def move_frame(context: Context, registers: int, frame: Ptr[i32], lane: int, depth: int, save: int) -> None:
    """Save a lane's values to the frame at a depth, or restore them."""
    place = context.stack + context.current * context.stack_bytes
    place += frame[FRAME_BASE] + depth * frame[FRAME_BYTES]
    item = frame.at(FRAME_ITEMS)
    for _ in range(frame[FRAME_ROWS]):
        row, size = registers + item[0], item[1]
        item = item.at(2)
        if size == 0:  # a predicate
            if save:
                store8(place + lane, load32(row) >> lane & 1)
            else:
                store32(row, load32(row) & ~(1 << lane) | load8(place + lane) << lane)
            place += 32
        else:
            swap(place + size * lane, row + size * lane, size, save)
            place += 32 * size
    local = context.current_local + lane * context.local_stride
    for _ in range(frame[FRAME_VARIABLES]):
        address, size = load64(registers + item[0] + 8 * lane), item[1]
        item = item.at(2)
        swap(place + size * lane, local + address, size, save)
        place += 32 * size


def swap(saved: int, used: int, size: int, save: int) -> None:
    """Copy bytes to their frame, or back."""
    if save:
        copy(saved, used, size)
    else:
        copy(used, saved, size)


def move_variables(registers: int, frame: Ptr[i32], lane: int, by: int) -> None:
    """Move the addresses of a lane's local variables to another depth."""
    item = frame.at(FRAME_ITEMS + 2 * (frame[FRAME_ROWS] + frame[FRAME_VARIABLES]))
    for _ in range(frame[FRAME_MOVING]):
        row, size = registers + item[0], item[1]
        item = item.at(2)
        if size == 8:
            store64(row + 8 * lane, load64(row + 8 * lane) + by)
        else:
            store32(row + 4 * lane, load32(row + 4 * lane) + by)
