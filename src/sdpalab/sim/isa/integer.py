"""Integer arithmetic (PTX ISA, "Integer Arithmetic Instructions" and "Extended-Precision Integer Arithmetic").

Everything wraps. Where the manual leaves a result unspecified, as for a division by zero, it is what NVIDIA's compilers
generate: all ones.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sdpalab.sim.decode import Decoder, Step, opcode
from sdpalab.sim.ir import Instruction
from sdpalab.sim.isa.rounding import elementwise
from sdpalab.sim.isa.steps import computed
from sdpalab.sim.modifiers import Mods, require
from sdpalab.sim.selection import Array, Mask, Selection
from sdpalab.sim.types import TYPES, PtxType, unsigned

__all__ = ["INTEGER_HANDLERS", "TypedHandler"]

TypedHandler = Callable[[Decoder, Instruction, Mods, PtxType], Step]

_SIGNED = ("s16", "s32", "s64")
_PLAIN = ("u16", "u32", "u64", *_SIGNED)
_CARRYING = ("u32", "s32", "u64", "s64")


def _operands(decoder: Decoder, instruction: Instruction, type_: PtxType, count: int) -> tuple[Array, ...]:
    """The destination and ``count`` sources, all of one type."""
    if len(instruction.operands) != 1 + count:
        raise Mods(instruction).unsupported(f"expected {count} source operands")
    sources = (decoder.src(instruction, instruction.operands[1 + k], type_) for k in range(count))
    return decoder.dst(instruction, instruction.operands[0], type_), *sources


# ---- addition, subtraction, carries ----------------------------------------------------------------------------------


def _sum(decoder: Decoder, instruction: Instruction, mods: Mods, type_: PtxType) -> Step:
    """``add`` and ``sub``, and with ``.cc`` their forms that set the carry."""
    subtract = instruction.opcode == "sub"
    if mods.flag("cc"):
        return _carrying_sum(decoder, instruction, mods, type_, subtract=subtract, carry_in=False, carry_out=True)
    require(mods, type_, _PLAIN if subtract else (*_PLAIN, "u16x2", "s16x2"))
    saturate = type_.name == "s32" and mods.flag("sat")
    mods.done()
    d, a, b = _operands(decoder, instruction, type_, 2)
    ufunc = np.subtract if subtract else np.add
    if not saturate:
        return elementwise(ufunc, d, a, b)
    return computed(lambda x, y: _saturated(ufunc(x, y, dtype=np.int64)), d, a, b)


def _saturated(wide: Array) -> Array:
    limits = np.iinfo(np.int32)
    return np.clip(wide, np.int64(limits.min), np.int64(limits.max)).astype(np.int32)


@opcode("addc", "subc")
def _sum_with_carry(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    carry_out, type_ = mods.flag("cc"), mods.type()
    subtract = instruction.opcode == "subc"
    return _carrying_sum(decoder, instruction, mods, type_, subtract=subtract, carry_in=True, carry_out=carry_out)


def _carrying_sum(
    decoder: Decoder,
    instruction: Instruction,
    mods: Mods,
    type_: PtxType,
    *,
    subtract: bool,
    carry_in: bool,
    carry_out: bool,
) -> Step:
    """Sum or difference with the condition code register's carry (or borrow) flag."""
    require(mods, type_, _CARRYING)
    mods.done()
    d, a, b = _operands(decoder, instruction, TYPES[f"u{type_.bits}"], 2)
    flag = decoder.hidden("carry", TYPES["pred"])

    def step(sel: Selection) -> None:
        total, over = _add_carry(a[sel], b[sel], flag[sel] if carry_in else None, subtract=subtract)
        d[sel] = total
        if carry_out:
            flag[sel] = over

    return step


def _add_carry(x: Array, y: Array, carry: Mask | None, *, subtract: bool = False) -> tuple[Array, Mask]:
    """Unsigned sum or difference with a carry or borrow in, and the one out."""
    total = x - y if subtract else x + y
    over: Mask = x < y if subtract else total < x
    if carry is not None:
        bit = carry.astype(x.dtype)
        over |= total < bit if subtract else total + bit < total
        total = total - bit if subtract else total + bit
    return total, over


# ---- products --------------------------------------------------------------------------------------------------------


def _high_64(x: Array, y: Array) -> Array:
    """The upper 64 bits of 64-bit products, signed or not by the arrays' type."""
    a, b = x.view(np.uint64), y.view(np.uint64)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = a1 * b0 + (a0 * b0 >> half)
    other = a0 * b1 + (middle & low)
    high: Array = a1 * b1 + (middle >> half) + (other >> half)
    if x.dtype.kind == "i":
        # A negative factor was read as 2^64 more than it is.
        high -= np.where(x < 0, b, np.uint64(0)) + np.where(y < 0, a, np.uint64(0))
    return high.view(x.dtype)


