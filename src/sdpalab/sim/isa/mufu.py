"""Approximations in float32 as the special function unit computes them, bit for bit, on NumPy's arrays.

The model is that of ptx-math 2c7dc92 (:mod:`sdpalab.sim.mufu_tables`): exact for every argument on GPUs of sm_50 to
sm_75, with the roots of sm_60 and later and the sine and cosine of sm_70. Later ones have not been compared. No result
depends on the host's processor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from sdpalab.sim.mufu_tables import EXPONENTIAL, QUARTER, QUARTER_END, QUARTER_INVERSE, TABLES, Quadratic
from sdpalab.sim.selection import Array

__all__ = ["APPROXIMATIONS", "quotient"]

_FRACTION = 0x7FFFFF
_SQUARE_BITS, _SQUARE_COLUMNS, _SQUARE_ROWS = 17, 19, 9
_NAN = np.uint32(0x7FFFFFFF).view(np.float32)


@cache
def _squares() -> Array:
    """The unit's squares of all arguments of 17 bits: partial products in the lowest columns are left out."""
    x = np.arange(1 << _SQUARE_BITS, dtype=np.int64)
    below = (1 << _SQUARE_COLUMNS) - 1
    missing = np.zeros_like(x)
    for k in range(_SQUARE_BITS):
        missing += ((x >> k & 1) << 2 * k) & below
    for k in range(_SQUARE_ROWS):
        row = (x << (k + 1)) & ~np.int64((1 << (2 * k + 2)) - 1)
        missing += np.where(x >> k & 1, row, 0) & below
    return x * x - missing


def _polynomial(table: Quadratic, fraction: Array, offset: Array | int = 0) -> Array:
    """A table's polynomial at the upper bits of a 23-bit fraction, int64."""
    pieces = _pieces_of(table)
    chosen = (fraction >> table.argument_bits) + offset
    x = fraction & ((1 << table.argument_bits) - 1)
    spare = _SQUARE_BITS - table.argument_bits  # of rcp, whose x has a bit fewer
    square = _squares().take(x << spare) >> 2 * spare
    linear = pieces[1].take(chosen) * x << table.shifts[1]
    total: Array = (pieces[0].take(chosen) << table.shifts[0]) + table.signs[0] * linear
    total += table.signs[1] * pieces[2].take(chosen) * square + table.bias
    return total


@cache
def _pieces_of(table: Quadratic) -> Array:
    pieces: Array = np.array(table.pieces, np.int64).T.copy()
    return pieces


def _number(exponent: Array | int, fraction: Array) -> Array:
    """float32 of a biased exponent and the 23 bits behind the point."""
    bits = (np.asarray(exponent, np.int64) << 23) | (fraction & _FRACTION)
    return np.asarray(bits).astype(np.uint32).view(np.float32)


def _normalised(x: Array) -> tuple[Array, Array]:
    """Exponents and fractions of finite numbers that are not zero, subnormal ones too; int64."""
    small = np.abs(x) < np.float32(2.0**-126)
    bits = np.where(small, x * np.float32(2.0**24), x).astype(np.float32).view(np.uint32).astype(np.int64)
    return (bits >> 23 & 0xFF) - 127 - np.where(small, 24, 0), bits & _FRACTION


def _scaled(values: Array, exponent: Array) -> Array:
    """``values * 2**exponent``, rounded once to float32."""
    return np.ldexp(values.astype(np.float64), exponent.astype(np.int32)).astype(np.float32)


def ex2(x: Array, ftz: bool) -> Array:
    """``2**x``."""
    halved = (x < -126) & (not ftz)
    inside = np.where(halved, x * np.float32(0.5), x).astype(np.float64)
    inside = np.clip(np.where(np.isfinite(inside), inside, 0), -300, 300)
    whole = np.trunc(inside)
    fraction = np.trunc(np.abs(inside - whole) * 2.0**23).astype(np.int64)
    below = (inside < 0) & (fraction != 0)
    exponent = whole.astype(np.int64) - below
    fraction = np.where(below, ~fraction & _FRACTION, fraction)
    table = TABLES["ex2"]
    mantissa = _polynomial(table, fraction) >> (table.weight - 23)
    result = _number(np.clip(exponent, -126, 127) + 127, mantissa)
    result = np.where(exponent > 127, np.float32(np.inf), np.where(exponent < -126, np.float32(0), result))
    result = np.where(halved, result * result, result)
    result = np.where(np.abs(x) < np.float32(2.0**-126), np.float32(1), result)
    result = np.where(np.isinf(x), np.where(x > 0, x, np.float32(0)), result)
    return np.where(np.isnan(x), _NAN, result)


