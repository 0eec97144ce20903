"""The sums of a 16 x 8 tile by the rules of :mod:`warpsan.numerics.tensor_cores`, in integers: machine code
(:mod:`~warpsan.engine.translate`).

This handles the sums that :mod:`~warpsan.semantics.sums` leaves: those with infinities, NaN, or exponents so large or
small that float32 does not hold the products. Numbers are bits of float32.
"""

from __future__ import annotations

from warpsan.engine.words import load32, store32
from warpsan.numerics.tensor_cores import FAR, SPECIAL_EXPONENT, ZERO_EXPONENT

__all__ = ["sum_tile"]

_INFINITE, _NAN = 0x7F800000, 0x7FFFFFFF


def sum_tile(
    left: int,
    right: int,
    before: int,
    out: int,
    depth: int,
    width: int,
    stride: int,
    fraction: int,
    precision: int,
    least_a: int,
    least_b: int,
    half: int,
) -> int:
    """Store sums [16, 8] at ``out``: C at ``before`` plus the products of [2, depth, 8 rows] and [depth, 8 columns].

    A block has ``width`` products. ``stride`` is 0, or the distance from each second product of a block to the next
    but one, where blocks alternate. ``least_a`` and ``least_b`` are the exponents of subnormal factors.
    ``half`` is 1 for sums in f16.
    """
    for row in range(16):
        a = left + 32 * depth * (row // 8) + 4 * (row % 8)
        for column in range(8):
            b = right + 4 * column
            place = 4 * (8 * row + column)
            total = load32(before + place)
            for number in range((depth + width - 1) // width):
                first = 2 * number if stride else width * number
                many = width if width * (number + 1) <= depth else depth - width * number
                x, y = a + 32 * first, b + 32 * first
                total = sum_block(x, y, total, many, stride, fraction, precision, least_a, least_b, half)
            store32(out + place, total)
    return 0


def sum_block(
    a: int,
    b: int,
    before: int,
    many: int,
    stride: int,
    fraction: int,
    precision: int,
    least_a: int,
    least_b: int,
    half: int,
) -> int:
    """One block of ``many`` products, whose factors lie 32 bytes apart, plus a number. Returns the bits of the sum."""
    least_sum = -14 if half else -126
    greatest = exponent_of(before, least_sum)
    for k in range(many):
        at = 32 * (k // 2 * stride + k % 2 if stride else k)
        exponent = exponent_of(load32(a + at), least_a) + exponent_of(load32(b + at), least_b)
        greatest = exponent if exponent > greatest else greatest
    if greatest > FAR:
        return special_sum(a, b, before, many, stride)
    if greatest < -FAR:
        return 0
    exponent = exponent_of(before, least_sum)
    total = aligned(before, significand(before, exponent), 23 - fraction + greatest - exponent)
    for k in range(many):
        at = 32 * (k // 2 * stride + k % 2 if stride else k)
        x, y = load32(a + at), load32(b + at)
        of_x, of_y = exponent_of(x, least_a), exponent_of(y, least_b)
        product = significand(x, of_x) * significand(y, of_y)
        total += aligned(x ^ y, product, 46 - fraction + greatest - of_x - of_y)
    size = -total if total < 0 else total
    bits = to_nearest(size, greatest - fraction) if half else toward_zero(size, greatest - fraction, precision)
    return bits | (-1 << 31) if total < 0 and bits != 0 else bits


def exponent_of(bits: int, least: int) -> int:
    """The exponent of a number, at least ``least``; far out of range for zero and for values that are not finite."""
    size = bits & 0x7FFFFFFF
    if size == 0:
        return ZERO_EXPONENT
    exponent = (size >> 23) - 127
    if exponent == 128:
        return SPECIAL_EXPONENT
    return exponent if exponent > least else least


def significand(bits: int, exponent: int) -> int:
    """The size of a finite number in units of ``2**(exponent - 23)``, if it is a whole number of them."""
    field = bits >> 23 & 0xFF
    if field == 0:
        return bits & 0x7FFFFF
    return ((bits & 0x7FFFFF) | 0x800000) >> exponent + 127 - field


def aligned(sign: int, size: int, shift: int) -> int:
    """A term without its truncated digits; its sign is bit 31 of ``sign``."""
    term = 0
    if shift < 0:
        term = size << -shift
    elif shift < 63:
        term = size >> shift
    return -term if sign & 0x80000000 else term


def digits(size: int) -> int:
    """Binary digits of a positive number."""
    many = 0
    while size >> many != 0:
        many += 1
    return many


def toward_zero(size: int, unit: int, precision: int) -> int:
    """The bits of ``size * 2**unit``, truncated after ``precision`` digits; beyond the range, of infinity."""
    leading = unit + digits(size) - 1
    if size == 0 or leading < -126 - precision:
        return 0
    if leading > 127:
        return _INFINITE
    exponent = leading if leading > -126 else -126
    drop = exponent - precision - unit
    if drop > 0:
        size = size >> drop
        unit += drop
    size = size << (unit - exponent + 23)
    return size if leading < -126 else (exponent + 127 << 23) | (size & 0x7FFFFF)


def to_nearest(size: int, unit: int) -> int:
    """The bits of ``size * 2**unit`` rounded to f16, to nearest even; beyond its range, of infinity."""
    leading = unit + digits(size) - 1
    if size == 0 or leading < -26:
        return 0
    drop = (leading if leading > -14 else -14) - 10 - unit
    if drop > 0:
        rest, middle = size & (1 << drop) - 1, 1 << drop - 1
        size = size >> drop
        unit += drop
        if rest > middle or (rest == middle and size & 1):
            size += 1
    return toward_zero(size, unit, 23) if unit + digits(size) <= 16 else _INFINITE


def special_sum(a: int, b: int, before: int, many: int, stride: int) -> int:
    """A sum with infinities or NaN."""
    positive, negative = 0, 0
    size = before & 0x7FFFFFFF
    if size > _INFINITE:
        return _NAN
    if size == _INFINITE:
        negative = before >> 31 & 1
        positive = 1 - negative
    for k in range(many):
        at = 32 * (k // 2 * stride + k % 2 if stride else k)
        x, y = load32(a + at), load32(b + at)
        of_x, of_y = x & 0x7FFFFFFF, y & 0x7FFFFFFF
        if of_x > _INFINITE or of_y > _INFINITE:
            return _NAN
        if of_x == _INFINITE or of_y == _INFINITE:
            if of_x == 0 or of_y == 0:
                return _NAN
            if (x ^ y) & 0x80000000:
                negative = 1
            else:
                positive = 1
    if positive and negative:
        return _NAN
    return _INFINITE if positive else _INFINITE | (-1 << 31)
