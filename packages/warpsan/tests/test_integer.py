"""Integer arithmetic against Python's integers: every instruction form, on corner values and a fixed sample."""

import pytest

from ptx_snippets import corners, pairs, run, signed, triples
from warpsan import UnsupportedInstruction

SIGNED = {"s16": 16, "s32": 32, "s64": 64}
TYPES = {"u16": 16, "u32": 32, "u64": 64, **SIGNED}


def read(values, type_name):
    """The integers of bit patterns in a type."""
    bits = int(type_name[1:])
    return [signed(v, bits) if type_name[0] == "s" else v & (1 << bits) - 1 for v in values]


def check(body, type_name, function, inputs, result=None):
    """Check that ``%d`` is ``function`` of the inputs' values, modulo the result's width."""
    result = result or type_name
    named = {name: (type_name, values) for name, values in zip("abc", inputs, strict=False)}
    (d,) = run(body, {"d": result}, **named)
    arguments = [read(values, type_name) for values in inputs]
    modulus = 1 << int(result[1:])
    assert [int(x) % modulus for x in d] == [function(*row) % modulus for row in zip(*arguments, strict=True)]


def truncated_quotient(a, b):
    return -1 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def truncated_remainder(a, b):
    return -1 if b == 0 else a - b * truncated_quotient(a, b)


def clamp(value):
    return max(-(2**31), min(2**31 - 1, value))


TWO_OPERANDS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "min": min,
    "max": max,
    "div": truncated_quotient,
    "rem": truncated_remainder,
}


@pytest.mark.parametrize("opcode", TWO_OPERANDS)
@pytest.mark.parametrize("type_name", TYPES)
def test_two_operands(opcode, type_name):
    check(f"{opcode}.{type_name} %d, %a, %b;", type_name, TWO_OPERANDS[opcode], pairs(TYPES[type_name]))


@pytest.mark.parametrize("opcode", TWO_OPERANDS)
def test_constants_and_the_destination_as_a_source(opcode):
    values = corners(32)
    body = f"mov.u32 %d, %a; {opcode}.s32 %d, %d, -7; {opcode}.s32 %e, 100, %a;"
    d, e = run(body, {"d": "s32", "e": "s32"}, a=("s32", values))
    exact = [signed(a, 32) for a in values]
    assert d.tolist() == [signed(TWO_OPERANDS[opcode](a, -7), 32) for a in exact]
    assert e.tolist() == [signed(TWO_OPERANDS[opcode](100, a), 32) for a in exact]


@pytest.mark.parametrize("type_name", TYPES)
def test_high_and_wide_products(type_name):
    bits = TYPES[type_name]
    check(f"mul.hi.{type_name} %d, %a, %b;", type_name, lambda a, b: a * b >> bits, pairs(bits))
    check(f"mad.lo.{type_name} %d, %a, %b, %c;", type_name, lambda a, b, c: a * b + c, triples(bits))
    check(f"mad.hi.{type_name} %d, %a, %b, %c;", type_name, lambda a, b, c: (a * b >> bits) + c, triples(bits))
    if bits < 64:
        wide = f"{type_name[0]}{2 * bits}"
        check(f"mul.wide.{type_name} %d, %a, %b;", type_name, lambda a, b: a * b, pairs(bits), wide)
        body = f"mul.wide.{type_name} %d, %a, %b; mad.wide.{type_name} %d, %a, %c, %d;"
        check(body, type_name, lambda a, b, c: a * c + a * b, triples(bits), wide)


@pytest.mark.parametrize("type_name", SIGNED)
def test_signs(type_name):
    values = [corners(SIGNED[type_name])]
    check(f"abs.{type_name} %d, %a;", type_name, abs, values)
    check(f"neg.{type_name} %d, %a;", type_name, lambda a: -a, values)


@pytest.mark.parametrize("type_name", TYPES)
def test_sum_of_absolute_differences(type_name):
    check(f"sad.{type_name} %d, %a, %b, %c;", type_name, lambda a, b, c: c + abs(a - b), triples(TYPES[type_name]))


def test_saturation():
    check("add.sat.s32 %d, %a, %b;", "s32", lambda a, b: clamp(a + b), pairs(32))
    check("sub.sat.s32 %d, %a, %b;", "s32", lambda a, b: clamp(a - b), pairs(32))
    check("mad.hi.sat.s32 %d, %a, %b, %c;", "s32", lambda a, b, c: clamp((a * b >> 32) + c), triples(32))
    check("min.relu.s32 %d, %a, %b;", "s32", lambda a, b: max(0, min(a, b)), pairs(32))
    check("max.relu.s32 %d, %a, %b;", "s32", lambda a, b: max(0, a, b), pairs(32))


@pytest.mark.parametrize("type_name", ["u32", "s32"])
def test_24_bit_products(type_name):
    def low(value):
        return signed(value << 8, 32) >> 8 if type_name == "s32" else value & 0xFFFFFF

    check(f"mul24.lo.{type_name} %d, %a, %b;", type_name, lambda a, b: low(a) * low(b), pairs(32))
    check(f"mul24.hi.{type_name} %d, %a, %b;", type_name, lambda a, b: low(a) * low(b) >> 16, pairs(32))
    check(f"mad24.lo.{type_name} %d, %a, %b, %c;", type_name, lambda a, b, c: low(a) * low(b) + c, triples(32))
    check(f"mad24.hi.{type_name} %d, %a, %b, %c;", type_name, lambda a, b, c: (low(a) * low(b) >> 16) + c, triples(32))
    if type_name == "s32":
        body = "mad24.hi.sat.s32 %d, %a, %b, %c;"
        check(body, "s32", lambda a, b, c: clamp(signed(low(a) * low(b) >> 16, 32) + c), triples(32))


