"""f16 and bf16 arithmetic, single and packed, bit for bit against exact fractions."""

import itertools
import random

import numpy as np
import pytest

import exact_floats as exact
from exact_floats import assert_bits, corners, decode, draws, encode, flushed
from ptx_snippets import run
from warpsan import UnsupportedInstruction

HALVES = ("f16", "bf16")
ONE = {"f16": 0x3C00, "bf16": 0x3F80}


def columns(name, count):
    """Samples of corners, ordinary numbers and, for sums, numbers far apart: an even number of each."""
    draw = random.Random(f"{name} {count}")
    pool = corners(name) + draws(name, 60, 1) + draws(name, 60, 2, spread=12)
    return [draw.choices(pool, k=1200) for _ in range(count)]


def check(body, name, expected, inputs):
    """The instruction returns ``expected`` for ``inputs`` on single values, and in its packed form on pairs."""
    named = dict(zip("abc", inputs, strict=False))
    (single,) = run(body.format(name), {"d": name}, **{key: (name, column) for key, column in named.items()})
    assert_bits(single, expected, name, inputs)
    packed = {key: (f"{name}x2", np.array(column, np.uint16)) for key, column in named.items()}
    (double,) = run(body.format(f"{name}x2"), {"d": f"{name}x2"}, **packed)
    assert_bits(double, expected, name, inputs)


def numbers(name, inputs, ftz=False):
    return ([decode(flushed(bits, name) if ftz else bits, name) for bits in row] for row in zip(*inputs, strict=True))


def clamped(bits, name, modifier):
    number = None if bits is None else decode(bits, name)
    if modifier == "sat":
        return 0 if number is None or number[0] else min(bits, ONE[name])
    return 0 if number is not None and number[0] else bits


BINARY = {
    "add": exact.add,
    "sub": lambda x, y: exact.add(x, exact.negated(y)),
    "mul": exact.mul,
}


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("operation", BINARY)
def test_binary(operation, name):
    inputs = columns(name, 2)
    expected = [encode(BINARY[operation](*row), name) for row in numbers(name, inputs)]
    check(operation + ".rn.{} %d, %a, %b;", name, expected, inputs)


@pytest.mark.parametrize("name", HALVES)
def test_fma(name):
    inputs = columns(name, 3)
    near, half = ONE[name] + 1, exact.FORMATS[name][1] + 1
    # (1 + u)(1 + u) * 2**-half is just above half a unit of 1, or of a number far above the product's last bit.
    tiny = encode((False, exact.Fraction(2) ** -half), name)
    scaled = encode(exact.mul(decode(near, name), decode(tiny, name)), name)
    inputs = [column + extra for column, extra in zip(inputs, [[near] * 2, [scaled] * 2, [ONE[name]] * 2], strict=True)]
    expected = [encode(exact.add(exact.mul(a, b), c), name) for a, b, c in numbers(name, inputs)]
    check("fma.rn.{} %d, %a, %b, %c;", name, expected, inputs)
    clipped = [clamped(bits, name, "relu") for bits in expected]
    check("fma.rn.relu.{} %d, %a, %b, %c;", name, clipped, inputs)


def test_bf16_fma_is_rounded_once():
    """Products of sixteen bits that are exactly halfway, and an addend smaller by 100 binary places."""
    candidates = [
        (a, b)
        for a, b in itertools.product(range(0x3F80, 0x4000), repeat=2)
        if (decode(a, "bf16")[1] * decode(b, "bf16")[1]) * 2**7 % 1 == exact.Fraction(1, 2)
        and decode(a, "bf16")[1] * decode(b, "bf16")[1] < 2
    ][:20]
    halfway = (
        [a for a, _ in candidates for _ in range(2)],
        [b for _, b in candidates for _ in range(2)],
        [0x0D80, 0x8D80] * len(candidates),
    )
    expected = [encode(exact.add(exact.mul(a, b), c), "bf16") for a, b, c in numbers("bf16", halfway)]
    assert len(set(expected[0:2])) == 2
    check("fma.rn.{} %d, %a, %b, %c;", "bf16", expected, list(halfway))


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("modifier", ["ftz", "sat"])
def test_add_flushes_and_saturates(name, modifier):
    inputs = columns(name, 2)
    expected = [encode(exact.add(*row), name) for row in numbers(name, inputs, ftz=modifier == "ftz")]
    if modifier == "ftz":
        expected = [None if bits is None else flushed(bits, name) for bits in expected]
    else:
        expected = [clamped(bits, name, "sat") for bits in expected]
    check(f"add.{modifier}.{{}} %d, %a, %b;", name, expected, inputs)


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("operation", ["min", "max"])
def test_min_and_max(operation, name):
    inputs = columns(name, 2)
    expected = []
    for a, b in zip(*inputs, strict=True):
        numbers_only = [bits for bits in (a, b) if decode(bits, name) is not None]
        # As integers, patterns of one sign ascend with their magnitude, and negative ones descend.
        ordered = sorted(numbers_only, key=lambda bits: -(bits & 0x7FFF) - 1 if bits >> 15 else bits)
        expected.append(None if not ordered else ordered[0 if operation == "min" else -1])
    check(operation + ".{} %d, %a, %b;", name, expected, inputs)
    nans = [
        None if None in (decode(a, name), decode(b, name)) else d for a, b, d in zip(*inputs, expected, strict=True)
    ]
    check(operation + ".NaN.{} %d, %a, %b;", name, nans, inputs)


@pytest.mark.parametrize("name", HALVES)
def test_abs_and_neg(name):
    values = [*corners(name)] + corners(name)[:2] * (len(corners(name)) % 2)
    check("abs.{} %d, %a;", name, [None if decode(a, name) is None else a & 0x7FFF for a in values], [values])
    check("neg.{} %d, %a;", name, [None if decode(a, name) is None else a ^ 0x8000 for a in values], [values])


def test_packed_constants():
    """A packed constant, 1.5 above and 2 below, also where threads diverge."""
    values = draws("f16", 40, 9)
    (d,) = run("mul.f16x2 %d, %a, 0x3E004000;", {"d": "f16x2"}, a=("f16x2", np.array(values, np.uint16)))
    factors = [(False, 2), (False, exact.Fraction(3, 2))] * 20
    expected = [encode(exact.mul(decode(a, "f16"), b), "f16") for a, b in zip(values, factors, strict=True)]
    assert_bits(d, expected, "f16", [values])


@pytest.mark.parametrize(
    "body",
    ["div.rn.f16 %d, %d, %d;", "mad.rn.f16 %d, %d, %d, %d;", "add.rz.f16 %d, %d, %d;", "mul.relu.f16 %d, %d, %d;"],
)
def test_what_is_not_modelled_is_refused(body):
    with pytest.raises(UnsupportedInstruction, match=r"PTX line \d+"):
        run(body, {"d": "f16"}, a=("f32", [0]))
