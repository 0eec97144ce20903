"""Approximations in float32 of the special function unit, bit for bit.

The model is that of ptx-math 2c7dc92 (:mod:`warpsan.numerics.mufu_tables`): exact for every argument on GPUs of sm_50
to sm_75, with the roots of sm_60 and later and the sine and cosine of sm_70. Later GPUs have not been compared. Results
do not depend on the host's processor.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from llvmlite import ir

from warpsan.engine.lanes import WORD64, Lanes, llvm_type, where
from warpsan.engine.numeric import copysign, flushed, magnitude
from warpsan.numerics.mufu_tables import EXPONENTIAL, QUARTER, QUARTER_END, QUARTER_INVERSE, TABLES, Quadratic

__all__ = ["APPROXIMATIONS", "quotient"]

_INDEX = ir.IntType(32)
_FRACTION = 0x7FFFFF
_COLUMNS, _ROWS = 19, 9
_INFINITY, _NAN = float("inf"), 0x7FFFFFFF
_LEAST_NORMAL = 2.0**-126


def _square(low: Lanes) -> Lanes:
    """The unit's square of an argument of 17 bits (u32), s64: partial products in the lowest columns are left out."""
    below = (1 << _COLUMNS) - 1
    diagonal = low & 0x3FF  # each bit k to 2 k
    for shift, mask in ((8, 0x300FF), (4, 0x30F0F), (2, 0x33333), (1, 0x55555)):
        diagonal = (diagonal | (diagonal << shift)) & mask
    missing = diagonal & below
    for k in range(_ROWS):
        row = (low << (k + 1)) & (below & ~((1 << (2 * k + 2)) - 1))
        missing = missing + (row & -((low >> k) & 1))
    wide = low.to("s64")
    return wide * wide - missing.to("s64")


