"""wgmma: matrix products of a warpgroup (PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate"). Sparse
products and the single-bit type are not modelled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warpsan.analysis.derived import derived
from warpsan.analysis.fusion import registers_read, registers_written
from warpsan.engine import layout
from warpsan.engine.assembler import Assembler, NotNative, native
from warpsan.engine.lanes import POINTER, WORD64, Lanes, where
from warpsan.engine.memory import ProductWords
from warpsan.engine.numeric import widened
from warpsan.engine.operation import NativeOperation, OperationCode
from warpsan.engine.products import commit_products, fence_products, look_at_registers
from warpsan.numerics.tensor_cores import rule_of
from warpsan.ptx.grammar import Form, form_of, known_form
from warpsan.ptx.ir import Entry, Immediate, Instruction, Operand, Register, Vector
from warpsan.ptx.synchronising import Product, ProductWait
from warpsan.semantics.factors import Factor, as_factor, store_factors, store_fragments
from warpsan.semantics.integer_sums import IntegerSum
from warpsan.semantics.sums import ALTERNATING, TileSum, stacked, store_half

__all__ = [
    "EIGHT_BITS",
    "Numbers",
    "end_with_products",
    "loaded_chunks",
    "look_at_sets",
    "product_sets",
    "set_words",
]

_DEPTH = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32}
EIGHT_BITS = ("e4m3", "e5m2")
_HALVES = ("f16", "bf16")
_RESULTS = {
    ("f16",): ("f32", "f16"),
    ("bf16",): ("f32",),
    ("tf32",): ("f32",),
    EIGHT_BITS: ("f32", "f16"),
    ("s8", "u8"): ("s32",),
}
"""Types of both factors of one product, and those of its sums."""


def loaded_chunks(kind: str, k_major: bool, numbers: Numbers) -> NativeOperation:
    """Chunks to factors [outer, k, 8]: operands are the number of groups of 16 chunks, the start of their places,
    and the target."""
    deep = _DEPTH[kind]

    def build(code: OperationCode) -> None:
        b = code.builder
        scratch = code.pointer("scratch")
        places = code.at(scratch, b.add(WORD64(layout.SCRATCH_CHUNKS), code.operand(1)))
        target = code.at(scratch, code.operand(2))

        def chunk(number: Any, type_: str, count: int) -> Lanes:
            pointer = b.load(code.at(places, b.mul(number, WORD64(8))), typ=WORD64)
            return code.load(b.inttoptr(pointer, POINTER), type_, count, align=16)

        if k_major:  # 8 lines for each half along K
            with code.loop(b.mul(code.operand(0), WORD64(2))) as half:
                begin = b.mul(half, WORD64(8))
                lines = stacked([chunk(b.add(begin, WORD64(line)), "u32", 4) for line in range(8)])
                place = b.mul(half, WORD64(16 * deep))
                store_factors(code, lines, kind, numbers.factor, code.at(target, place))
        else:  # 8 elements for each k
            with code.loop(b.mul(code.operand(0), WORD64(16))) as k:
                factors = numbers.factor(chunk(k, "u16", 8).to("u32"), kind)
                b.store(factors.value, code.at(target, b.mul(k, WORD64(32))), align=32)

    return NativeOperation(f"wgmma.load.{numbers.name}{kind}{'.k' * k_major}", build)


def _fragment(kind: str, numbers: Numbers) -> NativeOperation:
    """A warp's A fragment, whose four registers are consecutive, to factors [2, k, 8]."""

    def build(code: OperationCode) -> None:
        b = code.builder
        target = code.at(code.pointer("scratch"), code.operand(2))

        def register(number: Any) -> Lanes:
            return code.load(code.at(code.registers, b.mul(number, WORD64(128))), "u32", align=8)

        store_fragments(code, range(4), 2, register, kind, numbers.factor, target)

    return NativeOperation(f"wgmma.fragment.{numbers.name}{kind}", build)


