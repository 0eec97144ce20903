"""Records of instructions whose execution is an event of a trace (:mod:`~warpsan.engine.trace`)."""

from __future__ import annotations

from warpsan.engine import layout
from warpsan.engine.access import addresses, located
from warpsan.engine.assembler import Assembler, bits_of
from warpsan.engine.communication import changes_maps
from warpsan.engine.lanes import WORD64
from warpsan.engine.operation import NativeOperation, OperationCode
from warpsan.engine.steps import is_step, issues, step_registers
from warpsan.engine.trace import trace_map, trace_step
from warpsan.host.tensor_map import ALIGNMENT, DESCRIPTOR_BYTES
from warpsan.ptx.ir import Instruction, TensorAddress

__all__ = ["trace_instruction"]


def trace_instruction(asm: Assembler, instruction: Instruction) -> None:
    """Append the records before an instruction that record its execution, if it orders accesses."""
    if not asm.traced:
        return
    box = next((each for each in instruction.operands if isinstance(each, TensorAddress)), None)
    if box is not None and changes_maps(asm.entry):
        _trace_map(asm, instruction, box)
    if is_step(asm.entry, instruction):
        asm.begin(instruction)
        names = step_registers(asm.entry, instruction)
        where = len(asm.lists)
        asm.lists += [word for name in names for word in (asm.rows[name], bits_of(asm.types[name]))]
        operation = NativeOperation("trace.step", lambda code: code.hand_over(trace_step))
        asm.record(operation, [instruction.pc, where, len(names), int(issues(instruction))])


def _trace_map(asm: Assembler, instruction: Instruction, box: TensorAddress) -> None:
    """Append the record that records the content of a tensor map when an instruction reads it."""
    asm.begin(instruction)
    row, bits, offset = asm.address(box.map)

    def build(code: OperationCode) -> None:
        b = code.builder
        place = addresses(
            code, located(code, 0, "generic", bits), "generic", DESCRIPTOR_BYTES, ALIGNMENT, reports=False
        ) - code.spread(code.context("arena"), "s64")
        b.store(place.value, code.at(code.pointer("scratch"), WORD64(layout.SCRATCH_PLACES)), align=64)
        record, context = b.ptrtoint(code.record, WORD64), b.ptrtoint(code.base, WORD64)
        b.ret(code.call(trace_map, record, b.zext(code.mask, WORD64), context))

    asm.record(NativeOperation(f"trace.map.{bits}", build), [row, offset, instruction.pc])
