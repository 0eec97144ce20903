"""Floating-point arithmetic in exact fractions, one value at a time: reference for the simulator's results.

A number is (negative, magnitude) with a Fraction or infinity as magnitude; NaN is None.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

Number = tuple[bool, Any] | None

FORMATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52), "tf32": (8, 10)}
"""Exponent and mantissa bits."""

CANONICAL_NANS = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": 0xFFF8 << 48}
"""NaN results of GPU arithmetic (CUDA's math_constants.h, cuda_fp16.h, cuda_bf16.h)."""


def width(name: str) -> int:
    """Bits of a format."""
    return 1 + sum(FORMATS[name])


def decode(bits: int, name: str) -> Number:
    """The number of a bit pattern."""
    exponent_bits, mantissa_bits = FORMATS[name]
    negative = bool(bits >> exponent_bits + mantissa_bits & 1)
    exponent, mantissa = bits >> mantissa_bits & (1 << exponent_bits) - 1, bits & (1 << mantissa_bits) - 1
    if exponent == (1 << exponent_bits) - 1:
        return None if mantissa else (negative, math.inf)
    if exponent:
        mantissa += 1 << mantissa_bits
    bias = (1 << exponent_bits - 1) - 1
    return negative, mantissa * Fraction(2) ** (max(exponent, 1) - bias - mantissa_bits)


def encode(number: Number, name: str, rounding: str = "rn") -> int | None:
    """The bit pattern of a number, rounded once; None for NaN."""
    if number is None:
        return None
    negative, magnitude = number
    exponent_bits, mantissa_bits = FORMATS[name]
    sign = int(negative) << exponent_bits + mantissa_bits
    infinity = (1 << exponent_bits) - 1 << mantissa_bits
    if magnitude == math.inf:
        return sign | infinity
    bias = (1 << exponent_bits - 1) - 1
    exponent = 1 - bias
    if magnitude:
        exponent = max(exponent, magnitude.numerator.bit_length() - magnitude.denominator.bit_length())
        if magnitude < Fraction(2) ** exponent:
            exponent = max(exponent - 1, 1 - bias)
    scaled = magnitude / Fraction(2) ** (exponent - mantissa_bits)
    bits = round_integer(negative, scaled, rounding) + (exponent + bias - 1 << mantissa_bits)
    if bits >= infinity:
        to_greatest = {"rz": True, "rm": not negative, "rp": negative}.get(rounding, False)
        bits = infinity - to_greatest
    return sign | bits


def round_integer(negative: bool, magnitude: Fraction, rounding: str) -> int:
    """Round a magnitude to an integer, in the direction of its sign for ``rm`` and ``rp``."""
    whole = magnitude.numerator // magnitude.denominator
    rest = magnitude - whole
    up = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole & 1 == 1),
        "rna": rest >= Fraction(1, 2),
        "rz": False,
        "rm": negative and rest > 0,
        "rp": not negative and rest > 0,
    }
    return whole + up[rounding]


def add(x: Number, y: Number, rounding: str = "rn") -> Number:
    """x + y; ``rounding`` decides the sign of an exact zero."""
    if x is None or y is None:
        return None
    if math.inf in (x[1], y[1]):
        if x[1] == y[1] and x[0] != y[0]:
            return None
        return x if x[1] == math.inf else y
    total = (-x[1] if x[0] else x[1]) + (-y[1] if y[0] else y[1])
    if total == 0:
        return (x[0] if x[0] == y[0] else rounding == "rm"), Fraction(0)
    return total < 0, abs(total)


def negated(x: Number) -> Number:
    """-x."""
    return None if x is None else (not x[0], x[1])


def mul(x: Number, y: Number) -> Number:
    """x * y."""
    if x is None or y is None or (math.inf in (x[1], y[1]) and 0 in (x[1], y[1])):
        return None
    return x[0] != y[0], math.inf if math.inf in (x[1], y[1]) else x[1] * y[1]


def div(x: Number, y: Number) -> Number:
    """x / y."""
    if x is None or y is None or x[1] == y[1] == math.inf or x[1] == y[1] == 0:
        return None
    negative = x[0] != y[0]
    if x[1] == math.inf or y[1] == 0:
        return negative, math.inf
    return negative, Fraction(0) if y[1] == math.inf else x[1] / y[1]


def flushed(bits: int, name: str) -> int:
    """A pattern with a subnormal replaced by zero of its sign."""
    mantissa_bits = FORMATS[name][1]
    exponent = (1 << FORMATS[name][0]) - 1 << mantissa_bits
    return bits if bits & exponent else bits & 1 << width(name) - 1


def corners(name: str) -> list[int]:
    """Zeros, subnormals, ones, extremes, infinities, NaN and a few without a pattern, with both signs."""
    exponent_bits, mantissa_bits = FORMATS[name]
    one = (1 << exponent_bits - 1) - 1 << mantissa_bits
    infinity = (1 << exponent_bits) - 1 << mantissa_bits
    least = 1 << mantissa_bits
    patterns = [0, 1, 3, least - 1, least, least + 1, one - 1, one, one + 1, one + least // 2, one + least]
    patterns += [infinity - 1, infinity, infinity + least // 2]
    draw = random.Random(name)
    patterns += [one + draw.randrange(-8 * least, 8 * least) for _ in range(6)]
    return patterns + [pattern | 1 << width(name) - 1 for pattern in patterns]


def draws(name: str, count: int, seed: int, spread: int = 6) -> list[int]:
    """Patterns of both signs with exponents within ``spread`` of that of one."""
    exponent_bits, mantissa_bits = FORMATS[name]
    draw = random.Random(f"{name} {seed}")
    one = (1 << exponent_bits - 1) - 1
    return [
        draw.getrandbits(1) << width(name) - 1
        | one + draw.randint(-spread, spread) << mantissa_bits
        | draw.getrandbits(mantissa_bits)
        for _ in range(count)
    ]


def assert_bits(actual: np.ndarray, expected: Sequence[int | None], name: str, inputs: Sequence[Sequence[int]]) -> None:
    """Every actual pattern is the expected one; None stands for the canonical NaN."""
    raw = np.ascontiguousarray(actual).reshape(-1).view(f"u{actual.dtype.itemsize}").tolist()
    assert len(raw) == len(expected)
    for got, want, *given in zip(raw, expected, *inputs, strict=True):
        bits = CANONICAL_NANS[name] if want is None else want
        assert got == bits, f"of {[hex(x) for x in given]}: {got:#x}, expected {bits:#x}"
