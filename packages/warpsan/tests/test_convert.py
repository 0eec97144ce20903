"""cvt bit for bit: every pair of types and rounding, against integers and exact fractions."""

import itertools
import math

import pytest

import exact_floats as exact
from exact_floats import assert_bits, corners, decode, draws, encode, flushed, round_integer
from ptx_snippets import corners as integer_corners
from ptx_snippets import run, signed
from warpsan import UnsupportedInstruction

INTEGERS = [f"{kind}{bits}" for bits in (8, 16, 32, 64) for kind in "su"]
FLOATS = ("f16", "bf16", "f32", "f64")
ROUNDINGS = ("rn", "rz", "rm", "rp")


def bits_of(name):
    return exact.width(name) if name in exact.FORMATS else int(name[1:])


def value_of(pattern, name):
    """The integer of a pattern in an integer type."""
    return signed(pattern, bits_of(name)) if name[0] == "s" else pattern & (1 << bits_of(name)) - 1


def limits(name):
    bits = bits_of(name)
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if name[0] == "s" else (0, (1 << bits) - 1)


def convert_all(forms, source, patterns, wide=False):
    """Results of ``cvt.FORM.TARGET.source`` for each (form, target), in one kernel; and the instructions by name.

    8-bit types live in 16-bit registers, or 32-bit ones if ``wide``.
    """
    registers = {8: "b32" if wide else "b16", 16: "b32" if wide else "b16", 32: "b32", 64: "b64"}
    held_source = registers[bits_of(source)] if source in INTEGERS else source
    names = [f"d{n}" for n in range(len(forms))]
    held = {
        name: registers[bits_of(target)] if target in INTEGERS else target
        for name, (_, target) in zip(names, forms, strict=True)
    }
    instructions = [".".join(part for part in ("cvt", form, target, source) if part) for form, target in forms]
    body = " ".join(f"{text} %{name}, %a;" for name, text in zip(names, instructions, strict=True))
    # Bits above the type in a wider source register must not matter.
    values = [pattern | 0xA5A5A5A5A5A5A5A5 << bits_of(source) for pattern in patterns]
    return zip(instructions, run(body, held, a=(held_source, values)), strict=True)


def convert(form, target, source, patterns, wide=False):
    """Results of ``cvt.FORM.target.source``."""
    ((_, d),) = convert_all([(form, target)], source, patterns, wide)
    return d


def extended(value, target, held):
    """An integer as its pattern in a register of ``held`` bits."""
    return value_of(value, target) & (1 << held) - 1


def assert_integers(d, target, values, instruction):
    """The registers hold the integers, extended to their width."""
    held = 8 * d.dtype.itemsize
    got = [int(x) for x in d.view(f"u{d.dtype.itemsize}")]
    assert got == [extended(value, target, held) for value in values], instruction


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("source", INTEGERS)
def test_integer_to_integer(source, wide):
    patterns = integer_corners(bits_of(source))
    forms = list(itertools.product(("", "sat"), INTEGERS))
    for (form, target), (instruction, d) in zip(forms, convert_all(forms, source, patterns, wide), strict=True):
        values = [value_of(pattern, source) for pattern in patterns]
        if form == "sat":
            low, high = limits(target)
            values = [min(max(value, low), high) for value in values]
        assert_integers(d, target, values, instruction)


@pytest.mark.parametrize("source", ["f16", "f32", "f64"])
def test_float_to_integer(source):
    patterns = (
        corners(source) + draws(source, 60, 1, spread=6) + [p for k in (7, 15, 31, 63) for p in near_power(k, source)]
    )
    numbers = [decode(pattern, source) for pattern in patterns]
    forms = [(f"{rounding}i", target) for rounding in ROUNDINGS for target in INTEGERS]
    for (form, target), (instruction, d) in zip(forms, convert_all(forms, source, patterns), strict=True):
        low, high = limits(target)
        values = []
        for number in numbers:
            if number is None:
                value = 1 << bits_of(target) - 1 if 64 in (bits_of(target), bits_of(source)) else 0
            elif number[1] == math.inf:
                value = low if number[0] else high
            else:
                whole = round_integer(*number, form.removesuffix("i"))
                value = min(max(-whole if number[0] else whole, low), high)
            values.append(value)
        assert_integers(d, target, values, instruction)


def near_power(exponent, name):
    """Patterns around 2**exponent of both signs, if the format reaches it."""
    pattern = encode((False, exact.Fraction(2) ** exponent), name)
    return [neighbour | sign << exact.width(name) - 1 for neighbour in (pattern - 1, pattern) for sign in (0, 1)]


