"""Exactly rounded roots; approximations with the bits of a hardware model, and within the manual's bounds."""

import math
import random
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

import exact_floats as exact
from exact_floats import assert_bits, corners, decode, draws, encode, flushed
from ptx_snippets import run
from published_words import needs_words, published
from warpsan import UnsupportedInstruction

ROUNDINGS = ("rn", "rz", "rm", "rp")
INFINITY, NAN, ONE = 0x7F800000, 0x7FC00000, 0x3F800000


def unary(body, name, values):
    """The results of an instruction on patterns."""
    (d,) = run(body, {"d": name}, a=(name, values))
    return d


# ---- rcp and sqrt ---------------------------------------------------------------------------------------------------


def reciprocal(bits, name, rounding):
    return encode(exact.div((False, Fraction(1)), decode(bits, name)), name, rounding)


def root(bits, name, rounding):
    """The square root, rounded by comparing squares of fractions."""
    number = decode(bits, name)
    if number is None or (number[0] and number[1]):
        return None
    if number[1] in (0, math.inf):
        return bits
    scale = 1 << 2400  # truncated to 1200 binary places, with a sticky last bit
    whole = number[1].numerator * scale // number[1].denominator
    below = math.isqrt(whole)
    sticky = below * below != number[1] * scale
    return encode((False, Fraction(2 * below + sticky, 2 << 1200)), name, rounding)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(("opcode", "function"), [("rcp", reciprocal), ("sqrt", root)])
def test_rounded_reciprocal_and_root(opcode, function, rounding):
    values = corners("f32") + draws("f32", 300, 7, spread=20)
    expected = [function(bits, "f32", rounding) for bits in values]
    assert_bits(unary(f"{opcode}.{rounding}.f32 %d, %a;", "f32", values), expected, "f32", [values])


@pytest.mark.parametrize(("opcode", "function"), [("rcp", reciprocal), ("sqrt", root)])
def test_reciprocal_and_root_of_f64_and_flushed(opcode, function):
    values = corners("f64") + draws("f64", 100, 7, spread=20)
    expected = [function(bits, "f64", "rn") for bits in values]
    assert_bits(unary(f"{opcode}.rn.f64 %d, %a;", "f64", values), expected, "f64", [values])
    values = [*corners("f32"), 0x7F000000, 0x7F7FFFFF]  # the last ones have subnormal reciprocals
    expected = [function(flushed(bits, "f32"), "f32", "rn") for bits in values]
    expected = [None if bits is None else flushed(bits, "f32") for bits in expected]
    assert_bits(unary(f"{opcode}.rn.ftz.f32 %d, %a;", "f32", values), expected, "f32", [values])
    values = [0x00000001, 0x807FFFFF, 0x7F000000, 0xFF7FFFFF]
    expected = [INFINITY, INFINITY | 1 << 31, 0, 1 << 31] if opcode == "rcp" else [0, 1 << 31, 0x5F3504F3, None]
    assert_bits(unary(f"{opcode}.approx.ftz.f32 %d, %a;", "f32", values), expected, "f32", [values])


# ---- functions without an algebraic definition -----------------------------------------------------------------------


def decimal_of(number):
    magnitude = Decimal(number[1].numerator) / Decimal(number[1].denominator)
    return -magnitude if number[0] else magnitude


def series(x, first, step):
    """A power series given by its first term and the factor from term n to the next."""
    total, term, n = Decimal(0), first, 0
    while abs(term) > Decimal(10) ** -70:
        total, term, n = total + term, term * step(n), n + 1
    return total


def sine(x):
    return series(x, x, lambda n: -x * x / ((2 * n + 2) * (2 * n + 3)))


def cosine(x):
    return series(x, Decimal(1), lambda n: -x * x / ((2 * n + 1) * (2 * n + 2)))


def tanh(x):
    if abs(x) < Decimal("1e-15"):
        return x - x**3 / 3
    double = (2 * x).exp()
    return (double - 1) / (double + 1)


FUNCTIONS = {
    "ex2": (lambda x: (x * Decimal(2).ln()).exp(), (-148, 127)),
    "lg2": (lambda x: x.ln() / Decimal(2).ln(), (1e-38, 1e38)),
    "sin": (sine, (-20, 20)),
    "cos": (cosine, (-20, 20)),
    "tanh": (tanh, (-12, 12)),
    "rsqrt": (lambda x: 1 / x.sqrt(), (1e-38, 1e38)),
}


def arguments(opcode):
    low, high = FUNCTIONS[opcode][1]
    draw = random.Random(opcode)
    if low > 0:
        values = [math.exp(draw.uniform(math.log(low), math.log(high))) for _ in range(150)] + [1.0, 2.0, 4.0, 0.5]
    else:
        values = [draw.uniform(low, high) for _ in range(150)] + [1e-30, -1e-30, 1.0, 3.0, -3.0]
    return [int(np.float32(value).view(np.uint32)) for value in values]


