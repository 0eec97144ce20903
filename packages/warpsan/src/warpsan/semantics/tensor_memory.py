"""tcgen05: tensor memory and the products that accumulate there (PTX ISA, "TensorCore 5th Generation Family
Instructions"). Sparse and block-scaled products, ``.ws`` and decompressing copies are not modelled."""

from __future__ import annotations

from typing import Any

from warpsan.analysis.tensor_memory import numbers_of_loads
from warpsan.engine import layout
from warpsan.engine.assembler import Assembler, native
from warpsan.engine.lanes import WORD64, Lanes, where
from warpsan.engine.memory import TensorWords
from warpsan.engine.numeric import canonical, narrowed, widened
from warpsan.engine.operation import NativeOperation, OperationCode
from warpsan.engine.tensor_memory import (
    allocate_columns,
    fence_tensor,
    free_columns,
    load_tensor,
    look_at_loaded,
    relinquish_permit,
    store_tensor,
    wait_for_tensor,
)
from warpsan.engine.tensor_products import commit_tensor, issue_copy, issue_product
from warpsan.numerics.tensor_cores import rule_of
from warpsan.ptx.ir import Address, Immediate, Instruction, Operand, Vector
from warpsan.ptx.matrices import ELEMENTS
from warpsan.ptx.tensor_memory import (
    COPY_SHAPES,
    TensorAllocation,
    TensorCommit,
    TensorCopyIn,
    TensorFence,
    TensorMove,
    TensorPermit,
    TensorProduct,
    TensorWait,
)
from warpsan.semantics.factors import as_factor
from warpsan.semantics.integer_sums import IntegerSum
from warpsan.semantics.mbarriers import shared_address
from warpsan.semantics.sums import COLUMNS, TileSum, stacked
from warpsan.semantics.warpgroup import Numbers, loaded_chunks

__all__ = ["TURNED", "cells_at", "issue_product_of", "look_at_loads"]

_COLUMN = 4 * layout.TENSOR_LANES
"""Bytes of a column."""
_SHAPES = ("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2")
"""Shapes of moves, by their number in :mod:`warpsan.engine.tensor_memory`."""
_TYPES = {
    "kind::f16": {0: "f16", 1: "bf16"},
    "kind::tf32": {2: "tf32"},
    "kind::f8f6f4": {0: "e4m3", 1: "e5m2"},
    "kind::i8": {0: "u8", 1: "s8"},
}
"""Types of elements, by their numbers in the instruction descriptor."""
_CASTS = ("", "warpx2::02_13", "warpx2::01_23", "warpx4")


# ---- operations ------------------------------------------------------------------------------------------------------


