"""Floating-point arithmetic bit for bit against exact fractions."""

import itertools
import random

import numpy as np
import pytest

import exact_floats as exact
from exact_floats import assert_bits, corners, decode, draws, encode, flushed
from ptx_snippets import run
from warpsan import UnsupportedInstruction

ROUNDINGS = ("rn", "rz", "rm", "rp")


def pairs(name):
    """All pairs of corners and a sample of ordinary numbers, as two lists."""
    first, second = zip(*itertools.product(corners(name), repeat=2), strict=True)
    return [*first, *draws(name, 200, 1)], [*second, *draws(name, 200, 2)]


def triples(name):
    draw = random.Random(3)
    pool = corners(name)
    columns = [draw.choices(pool, k=700) for _ in range(3)]
    return [column + draws(name, 300, seed) for seed, column in enumerate(columns)]


def check(body, name, expected, inputs):
    """The snippet computes ``expected`` (patterns) of ``inputs`` (lists of patterns)."""
    (d,) = run(body, {"d": name}, **{key: (name, column) for key, column in zip("abc", inputs, strict=False)})
    assert_bits(d, expected, name, inputs)


def numbers(name, columns):
    return ([decode(bits, name) for bits in row] for row in zip(*columns, strict=True))


BINARY = {
    "add": exact.add,
    "sub": lambda x, y, rounding: exact.add(x, exact.negated(y), rounding),
    "mul": lambda x, y, rounding: exact.mul(x, y),
    "div": lambda x, y, rounding: exact.div(x, y),
}


@pytest.mark.parametrize("operation", BINARY)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_binary_f32_in_every_rounding(operation, rounding):
    inputs = pairs("f32")
    expected = [encode(BINARY[operation](x, y, rounding), "f32", rounding) for x, y in numbers("f32", inputs)]
    check(f"{operation}.{rounding}.f32 %d, %a, %b;", "f32", expected, inputs)


@pytest.mark.parametrize("operation", ["add", "sub", "mul"])
@pytest.mark.parametrize("rounding", ["rn", "rm"])
def test_binary_f32x2(operation, rounding):
    inputs = pairs("f32")
    columns = list(zip(*inputs, strict=True))
    first, second = ([(row[k], row[1 - k]) for row in columns] for k in (0, 1))
    body = "mov.b64 %x, {%a, %b}; mov.b64 %y, {%b, %a};\n"
    body += f"{operation}.{rounding}.f32x2 %x, %x, %y; mov.b64 {{%d, %e}}, %x;"
    d, e = run(
        body,
        {"d": "f32", "e": "f32"},
        registers=".reg .b64 %x, %y;",
        target="sm_100a",
        a=("f32", inputs[0]),
        b=("f32", inputs[1]),
    )
    for result, sources in ((d, first), (e, second)):
        halves = list(zip(*sources, strict=True))
        expected = [encode(BINARY[operation](x, y, rounding), "f32", rounding) for x, y in numbers("f32", halves)]
        assert_bits(result, expected, "f32", halves)


def test_fma_f32x2_and_three_extrema():
    a, b, c = triples("f32")
    body = "mov.b64 %x, {%a, %b}; mov.b64 %y, {%b, %c}; mov.b64 %z, {%c, %a};\n"
    body += "fma.rn.f32x2 %x, %x, %y, %z; mov.b64 {%d, %e}, %x; max.f32 %f, %a, %b, %c; min.f32 %g, %a, %b, %c;\n"
    body += "max.f32 %u, %a, %b; max.f32 %u, %u, %c; min.f32 %v, %a, %b; min.f32 %v, %v, %c;"
    results = dict.fromkeys("defguv", "f32")
    sources = {"a": ("f32", a), "b": ("f32", b), "c": ("f32", c)}
    d, e, f, g, u, v = run(body, results, registers=".reg .b64 %x, %y, %z;", target="sm_100a", **sources)
    for result, columns in ((d, (a, b, c)), (e, (b, c, a))):
        (want,) = run(
            "fma.rn.f32 %d, %a, %b, %c;", {"d": "f32"}, **dict(zip("abc", (("f32", x) for x in columns), strict=True))
        )
        np.testing.assert_array_equal(result.view(np.uint32), want.view(np.uint32))
    np.testing.assert_array_equal(f.view(np.uint32), u.view(np.uint32))
    np.testing.assert_array_equal(g.view(np.uint32), v.view(np.uint32))


@pytest.mark.parametrize("operation", BINARY)
def test_binary_f64(operation):
    inputs = pairs("f64")
    expected = [encode(BINARY[operation](x, y, "rn"), "f64") for x, y in numbers("f64", inputs)]
    check(f"{operation}.rn.f64 %d, %a, %b;", "f64", expected, inputs)