def bound(opcode, wanted, unit):
    """Maximum error of an f32 approximation (PTX ISA, the page of each instruction)."""
    if opcode == "ex2":
        return 2 * unit
    if opcode == "lg2":
        return max(abs(wanted), 1) * Decimal(2) ** -22
    if opcode in ("sin", "cos"):
        return Decimal(2) ** Decimal("-14.7")  # beyond 2 pi
    return abs(wanted) * Decimal(2) ** Decimal("-22.9") if opcode == "rsqrt" else unit


def assert_close(actual, opcode, patterns, name):
    """Check that each result is within the bound of the exact value: for halves and f64, one unit in the last place."""
    function = FUNCTIONS[opcode][0]
    raw = actual.view(f"u{actual.dtype.itemsize}").tolist()
    with localcontext() as context:
        context.prec = 90
        for got, bits in zip(raw, patterns, strict=True):
            wanted = function(decimal_of(decode(bits, name)))
            number = decode(got, name)
            assert number is not None
            above = encode((False, Fraction(wanted.copy_abs())), name, "rp")
            below = encode((False, Fraction(wanted.copy_abs())), name, "rz")
            unit = decode(above, name)[1] - decode(below, name)[1]
            error = abs(decimal_of(number) - wanted)
            unit = decimal_of((False, unit))
            assert error <= (bound(opcode, wanted, unit) if name == "f32" else unit), (
                f"{opcode} of {bits:#x}: {got:#x}, between {below:#x} and {above:#x}"
            )


@pytest.mark.parametrize("opcode", FUNCTIONS)
def test_approximation_f32(opcode):
    values = arguments(opcode)
    assert_close(unary(f"{opcode}.approx.f32 %d, %a;", "f32", values), opcode, values, "f32")


