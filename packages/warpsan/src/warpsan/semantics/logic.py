"""Logic, shifts and byte permutation (PTX ISA, "Logic and Shift Instructions", "prmt")."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from warpsan.analysis.tensor_memory import masks_of_pairs
from warpsan.engine.assembler import Assembler, native
from warpsan.engine.lanes import Lanes, where
from warpsan.host.memory import RANK_SHIFT
from warpsan.ptx.forms import PRMT_MODES
from warpsan.ptx.grammar import Computation
from warpsan.ptx.ir import Immediate, Instruction, Register

__all__ = ["shifted"]


_LOGIC: dict[str, Callable[..., Lanes]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "not": lambda a: ~a,
    "cnot": lambda a: (a == 0).to(a.type),
}


@native(*_LOGIC)
def _logic(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    if form.name == "and" and instruction.pc in masks_of_pairs(asm.entry):
        _leading(asm, instruction)
        return
    types = [form.type.name] * len(instruction.operands)
    asm.elementwise(instruction, f"{form.name}.{form.type.name}", _LOGIC[form.name], *types)


def _leading(asm: Assembler, instruction: Instruction) -> None:
    """The address of the same variable in the leading CTA of a pair."""
    target, address, mask = instruction.operands

    def function(address: Lanes, mask: Lanes, own: Lanes) -> Lanes:
        named = (address >> RANK_SHIFT) & 0xFF
        rank = where(named == 0, own, named - 1) & 0xFE
        return (address & mask & (1 << RANK_SHIFT) - 1) | where(
            (named == 0) & (rank == own), rank.like(0), rank + 1
        ) << RANK_SHIFT

    sources = [(address, "u32"), (mask, "u32"), (Register("%cluster_ctarank"), "u32")]
    asm.compute("and.pair", function, [(target, "u32")], sources)


def _lookup(table: int, a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """The disjunction of the rows of a look-up table in which the result is 1."""
    result = a.like(0)
    for row in range(8):
        if table >> row & 1:
            x, y, z = (each if row >> 2 - k & 1 else ~each for k, each in enumerate((a, b, c)))
            result = result | (x & y & z)
    return result


@native("lop3")
def _lop3(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    target, a, b, c, table = instruction.operands[:5]
    first, second = asm.pair(target)
    (combine,) = form.modes
    if not isinstance(table, Immediate) or not isinstance(table.value, int):
        raise asm.unsupported("expected an immediate look-up table")
    if (second is None) == bool(combine):
        raise asm.unsupported("a predicate result goes with .or or .and")
    code = table.value & 0xFF
    sources = [(each, "b32") for each in (a, b, c)]
    if second is None:
        asm.compute(f"lop3.{code}", lambda x, y, z: _lookup(code, x, y, z), [(first, "b32")], sources)
        return

    def function(x: Lanes, y: Lanes, z: Lanes, q: Lanes) -> tuple[Lanes, Lanes]:
        result = _lookup(code, x, y, z)
        return result, (result != 0) | q if combine == "or" else (result != 0) & q

    targets = [(first, "b32"), (second, "pred")]
    asm.compute(f"lop3.{combine}.{code}", function, targets, [*sources, (instruction.operands[5], "pred")])


# ---- shifts ----------------------------------------------------------------------------------------------------------


def shifted(x: Lanes, amount: Lanes, *, left: bool) -> Lanes:
    """A shift by any amount: zeros, or copies of the sign, from the width on. ``amount`` is u32."""
    width = x.bits
    beyond = amount >= width
    by = where(beyond, amount.like(0), amount).to(f"u{width}")
    if left:
        return where(beyond, x.like(0), x << by.as_type(x.type))
    if x.signed:
        by = where(beyond, amount.like(width - 1), amount).to(f"u{width}")
        return x >> by.as_type(x.type)
    return where(beyond, x.like(0), x >> by.as_type(x.type))


@native("shl", "shr")
def _shift(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    left, type_ = form.name == "shl", form.type.name
    asm.elementwise(instruction, f"{form.name}.{type_}", lambda x, n: shifted(x, n, left=left), type_, type_, "u32")


@native("shf")
def _funnel_shift(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    left, clamp = form.modes[0] == "l", form.modes[1] == "clamp"

    def function(low: Lanes, high: Lanes, amount: Lanes) -> Lanes:
        n = where(amount > 32, amount.like(32), amount) if clamp else amount & 31
        right = n if not left else n.like(32) - n
        return shifted(high, right.like(32) - right, left=True) | shifted(low, right, left=False)

    name = f"shf.{'l' if left else 'r'}.{'clamp' if clamp else 'wrap'}"
    asm.elementwise(instruction, name, function, "b32", "u32", "u32", "u32")


# ---- bytes -----------------------------------------------------------------------------------------------------------


@native("prmt")
def _prmt(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    """Any four of the eight bytes of b and a; selector bit 3 spreads a byte's sign."""
    mode, selector, types = form.modes[0], instruction.operands[3], ["b32"] * 4
    if mode:
        codes = [sum(place << 4 * k for k, place in enumerate(places)) for places in PRMT_MODES[mode]]
        asm.elementwise(instruction, f"prmt.{mode}", lambda x, y, z: _chosen(x, y, z & 3, codes), *types)
    elif isinstance(selector, Immediate) and isinstance(selector.value, int):
        code = selector.value & 0xFFFF
        asm.elementwise(instruction, f"prmt.{code}", lambda x, y, z: _picked(x, y, code), *types)
    else:
        asm.elementwise(instruction, "prmt", _permuted, *types)


def _picked(x: Lanes, y: Lanes, code: int) -> Lanes:
    """Permute bytes by a known selector."""
    result = x.like(0)
    for k in range(4):
        place = code >> 4 * k & 15
        byte = ((y if place & 4 else x) >> 8 * (place & 3)) & 0xFF
        if place & 8:
            byte = where((byte & 0x80) != 0, byte.like(0xFF), 0)
        result = result | (byte << 8 * k)
    return result


def _chosen(x: Lanes, y: Lanes, number: Lanes, codes: Sequence[int]) -> Lanes:
    """The bytes for a selector value."""
    result = _picked(x, y, codes[0])
    for k, code in enumerate(codes[1:], 1):
        result = where(number == k, _picked(x, y, code), result)
    return result


def _permuted(x: Lanes, y: Lanes, selector: Lanes) -> Lanes:
    both = (y.to("u64") << 32) | x.to("u64")
    result = x.like(0)
    for k in range(4):
        place = (selector >> 4 * k) & 15
        byte = ((both >> ((place & 7) << 3).to("u64")) & 0xFF).to("b32")
        spread = where((byte & 0x80) != 0, byte.like(0xFF), 0)
        result = result | (where((place & 8) != 0, spread, byte) << 8 * k)
    return result
