"""Records of instructions whose execution is an event of a trace (:mod:`~sdpalab.sim.native.trace`)."""

from __future__ import annotations

from sdpalab.sim.ir import Instruction
from sdpalab.sim.native.assembler import Assembler, bits_of
from sdpalab.sim.native.operation import NativeOperation
from sdpalab.sim.native.operations.warpgroup import set_words, sets_used
from sdpalab.sim.native.steps import is_step, issues, step_registers
from sdpalab.sim.native.trace import trace_registers, trace_step

__all__ = ["trace_instruction"]


def trace_instruction(asm: Assembler, instruction: Instruction) -> None:
    """Append the records in front of an instruction that record that it is executed, where that orders anything, and
    that it uses registers which products may work on."""
    if not asm.traced:
        return
    if instruction.opcode != "wgmma" and any(each.opcode == "wgmma" for each in asm.entry.instructions):
        sets = sets_used(asm, instruction)
        if sets:
            asm.begin(instruction)
            operation = NativeOperation("trace.registers", lambda code: code.hand_over(trace_registers))
            asm.record(operation, [*set_words(sets), instruction.pc])
    if is_step(asm.entry, instruction):
        asm.begin(instruction)
        names = step_registers(asm.entry, instruction)
        where = len(asm.lists)
        asm.lists += [word for name in names for word in (asm.rows[name], bits_of(asm.types[name]))]
        operation = NativeOperation("trace.step", lambda code: code.hand_over(trace_step))
        asm.record(operation, [instruction.pc, where, len(names), int(issues(instruction))])
