"""Logic, shifts and byte permutation (PTX ISA, "Logic and Shift Instructions", "prmt").

NumPy shifts by the width of the type or more give zeros, or copies of the sign for signed types, as PTX has it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from sdpalab.sim.decode import Decoder, Step, opcode
from sdpalab.sim.forms import PRMT_MODES
from sdpalab.sim.ir import Immediate, Instruction
from sdpalab.sim.isa.rounding import elementwise
from sdpalab.sim.isa.steps import computed
from sdpalab.sim.modifiers import Mods, require
from sdpalab.sim.selection import Array, Selection
from sdpalab.sim.types import TYPES

__all__: list[str] = []

_BITS = ("b16", "b32", "b64")


# ---- bitwise logic ---------------------------------------------------------------------------------------------------


@opcode("and", "or", "xor")
def _logic(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    type_ = mods.type()
    require(mods, type_, ("pred", *_BITS))
    mods.done()
    d = decoder.dst(instruction, instruction.operands[0], type_)
    a, b = (decoder.src(instruction, instruction.operands[k], type_) for k in (1, 2))
    ufuncs = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
    return elementwise(ufuncs[instruction.opcode], d, a, b)


@opcode("not")
def _not(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    type_ = mods.type()
    require(mods, type_, ("pred", *_BITS))
    mods.done()
    a = decoder.src(instruction, instruction.operands[1], type_)
    return elementwise(np.invert, decoder.dst(instruction, instruction.operands[0], type_), a)


@opcode("cnot")
def _cnot(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    type_ = mods.type()
    require(mods, type_, _BITS)
    mods.done()
    a = decoder.src(instruction, instruction.operands[1], type_)
    return computed(lambda x: x == 0, decoder.dst(instruction, instruction.operands[0], type_), a)


_Expression = tuple[np.ufunc, "_Expression | int", "_Expression | int"] | tuple[np.ufunc, "_Expression | int"]
"""An operation on sub-expressions; a number is one of the three inputs."""

_INPUTS = {0xF0: 0, 0xCC: 1, 0xAA: 2}
"""What ``lop3`` computes for the look-up tables that are its operands a, b and c."""


@lru_cache(maxsize=256)
def _expression(table: int) -> _Expression | int:
    """The shortest expression in and, or, xor, not for a look-up table of three inputs, which is not constant."""
    by_length: list[dict[int, _Expression | int]] = [dict(_INPUTS)]
    known = set(_INPUTS)
    while table not in known:
        new: dict[int, _Expression | int] = {}
        for value, part in by_length[-1].items():
            new.setdefault(~value & 0xFF, (np.invert, part))
        for k in range(len(by_length)):
            for x, left in by_length[k].items():
                for y, right in by_length[len(by_length) - 1 - k].items():
                    new.setdefault(x & y, (np.bitwise_and, left, right))
                    new.setdefault(x | y, (np.bitwise_or, left, right))
                    new.setdefault(x ^ y, (np.bitwise_xor, left, right))
        by_length.append({value: part for value, part in new.items() if value not in known})
        known.update(new)
    return by_length[-1][table]


def _evaluate(expression: _Expression | int, inputs: tuple[Array, ...]) -> Array:
    if isinstance(expression, int):
        return inputs[expression]
    ufunc, *parts = expression
    result: Array = ufunc(*[_evaluate(part, inputs) for part in parts])
    return result


def _lut_function(table: int) -> Callable[[Array, Array, Array], Array]:
    if table in (0x00, 0xFF):
        return lambda x, y, z: np.full_like(x, 0xFFFFFFFF if table else 0)
    expression = _expression(table)
    return lambda *inputs: _evaluate(expression, inputs)


@opcode("lop3")
def _lop3(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    combine = mods.choice(("or", "and"), default="")
    type_ = mods.type()
    require(mods, type_, ("b32",))
    mods.done()
    target, a, b, c, table = instruction.operands[:5]
    if not isinstance(table, Immediate) or not isinstance(table.value, int):
        raise mods.unsupported("expected an immediate look-up table")
    function = _lut_function(table.value & 0xFF)
    first, second = decoder.pair(target)
    d = decoder.dst(instruction, first, type_)
    sources = [decoder.src(instruction, operand, type_) for operand in (a, b, c)]
    if (second is None) == bool(combine):
        raise mods.unsupported("a predicate result goes with .or or .and")
    if second is None:
        return computed(function, d, *sources)
    p = decoder.dst(instruction, second, TYPES["pred"])
    q = decoder.predicate(instruction, instruction.operands[5])
    ufunc = np.logical_or if combine == "or" else np.logical_and

    def step(sel: Selection) -> None:
        result = function(*[source[sel] for source in sources])
        p[sel] = ufunc(result != 0, q(sel))
        d[sel] = result

    return step


# ---- shifts and permutations -----------------------------------------------------------------------------------------


@opcode("shl", "shr")
def _shift(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    type_ = mods.type()
    left = instruction.opcode == "shl"
    require(mods, type_, _BITS if left else (*_BITS, "u16", "u32", "u64", "s16", "s32", "s64"))
    mods.done()
    a = decoder.src(instruction, instruction.operands[1], type_)
    d = decoder.dst(instruction, instruction.operands[0], type_)
    # NumPy reads a negative amount as a large one, so the amount may be viewed as signed where its width fits.
    amount_type = TYPES["s32"] if type_.signed and type_.bits == 32 else TYPES["u32"]
    amount = decoder.src(instruction, instruction.operands[2], amount_type)
    return elementwise(np.left_shift if left else np.right_shift, d, a, amount)


@opcode("shf")
def _funnel_shift(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    left = mods.choice(("l", "r")) == "l"
    clamp = mods.choice(("wrap", "clamp")) == "clamp"
    type_ = mods.type()
    require(mods, type_, ("b32",))
    mods.done()
    d = decoder.dst(instruction, instruction.operands[0], type_)
    a, b, c = (decoder.src(instruction, instruction.operands[k], type_) for k in (1, 2, 3))
    width, low = np.uint32(32), np.uint32(31)

    def function(low_word: Array, high_word: Array, amount: Array) -> Array:
        n = np.minimum(amount, width) if clamp else amount & low
        right = n if not left else width - n
        result: Array = high_word << width - right | low_word >> right
        return result

    return computed(function, d, a, b, c)


_HALVES = {0x10: (0, 0), 0x32: (0, 1), 0x54: (1, 0), 0x76: (1, 1)}
"""Selector bytes that name a whole half of a source: which source, and which half."""


@opcode("prmt")
def _prmt(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    type_ = mods.type()
    require(mods, type_, ("b32",))
    mode = mods.choice(PRMT_MODES, default="")
    mods.done()
    d = decoder.dst(instruction, instruction.operands[0], type_)
    a, b, c = (decoder.src(instruction, instruction.operands[k], type_) for k in (1, 2, 3))
    selector = instruction.operands[3]
    if isinstance(selector, Immediate) and not mode:
        low, high = int(selector.value) & 0xFF, int(selector.value) >> 8 & 0xFF
        if low in _HALVES and high in _HALVES:
            return _join_halves(d, (a, b), _HALVES[low], _HALVES[high])
    table = np.array(PRMT_MODES[mode], np.uint64) if mode else None
    return computed(lambda x, y, z: _permute(x, y, z, table), d, a, b, c)


def _join_halves(d: Array, sources: tuple[Array, Array], low: tuple[int, int], high: tuple[int, int]) -> Step:
    """``prmt`` of whole halves, as compilers write it to pack 16-bit values."""
    half, upper, lower = np.uint32(16), np.uint32(0xFFFF0000), np.uint32(0xFFFF)
    first, second = sources[low[0]], sources[high[0]]

    def step(sel: Selection) -> None:
        bottom = first[sel] >> half if low[1] else first[sel] & lower
        bottom |= second[sel] & upper if high[1] else second[sel] << half
        d[sel] = bottom

    return step


def _permute(x: Array, y: Array, selector: Array, table: Array | None) -> Array:
    """Any four of the eight bytes of y and x; selector bit 3 spreads a byte's sign (PTX ISA, ``prmt``)."""
    both = y.astype(np.uint64) << np.uint64(32) | x
    eight, byte = np.uint64(8), np.uint64(0xFF)
    result: Array = np.zeros(1, np.uint64)
    for k in range(4):
        if table is not None:
            source = table[:, k][selector & np.uint32(3)]
        else:
            source = (selector >> np.uint32(4 * k) & np.uint32(15)).astype(np.uint64)
        chosen = both >> (source & np.uint64(7)) * eight & byte
        if table is None and (source & eight).any():
            chosen = np.where(source & eight, np.where(chosen & np.uint64(0x80), byte, np.uint64(0)), chosen)
        result = result | chosen << np.uint64(8 * k)
    return result.astype(np.uint32)
