"""Matrix products in a ring: mma, wmma and wgmma.

A product of two codes is below 2^32, and a sum of 32 of them below 2^37: float64 holds all sums exactly, and one
remainder at the end makes codes of them. A factor that is large or NaN makes its sums NaN.
"""

from __future__ import annotations

from sdpalab.sim.ir import Instruction, Operand
from sdpalab.sim.modifiers import Mods
from sdpalab.sim.native import layout
from sdpalab.sim.native.lanes import WORD64, Lanes, llvm_type, where
from sdpalab.sim.native.operation import NativeOperation, OperationCode
from sdpalab.sim.native.operations.integer_sums import IntegerSum
from sdpalab.sim.native.operations.matrix import ELEMENTS, product_shape
from sdpalab.sim.native.operations.sums import TileSum, stacked
from sdpalab.sim.native.operations.warp import needs_whole_warp
from sdpalab.sim.native.operations.warpgroup import EIGHT_BITS, Numbers
from sdpalab.sim.native.ring.assembler import RingAssembler, algebraic
from sdpalab.sim.native.ring.words import RingWords

__all__ = ["warpgroup_numbers"]

_ROWS, _COLUMNS = 16, 8


def _factors(words: RingWords, bits: Lanes, kind: str) -> Lanes:
    """The bits of elements as factors, f32."""
    if kind in EIGHT_BITS:
        return words.factor(words.widened8(bits))
    return words.factor(bits if kind == "tf32" else words.widened(bits, kind))


def _block(words: RingWords, code: OperationCode, k: int, kind: str) -> Lanes:
    """A fragment's register: [8 lines, 4 x elements] factors in order of lines."""
    type_, many = {1: ("u32", 32), 2: ("u16", 64), 4: ("u8", 128)}[ELEMENTS[kind]]
    return _factors(words, code.source(k, type_, many), kind)


