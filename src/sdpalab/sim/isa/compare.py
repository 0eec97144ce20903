"""Comparison and selection (PTX ISA, "Comparison and Selection Instructions")."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sdpalab.sim.decode import Decoder, Step, opcode
from sdpalab.sim.ir import Instruction
from sdpalab.sim.isa.rounding import elementwise, flush
from sdpalab.sim.modifiers import Mods, require
from sdpalab.sim.selection import Array, Mask, Selection
from sdpalab.sim.types import TYPES, PtxType

__all__: list[str] = []

Comparison = Callable[[Array, Array], Mask]

_ORDERED: dict[str, np.ufunc] = {
    "eq": np.equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
"""Comparisons that are false where an operand is NaN."""

_UNORDERED = {"neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}
"""Comparisons that are true where an operand is NaN: each the negation of an ordered one."""

_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_NAMES = ("eq", "ne", "lt", "le", "gt", "ge", *_UNSIGNED, "equ", *_UNORDERED, "num", "nan")
_COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}

_INTEGERS = ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64")
_FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")


def _comparison(name: str, type_: PtxType, mods: Mods) -> Comparison:
    """The NumPy function for a comparison of a type; a ufunc where one will do."""
    if type_.is_float:
        return _float_comparison(name, mods)
    allowed = ("eq", "ne") if type_.kind == "b" else ("eq", "ne", "lt", "le", "gt", "ge")
    if type_.kind == "u":
        name = _UNSIGNED.get(name, name)
    if name not in allowed:
        raise mods.unsupported(f"no comparison .{name} of .{type_.name}")
    return np.not_equal if name == "ne" else _ORDERED[name]


def _float_comparison(name: str, mods: Mods) -> Comparison:
    if name in _ORDERED:
        return _ORDERED[name]
    if name == "neu":
        return np.not_equal
    if name in _UNORDERED:
        opposite = _ORDERED[_UNORDERED[name]]
        return lambda x, y: np.logical_not(opposite(x, y))
    others: dict[str, Comparison] = {
        "ne": lambda x, y: (x < y) | (x > y),
        "equ": lambda x, y: ~((x < y) | (x > y)),
        "num": lambda x, y: (x == x) & (y == y),
        "nan": lambda x, y: (x != x) | (y != y),
    }
    if name not in others:
        raise mods.unsupported(f"no comparison .{name} of floating point")
    return others[name]


def _take_comparison(
    decoder: Decoder, instruction: Instruction, mods: Mods, type_: PtxType, names: tuple[str, ...]
) -> tuple[Comparison, Array, Array, np.ufunc | None]:
    """Comparison, operands and Boolean combination of ``setp`` or ``set``; all modifiers are taken."""
    require(mods, type_, names)
    comparison = _comparison(mods.choice(_NAMES), type_, mods)
    combination = mods.choice(_COMBINE, default="")
    flushes = type_.name in ("f16", "f16x2", "f32") and mods.flag("ftz")
    mods.done()
    a, b = (decoder.src(instruction, instruction.operands[k], type_) for k in (1, 2))
    combine = _COMBINE[combination] if combination else None
    if not flushes:
        return comparison, a, b, combine
    return (lambda x, y: comparison(flush(x), flush(y))), a, b, combine


@opcode("setp")
def _setp(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    type_ = mods.type()
    comparison, a, b, combine = _take_comparison(decoder, instruction, mods, type_, (*_INTEGERS, *_FLOATS))
    first, second = decoder.pair(instruction.operands[0])
    p = decoder.dst(instruction, first, TYPES["pred"])
    if second is None and combine is None and type_.lanes == 1 and isinstance(comparison, np.ufunc):
        return elementwise(comparison, p, a, b)
    if type_.lanes == 2 and second is None:
        raise mods.unsupported("a packed comparison has two destinations, p|q")
    q = None if second is None else decoder.dst(instruction, second, TYPES["pred"])
    c = None if combine is None else decoder.predicate(instruction, instruction.operands[3])

    def step(sel: Selection) -> None:
        result = comparison(a[sel], b[sel])
        # Of packed types q has the comparison of the upper halves, of all others the complement.
        one, other = (result[:, 0], result[:, 1]) if type_.lanes == 2 else (result, ~result)
        if c is not None and combine is not None:
            with_ = c(sel)
            one, other = combine(one, with_), combine(other, with_)
        p[sel] = one
        if q is not None:
            q[sel] = other

    return step


@opcode("set")
def _set(decoder: Decoder, instruction: Instruction) -> Step:
    """A comparison whose result is a number: 1.0, or all bits set for integers, and 0."""
    mods = Mods(instruction)
    result_type, type_ = mods.type(), mods.type()
    if type_.lanes == 2:
        require(mods, result_type, (type_.name, "u32", "s32"))
        if not result_type.is_float:
            result_type = TYPES["u16x2"]  # each half is set by its own comparison
    else:
        small = ("u16", "s16") if type_.name in ("f16", "bf16") else ()
        require(mods, result_type, ("u32", "s32", "f32", "f16", "bf16", *small))
    comparison, a, b, combine = _take_comparison(decoder, instruction, mods, type_, (*_INTEGERS, *_FLOATS))
    d = decoder.dst(instruction, instruction.operands[0], result_type)
    c = None if combine is None else decoder.predicate(instruction, instruction.operands[3])
    one = result_type.dtype.type(1) if result_type.is_float else ~result_type.dtype.type(0)
    zero = result_type.dtype.type(0)

    def step(sel: Selection) -> None:
        result = comparison(a[sel], b[sel])
        if c is not None and combine is not None:
            with_ = c(sel)
            result = combine(result, with_ if type_.lanes == 1 else with_[:, None])
        d[sel] = np.where(result, one, zero)

    return step


@opcode("selp")
def _selp(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    type_ = mods.type()
    require(mods, type_, (*_INTEGERS, "f32", "f64"))
    mods.done()
    d = decoder.dst(instruction, instruction.operands[0], type_)
    a, b = (decoder.src(instruction, instruction.operands[k], type_) for k in (1, 2))
    c = decoder.src(instruction, instruction.operands[3], TYPES["pred"])

    def step(sel: Selection) -> None:
        d[sel] = np.where(c[sel], a[sel], b[sel])

    return step


@opcode("slct")
def _slct(decoder: Decoder, instruction: Instruction) -> Step:
    """``d = c >= 0 ? a : b``; a NaN selects b, and a negative zero selects a."""
    mods = Mods(instruction)
    type_, sign_type = mods.type(), mods.type()
    require(mods, type_, (*_INTEGERS, "f32", "f64"))
    require(mods, sign_type, ("s32", "f32"))
    flushes = sign_type.is_float and mods.flag("ftz")
    mods.done()
    d = decoder.dst(instruction, instruction.operands[0], type_)
    a, b = (decoder.src(instruction, instruction.operands[k], type_) for k in (1, 2))
    c = decoder.src(instruction, instruction.operands[3], sign_type)

    def step(sel: Selection) -> None:
        sign = flush(c[sel]) if flushes else c[sel]
        d[sel] = np.where(sign >= 0, a[sel], b[sel])

    return step


@opcode("testp")
def _testp(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    type_ = mods.type()
    require(mods, type_, ("f32", "f64"))
    least = type_.dtype.type(2.0**-126 if type_.bits == 32 else 2.0**-1022)
    tests: dict[str, Callable[[Array], Mask]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda x: ~np.isnan(x),
        "notanumber": np.isnan,
        "normal": lambda x: np.isfinite(x) & (np.abs(x) >= least),
        "subnormal": lambda x: (np.abs(x) < least) & (x != 0),
    }
    test = tests[mods.choice(tests)]
    mods.done()
    p = decoder.dst(instruction, instruction.operands[0], TYPES["pred"])
    a = decoder.src(instruction, instruction.operands[1], type_)

    def step(sel: Selection) -> None:
        p[sel] = test(a[sel])

    return step