def _product(mode: str, type_: PtxType) -> Callable[[Array, Array], Array]:
    """The multiplication of ``mul.mode``; a wide result has twice the bits."""
    if mode == "lo":
        return np.multiply
    if type_.bits == 64:
        return _high_64
    wide = TYPES[f"{type_.kind}{2 * type_.bits}"].dtype
    if mode == "wide":
        return lambda x, y: np.multiply(x, y, dtype=wide)
    shift = wide.type(type_.bits)
    return lambda x, y: (np.multiply(x, y, dtype=wide) >> shift).astype(type_.dtype)


def _take_mode(mods: Mods, type_: PtxType) -> tuple[str, PtxType]:
    """The part of the product that is wanted, and the type of the result."""
    require(mods, type_, _PLAIN)
    mode = mods.choice(("lo", "hi", "wide"))
    if mode != "wide":
        return mode, type_
    require(mods, type_, ("u16", "u32", "s16", "s32"))
    return mode, TYPES[f"{type_.kind}{2 * type_.bits}"]


def _mul(decoder: Decoder, instruction: Instruction, mods: Mods, type_: PtxType) -> Step:
    mode, result = _take_mode(mods, type_)
    mods.done()
    d = decoder.dst(instruction, instruction.operands[0], result)
    a, b = (decoder.src(instruction, instruction.operands[k], type_) for k in (1, 2))
    if mode == "lo":
        return elementwise(np.multiply, d, a, b)
    if mode == "hi":
        return computed(_product(mode, type_), d, a, b)
    # A constant is widened once.
    a, b = (x if x.strides[0] else np.broadcast_to(x[:1].astype(result.dtype), x.shape) for x in (a, b))

    def wide(sel: Selection) -> None:
        if isinstance(sel, slice):
            np.multiply(a[sel], b[sel], out=d[sel], dtype=result.dtype)
        else:
            d[sel] = np.multiply(a[sel], b[sel], dtype=result.dtype)

    return wide


def _mad(decoder: Decoder, instruction: Instruction, mods: Mods, type_: PtxType) -> Step:
    if mods.flag("cc"):
        return _carrying_mad(decoder, instruction, mods, type_, carry_in=False, carry_out=True)
    mode, result = _take_mode(mods, type_)
    saturate = mode == "hi" and type_.name == "s32" and mods.flag("sat")
    mods.done()
    product = _product(mode, type_)
    d = decoder.dst(instruction, instruction.operands[0], result)
    a, b = (decoder.src(instruction, instruction.operands[k], type_) for k in (1, 2))
    c = decoder.src(instruction, instruction.operands[3], result)
    if saturate:
        return computed(lambda x, y, z: _saturated(np.add(product(x, y), z, dtype=np.int64)), d, a, b, c)

    def step(sel: Selection) -> None:
        if isinstance(sel, slice):
            np.add(product(a[sel], b[sel]), c[sel], out=d[sel])
        else:
            d[sel] = product(a[sel], b[sel]) + c[sel]

    return step


