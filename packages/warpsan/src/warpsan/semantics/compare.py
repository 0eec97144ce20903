"""Comparison and selection (PTX ISA, "Comparison and Selection Instructions")."""

from __future__ import annotations

from collections.abc import Callable

from warpsan.engine.assembler import Assembler, native
from warpsan.engine.lanes import Lanes, where
from warpsan.engine.numeric import flushed, magnitude, widened
from warpsan.ptx.grammar import Computation
from warpsan.ptx.ir import Instruction
from warpsan.ptx.types import TYPES
from warpsan.semantics.floating import base_of, is_half

__all__ = ["combined", "plain_comparison"]

Comparison = Callable[[Lanes, Lanes], Lanes]

_ORDERED: dict[str, Comparison] = {
    "eq": lambda x, y: x == y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
}
_FLOAT: dict[str, Comparison] = {
    **_ORDERED,
    "ne": lambda x, y: (x < y) | (x > y),
    "equ": lambda x, y: ~((x < y) | (x > y)),
    "neu": lambda x, y: x != y,
    "ltu": lambda x, y: ~(x >= y),
    "leu": lambda x, y: ~(x > y),
    "gtu": lambda x, y: ~(x <= y),
    "geu": lambda x, y: ~(x < y),
    "num": lambda x, y: (x == x) & (y == y),
    "nan": lambda x, y: (x != x) | (y != y),
}
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_COMBINE: dict[str, Comparison] = {"and": lambda x, y: x & y, "or": lambda x, y: x | y, "xor": lambda x, y: x ^ y}


def plain_comparison(form: Computation) -> Comparison:
    """The comparison of a form, without ``.ftz``, of integers or of f32 or f64."""
    if form.types[-1].is_float:
        return _FLOAT[form.modes[0]]
    name = _UNSIGNED.get(form.modes[0], form.modes[0])
    return (lambda x, y: x != y) if name == "ne" else _ORDERED[name]


def _comparison(form: Computation) -> tuple[str, Comparison]:
    """The name and function of a comparison."""
    type_, compare, ftz = form.types[-1], plain_comparison(form), "ftz" in form.flags
    base = base_of(type_)

    def prepared(x: Lanes) -> Lanes:
        x = flushed(x, base) if ftz else x
        return widened(x, base) if is_half(type_) else x

    return f"{form.modes[0]}{'.ftz' * ftz}", lambda x, y: compare(prepared(x), prepared(y))


def combined(combination: str, result: Lanes, *with_: Lanes) -> Lanes:
    """A predicate combined with another by ``and``, ``or`` or ``xor``; without a combination, the predicate."""
    return _COMBINE[combination](result, *with_) if combination else result


@native("setp")
def _setp(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    type_, combination, packed = form.type, form.modes[1], form.type.lanes == 2
    name, compare = _comparison(form)
    first, second = asm.pair(instruction.operands[0])
    if packed and second is None:
        raise asm.unsupported("a packed comparison has two destinations, p|q")
    targets = [(first, "pred"), *([(second, "pred")] if second is not None else [])]
    sources = [(instruction.operands[k], type_.name) for k in (1, 2)]
    if combination:
        sources.append((instruction.operands[3], "pred"))

    def function(x: Lanes, y: Lanes, *with_: Lanes) -> tuple[Lanes, ...]:
        result = compare(x, y)
        # For packed types, the second result is the comparison of the upper halves; for all others the complement.
        both = [result.shuffled(range(half, 64, 2)) for half in range(2)] if packed else [result, ~result]
        return tuple(combined(combination, each, *with_) for each in both[: len(targets)])

    asm.compute(f"setp{len(targets)}.{name}.{combination}.{type_.name}", function, targets, sources)


@native("set")
def _set(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    """A comparison whose result is a number: 1.0, or all bits set for integers, and 0."""
    (result, type_), combination = form.types, form.modes[1]
    if type_.lanes == 2 and not result.is_float:
        result = TYPES["u16x2"]  # each half is set by its own comparison
    name, compare = _comparison(form)
    sources = [(instruction.operands[k], type_.name) for k in (1, 2)]
    if combination:
        sources.append((instruction.operands[3], "pred"))

    def function(x: Lanes, y: Lanes, *with_: Lanes) -> Lanes:
        if type_.lanes == 2:
            with_ = tuple(each.shuffled([k // 2 for k in range(64)]) for each in with_)
        condition = combined(combination, compare(x, y), *with_)
        if is_half(result):
            one = x.constant("u16", 0x3C00 if base_of(result) == "f16" else 0x3F80)
        else:
            one = x.constant(base_of(result), 1.0 if result.is_float else -1)
        return where(condition, one, 0)

    target = [(instruction.operands[0], result.name)]
    asm.compute(f"set.{name}.{combination}.{result.name}.{type_.name}", function, target, sources)


@native("selp")
def _selp(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    name = form.type.name
    asm.elementwise(instruction, f"selp.{name}", lambda x, y, p: where(p, x, y), name, name, name, "pred")


@native("slct")
def _slct(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    """``d = c >= 0 ? a : b``; a NaN selects b, and a negative zero selects a."""
    type_, sign, ftz = form.types[0].name, form.types[1].name, "ftz" in form.flags
    asm.elementwise(
        instruction,
        f"slct{'.ftz' * ftz}.{type_}.{sign}",
        lambda x, y, z: where((flushed(z, "f32") if ftz else z) >= 0, x, y),
        *(type_, type_, type_, sign),
    )


@native("testp")
def _testp(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    least = 2.0**-126 if form.type.bits == 32 else 2.0**-1022
    tests: dict[str, Callable[[Lanes, Lanes], Lanes]] = {
        "finite": lambda x, size: size < float("inf"),
        "infinite": lambda x, size: size == float("inf"),
        "number": lambda x, size: x == x,
        "notanumber": lambda x, size: x.nan,
        "normal": lambda x, size: (size < float("inf")) & (size >= least),
        "subnormal": lambda x, size: (size < least) & (size > 0),
    }
    (name,), type_ = form.modes, form.type.name
    test = tests[name]
    asm.elementwise(instruction, f"testp.{name}.{type_}", lambda x: test(x, magnitude(x)), "pred", type_)
