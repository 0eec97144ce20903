"""cvt to and from e4m3 and e5m2: all patterns, every halfway point, and many floats, bit for bit."""

import math
import random
from bisect import bisect_left
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from ptx_snippets import run
from warpsan import UnsupportedInstruction

MANTISSA = {"e4m3": 3, "e5m2": 2}
MLTYPE = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def value(pattern, name):
    """The value of a pattern, from the definition of the formats (OCP "OFP8", table 1)."""
    bits = MANTISSA[name]
    exponent, mantissa = pattern >> bits & (1 << 7 - bits) - 1, pattern & (1 << bits) - 1
    bias = (1 << 6 - bits) - 1
    if name == "e4m3" and pattern & 0x7F == 0x7F:
        return math.nan
    if name == "e5m2" and exponent == 31:
        magnitude = math.nan if mantissa else math.inf
    elif exponent:
        magnitude = (1 + mantissa / (1 << bits)) * 2.0 ** (exponent - bias)
    else:
        magnitude = mantissa / (1 << bits) * 2.0 ** (1 - bias)
    return -magnitude if pattern & 0x80 else magnitude


FINITE = {name: [v for v in (value(p, name) for p in range(128)) if math.isfinite(v)] for name in MANTISSA}
"""Non-negative values in the order of their patterns."""


def encode(x, name, relu=False):
    """A float's pattern: to nearest, ties to the even pattern, saturated."""
    if math.isnan(x):
        return 0x7F
    negative = math.copysign(1, x) < 0
    if negative and relu:
        return 0
    table, magnitude = FINITE[name], abs(x)
    above = bisect_left(table, magnitude)
    if above == len(table):
        best = above - 1
    elif table[above] == magnitude:
        best = above
    else:
        down, up = (abs(Fraction(table[i]) - Fraction(magnitude)) for i in (above - 1, above))
        best = above - 1 if down < up else above if up < down else above - above % 2
    return best | 0x80 if negative else best


def inputs(name):
    """Every value, every halfway point and its float32 neighbours, special values, and a sample of all exponents."""
    table = np.array(FINITE[name], np.float32)
    ties = ((table[:-1].astype(float) + table[1:]) / 2).astype(np.float32)
    over = np.float32([table[-1] * 1.01, table[-1] * 1.0625, table[-1] * 2, 3e38, np.inf, np.nan, 1e-45, 0])
    draw = random.Random(8)
    drawn = np.float32([math.ldexp(draw.uniform(1, 2), draw.randint(-26, 18)) for _ in range(400)])
    beside = np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(np.inf))
    magnitudes = np.concatenate([table, ties, *beside, over, drawn])
    return np.concatenate([magnitudes, -magnitudes]).astype(np.float32)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("name", MANTISSA)
def test_from_f32(name, relu):
    low = inputs(name)
    high = low[::-1].copy()
    form = f"rn.satfinite{'.relu' if relu else ''}.{name}x2.f32"
    (got,) = run(f"cvt.{form} %d, %a, %b;", {"d": "b16"}, a=("f32", high), b=("f32", low))
    np.testing.assert_array_equal(got & 0xFF, [encode(float(x), name, relu) for x in low])
    np.testing.assert_array_equal(got >> 8, [encode(float(x), name, relu) for x in high])


@pytest.mark.sample
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("name", MANTISSA)
def test_from_f16x2_for_all_f16(name, relu):
    halves = np.arange(65536, dtype=np.uint16)
    words = halves.astype(np.uint32) << 16 | halves[::-1]
    form = f"rn.satfinite{'.relu' if relu else ''}.{name}x2.f16x2"
    (got,) = run(f"cvt.{form} %d, %a;", {"d": "b16"}, a=("b32", words))
    want = np.array([encode(float(x), name, relu) for x in halves.view(np.float16)])
    np.testing.assert_array_equal(got >> 8, want)
    np.testing.assert_array_equal(got & 0xFF, want[::-1])


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("name", MANTISSA)
def test_to_f16x2_for_all_patterns(name, relu):
    codes = np.arange(256, dtype=np.uint16)
    form = f"rn{'.relu' if relu else ''}.f16x2.{name}x2"
    (got,) = run(f"cvt.{form} %d, %a;", {"d": "b32"}, a=("b16", codes << 8 | codes[::-1]))
    values = np.array([value(int(code), name) for code in codes])
    want = np.where(np.isnan(values), 0x7FFF, values.astype(np.float16).view(np.uint16))
    want = np.where(relu & (want > 0x7FFF), 0, want)
    np.testing.assert_array_equal(got >> 16, want)
    np.testing.assert_array_equal(got & 0xFFFF, want[::-1])


@pytest.mark.parametrize("name", MANTISSA)
def test_another_library_agrees_where_nothing_saturates(name):
    x = inputs(name)
    x = x[np.abs(x) <= FINITE[name][-1]]
    np.testing.assert_array_equal([encode(float(v), name) for v in x], x.astype(MLTYPE[name]).view(np.uint8))


def test_a_constant_operand():
    (got,) = run("cvt.rn.satfinite.e4m3x2.f32 %d, 0f3F800000, %a;", {"d": "b16"}, a=("f32", [2.0, -448.0]))
    assert got.tolist() == [0x3840, 0x38FE]


@pytest.mark.parametrize(
    "text",
    [
        "cvt.rn.e4m3x2.f32 %d, %a, %a;",  # without .satfinite
        "cvt.rz.satfinite.e4m3x2.f32 %d, %a, %a;",
        "cvt.rn.satfinite.e4m3x2.f32 %d, %a;",
        "cvt.rn.satfinite.f16x2.e4m3x2 %w, %d;",
        "cvt.rn.satfinite.e4m3x2.bf16x2 %d, %w;",
        "cvt.rn.satfinite.ftz.e4m3x2.f32 %d, %a, %a;",
        "cvt.rn.satfinite.e2m3x2.f32 %d, %a, %a;",
    ],
)
def test_other_forms_are_refused(text):
    with pytest.raises(UnsupportedInstruction):
        run(text, {"d": "b16", "w": "b32"}, a=("f32", [1.0]))
