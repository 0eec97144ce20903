"""Asynchronous reductions: of bulk copies into global memory (PTX ISA, "cp.reduce.async.bulk",
"cp.reduce.async.bulk.tensor"), and of words into the shared memory of a cluster ("red.async"). They are copies whose
elements are combined with the stored ones."""

from __future__ import annotations

from warpsan.engine import layout
from warpsan.engine.assembler import Assembler, native
from warpsan.engine.lanes import WORD64
from warpsan.engine.operation import NativeOperation, OperationCode
from warpsan.engine.transfers import copy_within, store_box, store_bytes, store_words
from warpsan.ptx.ir import Instruction
from warpsan.ptx.synchronising import AsyncReduction, BulkReduction, TensorReduction
from warpsan.ptx.types import TYPES, PtxType
from warpsan.semantics.atomic import update_of
from warpsan.semantics.bulk import box_operands, bytes_operands
from warpsan.semantics.floating import is_half
from warpsan.semantics.mbarriers import shared_address
from warpsan.semantics.move import without_policy

__all__: list[str] = []


def _exists(asm: Assembler, name: str, type_: PtxType) -> bool:
    """Whether a reduction supports a type."""
    if type_.is_float and name != "add":
        return is_half(type_) and name in ("min", "max") and asm.float_sum(type_) is None
    return type_.lanes == 1 and type_.bytes > 1


def _combination(asm: Assembler, name: str, type_: PtxType) -> NativeOperation:
    """The operation that combines elements: its registers are their place in global memory, its record is the place
    of the others, and its mask is their number."""

    ring = asm.float_sum(type_) if type_.is_float else None

    def build(code: OperationCode) -> None:
        b = code.builder
        held, function = ring or update_of(name, type_, lambda without, plain: without)
        with code.loop(b.zext(code.mask, WORD64)) as number:
            offset = b.mul(number, WORD64(type_.bytes))
            place, other = code.at(code.registers, offset), code.at(code.record, offset)
            old, given = (code.load(each, held, 1, align=type_.bytes) for each in (place, other))
            b.store(function(old, given).value, place, align=type_.bytes)

    return NativeOperation(f"combine.{name}.{type_.name}{asm.suffix if ring else ''}", build)


@native("cp.reduce.async.bulk")
def _bytes(asm: Assembler, instruction: Instruction, form: BulkReduction) -> None:
    """One lane combines many bytes with those in global memory, or in the shared memory of another CTA."""
    operands, within = without_policy(asm, instruction, form.hint), form.way[0] != "global"
    name, type_ = form.combination
    if not _exists(asm, name, type_):
        raise asm.unsupported(f".{name} on .{type_.name} is not modelled")
    combine = type_.bytes << 16 | asm.number_of(_combination(asm, name, type_)) + 1
    words = bytes_operands(asm, instruction, operands, form.way, combine)
    operation, function = ("red.shared::cluster.bulk", copy_within) if within else ("bulk.store", store_bytes)
    asm.call(operation, function, words)


@native("red.async")
def _words(asm: Assembler, instruction: Instruction, form: AsyncReduction) -> None:
    """An atomic update whose bytes an mbarrier counts."""
    type_ = form.type
    source = asm.source(instruction.operands[1], f"b{type_.bits}")
    place = shared_address(asm, instruction.operands[0], "shared::cluster")
    mbarrier = shared_address(asm, instruction.operands[2], "shared::cluster")
    combine = type_.bytes << 16 | asm.number_of(_combination(asm, form.operation, type_)) + 1
    words = [*place, *mbarrier, type_.bytes, 1, instruction.pc, combine, source]
    asm.record(NativeOperation("red.shared::cluster.async", lambda code: code.hand_over(store_words)), words)


@native("cp.reduce.async.bulk.tensor")
def _box(asm: Assembler, instruction: Instruction, form: TensorReduction) -> None:
    """One lane combines a box with that of a tensor, in tile mode. The type is the tensor map's."""
    name, operands = form.operation, without_policy(asm, instruction, form.hint)
    kinds = [TYPES[each] for each in layout.COMBINED]
    numbers = [asm.number_of(_combination(asm, name, each)) + 1 if _exists(asm, name, each) else 0 for each in kinds]
    begin = len(asm.lists)
    asm.lists += numbers
    words = box_operands(asm, instruction, form, operands, begin)
    asm.call("tensor.store", store_box, words)
