"""Frames of recursive functions: machine code (:mod:`~warpsan.engine.translate`).

The rules are those of :mod:`warpsan.semantics.frames`. A warp has a stack for each call cycle: at each depth, a frame
with a row of 32 elements for each register of the functions, and for each ``.param`` variable.
"""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.layout import TOO_DEEP
from warpsan.engine.memory import Record, RecursionFrame
from warpsan.engine.words import copy, load8, load32, load64, store8, store32, store64

__all__ = ["pop_frame", "push_frame"]


def push_frame(registers: int, record: Record, mask: int, context: Context) -> int:
    """Lanes call a function of a call cycle from within it: operand 0 is the start of the frame's list. Returns a
    status."""
    frame = RecursionFrame(context.lists.at(record.operands[0]))
    depths = registers + frame.depth
    for lane in range(32):
        if mask >> lane & 1:
            depth = load32(depths + 4 * lane)
            if depth + 1 >= frame.most:
                context.ended_by = lane
                context.end_number = depth + 1
                return TOO_DEEP
            move_frame(context, registers, frame, lane, depth, 1)
            store32(depths + 4 * lane, depth + 1)
            move_variables(registers, frame, lane, frame.local)
    return 0


def pop_frame(registers: int, record: Record, mask: int, context: Context) -> int:
    """Lanes return into a call cycle; as :func:`push_frame`."""
    frame = RecursionFrame(context.lists.at(record.operands[0]))
    depths = registers + frame.depth
    for lane in range(32):
        if mask >> lane & 1:
            depth = load32(depths + 4 * lane) - 1
            store32(depths + 4 * lane, depth)
            move_frame(context, registers, frame, lane, depth, 0)
            move_variables(registers, frame, lane, -frame.local)
    return 0


def move_frame(context: Context, registers: int, frame: RecursionFrame, lane: int, depth: int, save: int) -> None:
    """Save a lane's values to the frame at a depth, or restore them."""
    place = context.stack + context.current * context.stack_bytes
    place += frame.base + depth * frame.size
    for k in range(frame.rows):
        row, size = registers + frame.items[k].row, frame.items[k].size
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
    for k in range(frame.rows, frame.rows + frame.variables):
        address, size = load64(registers + frame.items[k].row + 8 * lane), frame.items[k].size
        swap(place + size * lane, local + address, size, save)
        place += 32 * size


def swap(saved: int, used: int, size: int, save: int) -> None:
    """Copy bytes to their frame, or back."""
    if save:
        copy(saved, used, size)
    else:
        copy(used, saved, size)


def move_variables(registers: int, frame: RecursionFrame, lane: int, by: int) -> None:
    """Move the addresses of a lane's local variables to another depth."""
    first = frame.rows + frame.variables
    for k in range(first, first + frame.moving):
        row, size = registers + frame.items[k].row, frame.items[k].size
        if size == 8:
            store64(row + 8 * lane, load64(row + 8 * lane) + by)
        else:
            store32(row + 4 * lane, load32(row + 4 * lane) + by)
