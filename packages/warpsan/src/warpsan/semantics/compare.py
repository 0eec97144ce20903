"""Comparison and selection (PTX ISA, "Comparison and Selection Instructions")."""

from __future__ import annotations

from collections.abc import Callable

from warpsan.engine.assembler import Assembler, native
from warpsan.engine.lanes import Lanes, where
from warpsan.engine.numeric import flushed, magnitude, widened
from warpsan.ptx.ir import Instruction
from warpsan.ptx.modifiers import Mods, require
from warpsan.ptx.types import TYPES, PtxType
from warpsan.semantics.floating import base_of, is_half

__all__ = ["combined", "float_comparison"]

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
_NAMES = dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", *_UNSIGNED, *_FLOAT))
_COMBINE: dict[str, Comparison] = {"and": lambda x, y: x & y, "or": lambda x, y: x | y, "xor": lambda x, y: x ^ y}

_INTEGERS = ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64")
_FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")


def _comparison(mods: Mods, name: str, type_: PtxType) -> Comparison:
    if type_.is_float:
        if name not in _FLOAT:
            raise mods.unsupported(f"no comparison .{name} of floating point")
        return _FLOAT[name]
    allowed = ("eq", "ne") if type_.kind == "b" else ("eq", "ne", "lt", "le", "gt", "ge")
    if type_.kind == "u":
        name = _UNSIGNED.get(name, name)
    if name not in allowed:
        raise mods.unsupported(f"no comparison .{name} of .{type_.name}")
    return (lambda x, y: x != y) if name == "ne" else _ORDERED[name]


def _take(mods: Mods, type_: PtxType) -> tuple[str, Comparison, str]:
    """The name and function of a comparison, and its combination with a predicate; all modifiers are taken."""
    require(mods, type_, (*_INTEGERS, *_FLOATS))
    name = mods.choice(_NAMES)
    compare = _comparison(mods, name, type_)
    combination = mods.choice(_COMBINE, default="")
    ftz = type_.name in ("f16", "f16x2", "f32") and mods.flag("ftz")
    mods.done()
    base = base_of(type_)

    def prepared(x: Lanes) -> Lanes:
        x = flushed(x, base) if ftz else x
        return widened(x, base) if is_half(type_) else x

    return f"{name}{'.ftz' * ftz}", lambda x, y: compare(prepared(x), prepared(y)), combination


def float_comparison(mods: Mods, type_: PtxType) -> tuple[str, Comparison, str]:
    """As :func:`_take`, for floats that are not flushed or widened; the type has been taken."""
    name = mods.choice(_NAMES)
    combination = mods.choice(_COMBINE, default="")
    mods.flag("ftz")
    mods.done()
    return name, _comparison(mods, name, type_), combination


def combined(combination: str, result: Lanes, *with_: Lanes) -> Lanes:
    """A predicate combined with another by ``and``, ``or`` or ``xor``; without a combination, the predicate."""
    return _COMBINE[combination](result, *with_) if combination else result


@native("setp")
def _setp(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    type_ = mods.type()
    name, compare, combination = _take(mods, type_)
    first, second = asm.pair(instruction.operands[0])
    packed = type_.lanes == 2
    if packed and second is None:
        raise mods.unsupported("a packed comparison has two destinations, p|q")
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
def _set(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """A comparison whose result is a number: 1.0, or all bits set for integers, and 0."""
    result, type_ = mods.type(), mods.type()
    if type_.lanes == 2:
        require(mods, result, (type_.name, "u32", "s32"))
        result = result if result.is_float else TYPES["u16x2"]  # each half is set by its own comparison
    else:
        small = ("u16", "s16") if is_half(type_) else ()
        require(mods, result, ("u32", "s32", "f32", "f16", "bf16", *small))
    name, compare, combination = _take(mods, type_)
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
def _selp(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    type_ = mods.type()
    require(mods, type_, (*_INTEGERS, "f32", "f64"))
    mods.done()
    d, a, b, c = mods.operands(3)
    name = type_.name
    asm.compute(f"selp.{name}", lambda x, y, p: where(p, x, y), [(d, name)], [(a, name), (b, name), (c, "pred")])


@native("slct")
def _slct(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """``d = c >= 0 ? a : b``; a NaN selects b, and a negative zero selects a."""
    type_, sign = mods.type(), mods.type()
    require(mods, type_, (*_INTEGERS, "f32", "f64"))
    require(mods, sign, ("s32", "f32"))
    ftz = sign.is_float and mods.flag("ftz")
    mods.done()
    d, a, b, c = mods.operands(3)
    asm.compute(
        f"slct{'.ftz' * ftz}.{type_.name}.{sign.name}",
        lambda x, y, z: where((flushed(z, "f32") if ftz else z) >= 0, x, y),
        [(d, type_.name)],
        [(a, type_.name), (b, type_.name), (c, sign.name)],
    )


@native("testp")
def _testp(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    type_ = mods.type()
    require(mods, type_, ("f32", "f64"))
    tests: dict[str, Callable[[Lanes, Lanes], Lanes]] = {
        "finite": lambda x, size: size < float("inf"),
        "infinite": lambda x, size: size == float("inf"),
        "number": lambda x, size: x == x,
        "notanumber": lambda x, size: x.nan,
        "normal": lambda x, size: (size < float("inf")) & (size >= least),
        "subnormal": lambda x, size: (size < least) & (size > 0),
    }
    least = 2.0**-126 if type_.bits == 32 else 2.0**-1022
    name = mods.choice(tests)
    mods.done()
    asm.compute(
        f"testp.{name}.{type_.name}",
        lambda x: tests[name](x, magnitude(x)),
        [(instruction.operands[0], "pred")],
        [(instruction.operands[1], type_.name)],
    )