def lg2(x: Array, ftz: bool) -> Array:
    """The logarithm to base 2."""
    exponent, fraction = _normalised(x)
    subnormal = exponent < -126
    table = TABLES["lg2"]
    shift = np.where(subnormal, 24, 0)
    total = np.abs(_polynomial(table, fraction) + (exponent + shift << table.weight)) & ~np.int64((1 << 20) - 1)
    # What is left has at most 44 digits, so that float64 has it exactly; its last 29 bits are cut off.
    exact = np.ldexp(total.astype(np.float64), -table.weight)
    result = (exact.view(np.int64) & ~np.int64((1 << 29) - 1)).view(np.float64).astype(np.float32)
    result = np.where(exponent + shift < 0, -result, result)
    result = np.where(subnormal, result - np.float32(24), result)
    result = np.where(x == 1, np.float32(0), result)
    result = np.where(x == 0, np.float32(-np.inf), result)
    result = np.where(x == np.inf, x, result)
    return np.where((x < 0) | np.isnan(x), _NAN, result)


def rcp(x: Array, ftz: bool) -> Array:
    """``1 / x``."""
    exponent, fraction = _normalised(x)
    table = TABLES["rcp"]
    total = _polynomial(table, fraction)
    whole = total >> table.weight  # 1 only where x is a power of two
    result = _number(126 + whole, total >> (table.weight - 24 + whole))
    result = np.copysign(_scaled(result, -exponent), x)
    result = np.where(x == 0, np.copysign(np.float32(np.inf), x), result)
    result = np.where(np.isinf(x), np.copysign(np.float32(0), x), result)
    return np.where(np.isnan(x), _NAN, result)


def rsqrt(x: Array, ftz: bool) -> Array:
    """``1 / sqrt(x)``."""
    exponent, fraction = _normalised(x)
    odd = exponent & 1
    table = TABLES["rsqrt"]
    total = _polynomial(table, fraction, odd << table.index_bits) << 1
    result = _number(126, total >> (table.weight - 23))
    result = np.where((odd == 0) & (fraction == 0), np.float32(1), result)
    result = _scaled(result, -(exponent - odd >> 1))
    result = np.where(x == np.inf, np.float32(0), result)
    result = np.where((x < 0) | np.isnan(x), _NAN, result)
    return np.where(x == 0, np.copysign(np.float32(np.inf), x), result)


def sqrt(x: Array, ftz: bool) -> Array:
    """``sqrt(x)``."""
    exponent, fraction = _normalised(x)
    odd = exponent & 1
    table = TABLES["sqrt"]
    total = _polynomial(table, fraction, odd << table.index_bits)
    result = _scaled(_number(127, total >> (table.weight - 23)), exponent - odd >> 1)
    result = np.where(x == np.inf, x, result)
    result = np.where((x < 0) | np.isnan(x), _NAN, result)
    return np.where(x == 0, x, result)


def _reduced(x: Array) -> tuple[Array, Array]:
    """The quadrant of an angle, and its place there as a 23-bit fraction with what is above it (int64)."""
    size = np.abs(x).astype(np.float64)
    tiny = ~((size >= 2.0**-126) & np.isfinite(size))
    size = np.where(tiny, 1.0, size)
    many = np.floor(size * QUARTER_INVERSE)
    inside = np.clip(size - many * QUARTER, 0.0, QUARTER_END)
    place = np.floor(inside * QUARTER_INVERSE * 2.0**23).astype(np.int64)
    packed = np.where(size >= 2.0**33, 0, (many.astype(np.int64) & 3) << 23 | place)
    # The greater the angle, the fewer digits of its place there are.
    lost = np.clip(np.frexp(size)[1] - 1 - 8, 0, 63)
    lost = np.where(size >= 2.0**33, 0, lost)
    lost = np.maximum(lost, np.clip(np.frexp(size * QUARTER_INVERSE)[1] - 1, 0, 25)).astype(np.int64)
    packed = np.where(tiny, 0, packed & (np.int64(-1) << lost))
    return packed >> 23, packed