@pytest.mark.parametrize("source", INTEGERS)
def test_integer_to_float(source):
    bits = bits_of(source)
    patterns = integer_corners(bits)
    if bits == 64:  # close to halfway between float32, bfloat16 and float64 numbers, from either side
        patterns += [(1 << 63) + (1 << k) + nudge for k in (10, 39, 55) for nudge in (-1, 0, 1)]
        patterns += [(1 << 40) + (1 << k) + nudge for k in (16, 32) for nudge in (-1, 0, 1)]
    values = [value_of(pattern, source) for pattern in patterns]
    forms = [form for form in itertools.product(ROUNDINGS, FLOATS) if not _is_not_modelled(*form, source)]
    for (rounding, target), (instruction, d) in zip(forms, convert_all(forms, source, patterns), strict=True):
        expected = [encode((value < 0, exact.Fraction(abs(value))), target, rounding) for value in values]
        try:
            assert_bits(d, expected, target, [patterns])
        except AssertionError as error:
            raise AssertionError(f"{instruction}: {error}") from None


def _is_not_modelled(rounding, target, source):
    return target == "f64" and bits_of(source) == 64 and rounding != "rn"


@pytest.mark.parametrize("rounding", ["rz", "rm", "rp"])
@pytest.mark.parametrize("source", ["s64", "u64"])
def test_directed_roundings_of_64_bits_to_f64_are_refused(source, rounding):
    assert _is_not_modelled(rounding, "f64", source)
    with pytest.raises(UnsupportedInstruction, match=r"expected one of \.rn$"):
        convert(rounding, "f64", source, [1])


NARROWING = [
    ("f32", "f64"),
    ("f16", "f64"),
    ("bf16", "f64"),
    ("f16", "f32"),
    ("bf16", "f32"),
    ("f16", "bf16"),
    ("bf16", "f16"),
]


def narrow_patterns(target, source):
    """Corners, ordinary numbers, and points halfway between target numbers with their neighbours in the source."""
    patterns = corners(source) + draws(source, 100, 1, spread=16)
    dropped = exact.FORMATS[source][1] - exact.FORMATS[target][1]
    if dropped > 1:
        halves = [decode(bits, target) for bits in corners(target) + draws(target, 20, 2)]
        encoded = [encode(number, source) for number in halves if number is not None]
        patterns += [bits + (1 << dropped - 1) + nudge for bits in encoded for nudge in (-1, 0, 1)]
    return patterns


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(("target", "source"), NARROWING)
def test_float_to_narrower_float(target, source, rounding):
    patterns = narrow_patterns(target, source)
    expected = [encode(decode(pattern, source), target, rounding) for pattern in patterns]
    assert_bits(convert(rounding, target, source, patterns), expected, target, [patterns])


@pytest.mark.parametrize(
    ("target", "source"),
    [("f32", "f16"), ("f64", "f16"), ("f64", "f32"), ("f32", "bf16"), ("f64", "bf16"), ("f32", "f32")],
)
def test_float_to_wider_float_is_exact(target, source):
    patterns = corners(source) + draws(source, 100, 1, spread=10)
    expected = [encode(decode(pattern, source), target) for pattern in patterns]
    assert_bits(convert("", target, source, patterns), expected, target, [patterns])


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", ["f16", "f32", "f64"])
def test_float_to_integral_float(name, rounding):
    patterns = corners(name) + draws(name, 200, 1)
    expected = []
    for pattern in patterns:
        number = decode(pattern, name)
        if number is not None and number[1] != math.inf:
            number = number[0], exact.Fraction(round_integer(*number, rounding))
        expected.append(encode(number, name))
    assert_bits(convert(rounding + "i", name, name, patterns), expected, name, [patterns])