@pytest.mark.parametrize("opcode", ["add", "min", "max"])
@pytest.mark.parametrize("kind", ["u", "s"])
def test_packed_halves(opcode, kind):
    first, second = pairs(32)

    def halves(value):
        return [signed(value >> s, 16) if kind == "s" else value >> s & 0xFFFF for s in (0, 16)]

    (d,) = run(f"{opcode}.{kind}16x2 %d, %a, %b;", {"d": "u16x2"}, a=("b32", first), b=("b32", second))
    expected = [
        [TWO_OPERANDS[opcode](x, y) & 0xFFFF for x, y in zip(halves(a), halves(b), strict=True)]
        for a, b in zip(first, second, strict=True)
    ]
    assert d.tolist() == expected


@pytest.mark.parametrize("bits", [32, 64])
def test_carries_make_longer_sums_differences_and_products(bits):
    """Two words each: the lower word's carry enters the upper word, whose carry out is read last."""
    low, high, other_low = triples(bits)
    other_high = low[::-1]
    columns = {"a": low, "b": high, "c": other_low, "e": other_high}
    inputs = {name: (f"u{bits}", values) for name, values in columns.items()}
    t = f"u{bits}"
    rows = list(zip(*columns.values(), strict=True))
    word, double = 1 << bits, 1 << 2 * bits
    results = {"x": t, "y": t, "z": t}
    for first, then, sign in (("add", "addc", 1), ("sub", "subc", -1)):
        body = f"{first}.cc.{t} %x, %a, %c; {then}.cc.{t} %y, %b, %e; {then}.{t} %z, 0, 0;"
        x, y, z = run(body, results, **inputs)
        totals = [a + b * word + sign * (c + e * word) for a, b, c, e in rows]
        assert [int(u) + int(v) * word for u, v in zip(x, y, strict=True)] == [total % double for total in totals]
        assert [int(v) for v in z] == [sign * int(not 0 <= total < double) % word for total in totals]
    # (a * b) + (c + e words), then the remainder.
    body = f"mad.lo.cc.{t} %x, %a, %b, %c; madc.hi.cc.{t} %y, %a, %b, %e; addc.{t} %z, 0, 0;"
    x, y, z = run(body, results, **inputs)
    totals = [a * b + c + e * word for a, b, c, e in rows]
    assert [int(u) + int(v) * word + int(w) * double for u, v, w in zip(x, y, z, strict=True)] == totals


@pytest.mark.parametrize("left", ["u32", "s32"])
@pytest.mark.parametrize("right", ["u32", "s32"])
def test_dot_products(left, right):
    first, second, third = triples(32)

    def part(value, at, bits, type_name):
        piece = value >> at * bits & (1 << bits) - 1
        return signed(piece, bits) if type_name == "s32" else piece

    inputs = {"a": ("b32", first), "b": ("b32", second), "c": ("b32", third)}
    types = f"{left}.{right}"
    body = f"dp4a.{types} %d, %a, %b, %c; dp2a.lo.{types} %e, %a, %b, %c; dp2a.hi.{types} %f, %a, %b, %c;"
    d, e, f = run(body, {"d": "u32", "e": "u32", "f": "u32"}, **inputs)
    rows = list(zip(first, second, third, strict=True))
    assert d.tolist() == [
        (c + sum(part(a, k, 8, left) * part(b, k, 8, right) for k in range(4))) % 2**32 for a, b, c in rows
    ]
    for result, shift in ((e, 0), (f, 2)):
        assert result.tolist() == [
            (c + sum(part(a, k, 16, left) * part(b, k + shift, 8, right) for k in range(2))) % 2**32 for a, b, c in rows
        ]


@pytest.mark.parametrize(
    "instruction",
    [
        "add.sat.u32 %d, %a, %a;",
        "add.b32 %d, %a, %a;",
        "add.lo.u32 %d, %a, %a;",
        "mul.u32 %d, %a, %a;",
        "mul.wide.u64 %d, %a, %a;",
        "mad.lo.sat.s32 %d, %a, %a, %a;",
        "sub.u16x2 %d, %a, %a;",
        "abs.u32 %d, %a;",
        "min.relu.u32 %d, %a, %a;",
        "addc.cc.u16 %d, %a, %a;",
        "dp2a.u32.u32 %d, %a, %a, %a;",
        "mad24.lo.sat.s32 %d, %a, %a, %a;",
        "rem.f32 %d, %a, %a;",
        "add.u32 %d, %a;",
        "add.u32 %d, %a, %a, %a;",
    ],
)
def test_forms_that_do_not_exist_are_refused_with_their_line(instruction):
    with pytest.raises(UnsupportedInstruction, match=r"PTX line \d+: " + instruction.split()[0].replace(".", r"\.")):
        run(instruction, {"d": "b32"}, a=("b32", [1]))
