"""The exception with which a run of native code ends, from its status and state."""

from __future__ import annotations

from warpsan.engine import layout
from warpsan.engine.engine import NativeCode
from warpsan.engine.state import State
from warpsan.errors import SimError, UnsupportedInstruction
from warpsan.ptx.ir import Instruction
from warpsan.ptx.types import TYPES
from warpsan.report.deadlock import deadlock
from warpsan.report.endings import calls_nothing, index_beyond, too_deep, too_many_steps, trapped
from warpsan.report.hazard_log import HazardLog
from warpsan.report.places import Places

__all__ = ["ending_of"]


def ending_of(code: NativeCode, state: State, status: int, log: HazardLog) -> SimError | None:
    """The exception for the status of a run; None if there is none. ``log`` receives the hazards of a deadlock."""
    setup, place, context = code.setup, state.context.current_pc, state.context
    lane, number = context.ended_by, context.end_number
    if status == layout.STUCK:
        return deadlock(Places(setup, code.space), context, code.decoded, log)
    if status == layout.STEPS:
        return too_many_steps(setup.max_steps, setup.program.blocks[place].line)
    if status == layout.REFUSED:
        return code.decoded.refused[place].again()
    if status == layout.TRAP and state.host.failure is not None:
        return state.host.failure
    if status == layout.UNMODELLED:
        return _unmodelled(setup.entry.instructions[lane], number)
    if status not in (layout.INDEX, layout.TOO_DEEP, layout.TRAP):
        return None
    where = state.host.where(lane)
    if status == layout.TOO_DEEP:
        return too_deep(setup.entry.instructions[code.decoded.places[place]], number, *where)
    end = setup.program.blocks[place].end
    assert end is not None
    if status == layout.TRAP:
        return trapped(Places(setup, code.space), end, *where)
    return (calls_nothing if end.opcode == "call" else index_beyond)(end, number, *where)


def _unmodelled(instruction: Instruction, kind: int) -> UnsupportedInstruction:
    """The exception for an operand that is not modelled."""
    if kind == layout.NO_DESCRIPTOR:
        what = f"{instruction.text}: a matrix descriptor with a base offset"
    elif kind == layout.NO_MAP_BOX:
        what = f"{instruction.text} of swizzled boxes that are no multiple of 128 bytes"
    else:
        what = f"{instruction.text} on {TYPES[layout.COMBINED[kind]].dtype if kind >= 0 else 'these elements'}"
    return UnsupportedInstruction(f"{what} is not modelled", instruction.line)
