"""The fused multiply-add on NumPy, which has none: rounded once, in float32 and in float64 (PTX ISA, "fma")."""

from __future__ import annotations

import numpy as np

from sdpalab.sim.decode import Decoder
from sdpalab.sim.isa.rounding import Compute, scratch, sum_to_odd
from sdpalab.sim.selection import Array

__all__ = ["fma_f32", "fma_f64"]

_DROPPED = np.int64((1 << 29) - 1)
_INT_MIN = np.iinfo(np.int32).min
_EXPONENT = np.uint32(0xFF << 23)
_LEAST_NORMAL = 2.0**-126


def fma_f32(decoder: Decoder) -> Compute:
    """``a * b + c`` of float32, rounded to nearest even.

    The float64 product is exact. Its float64 sum with ``c``, rounded again to float32, is rounded once in effect unless
    it lies exactly halfway between two float32 numbers; and even then, if the product fits 24 bits, because the sum of
    two float32 numbers survives being rounded twice (Figueroa, 1995). So all is well if the products are those of f16
    values. Otherwise sums are suspect whose 29 bits that float32 drops are 1 followed by zeros, and subnormal results,
    which drop others. Suspects are few; they are computed again from a sum rounded to odd.
    """
    product, addend, total, spare = (scratch(decoder, name) for name in ("product", "addend", "total", "spare"))
    views: dict[int, tuple[Array, ...]] = {}

    def compute(a: Array, b: Array, c: Array, out: Array) -> None:
        n = len(out)
        bound = views.get(n)
        if bound is None:
            words, raw = total.view(np.int32)[: 2 * n], product.view(np.int64)[:n]
            shifted, exponents = spare.view(np.int32)[: 2 * n], spare.view(np.uint32)[:n]
            bound = views[n] = product[:n], addend[:n], total[:n], raw, words, shifted, exponents
        p, t, s, raw, words, shifted, exponents = bound
        np.copyto(p, a)
        np.copyto(t, b)
        np.multiply(p, t, p)
        np.copyto(t, c)
        np.add(p, t, s)
        np.copyto(out, s, casting="same_kind")
        if np.bitwise_or.reduce(raw) & _DROPPED:
            # The low words decide. The high words come along because strided access is slow; their alarms are false.
            np.left_shift(words, 3, shifted)
            ties = shifted == _INT_MIN
            if np.count_nonzero(ties):
                _repair(p, t, s, out, np.flatnonzero(ties[::2]))
        np.bitwise_and(out.view(np.uint32), _EXPONENT, exponents)
        if not np.minimum.reduce(exponents):
            _repair(p, t, s, out, np.flatnonzero((np.abs(s) < _LEAST_NORMAL) & (s != 0)))

    return compute


def _repair(product: Array, addend: Array, total: Array, out: Array, lanes: Array) -> None:
    """Round the sum of product and addend once in the suspect lanes. Most turn out to be exact sums."""
    p, c, s = product[lanes], addend[lanes], total[lanes]
    if not ((s - p == c) & (s - c == p)).all():
        out[lanes] = sum_to_odd(p, c)


def fma_f64(a: Array, b: Array, c: Array, out: Array) -> None:
    """``a * b + c`` of float64, rounded to nearest even (Boldo and Melquiond, 2008).

    Significands are taken apart from exponents first, so that no intermediate result overflows or underflows.
    """
    (a_part, a_exponent), (b_part, b_exponent), (c_part, c_exponent) = np.frexp(a), np.frexp(b), np.frexp(c)
    exponent = a_exponent + b_exponent
    distance = c_exponent - exponent
    high, low = _two_product(a_part, b_part)
    # 200 binary places away, one term is to the other only a reason not to be exact, however much further away it is.
    third, third_error = _two_sum(np.ldexp(c_part, np.maximum(distance, -200)), low)
    first, first_error = _two_sum(high, third)
    rest = sum_to_odd(third_error, first_error)
    total = first + rest
    result = np.ldexp(total, exponent)
    small = np.abs(result) <= np.finfo(np.float64).tiny
    if small.any():
        # Away from zero by 2**52 units of 2**-1074, on this scale, numbers are such units apart.
        to_units = np.copysign(np.ldexp(1.0, 52 - 1074 - np.maximum(exponent, -1400)), total)
        near, near_error = _two_sum(to_units, first)
        rounded = np.ldexp(near + sum_to_odd(near_error, rest) - to_units, exponent)
        result = np.where(small, np.copysign(rounded, total), result)
    result = np.where((distance > 200) | ~np.isfinite(c), c, result)
    native = (a == 0) | (b == 0) | ~np.isfinite(a) | ~np.isfinite(b)
    result = np.where(native, a * b + c, np.where(c == 0, a * b, result))
    np.copyto(out, result)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded sum and its error (Knuth)."""
    total = a + b
    virtual = total - a
    return total, (a - (total - virtual)) + (b - virtual)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded product and its error (Dekker)."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _split(a), _split(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _split(a: Array) -> tuple[Array, Array]:
    """Upper and lower half of the significands (Veltkamp)."""
    scaled = a * (2.0**27 + 1)
    high = scaled - (scaled - a)
    return high, a - high