def _fragment(kind: str, depth: int, numbers: Numbers) -> NativeOperation:
    """Cells of 16 lanes of tensor memory, from column 0 of the registers' pointer on, to factors of A [2, k, 8]."""
    each = ELEMENTS[kind]

    def build(code: OperationCode) -> None:
        b, bits = code.builder, 32 // each
        target = code.at(code.pointer("scratch"), code.operand(2))
        with code.loop(WORD64(depth // each)) as column:
            for half in range(2):
                place = b.add(b.mul(column, WORD64(_COLUMN)), WORD64(32 * half))
                words = code.load(code.at(code.registers, place), "u32", 8, align=32)
                for number in range(each):
                    element = (words >> bits * number) & (1 << bits) - 1 if each > 1 else words
                    factors = numbers.factor(element, kind)
                    k = b.add(b.mul(column, WORD64(each)), WORD64(number + half * depth))
                    b.store(factors.value, code.at(target, b.mul(k, WORD64(32))), align=32)

    return NativeOperation(f"tensor.fragment.{numbers.name}{kind}", build)


TURNED = [8 * column + row for row in range(8) for column in range(COLUMNS)]
"""The order that transposes 8 x 8 elements."""


def _sums(tile: TileSum | IntegerSum) -> NativeOperation:
    """A [16, deep] times B [deep, 8 n], added to cells of 16 lanes from the registers' pointer on. Operands are n, the
    first group of B's columns, whether the sums continue, whether the product is negated, and the power of two that
    divides the sums before."""

    def build(code: OperationCode) -> None:
        b = code.builder
        scratch = code.pointer("scratch")
        places = (layout.SCRATCH_A, layout.SCRATCH_B, layout.SCRATCH_TILE)
        left, right, room = (code.at(scratch, WORD64(place)) for place in places)
        keep, negate = (b.icmp_signed("!=", code.operand(k), WORD64(0)) for k in (2, 3))
        tile.spread(code, left)
        with code.loop(code.operand(0)) as block:
            number = b.add(block, code.operand(1))
            begin = code.at(right, b.mul(number, WORD64(32 * tile.depth)))
            cells = code.at(code.registers, b.mul(block, WORD64(_COLUMN * COLUMNS)))
            before = tuple(_read_half(code, tile.result, cells, half, keep) for half in range(2))
            totals = tile.totals(code, left, begin, (before[0], before[1]), room, negate=negate)
            for half, whole in enumerate(totals):
                _write_half(code, tile.result, whole, cells, half)

    return NativeOperation(f"tensor.product.{tile.name}", build)


def cells_at(code: OperationCode, cells: Any, half: int, column: int) -> Any:
    """A pointer to 8 cells of a column: the upper half of 16 lanes, or the lower one."""
    return code.at(cells, WORD64(_COLUMN * column + 32 * half))


def _read_half(code: OperationCode, result: str, cells: Any, half: int, keep: Any) -> Lanes:
    """Sums before a product, [8 rows, 8 columns]; 0 unless they continue."""
    type_ = "u32" if result == "f16" else result
    columns = stacked([code.load(cells_at(code, cells, half, column), type_, 8, align=32) for column in range(COLUMNS)])
    if result == "f16":
        columns = widened((columns & 0xFFFF).to("u16"), "f16")
    whole = columns.shuffled(TURNED)
    if result == "f32":
        b = code.builder
        scale = b.trunc(
            b.shl(b.sub(WORD64(127), code.operand(4)), WORD64(23)), code.constant("u32", 0).value.type.element
        )
        whole = whole * code.spread(scale, "u32", whole.count).as_type("f32")
    return where(code.all_or_none(keep, whole.count), whole, 0)


def _write_half(code: OperationCode, result: str, whole: Lanes, cells: Any, half: int) -> None:
    turned = whole.shuffled(TURNED)
    if result == "f16":
        turned = narrowed(turned, "f16").to("u32")
    elif result == "f32":
        turned = canonical(turned, "f32")
    for column in range(COLUMNS):
        part = turned.shuffled(range(8 * column, 8 * column + 8))
        code.builder.store(part.value, cells_at(code, cells, half, column), align=32)


# ---- handlers --------------------------------------------------------------------------------------------------------


def _hand(asm: Assembler, name: str, function: Any, operands: list[int]) -> None:
    asm.record(NativeOperation(name, lambda code: code.hand_over(function)), operands)


def _tensor_address(asm: Assembler, operand: Operand) -> tuple[int, int]:
    """The row of an address of tensor memory, and an offset in columns."""
    row, bits, offset = asm.address(operand)
    if bits != 32:
        raise asm.unsupported("an address of tensor memory has 32 bits")
    return row, offset


@native("tcgen05.alloc")
def _alloc(asm: Assembler, instruction: Instruction, form: TensorAllocation) -> None:
    """Allocates columns, of each CTA of a group separately, and writes their address to shared memory."""
    address, many = instruction.operands
    place = shared_address(asm, address, "shared" if form.shared else "generic")
    _hand(asm, "tcgen05.alloc", allocate_columns, [*place, asm.source(many, "u32"), instruction.pc])


@native("tcgen05.dealloc")
def _dealloc(asm: Assembler, instruction: Instruction, form: TensorAllocation) -> None:
    """Frees the columns of one allocation."""
    address, many = instruction.operands
    operands = [asm.source(address, "b32"), asm.source(many, "u32"), instruction.pc]
    _hand(asm, "tcgen05.dealloc", free_columns, operands)


@native("tcgen05.relinquish_alloc_permit")
def _relinquish(asm: Assembler, instruction: Instruction, form: TensorPermit) -> None:
    """The CTA allocates no further columns."""
    _hand(asm, "tcgen05.relinquish", relinquish_permit, [])


@native("tcgen05.ld")
def _load(asm: Assembler, instruction: Instruction, form: TensorMove) -> None:
    """A warp reads cells of its 32 lanes ("Data Movement Shape")."""
    target, address, *split = instruction.operands
    places = [asm.target(item, "b32") for item in asm.vector(target)]
    _move(asm, instruction, form, address, split, [row for row, _ in places], load_tensor)
    for _, finish in places:
        finish()


@native("tcgen05.st")
def _store(asm: Assembler, instruction: Instruction, form: TensorMove) -> None:
    """A warp writes cells of its 32 lanes."""
    address, *split, source = instruction.operands
    rows = [asm.source(item, "b32") for item in asm.vector(source)]
    _move(asm, instruction, form, address, split, rows, store_tensor)


def _move(
    asm: Assembler,
    instruction: Instruction,
    form: TensorMove,
    address: Operand,
    split: list[Operand],
    rows: list[int],
    function: Any,
) -> None:
    distance = 0
    if split:
        (given,) = split
        if not isinstance(given, Immediate):
            raise asm.unsupported("the distance of both halves is a constant")
        distance = int(given.value)
    shape = _SHAPES.index(form.shape) | form.packs << 3
    begin = len(asm.lists)
    asm.lists += rows
    number = numbers_of_loads(asm.entry).get(instruction.pc, 0)
    operands = [*_tensor_address(asm, address), begin, len(rows), shape, distance, instruction.pc, number]
    _hand(asm, form.name, function, operands)


def look_at_loads(asm: Assembler, instruction: Instruction) -> None:
    """Append the record before an instruction that may use registers of loads without a wait."""
    numbers = asm.loaded.get(instruction.pc)
    if numbers:
        asm.begin(instruction)
        begin = len(asm.lists)
        asm.lists += numbers
        _hand(asm, "tensor.registers", look_at_loaded, [begin, len(numbers)])


@native("tcgen05.wait::ld", "tcgen05.wait::st")
def _wait(asm: Assembler, instruction: Instruction, form: TensorWait) -> None:
    """All of the warp's loads, or stores, are complete. Moves are complete at once here: only the checks use it."""
    if asm.checked:
        _hand(asm, "tcgen05.wait", wait_for_tensor, [int(form.loads)])


@native("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync")
def _fence(asm: Assembler, instruction: Instruction, form: TensorFence) -> None:
    """Orders operations on tensor memory with the synchronisation of threads: only the checks use it."""
    if asm.checked:
        _hand(asm, "tcgen05.fence", fence_tensor, [int(form.before)])


@native("tcgen05.commit")
def _commit(asm: Assembler, instruction: Instruction, form: TensorCommit) -> None:
    """The thread's operations so far arrive once at an mbarrier when they are complete."""
    address, *ctas = instruction.operands
    place = shared_address(asm, address, "shared::cluster" if form.cluster else "generic")
    many = asm.source(ctas[0], "u16") if form.casts else -1
    if many >= 0:
        wide = asm.temporary(32)
        asm.resize(many, 16, wide, 32, signed=False)
        many = wide
    _hand(asm, "tcgen05.commit", commit_tensor, [*place, many, instruction.pc])


@native("tcgen05.cp")
def _copy(asm: Assembler, instruction: Instruction, form: TensorCopyIn) -> None:
    """One thread copies rows of 16 or 32 bytes from shared memory ("tcgen05.cp")."""
    address, descriptor = instruction.operands
    rows, chunks, _ = COPY_SHAPES[form.shape]
    place, source = _tensor_address(asm, address), asm.source(descriptor, "u64")
    operands = [*place, source, rows, chunks, _CASTS.index(form.casts), form.group, instruction.pc]
    _hand(asm, "tcgen05.cp", issue_copy, operands)


@native("tcgen05.mma")
def _mma(asm: Assembler, instruction: Instruction, form: TensorProduct) -> None:
    """D = A B + D, issued by one thread; the types and the shape are in a register."""
    issue_product_of(asm, instruction, form, Numbers("", as_factor, _sums))


def issue_product_of(asm: Assembler, instruction: Instruction, form: TensorProduct, numbers: Numbers) -> None:
    """Append the record of a product, in a number format.

    Raises
    ------
    UnsupportedInstruction
        For operands that are not modelled.
    """
    target, a, b, descriptor, *more = instruction.operands
    words: dict[str, Any] = dict.fromkeys(TensorWords.fields, 0)
    words["tensor"], words["tensor_offset"] = _tensor_address(asm, target)
    words["a_in_tensor"] = int(isinstance(a, Address))
    words["a"], words["a_offset"] = _tensor_address(asm, a) if isinstance(a, Address) else (asm.source(a, "u64"), 0)
    words["b"], words["descriptor"] = asm.source(b, "u64"), asm.source(descriptor, "u32")
    words["lanes"] = [-1] * 8
    if more and isinstance(more[0], Vector):
        rows = [asm.source(item, "b32") for item in asm.vector(more.pop(0))]
        if len(rows) != 4 * form.group:
            raise asm.unsupported(f"expected {4 * form.group} masks of lanes")
        words["lanes"] = rows + [-1] * (8 - len(rows))
    keep, *scale = more
    words["keep"] = asm.source(keep, "pred") | 1
    if scale:
        (given,) = scale
        if not isinstance(given, Immediate) or not 0 <= int(given.value) <= 15:
            raise asm.unsupported("scale-input-d is a constant from 0 to 15")
        words["scale"] = int(given.value)
    words["group"], words["pc"] = form.group, instruction.pc
    words |= _operations(asm, form, numbers)
    content = [word for name in TensorWords.fields for word in _listed(words[name])]
    begin = len(asm.lists)
    asm.lists += content
    _hand(asm, "tcgen05.mma", issue_product, [begin])


def _listed(word: int | list[int]) -> list[int]:
    return word if isinstance(word, list) else [word]


def _operations(asm: Assembler, form: TensorProduct, numbers: Numbers) -> dict[str, list[int]]:
    """The numbers of the operations for each type that the instruction descriptor may have."""
    types, depth = _TYPES[form.kind], form.depth
    loads, fragments, products = [-1] * 16, [-1] * 8, [-1] * 128
    for number, kind in types.items():
        for k_major in (False, True):
            if k_major or kind in ("f16", "bf16"):
                loads[2 * number + k_major] = asm.number_of(loaded_chunks(kind, k_major, numbers))
        fragments[number] = asm.number_of(_fragment(kind, depth, numbers))
        for other, kind_b in types.items():
            for result in _results(form.kind, kind, kind_b):
                if numbers.name and (result != "f32" or kind == "tf32"):
                    continue  # not modelled in a ring
                tile: TileSum | IntegerSum = IntegerSum(depth, saturates=False)
                if result != "s32":
                    rule = rule_of(asm.target_name, "tcgen05", kind, depth, result, kind_b)
                    tile = TileSum(rule, depth, result, asm.numerics)
                products[16 * number + 2 * other + (result == "f32")] = asm.number_of(numbers.product(tile))
    return {"loads": loads, "fragments": fragments, "products": products}


def _results(family: str, kind: str, kind_b: str) -> tuple[str, ...]:
    """Types of sums, by the types of the factors."""
    if family == "kind::i8":
        return ("s32",)
    if family == "kind::f16" and kind != kind_b:
        return ()
    return ("f32",) if kind in ("bf16", "tf32") else ("f16", "f32")