def _sums(words: RingWords, code: OperationCode, a: list[Lanes], b: list[Lanes], deep: int) -> list[Lanes]:
    """Words of A [16, k] times B [k, 8], as two vectors of 8 x 8, from the blocks of A and B in register order."""
    builder, scratch, line = code.builder, code.pointer(layout.SCRATCH), llvm_type("f32", _COLUMNS)
    # A goes through memory, from where an instruction can take one element for all columns at once. A volatile store
    # keeps LLVM from turning those loads into shuffles of the stored vector.
    for number, block in enumerate(a):
        builder.store(block.value, code.at(scratch, WORD64(2048 * number)), align=64).volatile = True
    totals = [code.constant("f64", 0.0, _COLUMNS)] * _ROWS
    for j, block in enumerate(b):
        for k in range(deep):
            factors = block.shuffled([column * deep + k for column in range(_COLUMNS)]).to("f64")
            for row in range(_ROWS):
                place = 2048 * (2 * j + row // 8) + 4 * (row % 8 * deep + k)
                element = builder.load(code.at(scratch, WORD64(place)), typ=line.element, align=4)
                totals[row] = totals[row] + code.spread(element, "f32", _COLUMNS).to("f64") * factors
    return [words.remainder(stacked(totals[8 * half : 8 * half + 8])) for half in range(2)]


def _product(words: RingWords, kinds: tuple[str, str], k_blocks: int, result: str) -> NativeOperation:
    """One mma: operands are the rows of D, A, B and C, of which D and C have 4 (f32) or 2 (f16)."""
    held, deep = (2 if result == "f16" else 4), 4 * ELEMENTS[kinds[0]]

    def build(code: OperationCode) -> None:
        needs_whole_warp(code)
        b = code.builder
        left = [_block(words, code, held + k, kinds[0]) for k in range(2 * k_blocks)]
        right = [_block(words, code, held + 2 * k_blocks + k, kinds[1]) for k in range(k_blocks)]
        first = held + 3 * k_blocks
        for half, whole in enumerate(_sums(words, code, left, right, deep)):
            if result == "f16":
                total = words.add(whole, words.widened(code.source(first + half, "u16", 64), "f16"))
                b.store(words.narrowed(total, "f16").value, code.row(half), align=64)
                continue
            for odd in range(2):
                column = words.add(whole.shuffled(range(odd, 64, 2)), code.source(first + 2 * half + odd, "u32"))
                b.store(column.value, code.row(2 * half + odd), align=64)

    name = f"{words.ring.name}.mma.{k_blocks}.{'.'.join(kinds)}.{result}"
    return NativeOperation(name, build)


def _multiply(
    asm: RingAssembler,
    mods: Mods,
    kinds: tuple[str, str],
    k_blocks: int,
    result: str,
    operands: tuple[tuple[Operand, ...], ...],
) -> None:
    """Append an mma of D, A, B and C."""
    d, a, b, c = operands
    half, held = ("f16x2", 2) if result == "f16" else ("b32", 4)
    if [len(a), len(b), len(c), len(d)] != [2 * k_blocks, k_blocks, held, held]:
        raise mods.unsupported("wrong number of registers for its shape and types")
    rows = []
    for kind, items in zip(kinds, (a, b), strict=True):
        rows += [asm.source(item, f"{kind}x2" if kind in ("f16", "bf16") else "b32") for item in items]
    rows += [asm.source(item, half) for item in c]
    places = [asm.target(item, "b32")[0] for item in d]
    asm.record(_product(asm.words, kinds, k_blocks, result), [*places, *rows])


@algebraic("mma")
def _mma(asm: RingAssembler, instruction: Instruction, mods: Mods) -> bool:
    if "s32" in mods.left:
        return False
    kinds, k_blocks, result = product_shape(instruction, mods)
    d, a, b, c = (asm.vector(operand) for operand in instruction.operands)
    _multiply(asm, mods, kinds, k_blocks, result, (d, a, b, c))
    return True


@algebraic("wmma")
def _wmma(asm: RingAssembler, instruction: Instruction, mods: Mods) -> bool:
    """Two products of 8 columns each, as :mod:`sdpalab.sim.native.operations.wmma` has them."""
    if "mma" not in mods.left:
        return False
    kinds = [name for name in mods.left if name in ("f16", "bf16", "f32", "tf32", "f64", "s32")]
    if "m16n16k16" not in mods.left or kinds not in (["f32", "f32"], ["f16", "f16"], ["f32", "bf16", "bf16", "f32"]):
        raise mods.unsupported("these operand types are not modelled in a ring")
    kind, result = "bf16" if "bf16" in kinds else "f16", kinds[0]
    d, a, b, c = (asm.vector(operand) for operand in instruction.operands)
    held = 2 if result == "f16" else 4
    for half in range(2):
        part = slice(held * half, held * half + held)
        operands = d[part], a[:4], b[2 * half : 2 * half + 2], c[part]
        _multiply(asm, mods, (kind, kind), 2, result, operands)
    return True


def warpgroup_numbers(words: RingWords) -> Numbers:
    """What wgmma computes with."""

    def product(tile: TileSum | IntegerSum) -> NativeOperation:
        return _warpgroup_product(words, tile.depth)

    return Numbers(f"{words.ring.name}.", lambda elements, kind: _factors(words, elements, kind), product)


def _warpgroup_product(words: RingWords, deep: int) -> NativeOperation:
    """A [16, deep] times B [deep, 8 n], added to hidden rows: operands are n, their first row, whether they count, and
    whether the product is negated."""

    def build(code: OperationCode) -> None:
        b = code.builder
        scratch = code.pointer(layout.SCRATCH)
        left, right = (code.at(scratch, WORD64(place)) for place in (layout.SCRATCH_A, layout.SCRATCH_B))
        sums = code.at(code.registers, code.operand(1))
        keep, negate = (b.icmp_signed("!=", code.operand(k), WORD64(0)) for k in (2, 3))
        with code.loop(code.operand(0)) as block:
            begin = code.at(right, b.mul(block, WORD64(32 * deep)))
            totals = [code.constant("f64", 0.0, 8)] * _ROWS
            for k in range(deep):
                factors = code.load(code.at(begin, WORD64(32 * k)), "f32", 8, align=32).to("f64")
                for row in range(_ROWS):
                    place = code.at(left, WORD64(32 * (row // 8 * deep + k) + 4 * (row % 8)))
                    element = code.spread(b.load(place, typ=llvm_type("f32").element, align=4), "f32", 8).to("f64")
                    totals[row] = totals[row] + element * factors
            rows = code.at(sums, b.mul(block, WORD64(4 * 128)))
            for half in range(2):
                whole = words.remainder(stacked(totals[8 * half : 8 * half + 8]))
                whole = where(code.all_or_none(negate, whole.count), words.neg(whole), whole)
                for odd in range(2):
                    row = code.at(rows, WORD64(128 * (2 * half + odd)))
                    before = code.load(row, "u32")
                    before = where(code.all_or_none(keep, before.count), before, 0)
                    b.store(words.add(whole.shuffled(range(odd, 64, 2)), before).value, row, align=64)

    return NativeOperation(f"{words.ring.name}.wgmma.product.{deep}", build)
