"""Matrix products in a ring: mma, wmma, wgmma and tcgen05.

A product of two codes is below 2^32, and a sum of 32 of them below 2^37: float64 holds all sums exactly, and so does
float32 in a small ring; one remainder at the end gives codes. A factor that is large or NaN makes its sums NaN.
"""

from __future__ import annotations

from typing import Any

from warpsan.engine import layout
from warpsan.engine.lanes import WORD64, Lanes, llvm_type, where
from warpsan.engine.operation import NativeOperation, OperationCode
from warpsan.engine.ring.assembler import RingAssembler, algebraic
from warpsan.engine.ring.words import RingWords
from warpsan.ptx.ir import Instruction, Operand
from warpsan.ptx.matrices import ELEMENTS, WarpProduct, WmmaProduct
from warpsan.ptx.synchronising import Product
from warpsan.ptx.tensor_memory import TensorProduct
from warpsan.semantics.factors import Factor
from warpsan.semantics.integer_sums import IntegerSum
from warpsan.semantics.matrix import store_operands
from warpsan.semantics.sums import TileSum, stacked
from warpsan.semantics.tensor_memory import TURNED, cells_at, issue_product_of
from warpsan.semantics.warp import needs_whole_warp
from warpsan.semantics.warpgroup import EIGHT_BITS, Numbers, end_with_products

__all__: list[str] = []

_GROUP, _COLUMNS = 4, 8
"""Rows whose sums are computed together, and columns of a tile."""


def _factors(words: RingWords) -> Factor:
    def factor(bits: Lanes, kind: str) -> Lanes:
        if kind in EIGHT_BITS:
            return words.factor(words.widened8(bits))
        return words.factor(bits if kind == "tf32" else words.widened(bits.to("u16"), kind))

    return factor


