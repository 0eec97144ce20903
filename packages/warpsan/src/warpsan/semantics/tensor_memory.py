"""tcgen05: tensor memory and the products that accumulate there (PTX ISA, "TensorCore 5th Generation Family
Instructions"). Sparse products, ``.ws`` and decompressing copies are not modelled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from warpsan.analysis.tensor_memory import numbers_of_loads, product_descriptors
from warpsan.engine import layout
from warpsan.engine.assembler import Assembler, native
from warpsan.engine.lanes import POINTER, WORD64, Lanes, where
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
from warpsan.numerics.tensor_cores import EMIN, rule_of
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
from warpsan.semantics.factors import NARROW, as_factor, by_word, small_float
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
    "kind::f8f6f4": {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"},
    "kind::i8": {0: "u8", 1: "s8"},
    "kind::mxf8f6f4": {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"},
    "kind::mxf4": {1: "e2m1"},
    "kind::mxf4nvf4": {1: "e2m1"},
}
"""Types of elements, by their numbers in the instruction descriptor."""
_SUMS = ("f16", "f32", "s32", "")
"""Types of sums, by their numbers in the instruction descriptor."""
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


def _narrow_chunks(kind: str, dense: bool) -> NativeOperation:
    """Chunks of elements of four or six bits to factors [outer, k, 8]; operands as for
    :func:`~warpsan.semantics.warpgroup.loaded_chunks`, and the half along K. A chunk has 16 elements, without gaps
    between them; or 32 (``dense``), and only the chunks of one half are read (PTX ISA, "Packing formats")."""
    bits, many = (4 if kind == "e2m1" else 6), 32 if dense else 16

    def build(code: OperationCode) -> None:
        b = code.builder
        scratch = code.pointer("scratch")
        places = code.at(scratch, b.add(WORD64(layout.SCRATCH_CHUNKS), code.operand(1)))
        target = code.at(scratch, code.operand(2))
        with code.loop(code.operand(0) if dense else b.mul(code.operand(0), WORD64(2))) as number:
            part = b.add(b.mul(number, WORD64(2)), code.operand(3)) if dense else number
            lines = []
            for line in range(8):
                place = b.load(code.at(places, b.add(b.mul(part, WORD64(64)), WORD64(8 * line))), typ=WORD64)
                lines.append(code.load(b.inttoptr(place, POINTER), "u32", 4, align=16))
            words = by_word(stacked(lines))
            by_line = [words.shuffled(range(8 * word, 8 * word + 8)) for word in range(4)]
            begin = code.at(target, b.mul(number, WORD64(32 * many)))
            for k in range(many):
                word, shift = divmod(bits * k, 32)
                element = by_line[word] >> shift
                if shift + bits > 32:
                    element = element | by_line[word + 1] << 32 - shift
                factors = small_float(element & (1 << bits) - 1, kind)
                b.store(factors.value, code.at(begin, WORD64(32 * k)), align=32)

    return NativeOperation(f"tensor.load.{kind}{'.dense' * dense}", build)


def _scaled(kind: str) -> NativeOperation:
    """Multiply factors [k, 8] in the scratch by scales in 8 cells from the registers' pointer on. Operands are the
    factors' place, the first byte of a cell, the number of scales, and K of each."""

    def build(code: OperationCode) -> None:
        b = code.builder
        factors = code.at(code.pointer("scratch"), code.operand(0))
        cells = code.load(code.registers, "u32", 8, align=32)
        word = code.constant("u32", 0).value.type.element
        with code.loop(code.operand(2)) as number:
            shift = b.trunc(b.mul(b.add(code.operand(1), number), WORD64(8)), word)
            byte = (cells >> code.spread(shift, "u32", 8)) & 0xFF
            if kind == "ue8m0":
                scale = where(byte == 0, byte.like(1 << 22), byte << 23).as_type("f32")
            else:
                scale = as_factor(byte & 0x7F, "e4m3")
            begin = code.at(factors, b.mul(b.mul(number, code.operand(3)), WORD64(32)))
            with code.loop(code.operand(3)) as k:
                place = code.at(begin, b.mul(k, WORD64(32)))
                b.store((code.load(place, "f32", 8, align=32) * scale).value, place, align=32)

    return NativeOperation(f"tensor.scale.{kind}", build)


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
    if form.scales:
        if len(more) < 3:
            raise asm.unsupported("expected the addresses of the scales of A and B")
        words["scale_a"], words["scale_a_offset"] = _tensor_address(asm, more.pop(0))
        words["scale_b"], words["scale_b_offset"] = _tensor_address(asm, more.pop(0))
        words["scaling"] = [asm.number_of(_scaled(kind)) for kind in ("ue4m3", "ue8m0")]
    else:
        words["scaling"] = [-1, -1]
    words["scales"], words["halves"] = form.scales, form.depth // 32 or 1
    keep, *scale = more
    words["keep"] = asm.source(keep, "pred") | 1
    if scale:
        (given,) = scale
        if not isinstance(given, Immediate) or not 0 <= int(given.value) <= 15:
            raise asm.unsupported("scale-input-d is a constant from 0 to 15")
        words["scale"] = int(given.value)
    words["group"], words["pc"] = form.group, instruction.pc
    words |= _operations(asm, instruction, form, numbers)
    content = [word for name in TensorWords.fields for word in _listed(words[name])]
    begin = len(asm.lists)
    asm.lists += content
    _hand(asm, "tcgen05.mma", issue_product, [begin])