def test_saturation_flushing_and_relu():
    patterns = corners("f32") + draws("f32", 100, 1)
    top = 1 << 31
    saturated = [0 if decode(p, "f32") is None or p & top else min(p, 0x3F800000) for p in patterns]
    assert_bits(convert("sat", "f32", "f32", patterns), saturated, "f32", [patterns])
    flushed_copy = [None if decode(p, "f32") is None else flushed(p, "f32") for p in patterns]
    assert_bits(convert("ftz", "f32", "f32", patterns), flushed_copy, "f32", [patterns])
    relu = [encode(decode(p, "f32"), "f16") for p in patterns]
    relu = [0 if bits is not None and bits >> 15 else bits for bits in relu]
    assert_bits(convert("rn.relu", "f16", "f32", patterns), relu, "f16", [patterns])
    tiny = [0x00000001, 0x80000001, 0x007FFFFF]
    assert convert("rpi.ftz", "s32", "f32", tiny).tolist() == [0, 0, 0]
    assert convert("rpi", "s32", "f32", tiny).tolist() == [1, 0, 1]
    small = [encode((False, exact.Fraction(3, 2) * exact.Fraction(2) ** -130), "f64")]
    assert_bits(convert("rn.ftz", "f32", "f64", small), [0], "f32", [small])


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("form", ["rn", "rz", "rn.relu"])
def test_packed_conversion_puts_the_first_source_into_the_upper_half(name, form):
    upper = narrow_patterns(name, "f32")
    lower = upper[::-1]
    expected = [encode(decode(p, "f32"), name, form[:2]) for pair in zip(lower, upper, strict=True) for p in pair]
    if "relu" in form:
        expected = [0 if bits is not None and bits >> 15 else bits for bits in expected]
    (d,) = run(f"cvt.{form}.{name}x2.f32 %d, %a, %b;", {"d": f"{name}x2"}, a=("f32", upper), b=("f32", lower))
    assert_bits(d, expected, name, [[p for pair in zip(lower, upper, strict=True) for p in pair]])


def test_packed_conversion_of_positive_numbers_in_range():
    """Probabilities are such numbers; they take a shorter path."""
    limit = encode((False, exact.Fraction(65520)), "f32")
    upper = [p for p in narrow_patterns("f16", "f32") if p < limit] + [limit - 1, 0, 0x33000000, 0x33000001, 0x38800000]
    lower = upper[::-1]
    (d,) = run("cvt.rn.f16x2.f32 %d, %a, %b;", {"d": "f16x2"}, a=("f32", upper), b=("f32", lower))
    sources = [p for pair in zip(lower, upper, strict=True) for p in pair]
    assert_bits(d, [encode(decode(p, "f32"), "f16") for p in sources], "f16", [sources])


@pytest.mark.parametrize("rounding", ["rna", "rn", "rz"])
def test_tf32_keeps_ten_bits_of_the_mantissa(rounding):
    patterns = narrow_patterns("tf32", "f32")
    expected = [encode(decode(p, "f32"), "tf32", rounding) for p in patterns]
    expected = [None if bits is None else bits << 13 for bits in expected]
    (d,) = run(f"cvt.{rounding}.tf32.f32 %d, %a;", {"d": "b32"}, a=("f32", patterns))
    assert_bits(d, expected, "f32", [patterns])


@pytest.mark.parametrize("name", [f"{sign}{bits}" for bits in (2, 4, 8, 16) for sign in "us"])
def test_pack(name):
    low, high = limits(name)
    bits = bits_of(name)
    edges = [
        signed(value, 32) for value in (low - 1, low, low + 1, 0, 1, high - 1, high, high + 1, -(2**31), 2**31 - 1)
    ]
    a, b = zip(*itertools.product(edges, edges), strict=True)
    c = [0xDEADBEEF * k & 0xFFFFFFFF for k in range(len(a))]
    clamped = [[min(max(value, low), high) & (1 << bits) - 1 for value in column] for column in (a, b)]
    want = [upper << bits | lower for upper, lower in zip(*clamped, strict=True)]
    if bits == 16:
        (got,) = run(f"cvt.pack.sat.{name}.s32 %d, %a, %b;", {"d": "b32"}, a=("s32", a), b=("s32", b))
    else:
        want = [(word << 2 * bits | value) & 0xFFFFFFFF for word, value in zip(c, want, strict=True)]
        body = f"cvt.pack.sat.{name}.s32.b32 %d, %a, %b, %c;"
        (got,) = run(body, {"d": "b32"}, a=("s32", a), b=("s32", b), c=("b32", c))
    assert got.tolist() == want


@pytest.mark.parametrize(
    "body",
    [
        "cvt.f16.f32 %h, %d;",
        "cvt.s32.f32 %d, %d;",
        "cvt.f32.s32 %d, %d;",
        "cvt.rn.f32.f16 %d, %h;",
        "cvt.rzi.f32.f16 %d, %h;",
        "cvt.rn.satfinite.f16.f32 %h, %d;",
        "cvt.rn.ftz.f16.s32 %h, %d;",
        "cvt.rs.f16x2.f32 %d, %d, %d, %d;",
        "cvt.rn.satfinite.e2m3x2.f32 %h, %d, %d;",
        "cvt.pack.s16.s32 %d, %d, %d;",
        "cvt.relu.s32.s16 %d, %h;",
    ],
)
def test_what_is_not_modelled_is_refused(body):
    with pytest.raises(UnsupportedInstruction, match=r"PTX line \d+"):
        run(body, {"d": "f32", "h": "f16"}, a=("f32", [0]))
