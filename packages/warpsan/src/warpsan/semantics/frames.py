"""Records that save and restore the state of recursive functions (:mod:`~warpsan.engine.frames`)."""

from __future__ import annotations

from warpsan.engine.assembler import Assembler, Constant
from warpsan.engine.frames import pop_frame, push_frame
from warpsan.engine.memory import RecursionFrame
from warpsan.host.variables import circle_frames
from warpsan.ptx.ir import Function, Instruction
from warpsan.ptx.linking import function_label

__all__ = ["caller_row", "circle_of_call", "restore_frame", "save_frame"]

MOST_DEPTH = 1024
"""Maximum depth of calls of functions without local variables."""


def caller_row(asm: Assembler, name: str) -> int:
    """The row of the numbers of the calls that lanes are in."""
    row = f"{name} called from"
    if row not in asm.rows:
        asm.rows[row] = asm.allocate(32)
    return asm.rows[row]


def circle_of_call(asm: Assembler, instruction: Instruction, function: Function) -> frozenset[str] | None:
    """The call cycle that contains a call; None if it is not in one."""
    entry = asm.entry
    circle = entry.circles.get(function.name)
    begins = ((entry.labels[function_label(name)], name) for name in entry.functions)
    inside = max((begin, name) for begin, name in (*begins, (-1, "")) if begin <= instruction.pc)[1]
    return circle if circle is not None and instruction.pc < entry.start and inside in circle else None


def save_frame(asm: Assembler, circle: frozenset[str]) -> None:
    """Append the record of a call within a call cycle."""
    asm.call("frame.push", push_frame, [_frame(asm, circle)])


def restore_frame(asm: Assembler, circle: frozenset[str]) -> None:
    """Append the record of a return into a call cycle."""
    asm.call("frame.pop", pop_frame, [_frame(asm, circle)])


def _frame(asm: Assembler, circle: frozenset[str]) -> int:
    """Start of a call cycle's :class:`~warpsan.engine.memory.RecursionFrame` in the lists."""
    if circle in asm.frames:
        return asm.frames[circle]
    functions = [asm.entry.functions[name] for name in sorted(circle)]
    rows = {asm.rows[name]: asm.types[name] for each in functions for name in each.registers if name in asm.rows}
    saved = [(row, 0 if type_.kind == "pred" else type_.bytes) for row, type_ in rows.items()]
    saved += [(caller_row(asm, name), 4) for name in sorted(circle)]
    variables = [each for function in functions for each in function.variables.values()]
    passed = [
        (asm.constant(Constant("symbol", each.name, 64)), each.size) for each in variables if each.space == "param"
    ]
    moving = [
        (asm.constant(Constant("symbol", each.name, bits)), bits // 8)
        for each in variables
        if each.space == "local" and each.size
        for bits in (32, 64)
    ]
    local, most = circle_frames(asm.entry).get(circle, (0, MOST_DEPTH))
    size = 32 * sum(max(1, each) for _, each in (*saved, *passed))
    depth, base = asm.hidden(f"depth of {' '.join(sorted(circle))}", 32), asm.stack_bytes
    asm.stack_bytes += most * size
    asm.frames[circle] = len(asm.lists)
    items = [word for item in (*saved, *passed, *moving) for word in item]
    frame = {"depth": depth, "local": local, "most": most, "base": base, "size": size}
    frame |= {"rows": len(saved), "variables": len(passed), "moving": len(moving)}
    asm.lists += [*(frame[name] for name in RecursionFrame.fields if name != "items"), *items]
    return asm.frames[circle]