def _looked_up(table: Quadratic, place: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """The coefficients of each lane's piece, s64; a piece is one word of memory."""
    b = place.builder
    name = f"pieces.{table.weight}.{table.index_bits}.{table.pieces[0][0]:x}"
    if name not in b.module.globals:
        words = [c0 << 32 | c1 << 12 | c2 for c0, c1, c2 in table.pieces]
        assert all(c1 < 1 << 20 and c2 < 1 << 12 for _, c1, c2 in table.pieces)
        type_ = ir.ArrayType(WORD64, len(words))
        constant = ir.GlobalVariable(b.module, type_, name)
        constant.global_constant, constant.linkage = True, "internal"
        constant.initializer = ir.Constant(type_, words)
    pieces = b.module.globals[name]
    value = ir.Constant(llvm_type("s64", place.count), ir.Undefined)
    for lane in range(place.count):
        at = b.gep(pieces, [b.extract_element(place.value, _INDEX(lane))], source_etype=WORD64)
        value = b.insert_element(value, b.load(at, typ=WORD64), _INDEX(lane))
    word = Lanes(b, value, "s64")
    return word >> 32, (word >> 12) & 0xFFFFF, word & 0xFFF


def _polynomial(table: Quadratic, fraction: Lanes, offset: Lanes | None = None) -> Lanes:
    """A table's polynomial at the upper bits of a 23-bit fraction (32 bits), s64."""
    place = fraction >> table.argument_bits
    c0, c1, c2 = _looked_up(table, place if offset is None else place + offset)
    x = fraction.to("u32") & ((1 << table.argument_bits) - 1)
    spare = 17 - table.argument_bits
    square = _square(x << spare) >> 2 * spare
    linear, quadratic = (c1 * x.to("s64")) << table.shifts[1], c2 * square
    total = (c0 << table.shifts[0]) + table.bias
    total = total + linear if table.signs[0] > 0 else total - linear
    return total + quadratic if table.signs[1] > 0 else total - quadratic


def _number(exponent: Lanes | int, fraction: Lanes) -> Lanes:
    """f32 from a biased exponent and the 23 fraction bits."""
    bits = fraction.to("u32") & _FRACTION
    above = bits.like(exponent) if isinstance(exponent, int) else exponent.to("u32")
    return (bits | (above << 23)).as_type("f32")


def _normalised(x: Lanes) -> tuple[Lanes, Lanes]:
    """Exponents and fractions of finite nonzero numbers, including subnormal ones; s32."""
    small = magnitude(x) < _LEAST_NORMAL
    bits = where(small, x * 2.0**24, x).as_type("s32")
    exponent = ((bits >> 23) & 0xFF) - 127
    return exponent - where(small, bits.like(24), 0), bits & _FRACTION


def _scaled(values: Lanes, exponent: Lanes) -> Lanes:
    """``values * 2**exponent``, rounded once to f32, for exponents in the range of f64."""
    return (values.to("f64") * ((exponent.to("s64") + 1023) << 52).as_type("f64")).to("f32")


def _with_nan(result: Lanes, condition: Lanes) -> Lanes:
    return where(condition, result.as_type("u32").like(_NAN), result.as_type("u32")).as_type("f32")


def ex2(x: Lanes, ftz: bool) -> Lanes:
    """``2**x``."""
    halved = x < -126
    inside = x if ftz else where(halved, x * 0.5, x)
    inside = where(inside > -300, inside, -300)  # NaN too
    inside = where(inside < 300, inside, 300)
    whole = inside.to("s32")
    fraction = (magnitude(inside - whole.to("f32")) * 2.0**23).to("s32")  # exact up to here
    below = (inside < 0) & (fraction != 0)
    exponent = whole - where(below, whole.like(1), 0)
    fraction = where(below, ~fraction & _FRACTION, fraction)
    table = TABLES["ex2"]
    mantissa = _polynomial(table, fraction) >> (table.weight - 23)
    held = where(exponent > 127, exponent.like(127), where(exponent < -126, exponent.like(-126), exponent))
    result = _number(held + 127, mantissa)
    result = where(exponent > 127, result.like(_INFINITY), where(exponent < -126, result.like(0), result))
    if not ftz:
        result = where(halved, result * result, result)
    result = where(magnitude(x) < _LEAST_NORMAL, result.like(1), result)
    result = where(x == _INFINITY, x, where(x == -_INFINITY, result.like(0), result))
    return _with_nan(result, x.nan)


def lg2(x: Lanes, ftz: bool) -> Lanes:
    """The logarithm to base 2."""
    exponent, fraction = _normalised(x)
    subnormal = exponent < -126
    exponent = exponent + where(subnormal, exponent.like(24), 0)
    table = TABLES["lg2"]
    total = _polynomial(table, fraction) + (exponent.to("s64") << table.weight)
    total = where(total < 0, -total, total) & ~((1 << 20) - 1)
    exact = total.to("f64") * 2.0**-table.weight
    cut = exact.as_type("u64") & ~((1 << 29) - 1)
    result = cut.as_type("f64").to("f32")
    result = where(exponent < 0, -result, result)
    result = where(subnormal, result - 24, result)
    result = where(x == 1, result.like(0), result)
    result = where(x == 0, result.like(-_INFINITY), result)
    result = where(x == _INFINITY, x, result)
    return _with_nan(result, (x < 0) | x.nan)


def rcp(x: Lanes, ftz: bool) -> Lanes:
    """``1 / x``."""
    exponent, fraction = _normalised(x)
    table = TABLES["rcp"]
    total = _polynomial(table, fraction)
    whole = total >> table.weight
    digits = where(whole != 0, total >> (table.weight - 23), total >> (table.weight - 24))
    result = _scaled(_number(whole + 126, digits), -exponent)
    size = magnitude(x)
    result = where(size == 0, result.like(_INFINITY), where(size == _INFINITY, result.like(0), result))
    return _with_nan(copysign(result, x), x.nan)


def rsqrt(x: Lanes, ftz: bool) -> Lanes:
    """``1 / sqrt(x)``."""
    exponent, fraction = _normalised(x)
    odd = exponent & 1
    table = TABLES["rsqrt"]
    total = _polynomial(table, fraction, odd << table.index_bits) << 1
    result = _number(126, total >> (table.weight - 23))
    result = where((odd | fraction) == 0, result.like(1), result)
    result = _scaled(result, -((exponent - odd) >> 1))
    result = where(x == _INFINITY, result.like(0), result)
    result = where(x == 0, copysign(result.like(_INFINITY), x), result)
    return _with_nan(result, (x < 0) | x.nan)


def sqrt(x: Lanes, ftz: bool) -> Lanes:
    """``sqrt(x)``."""
    exponent, fraction = _normalised(x)
    odd = exponent & 1
    table = TABLES["sqrt"]
    total = _polynomial(table, fraction, odd << table.index_bits)
    result = _scaled(_number(127, total >> (table.weight - 23)), (exponent - odd) >> 1)
    result = where((x == _INFINITY) | (x == 0), x, result)
    return _with_nan(result, (x < 0) | x.nan)


def _exponent_of(x: Lanes) -> Lanes:
    """The exponent of a normal f64, s64."""
    return ((x.as_type("s64") >> 52) & 0x7FF) - 1023


def _reduced(x: Lanes) -> tuple[Lanes, Lanes]:
    """The quadrant of an angle, and its place there as a 23-bit fraction with the bits above it (s64)."""
    size = magnitude(x).to("f64")
    regular = (size >= _LEAST_NORMAL) & (size < _INFINITY)
    size = where(regular, size, 1.0)
    far = size >= 2.0**33
    near = where(far, size.like(1.0), size)
    many = (near * QUARTER_INVERSE).to("s64")
    inside = near - many.to("f64") * QUARTER
    inside = where(inside > 0, where(inside < QUARTER_END, inside, QUARTER_END), 0)
    place = (inside * QUARTER_INVERSE * 2.0**23).to("s64")
    packed = where(far, many.like(0), ((many & 3) << 23) | place)
    lost, also = _exponent_of(size) - 8, _exponent_of(size * QUARTER_INVERSE)
    lost = where(far | (lost < 0), lost.like(0), lost)
    also = where(also < 0, also.like(0), where(also > 25, also.like(25), also))
    lost = where(lost > also, lost, also)
    packed = where(regular, packed & (lost.like(-1) << lost), 0)
    return packed >> 23, packed


def _sine(place: Lanes, negative: Lanes) -> Lanes:
    """The sine of a place in the first quadrant, with a sign."""
    table = TABLES["sin"]
    total = _polynomial(table, place.to("s32") & _FRACTION)
    exponent = total.like(127)
    for shift in (32, 16, 8, 4, 2, 1):
        low = total < 1 << (table.weight + 1 - shift)
        total, exponent = where(low, total << shift, total), where(low, exponent - shift, exponent)
    zero = total == 0
    result = _number(where(zero, exponent.like(0), exponent), total >> (table.weight - 23))
    sign = where(negative, result.as_type("u32").like(1 << 31), 0)
    return (result.as_type("u32") | sign).as_type("f32")


def _finite(x: Lanes) -> Lanes:
    return magnitude(x) < _INFINITY


def sin(x: Lanes, ftz: bool) -> Lanes:
    """The sine."""
    quadrant, place = _reduced(x)
    negative = (x.as_type("u32") >> 31).to("s64") ^ ((quadrant >> 1) & 1)
    result = _sine(where((quadrant & 1) != 0, ~place, place), negative != 0)
    return _with_nan(result, ~_finite(x))


def cos(x: Lanes, ftz: bool) -> Lanes:
    """The cosine."""
    quadrant, place = _reduced(x)
    result = _sine(where((quadrant & 1) != 0, place, ~place), ((quadrant + 1) & 2) != 0)
    return _with_nan(result, ~_finite(x))


def tanh(x: Lanes, ftz: bool) -> Lanes:
    """The hyperbolic tangent, with the same additions and products in f64."""
    size = magnitude(x)
    binary = where(size < 20, size, 20.0).to("f64") * (2 / math.log(2))
    whole = (binary + 0.5).to("s64")
    f = binary - whole.to("f64")
    power = f.like(EXPONENTIAL[-1])
    for coefficient in EXPONENTIAL[-2::-1]:
        power = power * f + coefficient
    power = power * ((whole + 1023) << 52).as_type("f64")
    result = copysign(((power - 1) / (power + 1)).to("f32"), x)
    result = where(size < 2.0**-20, x, result)
    return _with_nan(result, x.nan)


APPROXIMATIONS: dict[str, Callable[[Lanes, bool], Lanes]] = {
    "ex2": ex2,
    "lg2": lg2,
    "rcp": rcp,
    "rsqrt": rsqrt,
    "sqrt": sqrt,
    "sin": sin,
    "cos": cos,
    "tanh": tanh,
}
"""Functions of f32, and whether the caller flushes subnormals."""


def quotient(a: Lanes, b: Lanes, *, full: bool) -> Lanes:
    """``div.approx`` and ``div.full`` of float32: the reciprocal times the numerator.

    The reciprocal is zero if it would be subnormal, and a subnormal divisor is scaled up first. ``full`` scales both
    operands down if the divisor is above ``2**126``.
    """
    size = magnitude(b)
    scale = where((size < _LEAST_NORMAL) & (size > 0), size.like(2.0**24), 1.0)
    if full:
        scale = where((size > 2.0**126) & (size < _INFINITY), size.like(0.25), scale)
    reciprocal = flushed(rcp(b * scale, False), "f32")
    return a * scale * reciprocal if full else a * (reciprocal * scale)