def _product(tile: TileSum | IntegerSum) -> NativeOperation:
    """A [16, deep] times B [deep, 8 n], added to hidden rows. Operands are n, their first row, whether they count,
    and whether the product is negated."""
    held = 2 if tile.result == "f16" else 4

    def build(code: OperationCode) -> None:
        b = code.builder
        scratch = code.pointer("scratch")
        places = (layout.SCRATCH_A, layout.SCRATCH_B, layout.SCRATCH_TILE)
        left, right, room = (code.at(scratch, WORD64(place)) for place in places)
        sums = code.at(code.registers, code.operand(1))
        keep, negate = (b.icmp_signed("!=", code.operand(k), WORD64(0)) for k in (2, 3))
        tile.spread(code, left)
        with code.loop(code.operand(0)) as block:
            begin = code.at(right, b.mul(block, WORD64(32 * tile.depth)))
            rows = [code.at(sums, b.add(b.mul(block, WORD64(held * 128)), WORD64(128 * k))) for k in range(held)]
            halves = [rows[: held // 2], rows[held // 2 :]]
            before = []
            for half in halves:
                if tile.result == "f16":
                    whole = widened(code.load(half[0], "u16", 64), "f16")
                else:
                    even, odd = (code.load(row, tile.result) for row in half)
                    whole = even.shuffled(ALTERNATING, odd)
                before.append(where(code.all_or_none(keep, whole.count), whole, 0))
            totals = tile.totals(code, left, begin, (before[0], before[1]), room, negate=negate)
            for half, whole in zip(halves, totals, strict=True):
                store_half(code, whole, tile.result, half)

    return NativeOperation(f"wgmma.product.{tile.name}", build)


@dataclass(frozen=True)
class Numbers:
    """The number format of wgmma.

    Attributes
    ----------
    name : str
        The name in operations.
    factor : Factor
        Conversion of elements to factors.
    product : callable
        The operation that computes the sums of a tile.
    """

    name: str
    factor: Factor
    product: Callable[[TileSum | IntegerSum], NativeOperation]


FLOATS = Numbers("", as_factor, _product)


@native("wgmma.mma_async")
def _mma_async(asm: Assembler, instruction: Instruction, form: Product) -> None:
    end_with_products(asm, instruction, None)


def end_with_products(asm: Assembler, instruction: Instruction, numbers: Numbers | None) -> None:
    """Set the words of the block that a product ends; ``numbers`` are those of a ring."""
    content = _product_list(asm, instruction, numbers)
    asm.end |= {"end": layout.END_WGMMA, "end_a": len(asm.lists), "end_pc": instruction.pc}
    asm.lists += content


@native("wgmma.wait_group")
def _wait_products(asm: Assembler, instruction: Instruction, form: ProductWait) -> None:
    asm.end |= {"end": layout.END_WGMMA_WAIT, "end_a": form.keep}


def _product_list(asm: Assembler, instruction: Instruction, numbers: Numbers | None) -> list[int]:
    """The words of a wgmma.mma_async, as in :class:`~warpsan.engine.memory.ProductWords`.

    Raises
    ------
    UnsupportedInstruction
        For types, shapes or operands that are not modelled.
    """
    form = form_of(instruction, Product)
    (columns, depth), (result, kind, kind_b) = form.shape, form.types
    partners = next((each for each in _RESULTS if {kind, kind_b} <= set(each)), None)
    if partners is None or result not in _RESULTS[partners] or (form.saturates and result != "s32"):
        raise asm.unsupported("these operand types are not modelled")
    step = 16 if result == "s32" and columns > 32 else 8
    if depth != _DEPTH[kind] or not 8 <= columns <= 256 or columns % step:
        raise asm.unsupported("there is no such shape for these types")
    d, a, b, scale, *immediates = instruction.operands
    in_registers = isinstance(a, Vector)
    values = [operand.value if isinstance(operand, Immediate) else None for operand in immediates]
    transposes = 0 if kind not in _HALVES else 1 if in_registers else 2
    expected = 0 if result == "s32" else 2 + transposes
    if len(values) != expected:
        raise asm.unsupported(f"expected {4 + expected} operands")
    if any(value not in (1, -1) for value in values[:2]) or any(value not in (0, 1) for value in values[2:]):
        raise asm.unsupported("imm-scale is 1 or -1, and imm-trans 0 or 1")
    if result == "s32":
        numbers = FLOATS  # integers are the same in every number format
    elif numbers is not None and (result != "f32" or kind == "tf32"):
        raise asm.unsupported("such a product is not modelled in a ring")
    trans_a, trans_b = len(values) == 4 and values[2] == 1, len(values) > 2 and values[-1] == 1
    names = _names(asm, d, columns // (4 if result == "f16" else 2))
    words = {"result_set": [_number(asm, names, result)], "hidden": [asm.hidden_sums(names)], "many": [len(names)]}
    words |= {"columns": [columns], "b": [asm.source(b, "u64")], "a": [-1], "factor_set": [-1], "fragments": [0] * 4}
    if isinstance(a, Vector):
        words["factor_set"] = [_number(asm, _names(asm, a, 4), "")]
        words["fragments"] = [asm.source(item, "b32") for item in a.items]
    else:
        words["a"] = [asm.source(a, "u64")]
    words["scale"] = [asm.source(scale, "pred") | 1]
    words["sign"] = [int(values[:2] in ([1, -1], [-1, 1]))]
    numbers = numbers or FLOATS
    load = _fragment(kind, numbers) if in_registers else loaded_chunks(kind, not trans_a, numbers)
    tile: TileSum | IntegerSum = IntegerSum(depth, form.saturates)
    if result != "s32":
        tile = TileSum(rule_of(asm.target_name, "wgmma", kind, depth, result, kind_b), depth, result, asm.numerics)
    for place, operation in (
        ("load_a", load),
        ("load_b", loaded_chunks(kind_b, not trans_b, numbers)),
        ("product", numbers.product(tile)),
    ):
        words[place] = [asm.number_of(operation)]
    words |= {"major_a": [int(not trans_a)], "major_b": [int(not trans_b)]}
    mine = [number for number in (*words["result_set"], *words["factor_set"]) if number >= 0]
    words["own"] = set_words(sum(1 << number for number in mine))
    words["others"] = set_words(_sharing(asm, mine))
    words["rows"] = [asm.rows[name] for name in names]
    return [word for name in ProductWords.fields for word in words[name]]


# ---- registers that products work on ---------------------------------------------------------------------------------


ProductSets = Mapping[tuple[tuple[str, ...], str], int]


@derived
def product_sets(entry: Entry) -> ProductSets:
    """The sets of registers that the entry's products use, with the type of accumulators, or an empty one for
    fragments of A, and their numbers."""
    sets: dict[tuple[tuple[str, ...], str], int] = {}
    for instruction in entry.instructions:
        form = known_form(instruction, Product)
        if form is not None:
            for operand, kind in zip(instruction.operands[:2], (form.types[0], ""), strict=True):
                if isinstance(operand, Vector):
                    names = tuple(item.name for item in operand.items if isinstance(item, Register))
                    sets.setdefault((names, kind), len(sets))
    return sets


def _sets(asm: Assembler) -> ProductSets:
    """:func:`product_sets` of an assembler's entry."""
    sets = product_sets(asm.entry)
    if len(sets) > layout.MOST_SETS:
        raise NotNative(f"more than {layout.MOST_SETS} sets of registers that products work on")
    return sets


def set_words(bits: int) -> list[int]:
    """Up to 64 bits as signed 32-bit words, the low one first."""
    return [(word ^ 1 << 31) - (1 << 31) for word in (bits & 0xFFFFFFFF, bits >> 32)]


def _number(asm: Assembler, names: tuple[str, ...], kind: str) -> int:
    return _sets(asm)[names, kind]


def _sharing(asm: Assembler, mine: list[int]) -> int:
    """Other sets that share a register with these, at least one of both accumulators; as bits."""
    by_number = {number: key for key, number in _sets(asm).items()}
    return sum(
        {
            1 << other
            for number in mine
            for other, (names, kind) in by_number.items()
            if other != number and (kind or by_number[number][1]) and not set(names).isdisjoint(by_number[number][0])
        }
    )


def sets_used(asm: Assembler, instruction: Instruction) -> int:
    """The sets whose registers an instruction overwrites, or whose accumulators it reads; as bits."""
    written, read = set(registers_written(instruction)), set(registers_read(instruction))
    return sum(
        1 << number
        for (names, kind), number in _sets(asm).items()
        if not written.isdisjoint(names) or (kind and not read.isdisjoint(names))
    )


def look_at_sets(asm: Assembler, instructions: Sequence[Instruction]) -> None:
    """Append the record before instructions that may use registers of products."""
    sets = 0
    for instruction in instructions:
        sets |= sets_used(asm, instruction)
    if sets:
        asm.looks[len(asm.records)] = tuple(each.pc for each in instructions)
        asm.call("wgmma.registers", look_at_registers, set_words(sets))


def _names(asm: Assembler, operand: Operand, number: int) -> tuple[str, ...]:
    items = operand.items if isinstance(operand, Vector) else ()
    names = tuple(item.name for item in items if isinstance(item, Register))
    types = [asm.types.get(name) for name in names]
    if len(names) != number or any(type_ is None or type_.bits != 32 for type_ in types):
        raise asm.unsupported(f"expected {number} 32-bit registers")
    return names


@native("wgmma.fence", "wgmma.commit_group")
def _fence(asm: Assembler, instruction: Instruction, form: Form) -> None:
    """``wgmma.fence`` orders accesses to registers, which are never delayed here: only the checks use it."""
    if form.name == "wgmma.commit_group":
        asm.call("wgmma.commit_group", commit_products, [])
    elif asm.checked:
        asm.call("wgmma.fence", fence_products, [])
