"""Warp-level matrices: ldmatrix, stmatrix, movmatrix, mma.sync (PTX ISA, "Warp Level Matrix Multiply-Accumulate").
Sparse products and matrices of 8-bit elements are not modelled.

Sums follow the rule of the architecture (:mod:`warpsan.numerics.tensor_cores`), or are in float32
(:mod:`~warpsan.semantics.sums`); integer sums are exact, and f64 sums are a chain of fma from C.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from warpsan.analysis.fusion import MmaGroup
from warpsan.engine import layout
from warpsan.engine.access import addresses, located
from warpsan.engine.assembler import Assembler, native
from warpsan.engine.lanes import BYTE, POINTER, WORD32, WORD64, Lanes
from warpsan.engine.layout import WARP
from warpsan.engine.numeric import canonical, widened
from warpsan.engine.operation import NativeOperation, OperationCode
from warpsan.numerics.tensor_cores import rule_of
from warpsan.ptx.accesses import MatrixAccess
from warpsan.ptx.grammar import Form, form_of
from warpsan.ptx.ir import Instruction
from warpsan.ptx.matrices import ELEMENTS, WarpProduct
from warpsan.semantics.factors import Factor, as_factor, store_fragments
from warpsan.semantics.integer_sums import IntegerSum
from warpsan.semantics.sums import ALTERNATING, TileSum, stacked, store_half
from warpsan.semantics.warp import needs_whole_warp
from warpsan.semantics.watched import check_step, watch_access

__all__ = ["product_operation", "product_records", "store_operands"]

_TRANSPOSED = [8 * (k % 8) + k // 8 for k in range(64)]
"""The order of an 8 x 8 matrix's elements that transposes it."""


# ---- matrices between memory and registers ---------------------------------------------------------------------------


def _row_pointers(code: OperationCode, place: Lanes) -> list[object]:
    b = code.builder
    return [b.inttoptr(b.extract_element(place.value, WORD32(lane)), POINTER) for lane in range(WARP)]


def _pointed(code: OperationCode, number: int, space: str, bits: int, *, reads: bool) -> Lanes:
    """Places of the rows of ``number`` matrices: the lanes from 8 i on have the addresses of matrix i."""
    needs_whole_warp(code)
    if number < 4:  # the addresses of other lanes are not used
        code.mask = WORD32((1 << 8 * number) - 1)
    return addresses(code, located(code, 0, space, bits), space, 16, reads=reads)


@native("ldmatrix")
def _ldmatrix(asm: Assembler, instruction: Instruction, form: MatrixAccess) -> None:
    number, trans, space = form.number, form.trans, form.space
    target, address = instruction.operands
    items = asm.vector(target)
    row, bits, offset = asm.address(address)
    if asm.watched:
        watch_access(asm, instruction, space, row, bits, offset, 16, "load", 8 * number)

    def build(code: OperationCode) -> None:
        b = code.builder
        pointers = _row_pointers(code, _pointed(code, number, space, bits, reads=True))
        line = ir.VectorType(BYTE, 16)
        lines = [b.load(pointer, typ=line, align=16) for pointer in pointers[: 8 * number]]
        for k in range(number):
            whole = _joined(code, lines[8 * k : 8 * k + 8]).as_type("u16")
            matrix = whole.shuffled(_TRANSPOSED) if trans else whole
            b.store(matrix.value, code.row(2 + k), align=64)

    places = [asm.target(item, "b32") for item in items]
    name = f"ldmatrix.x{number}{'.trans' * trans}.{space}.{bits}"
    asm.record(NativeOperation(name, build), [row, offset, *(place for place, _ in places)])


def _joined(code: OperationCode, lines: Sequence[object]) -> Lanes:
    """Concatenate vectors of bytes."""
    return stacked([Lanes(code.builder, line, "u8") for line in lines])


@native("stmatrix")
def _stmatrix(asm: Assembler, instruction: Instruction, form: MatrixAccess) -> None:
    number, trans, space = form.number, form.trans, form.space
    address, source = instruction.operands
    items = asm.vector(source)
    sources = [asm.source(item, "b32") for item in items]
    row, bits, offset = asm.address(address)
    if asm.watched:
        written = (layout.TRANSPOSED_ROWS if trans else layout.MATRIX_ROWS, sources)
        watch_access(asm, instruction, space, row, bits, offset, 16, "store", 8 * number, written=written)

    def build(code: OperationCode) -> None:
        b = code.builder
        pointers = _row_pointers(code, _pointed(code, number, space, bits, reads=False))
        parts: list[Lanes] = []
        for k in range(number):
            whole = code.source(2 + k, "u16", 64)
            whole = (whole.shuffled(_TRANSPOSED) if trans else whole).as_type("u8")
            for line in range(8):
                part = whole.shuffled(range(16 * line, 16 * line + 16))
                b.store(part.value, pointers[8 * k + line], align=16)
                parts.append(part)
        if asm.checked:
            code.mask, differ = b.and_(code.mask, WORD32((1 << 8 * number) - 1)), WORD32(0)
            for lane, part in enumerate(parts):
                left = Lanes(b, b.load(pointers[lane], typ=part.value.type, align=16), "u8")
                differ = b.or_(differ, b.select((left != part).any(), WORD32(1 << lane), WORD32(0)))
            check_step(code, space, located(code, 0, space, bits), b.and_(differ, code.mask), 16)

    name = f"stmatrix.x{number}{'.trans' * trans}.{space}.{bits}{'.checked' * asm.checked}"
    asm.record(NativeOperation(name, build), [row, offset, *sources])


