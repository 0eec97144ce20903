"""Tensor maps that a kernel changes: tensormap.replace, and the copy of one with a fence (PTX ISA, "tensormap.replace",
"tensormap.cp_fenceproxy"). The race check reports missing fences.

Copies of boxes read such maps at issue (:mod:`~warpsan.engine.host`).
"""

from __future__ import annotations

from warpsan.checks.orders import LEVELS, SAME_GPU
from warpsan.engine.access import addresses, located
from warpsan.engine.assembler import Assembler, native
from warpsan.engine.map_fences import fence_maps
from warpsan.engine.operation import NativeOperation, OperationCode
from warpsan.host.tensor_map import ALIGNMENT, BYTE_STRIDES, CHUNK, DESCRIPTOR_BYTES
from warpsan.ptx.accesses import MapChange
from warpsan.ptx.ir import Immediate, Instruction, Operand
from warpsan.ptx.synchronising import TensorMapCopy
from warpsan.semantics.move import load_operation, store_operation
from warpsan.semantics.watched import watch_access

__all__: list[str] = []


@native("tensormap.replace")
def _replace(asm: Assembler, instruction: Instruction, form: MapChange) -> None:
    """Each lane sets a field of the map at its address."""
    field, space, (begin, width, many) = form.field, form.space, form.place
    operands = list(instruction.operands)
    number = operands.pop(1) if many > 1 else Immediate(0)
    assert isinstance(number, Immediate)
    value = asm.source(operands[1], f"b{8 * width}")
    if field == "global_stride" and asm.version < BYTE_STRIDES:
        scaled = asm.temporary(64)
        asm.lanewise("tensormap.stride", lambda x: x << 4, [scaled], [value], ["b64"], ["b64"])
        value = scaled
    row, bits, offset = _map(asm, operands[0], space)
    place = offset + begin + width * int(number.value)
    if asm.watched:
        watch_access(asm, instruction, space, row, bits, place, width, "store", written=(width, (value,)))
    asm.record(store_operation(space, bits, 8 * width, 1, asm.checked), [row, place, value])


@native("tensormap.cp_fenceproxy")
def _copy(asm: Assembler, instruction: Instruction, form: TensorMapCopy) -> None:
    """The first of a warp's lanes copies a map from shared to global memory."""
    target, source, _ = instruction.operands
    guard, leader = asm.guard, asm.temporary(1)
    asm.guard = 0  # no lane with a true guard: no leader
    asm.lanewise("mov.pred", lambda x: x, [leader], [asm.source(Immediate(0), "pred")], ["pred"], ["pred"])
    asm.guard = guard
    asm.record(NativeOperation("leader", _first_lane), [leader])
    asm.guard = leader | 1
    origin, goal = _map(asm, source, "shared"), _map(asm, target, "global")
    words = [asm.temporary(32) for _ in range(CHUNK // 4)]
    for begin in range(0, DESCRIPTOR_BYTES, CHUNK):
        for (row, bits, offset), space, does in ((origin, "shared", "load"), (goal, "global", "store")):
            if asm.watched:
                written = (4, words) if does == "store" else (0, ())
                watch_access(asm, instruction, space, row, bits, offset + begin, CHUNK, does, written=written)
            operation = (
                load_operation(space, bits, 32, len(words))
                if does == "load"
                else store_operation(space, bits, 32, len(words), asm.checked)
            )
            asm.record(operation, [row, offset + begin, *words])
    asm.guard = guard
    if asm.checked:
        operands = [0, 0, min(LEVELS[form.scope], SAME_GPU), 0]
        asm.call("fence.maps", fence_maps, operands)


def _first_lane(code: OperationCode) -> None:
    b = code.builder
    b.store(b.and_(code.mask, b.neg(code.mask)), code.row(0), align=4)


def _map(asm: Assembler, operand: Operand, space: str) -> tuple[int, int, int]:
    """The record that checks the addresses of tensor maps, and their row, bits and offset."""
    row, bits, offset = asm.address(operand)

    def build(code: OperationCode) -> None:
        addresses(code, located(code, 0, space, bits), space, DESCRIPTOR_BYTES, ALIGNMENT)

    asm.record(NativeOperation(f"map.{space}.{bits}", build), [row, offset])
    return row, bits, offset
