"""Opcodes that integers and floating point share: the type suffix decides which family handles the instruction."""

from __future__ import annotations

from sdpalab.sim.decode import Decoder, Step, opcode
from sdpalab.sim.ir import Instruction
from sdpalab.sim.isa.floating import FLOAT_HANDLERS
from sdpalab.sim.isa.integer import INTEGER_HANDLERS
from sdpalab.sim.modifiers import Mods

__all__: list[str] = []


@opcode(*sorted(INTEGER_HANDLERS.keys() | FLOAT_HANDLERS.keys()))
def _arithmetic(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    type_ = mods.type()
    handlers = FLOAT_HANDLERS if type_.is_float else INTEGER_HANDLERS
    if instruction.opcode not in handlers:
        raise mods.unsupported(f"no such instruction for .{type_.name}")
    return handlers[instruction.opcode](decoder, instruction, mods, type_)