def _store_sums(words: RingWords, code: OperationCode, left: Any, right: Any, deep: int, room: Any) -> None:
    """Write the words of A [2, deep, 8 rows] times B [deep, 8 columns] to ``room``, u32 [16, 8]."""
    b, line = code.builder, llvm_type("f32", _COLUMNS)
    type_ = "f32" if deep * (words.ring.modulus - 1) ** 2 < 1 << 24 else "f64"
    with code.loop(WORD64(16 // _GROUP)) as group:
        half, lower = b.lshr(group, WORD64(1)), b.and_(group, WORD64(1))
        rows = code.at(left, b.add(b.mul(half, WORD64(32 * deep)), b.mul(lower, WORD64(4 * _GROUP))))
        totals = [code.loop_value(code.constant(type_, 0.0, _COLUMNS)) for _ in range(_GROUP)]
        with code.loop(WORD64(deep)) as k:
            offset = b.mul(k, WORD64(32))
            factors = code.load(code.at(right, offset), "f32", _COLUMNS, align=32).to(type_)
            for row, total in enumerate(totals):
                element = b.load(code.at(rows, b.add(offset, WORD64(4 * row))), typ=line.element, align=4)
                if type_ == "f64":
                    element = b.fpext(element, llvm_type("f64").element)
                total.set(code.spread(element, type_, _COLUMNS).call("fma", factors, total.get()))  # exact
        whole = words.remainder(stacked([total.get() for total in totals]).to("f64"))
        b.store(whole.value, code.at(room, b.mul(group, WORD64(32 * _GROUP))), align=64)


def _product(words: RingWords, kinds: tuple[str, ...], k_blocks: int, result: str) -> NativeOperation:
    """One mma: operands are the rows of D, A, B and C, of which D and C have 4 (f32) or 2 (f16)."""
    held, deep = (2 if result == "f16" else 4), k_blocks * 4 * ELEMENTS[kinds[0]]

    def build(code: OperationCode) -> None:
        needs_whole_warp(code)
        b = code.builder
        scratch = code.pointer("scratch")
        left, right, room = (code.at(scratch, WORD64(place)) for place in (0, 64 * deep, 96 * deep))
        store_operands(code, held, (kinds[0], kinds[1]), k_blocks, _factors(words), left, again=False)
        _store_sums(words, code, left, right, deep, room)
        with code.loop(WORD64(held)) as number:
            addend = b.add(number, WORD64(held + 3 * k_blocks))
            if result == "f16":
                whole = code.load(code.at(room, b.mul(number, WORD64(256))), "u32", 64)
                total = words.add(whole, words.widened(code.source(addend, "u16", 64), "f16"))
                b.store(words.narrowed(total, "f16").value, code.row(number), align=64)
            else:
                column = _column(code, room, number)
                b.store(words.add(column, code.source(addend, "u32")).value, code.row(number), align=64)

    name = f"{words.ring.arithmetic}.mma.{k_blocks}.{'.'.join(kinds)}.{result}"
    return NativeOperation(name, build)


def _column(code: OperationCode, room: Any, number: Any) -> Lanes:
    """Register ``number`` of D, from u32 [16, 8]: the even or odd columns of 8 rows."""
    b = code.builder
    half, odd = b.lshr(number, WORD64(1)), b.and_(number, WORD64(1))
    pairs = code.load(code.at(room, b.mul(half, WORD64(256))), "u64")
    return (pairs >> code.spread(b.mul(odd, WORD64(32)), "u64")).to("u32")


def _multiply(
    asm: RingAssembler,
    kinds: tuple[str, ...],
    k_blocks: int,
    result: str,
    operands: tuple[tuple[Operand, ...], ...],
) -> None:
    """Append an mma of D, A, B and C."""
    d, a, b, c = operands
    half = "f16x2" if result == "f16" else "b32"
    rows = []
    for kind, items in zip(kinds, (a, b), strict=True):
        rows += [asm.source(item, f"{kind}x2" if kind in ("f16", "bf16") else "b32") for item in items]
    rows += [asm.source(item, half) for item in c]
    places = [asm.target(item, "b32")[0] for item in d]
    asm.record(_product(asm.words, kinds, k_blocks, result), [*places, *rows])


@algebraic("mma")
def _mma(asm: RingAssembler, instruction: Instruction, form: WarpProduct) -> bool:
    result, *kinds = form.types[:3]
    if result == "s32":
        return False
    if result == "f64":
        raise asm.unsupported("these operand types are not modelled in a ring")
    d, a, b, c = (asm.vector(operand) for operand in instruction.operands)
    _multiply(asm, tuple(kinds), form.k_blocks, result, (d, a, b, c))
    return True


@algebraic("wmma.mma")
def _wmma(asm: RingAssembler, instruction: Instruction, form: WmmaProduct) -> bool:
    """Two products of 8 columns each, as :mod:`warpsan.semantics.wmma` has them."""
    d, a, b, c = (asm.vector(operand) for operand in instruction.operands)
    held = 2 if form.types[0] == "f16" else 4
    for half in range(2):
        part = slice(held * half, held * half + held)
        operands = d[part], a[:4], b[2 * half : 2 * half + 2], c[part]
        _multiply(asm, (form.kind, form.kind), 2, form.types[0], operands)
    return True


@algebraic("wgmma.mma_async")
def _mma_async(asm: RingAssembler, instruction: Instruction, form: Product) -> bool:
    def product(tile: TileSum | IntegerSum) -> NativeOperation:
        return _warpgroup_product(asm.words, tile.depth)

    end_with_products(asm, instruction, Numbers(f"{asm.words.ring.arithmetic}.", _factors(asm.words), product))
    return True


@algebraic("tcgen05.mma")
def _tensor_mma(asm: RingAssembler, instruction: Instruction, form: TensorProduct) -> bool:
    def product(tile: TileSum | IntegerSum) -> NativeOperation:
        return _tensor_product(asm.words, tile.depth)

    issue_product_of(asm, instruction, form, Numbers(f"{asm.words.ring.arithmetic}.", _factors(asm.words), product))
    return True


def _tensor_product(words: RingWords, deep: int) -> NativeOperation:
    """A [16, deep] times B [deep, 8 n], added to cells of 16 lanes; operands as for sums of numbers
    (:mod:`warpsan.semantics.tensor_memory`), without a division."""

    def build(code: OperationCode) -> None:
        b = code.builder
        scratch = code.pointer("scratch")
        places = (layout.SCRATCH_A, layout.SCRATCH_B, layout.SCRATCH_TILE)
        left, right, room = (code.at(scratch, WORD64(place)) for place in places)
        keep, negate = (b.icmp_signed("!=", code.operand(k), WORD64(0)) for k in (2, 3))
        with code.loop(code.operand(0)) as block:
            number = b.add(block, code.operand(1))
            _store_sums(words, code, left, code.at(right, b.mul(number, WORD64(32 * deep))), deep, room)
            cells = code.at(code.registers, b.mul(block, WORD64(4 * layout.TENSOR_LANES * _COLUMNS)))
            for half in range(2):
                turned = code.load(code.at(room, WORD64(256 * half)), "u32", 64).shuffled(TURNED)
                turned = where(code.all_or_none(negate, 64), words.neg(turned), turned)
                for column in range(_COLUMNS):
                    place = cells_at(code, cells, half, column)
                    before = where(code.all_or_none(keep, 8), code.load(place, "u32", 8, align=32), 0)
                    total = words.add(turned.shuffled(range(8 * column, 8 * column + 8)), before)
                    b.store(total.value, place, align=32)

    return NativeOperation(f"{words.ring.arithmetic}.tensor.product.{deep}", build)


def _warpgroup_product(words: RingWords, deep: int) -> NativeOperation:
    """A [16, deep] times B [deep, 8 n], added to hidden rows. Operands are n, their first row, whether they count,
    and whether the product is negated."""

    def build(code: OperationCode) -> None:
        b = code.builder
        scratch = code.pointer("scratch")
        places = (layout.SCRATCH_A, layout.SCRATCH_B, layout.SCRATCH_TILE)
        left, right, room = (code.at(scratch, WORD64(place)) for place in places)
        sums = code.at(code.registers, code.operand(1))
        keep, negate = (b.icmp_signed("!=", code.operand(k), WORD64(0)) for k in (2, 3))
        with code.loop(code.operand(0)) as block:
            _store_sums(words, code, left, code.at(right, b.mul(block, WORD64(32 * deep))), deep, room)
            with code.loop(WORD64(4)) as number:
                column = _column(code, room, number)
                column = where(code.all_or_none(negate), words.neg(column), column)
                row = code.at(sums, b.add(b.mul(block, WORD64(4 * 128)), b.mul(number, WORD64(128))))
                before = where(code.all_or_none(keep), code.load(row, "u32"), 0)
                b.store(words.add(column, before).value, row, align=64)

    return NativeOperation(f"{words.ring.arithmetic}.wgmma.product.{deep}", build)