@pytest.mark.parametrize("form", ["add", "add.ftz", "add.sat", "mul.ftz.sat", "sub.rn.ftz", "mul", "div.rn.ftz"])
def test_flushing_and_saturation(form):
    operation = form.split(".")[0]
    inputs = pairs("f32")
    ftz = "ftz" in form
    expected = []
    for row in zip(*inputs, strict=True):
        x, y = (decode(flushed(bits, "f32") if ftz else bits, "f32") for bits in row)
        bits = encode(BINARY[operation](x, y, "rn"), "f32")
        if ftz and bits is not None:
            bits = flushed(bits, "f32")
        if "sat" in form:
            number = None if bits is None else decode(bits, "f32")
            bits = 0 if number is None or number[0] else min(bits, 0x3F800000)
        expected.append(bits)
    check(f"{form}.f32 %d, %a, %b;", "f32", expected, inputs)


def test_constants_and_the_destination_as_a_source():
    values = draws("f32", 100, 5)
    (d, e) = run(
        "mov.b32 %d, %a; add.f32 %d, %d, %d; fma.rn.f32 %d, %d, 0f40400000, %d;"
        "mov.b32 %e, %a; sub.f32 %e, 0f3F800000, %e;",
        {"d": "f32", "e": "f32"},
        a=("f32", values),
    )
    two, three, one = (False, 2), (False, 3), (False, 1)
    doubled = [encode(exact.mul(decode(a, "f32"), two), "f32") for a in values]
    tripled = [exact.add(exact.mul(decode(x, "f32"), three), decode(x, "f32")) for x in doubled]
    assert_bits(d, [encode(x, "f32") for x in tripled], "f32", [values])
    below_one = [exact.add(one, exact.negated(decode(a, "f32"))) for a in values]
    assert_bits(e, [encode(x, "f32") for x in below_one], "f32", [values])


# ---- fma -----------------------------------------------------------------------------------------------------------


def fused(x, y, z, rounding="rn"):
    return exact.add(exact.mul(x, y), z, rounding)


@pytest.mark.parametrize("opcode", ["fma", "mad"])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_fma_f32_in_every_rounding(opcode, rounding):
    inputs = triples("f32")
    expected = [encode(fused(*row, rounding), "f32", rounding) for row in numbers("f32", inputs)]
    check(f"{opcode}.{rounding}.f32 %d, %a, %b, %c;", "f32", expected, inputs)


def f32_bits(value):
    return int(np.float32(value).view(np.uint32))


def halfway_cases():
    """Products just off half a unit in the last place of an addend, which float64 rounds to exactly half."""
    a, b, c = [], [], []
    for exponent in (-149 + 24, -100, -20, 0, 7, 60):
        for mantissa in (1, 2, 3, 5, 1 << 22, (1 << 23) - 1):
            for sign in (1.0, -1.0):
                for nudge in (1 + 2.0**-23, 1 + 2.0**-22):
                    half = 2.0 ** (exponent - 24)
                    addend = sign * (1 + mantissa * 2.0**-23) * 2.0**exponent
                    a.append(f32_bits(nudge))
                    b.append(f32_bits(sign * half * (2 - nudge)))
                    c.append(f32_bits(addend))
    for odd in (1, 3, 5, 0x1001):  # subnormal numbers, with a unit of 2**-149
        for sign in (1.0, -1.0):
            for nudge in (1 + 2.0**-23, 1 + 2.0**-22):
                a.append(f32_bits(sign * 2.0**-75 * nudge))
                b.append(f32_bits(2.0**-75 * (2 - nudge)))
                c.append(f32_bits(sign * odd * 2.0**-149))
    return [a, b, c]


def test_fma_f32_is_rounded_once_at_halfway_points():
    inputs = halfway_cases()
    expected = [encode(fused(*row), "f32") for row in numbers("f32", inputs)]
    wide = [np.array(column, np.uint32).view(np.float32).astype(np.float64) for column in inputs]
    twice = (wide[0] * wide[1] + wide[2]).astype(np.float32).view(np.uint32)
    assert (twice != expected).sum() > len(expected) // 4  # double rounding would be detected
    check("fma.rn.f32 %d, %a, %b, %c;", "f32", expected, inputs)


def test_fma_f32_of_half_valued_factors():
    """Products of attention kernels: sums that are often exactly halfway, and exact."""
    factors = [[f32_bits(np.uint16(bits).view(np.float16)) for bits in draws("f16", 2000, seed)] for seed in (1, 2)]
    inputs = [*factors, draws("f32", 2000, 3, spread=3)]
    expected = [encode(fused(*row), "f32") for row in numbers("f32", inputs)]
    check("fma.rn.f32 %d, %a, %b, %c;", "f32", expected, inputs)