def _sine(place: Array, negative: Array) -> Array:
    """The sine of a place in the first quadrant, with a sign."""
    table = TABLES["sin"]
    total = _polynomial(table, place & _FRACTION)
    exponent = np.full(total.shape, 127, np.int64)
    for shift in (32, 16, 8, 4, 2, 1):
        low = total < np.int64(1) << (table.weight + 1 - shift)
        total, exponent = np.where(low, total << shift, total), np.where(low, exponent - shift, exponent)
    size = np.where(total == 0, np.float32(0), _number(exponent, total >> (table.weight - 23)))
    signed: Array = np.copysign(size, np.where(negative, np.float32(-1), np.float32(1)))
    return signed


def sin(x: Array, ftz: bool) -> Array:
    """The sine."""
    quadrant, place = _reduced(x)
    result = _sine(np.where(quadrant & 1, ~place, place), np.signbit(x) ^ (quadrant & 2 != 0))
    return np.where(np.isfinite(x), result, _NAN)


def cos(x: Array, ftz: bool) -> Array:
    """The cosine."""
    quadrant, place = _reduced(x)
    result = _sine(np.where(quadrant & 1, place, ~place), (quadrant + 1) & 2 != 0)
    return np.where(np.isfinite(x), result, _NAN)


def tanh(x: Array, ftz: bool) -> Array:
    """The hyperbolic tangent: no public model of the unit has it, and this is the exact one to half a unit in the last
    place and a little more, by additions and products in float64 that are the same on every processor."""
    size = np.minimum(np.abs(x), np.float32(20)).astype(np.float64)
    binary = size * (2 / math.log(2))
    whole = np.floor(binary + 0.5)
    f = binary - whole
    power = np.full(f.shape, EXPONENTIAL[-1])
    for coefficient in EXPONENTIAL[-2::-1]:
        power = power * f + coefficient
    power = power * ((whole.astype(np.int64) + 1023) << 52).view(np.float64)
    result = np.copysign(((power - 1) / (power + 1)).astype(np.float32), x)
    result = np.where(np.abs(x) < np.float32(2.0**-20), x, result)
    return np.where(np.isnan(x), _NAN, result)


def _flushed(x: Array) -> Array:
    return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)


_FUNCTIONS = {"ex2": ex2, "lg2": lg2, "rcp": rcp, "rsqrt": rsqrt, "sqrt": sqrt, "sin": sin, "cos": cos, "tanh": tanh}

Approximation = Callable[[Array, Array, bool], None]


def _approximation(function: Callable[[Array, bool], Array]) -> Approximation:
    def compute(x: Array, out: Array, ftz: bool) -> None:
        with np.errstate(all="ignore"):
            result = function(_flushed(x) if ftz else x, ftz)
            np.copyto(out, _flushed(result) if ftz else result, casting="same_kind")

    return compute


APPROXIMATIONS: dict[str, Approximation] = {name: _approximation(function) for name, function in _FUNCTIONS.items()}
"""Functions of (arguments, results, whether subnormals are flushed), float32."""


def quotient(a: Array, b: Array, out: Array, full: bool) -> None:
    """``div.approx`` and ``div.full`` of float32: the reciprocal times the numerator.

    The reciprocal is zero where it would be subnormal, and a subnormal divisor is scaled up first. ``full`` scales both
    operands down where the divisor is above ``2**126``.
    """
    with np.errstate(all="ignore"):
        size = np.abs(b)
        small = (size < np.float32(2.0**-126)) & (size > 0)
        scale = np.where(small, np.float32(2.0**24), np.float32(1))
        if full:
            scale = np.where((size > np.float32(2.0**126)) & np.isfinite(b), np.float32(0.25), scale)
        reciprocal = _flushed(rcp(b * scale, False))
        if full:
            np.copyto(out, a * scale * reciprocal)
        else:
            np.copyto(out, a * (reciprocal * scale))