def _listed(word: int | list[int]) -> list[int]:
    return word if isinstance(word, list) else [word]


def _operations(
    asm: Assembler, instruction: Instruction, form: TensorProduct, numbers: Numbers
) -> dict[str, list[int]]:
    """The numbers of the operations for each type that the instruction descriptor may have; types of four and six bits
    only if it is a constant."""
    value = product_descriptors(asm.entry).get(instruction.pc)
    types, depth = _TYPES[form.kind], min(form.depth, 32)
    of_a, of_b = (
        {number: kind for number, kind in types.items() if kind not in NARROW or form.depth == 64}
        if value is None
        else {value >> shift & 7: types[value >> shift & 7]}
        if value >> shift & 7 in types
        else {}
        for shift in (7, 10)
    )
    loads, fragments, products = [-1] * 16, [-1] * 8, [-1] * 128
    for number, kind in {**of_a, **of_b}.items():
        if kind in NARROW:
            loads[2 * number + 1] = asm.number_of(_narrow_chunks(kind, form.depth == 64))
            continue
        for k_major in (False, True):
            if k_major or kind in ("f16", "bf16"):
                loads[2 * number + k_major] = asm.number_of(loaded_chunks(kind, k_major, numbers))
        fragments[number] = asm.number_of(_fragment(kind, depth, numbers))
    for number, kind in of_a.items():
        for other, kind_b in of_b.items():
            for result in _results(form, kind, kind_b):
                if numbers.name and (result != "f32" or kind == "tf32" or form.scales):
                    continue  # not modelled in a ring
                if value is not None and not form.scales and _SUMS[value >> 4 & 3] != result:
                    continue
                tile: TileSum | IntegerSum = IntegerSum(depth, saturates=False)
                if result != "s32":
                    rule = rule_of(asm.target_name, "tcgen05", kind, depth, result, kind_b)
                    if form.scales:  # a factor is an element with its scale
                        rule = replace(rule, least=(EMIN["f32"], EMIN["f32"]))
                    tile = TileSum(rule, depth, result, asm.numerics)
                wide = result == "f32" and not form.scales
                products[16 * number + 2 * other + wide] = asm.number_of(numbers.product(tile))
    return {"loads": loads, "fragments": fragments, "products": products}


def _results(form: TensorProduct, kind: str, kind_b: str) -> tuple[str, ...]:
    """Types of sums, by the types of the factors."""
    if form.kind == "kind::i8":
        return ("s32",)
    if form.kind == "kind::f16" and kind != kind_b:
        return ()
    return ("f32",) if kind in ("bf16", "tf32") or form.scales else ("f16", "f32")