@native("movmatrix")
def _movmatrix(asm: Assembler, instruction: Instruction, form: Form) -> None:
    source = asm.source(instruction.operands[1], "b32")
    place, _ = asm.target(instruction.operands[0], "b32")

    def build(code: OperationCode) -> None:
        needs_whole_warp(code)
        code.store(0, code.source(1, "u16", 64).shuffled(_TRANSPOSED))

    asm.record(NativeOperation("movmatrix", build), [place, source])


# ---- products --------------------------------------------------------------------------------------------------------


def store_operands(
    code: OperationCode, first: int, kinds: tuple[str, str], k_blocks: int, factor: Factor, target: Any, *, again: bool
) -> None:
    """Write the factors of an mma, whose registers of A and B are operands from ``first`` on; with ``again``, only
    B."""
    of_a, of_b = range(2 * k_blocks), range(2 * k_blocks, 3 * k_blocks)
    if again:
        parts = [(of_b, kinds[1])]
    elif kinds[0] == kinds[1]:
        parts = [(range(3 * k_blocks), kinds[0])]
    else:
        parts = [(of_a, kinds[0]), (of_b, kinds[1])]

    def register(number: Any) -> Lanes:
        return code.source(code.builder.add(number, WORD64(first)), "u32")

    for numbers, kind in parts:
        store_fragments(code, numbers, k_blocks, register, kind, factor, target)


def product_code(code: OperationCode, kinds: tuple[str, str], tile: TileSum | IntegerSum, *, again: bool) -> None:
    """The code of one mma: operands are the rows of D, A, B and C, of which D and C have 4 (f32, s32) or 2 (f16).

    ``again`` uses A as the record before this one has left it in the scratch.
    """
    needs_whole_warp(code)
    deep = 4 * ELEMENTS[kinds[0]]
    k_blocks = tile.depth // deep
    held = 2 if tile.result == "f16" else 4
    scratch = code.pointer("scratch")
    left, right, room = (code.at(scratch, WORD64(begin * tile.depth)) for begin in (0, 64, 96))
    store_operands(code, held, kinds, k_blocks, as_factor, left, again=again)
    if not again:
        tile.spread(code, left)
    c_first = held + 3 * k_blocks
    if tile.result == "f16":
        before = [widened(code.source(c_first + half, "u16", 64), "f16") for half in range(2)]
    else:
        pairs = [[code.source(c_first + 2 * half + odd, tile.result) for odd in range(2)] for half in range(2)]
        before = [even.shuffled(ALTERNATING, odd) for even, odd in pairs]
    for half, whole in enumerate(tile.totals(code, left, right, (before[0], before[1]), room)):
        store_half(code, whole, tile.result, [code.row(half * held // 2 + k) for k in range(held // 2)])


def product_operation(
    asm: Assembler, unit: str, kinds: tuple[str, str], depth: int, result: str, *, again: bool, saturates: bool = False
) -> NativeOperation:
    """The operation of one mma, or of half a wmma (:func:`product_code`)."""
    tile: TileSum | IntegerSum = IntegerSum(depth, saturates)
    if result != "s32":
        tile = TileSum(rule_of(asm.target_name, unit, kinds[0], depth, result, kinds[1]), depth, result, asm.numerics)
    name = f"mma.{'.'.join(kinds)}.{tile.name}{'.again' * again}"
    return NativeOperation(name, lambda code: product_code(code, kinds, tile, again=again))


def _product(asm: Assembler, instruction: Instruction, form: WarpProduct, *, again: bool) -> None:
    result, *kinds = form.types[:3]
    d, a, b, c = (asm.vector(operand) for operand in instruction.operands)
    type_ = "b32" if result == "f16" else result
    rows = [asm.source(item, "b32") for item in (*a, *b)] + [asm.source(item, type_) for item in c]
    places = [asm.target(item, type_)[0] for item in d]
    operation = product_operation(
        *(asm, "mma", (kinds[0], kinds[1]), form.depth, result), again=again, saturates=form.saturates
    )
    asm.record(operation, [*places, *rows])


@native("mma")
def _mma(asm: Assembler, instruction: Instruction, form: WarpProduct) -> None:
    """Every type packs 16 or 32 bytes along K into a row of A, in the same places."""
    if form.shape == "m8n8k4":
        _product_f64(asm, instruction)
    else:
        _product(asm, instruction, form, again=False)


def _product_f64(asm: Assembler, instruction: Instruction) -> None:
    """Lane (g, t) has A[g, t], B[t, g], and the elements [g, 2t] and [g, 2t + 1] of C and D."""
    d, a, b, c = (asm.vector(operand) for operand in instruction.operands)

    def build(code: OperationCode) -> None:
        needs_whole_warp(code)
        left, right, sums = code.source(2, "f64"), code.source(3, "f64"), []
        for odd in range(2):
            total = code.source(4 + odd, "f64")
            for k in range(4):
                row = left.shuffled([4 * (lane // 4) + k for lane in range(WARP)])
                column = right.shuffled([4 * (2 * (lane % 4) + odd) + k for lane in range(WARP)])
                total = row.call("fma", column, total)
            sums.append(canonical(total, "f64"))
        for odd in range(2):
            code.store(odd, sums[odd])

    rows = [asm.source(item, "f64") for item in (*a, *b, *c)]
    places = [asm.target(item, "f64")[0] for item in d]
    asm.record(NativeOperation("mma.m8n8k4.f64", build), [*places, *rows])


def product_records(asm: Assembler, group: MmaGroup) -> None:
    """The records of mma instructions that share their A fragments: along K, those with equal A in sequence.

    The chains of a group do not depend on each other (:mod:`warpsan.analysis.fusion`).
    """
    for k in range(len(group.chains[0].instructions)):
        for number, chain in enumerate(group.chains):
            asm.begin(chain.instructions[k])
            _product(asm, chain.instructions[k], form_of(chain.instructions[k], WarpProduct), again=number > 0)