def test_fma_f64():
    inputs = triples("f64")
    near = 1 + 2.0**-52
    far = [
        (near, near, -1.0),
        (near, 2 - near, 2.0**-53),
        (near, -near, 0.0),
        (1e-50, 1e-60, 0.0),
        (1e-200, 1e-200, 5e-324),
        (1e200, 1e200, -1e308),
    ]
    far += [
        (2.0**-537, near * 2.0**-537, 5e-324),
        (1.7e308, 2.0, -1.7e308),
        (1e-300, 1e-300, 1.0),
        (near, near, 2.0**106),
    ]
    far += [(near, near, 2.0**-250), (near, near, -(2.0**-250)), (2.0**-500, 2.0**-560, -(2.0**-1060))]
    inputs = [
        column + [int(np.float64(value).view(np.uint64)) for value in extra]
        for column, extra in zip(inputs, zip(*far, strict=True), strict=True)
    ]
    expected = [encode(fused(*row), "f64") for row in numbers("f64", inputs)]
    check("fma.rn.f64 %d, %a, %b, %c;", "f64", expected, inputs)


def test_fma_flushes_and_saturates():
    inputs = triples("f32")
    expected = []
    for row in zip(*inputs, strict=True):
        bits = encode(fused(*(decode(flushed(item, "f32"), "f32") for item in row)), "f32")
        bits = None if bits is None else flushed(bits, "f32")
        negative = bits is None or decode(bits, "f32")[0]
        expected.append(0 if negative else min(bits, 0x3F800000))
    check("fma.rn.ftz.sat.f32 %d, %a, %b, %c;", "f32", expected, inputs)


# ---- div.approx, min, max, abs, neg -------------------------------------------------------------------------------


def test_div_approx_gives_zero_for_huge_divisors():
    a = [0x3F800000, 0xFF800000, 0x3F800000, 0x40400000, 0xBF800000]
    b = [0x7F000000, 0x7F000000, 0x7E800000, 0x40000000, 0x7F7FFFFF]
    (d,) = run("div.approx.f32 %d, %a, %b;", {"d": "f32"}, a=("f32", a), b=("f32", b))
    assert np.isnan(d[1])
    assert d.view(np.uint32)[[0, 2, 3, 4]].tolist() == [0, 0x00800000, 0x3FC00000, 0x80000000]


def smaller(x, y):
    """x < y with -0 < +0."""

    def key(number):
        return (-number[1] if number[0] else number[1], not number[0])

    return key(x) < key(y)


@pytest.mark.parametrize("name", ["f32", "f64"])
@pytest.mark.parametrize("operation", ["min", "max"])
@pytest.mark.parametrize("propagates", [False, True])
def test_min_and_max(operation, name, propagates):
    inputs = pairs(name)
    expected = []
    for a, b in zip(*inputs, strict=True):
        x, y = decode(a, name), decode(b, name)
        if x is None or y is None:
            alone = None if propagates or (x is None and y is None) else (a if y is None else b)
            expected.append(alone)
        else:
            expected.append(a if smaller(x, y) == (operation == "min") else b)
    check(f"{operation}{'.NaN' if propagates else ''}.{name} %d, %a, %b;", name, expected, inputs)


def test_min_xorsign_abs():
    inputs = pairs("f32")
    expected = []
    for a, b in zip(*inputs, strict=True):
        magnitudes = [bits & 0x7FFFFFFF for bits in (a, b) if decode(bits, "f32") is not None]
        expected.append(min(magnitudes) | (a ^ b) & 1 << 31 if magnitudes else None)
    check("min.xorsign.abs.f32 %d, %a, %b;", "f32", expected, inputs)


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_abs_and_neg(name):
    values = corners(name)
    top = 1 << exact.width(name) - 1
    check(f"abs.{name} %d, %a;", name, [None if decode(a, name) is None else a & ~top for a in values], [values])
    check(f"neg.{name} %d, %a;", name, [None if decode(a, name) is None else a ^ top for a in values], [values])


def test_abs_and_max_flush():
    values = corners("f32")
    zeros = [flushed(a, "f32") for a in values]
    check("abs.ftz.f32 %d, %a;", "f32", [None if decode(a, "f32") is None else a & ~(1 << 31) for a in zeros], [values])
    least = 1 << 31 | 0x7F7FFFFF
    inputs = [least if decode(a, "f32") is None or a == 0xFF800000 else a for a in zeros]
    check("max.ftz.f32 %d, %a, 0fFF7FFFFF;", "f32", inputs, [values])


@pytest.mark.parametrize(
    "body",
    [
        "add.rz.f64 %e, %e, %e;",
        "add.ftz.f64 %e, %e, %e;",
        "fma.rp.f64 %e, %e, %e, %e;",
        "add.rn.relu.f32 %d, %d, %d;",
        "fma.f32.s32 %d, %d, %d, %d;",
        "max.sat.f32 %d, %d, %d;",
        "min.xorsign.f32 %d, %d, %d;",
        "neg.f32 %d, %d, %d;",
        "abs.ftz.f64 %e, %e;",
        "div.approx.f64 %e, %e, %e;",
        "fma.rn.s32 %d, %d, %d, %d;",
    ],
)
def test_what_is_not_modelled_is_refused(body):
    with pytest.raises(UnsupportedInstruction, match=r"PTX line \d+"):
        run(body, {"d": "f32", "e": "f64"}, a=("f32", [0]))