@opcode("madc")
def _madc(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    carry_out = mods.flag("cc")
    return _carrying_mad(decoder, instruction, mods, mods.type(), carry_in=True, carry_out=carry_out)


def _carrying_mad(
    decoder: Decoder, instruction: Instruction, mods: Mods, type_: PtxType, *, carry_in: bool, carry_out: bool
) -> Step:
    require(mods, type_, _CARRYING)
    product = _product(mods.choice(("lo", "hi")), type_)
    mods.done()
    bits = TYPES[f"u{type_.bits}"]
    a, b = (decoder.src(instruction, instruction.operands[k], type_) for k in (1, 2))
    c = decoder.src(instruction, instruction.operands[3], bits)
    d = decoder.dst(instruction, instruction.operands[0], bits)
    flag = decoder.hidden("carry", TYPES["pred"])

    def step(sel: Selection) -> None:
        total, over = _add_carry(product(a[sel], b[sel]).view(bits.dtype), c[sel], flag[sel] if carry_in else None)
        d[sel] = total
        if carry_out:
            flag[sel] = over

    return step


@opcode("mul24", "mad24")
def _mul24(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    type_ = mods.type()
    require(mods, type_, ("u32", "s32"))
    high = mods.choice(("hi", "lo")) == "hi"
    adds = instruction.opcode == "mad24"
    saturate = adds and high and type_.signed and mods.flag("sat")
    mods.done()
    d, *sources = _operands(decoder, instruction, type_, 2 + adds)
    wide = TYPES[f"{type_.kind}64"].dtype
    drop, shift = type_.dtype.type(8), wide.type(16 if high else 0)

    def function(x: Array, y: Array, *z: Array) -> Array:
        part: Array = np.multiply((x << drop) >> drop, (y << drop) >> drop, dtype=wide) >> shift
        if not adds:
            return part.astype(type_.dtype)
        if saturate:
            return _saturated(part.astype(np.int32) + z[0].astype(np.int64))
        return np.add(part.astype(type_.dtype), z[0])

    return computed(function, d, *sources)


@opcode("dp4a", "dp2a")
def _dot(decoder: Decoder, instruction: Instruction) -> Step:
    """The parts of ``a`` (four bytes, or two halves) times as many bytes of ``b``, added to ``c``."""
    mods = Mods(instruction)
    count = 4 if instruction.opcode == "dp4a" else 2
    first = 2 if count == 2 and mods.choice(("lo", "hi")) == "hi" else 0
    types = mods.type(), mods.type()
    for type_ in types:
        require(mods, type_, ("u32", "s32"))
    mods.done()
    left_type, right_type = np.dtype(f"{types[0].dtype.kind}{4 // count}"), np.dtype(f"{types[1].dtype.kind}1")
    d, a, b, c = _operands(decoder, instruction, TYPES["u32"], 3)

    def function(x: Array, y: Array, z: Array) -> Array:
        left = np.ascontiguousarray(x).view(left_type).reshape(-1, count).astype(np.int64)
        right = np.ascontiguousarray(y).view(right_type).reshape(-1, 4)[:, first : first + count]
        total: Array = (left * right).sum(axis=1) + z
        return total.astype(np.uint32)

    return computed(function, d, a, b, c)


# ---- division, extremes, signs ---------------------------------------------------------------------------------------


def _magnitude(x: Array) -> Array:
    """Absolute values as unsigned integers: that of the least integer has no signed form."""
    return np.absolute(x).view(unsigned(8 * x.dtype.itemsize))


def _quotient(x: Array, y: Array) -> Array:
    """Division towards zero; all ones for a zero divisor."""
    zero = y == 0
    if x.dtype.kind == "u":
        result: Array = np.floor_divide(x, y)
    else:
        result = np.floor_divide(_magnitude(x), _magnitude(y)).view(x.dtype)
        np.negative(result, out=result, where=(x ^ y) < 0)
    np.copyto(result, ~x.dtype.type(0), where=zero)
    return result


def _remainder(x: Array, y: Array) -> Array:
    """What :func:`_quotient` leaves, with the dividend's sign; all ones for a zero divisor."""
    zero = y == 0
    if x.dtype.kind == "u":
        result: Array = np.remainder(x, y)
    else:
        result = np.remainder(_magnitude(x), _magnitude(y)).view(x.dtype)
        np.negative(result, out=result, where=x < 0)
    np.copyto(result, ~x.dtype.type(0), where=zero)
    return result


def _div(decoder: Decoder, instruction: Instruction, mods: Mods, type_: PtxType) -> Step:
    require(mods, type_, _PLAIN)
    mods.done()
    return computed(_quotient, *_operands(decoder, instruction, type_, 2))


@opcode("rem")
def _rem(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    type_ = mods.type()
    require(mods, type_, _PLAIN)
    mods.done()
    return computed(_remainder, *_operands(decoder, instruction, type_, 2))


def _extreme(decoder: Decoder, instruction: Instruction, mods: Mods, type_: PtxType) -> Step:
    """``min`` and ``max``; ``.relu`` makes negative results zero."""
    require(mods, type_, (*_PLAIN, "u16x2", "s16x2"))
    relu = type_.name in ("s32", "s16x2") and mods.flag("relu")
    mods.done()
    ufunc = np.minimum if instruction.opcode == "min" else np.maximum
    d, a, b = _operands(decoder, instruction, type_, 2)
    if not relu:
        return elementwise(lambda x, y, out: ufunc(x, y, out=out), d, a, b)
    return computed(lambda x, y: np.maximum(ufunc(x, y), type_.dtype.type(0)), d, a, b)


def _sign(decoder: Decoder, instruction: Instruction, mods: Mods, type_: PtxType) -> Step:
    """``abs`` and ``neg``."""
    require(mods, type_, _SIGNED)
    mods.done()
    d, a = _operands(decoder, instruction, type_, 1)
    return elementwise(np.absolute if instruction.opcode == "abs" else np.negative, d, a)


@opcode("sad")
def _sad(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    type_ = mods.type()
    require(mods, type_, _PLAIN)
    mods.done()
    d, a, b, c = _operands(decoder, instruction, type_, 3)
    return computed(lambda x, y, z: z + (np.maximum(x, y) - np.minimum(x, y)), d, a, b, c)


INTEGER_HANDLERS: dict[str, TypedHandler] = {
    "add": _sum,
    "sub": _sum,
    "mul": _mul,
    "mad": _mad,
    "div": _div,
    "min": _extreme,
    "max": _extreme,
    "abs": _sign,
    "neg": _sign,
}
"""The integer side of the opcodes that floating point has too."""