@pytest.mark.parametrize("opcode", ["ex2", "tanh"])
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_approximation_of_halves(opcode, name):
    values = draws(name, 200, 1, spread=3) + draws(name, 56, 2, spread=9)
    if opcode == "ex2":
        values = [bits for bits in values if decode(bits, name)[1] < 14]
        values = values[: len(values) // 2 * 2]
    ftz = ".ftz" if (opcode, name) == ("ex2", "bf16") else ""
    assert_close(unary(f"{opcode}.approx{ftz}.{name} %d, %a;", name, values), opcode, values, name)
    (pairs,) = run(
        f"{opcode}.approx{ftz}.{name}x2 %d, %a;", {"d": f"{name}x2"}, a=(f"{name}x2", np.array(values, np.uint16))
    )
    assert_close(np.ascontiguousarray(pairs).reshape(-1), opcode, values, name)


def test_rsqrt_f64():
    values = draws("f64", 100, 3, spread=30)
    values = [bits & ~(1 << 63) for bits in values]
    assert_close(unary("rsqrt.approx.f64 %d, %a;", "f64", values), "rsqrt", values, "f64")


@pytest.mark.parametrize(("opcode", "power"), [("rcp", 1), ("rsqrt", 2)])
def test_approximations_of_the_upper_word_of_f64(opcode, power):
    """20 bits of the mantissa; subnormal arguments are zeros."""
    values = [bits & ~(1 << 63) for bits in draws("f64", 100, 4, spread=200)]
    d = unary(f"{opcode}.approx.ftz.f64 %d, %a;", "f64", values)
    assert not (d.view(np.uint64) & np.uint64(0xFFFFFFFF)).any()
    for got, bits in zip(d.tolist(), values, strict=True):
        product = Fraction(got) ** power * decode(bits, "f64")[1]
        assert abs(product - 1) < Fraction(2) ** -19
    infinity, subnormal = 0x7FF << 52, 1 << 51
    values = [0, 1 << 63, subnormal, infinity, infinity | 1]
    expected = [infinity, infinity | 1 << 63, infinity, 0, None]
    assert_bits(unary(f"{opcode}.approx.ftz.f64 %d, %a;", "f64", values), expected, "f64", [values])


@needs_words("ptx_math.json")
@pytest.mark.parametrize("opcode", ["ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos"])
def test_f32_approximations_have_the_bits_of_the_model(opcode):
    """Bits of ptx-math, which its author compared with GPUs on every argument."""
    pairs = [
        [int(word, 16) for word in pair.split(":")] for pair in published("ptx_math.json")["functions"][opcode].split()
    ]
    values, expected = (list(each) for each in zip(*pairs, strict=True))
    assert_bits(unary(f"{opcode}.approx.f32 %d, %a;", "f32", values), expected, "f32", [values])
    results = unary(f"{opcode}.approx.ftz.f32 %d, %a;", "f32", [flushed(bits, "f32") for bits in values])
    for got, bits, argument in zip(results.view(np.uint32).tolist(), expected, values, strict=True):
        if argument == flushed(argument, "f32"):
            assert got == flushed(bits, "f32")


@pytest.mark.parametrize("form", ["approx", "full"])
def test_a_quotient_is_the_reciprocal_times_the_numerator(form):
    rng = random.Random(form)
    a, b = ([rng.uniform(-1, 1) * 2.0 ** rng.randint(-30, 30) for _ in range(300)] for _ in range(2))
    a, b = (np.array(values, np.float32) for values in (a, b))
    bits = [[int(word) for word in values.view(np.uint32)] for values in (a, b)]
    (quotients,) = run(f"div.{form}.f32 %d, %a, %b;", {"d": "f32"}, a=("f32", bits[0]), b=("f32", bits[1]))
    reciprocals = unary("rcp.approx.f32 %d, %a;", "f32", bits[1])
    np.testing.assert_array_equal(quotients, a * reciprocals)
    exact_values = a.astype(np.float64) / b.astype(np.float64)
    assert (np.abs(quotients - exact_values) <= 2 * np.spacing(np.abs(exact_values).astype(np.float32))).all()


def test_a_divisor_beyond_2_to_126_gives_zero_unless_the_division_is_full():
    a, b = [0x7F000000, INFINITY, 0x3F800000], [0x7F000000, 0x7F000000, 0x00000001]  # 2**127 / 2**127, inf, 1 / 2**-149
    for form, expected in (("approx", [0, None, INFINITY]), ("full", [ONE, INFINITY, INFINITY])):
        (d,) = run(f"div.{form}.f32 %d, %a, %b;", {"d": "f32"}, a=("f32", a), b=("f32", b))
        assert_bits(d, expected, "f32", [a, b])


SPECIAL_VALUES = {
    # inputs: -inf, -0, +0, +inf, NaN, -1 (PTX ISA, the table of each instruction)
    "ex2.approx.f32": [0, ONE, ONE, INFINITY, None, 0x3F000000],
    "lg2.approx.f32": [None, INFINITY | 1 << 31, INFINITY | 1 << 31, INFINITY, None, None],
    "rsqrt.approx.f32": [None, INFINITY | 1 << 31, INFINITY, 0, None, None],
    "sqrt.approx.f32": [None, 1 << 31, 0, INFINITY, None, None],
    "rcp.approx.f32": [1 << 31, INFINITY | 1 << 31, INFINITY, 0, None, 0xBF800000],
    "sin.approx.f32": [None, 1 << 31, 0, None, None, 0xBF576AA3],
    "cos.approx.f32": [None, ONE, ONE, None, None, 0x3F0A5141],
    "tanh.approx.f32": [0xBF800000, 1 << 31, 0, ONE, None, 0xBF42F7D6],
}


@pytest.mark.parametrize("form", SPECIAL_VALUES)
def test_special_values(form):
    values = [INFINITY | 1 << 31, 1 << 31, 0, INFINITY, NAN, 0xBF800000]
    assert_bits(unary(f"{form} %d, %a;", "f32", values), SPECIAL_VALUES[form], "f32", [values])


def test_ex2_flushes_results_and_only_then():
    values = [
        0xC2FC0000,
        0xC2FC0001,
        0xC2FE0000,
        0xC3150000,
        INFINITY | 1 << 31,
        0x00000001,
        0x80000001,
        NAN,
        0x41200000,
    ]
    unflushed = unary("ex2.approx.f32 %d, %a;", "f32", values)
    flushed_results = unary("ex2.approx.ftz.f32 %d, %a;", "f32", values)
    assert_bits(flushed_results, [0x00800000, 0, 0, 0, 0, ONE, ONE, None, 0x44800000], "f32", [values])
    # 2**-127, the square of an approximation slightly below 2**-63.5, and 2**-149.
    assert unflushed.view(np.uint32)[2:4].tolist() == [0x003FFFFF, 0x00000001]


def test_flushed_arguments():
    values = [0x00000001, 0x807FFFFF]
    minus_infinity = INFINITY | 1 << 31
    assert_bits(unary("lg2.approx.ftz.f32 %d, %a;", "f32", values), [minus_infinity] * 2, "f32", [values])
    expected = [INFINITY, minus_infinity]
    assert_bits(unary("rsqrt.approx.ftz.f32 %d, %a;", "f32", values), expected, "f32", [values])
    assert_bits(unary("sin.approx.ftz.f32 %d, %a;", "f32", values), [0, 1 << 31], "f32", [values])


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_copysign_takes_the_sign_of_the_first_source(name):
    values = corners(name)
    top = 1 << exact.width(name) - 1
    signs = values[::-1]
    (d,) = run(f"copysign.{name} %d, %a, %b;", {"d": name}, a=(name, signs), b=(name, values))
    expected = [b & ~top | a & top for a, b in zip(signs, values, strict=True)]
    assert_bits(d, expected, name, [signs, values])


@pytest.mark.parametrize(
    "body",
    [
        "ex2.f32 %d, %d;",
        "ex2.approx.f64 %e, %e;",
        "tanh.approx.ftz.f32 %d, %d;",
        "sqrt.f32 %d, %d;",
        "rcp.rz.f64 %e, %e;",
        "rcp.approx.f64 %e, %e;",
        "ex2.approx.ftz.f64 %e, %e;",
        "sin.approx.sat.f32 %d, %d;",
        "copysign.ftz.f32 %d, %d, %d;",
    ],
)
def test_what_is_not_modelled_is_refused(body):
    with pytest.raises(UnsupportedInstruction, match=r"PTX line \d+"):
        run(body, {"d": "f32", "e": "f64"}, a=("f32", [0]))
