"""Bit operations against Python's integers, bit by bit if the manual defines them so."""

import random

import pytest

from ptx_snippets import corners, pairs, run, signed, triples
from warpsan import UnsupportedInstruction

M32 = 0xFFFFFFFF


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_bitwise_logic(bits):
    a, b = pairs(bits)
    full = (1 << bits) - 1
    results = dict.fromkeys(["d", "e", "f", "g", "h"], f"b{bits}")
    body = "".join(f"{op}.b{bits} %{name}, %a, %b;" for op, name in (("and", "d"), ("or", "e"), ("xor", "f")))
    body += f"not.b{bits} %g, %a; cnot.b{bits} %h, %a;"
    d, e, f, g, h = run(body, results, a=(f"b{bits}", a), b=(f"b{bits}", b))
    rows = list(zip(a, b, strict=True))
    assert d.tolist() == [x & y for x, y in rows]
    assert e.tolist() == [x | y for x, y in rows]
    assert f.tolist() == [x ^ y for x, y in rows]
    assert g.tolist() == [~x & full for x in a]
    assert h.tolist() == [int(x == 0) for x in a]


def test_predicate_logic():
    a, b = [0, 0, 1, 1], [0, 1, 0, 1]
    results = {"d": "pred", "e": "pred", "f": "pred", "g": "pred"}
    body = "and.pred %d, %a, %b; or.pred %e, %a, %b; xor.pred %f, %a, %b; not.pred %g, %a;"
    d, e, f, g = run(body, results, a=("pred", a), b=("pred", b))
    assert d.tolist() == [False, False, False, True]
    assert e.tolist() == [False, True, True, True]
    assert f.tolist() == [False, True, True, False]
    assert g.tolist() == [True, True, False, False]


def test_every_look_up_table_of_lop3():
    a, b, c = triples(32, 24)
    inputs = {"a": ("b32", a), "b": ("b32", b), "c": ("b32", c)}
    for start in range(0, 256, 32):
        tables = range(start, start + 32)
        body = "".join(f"lop3.b32 %d{t}, %a, %b, %c, {t:#04x};" for t in tables)
        for table, got in zip(tables, run(body, {f"d{t}": "b32" for t in tables}, **inputs), strict=True):
            expected = [
                sum((table >> (4 * (x >> k & 1) + 2 * (y >> k & 1) + (z >> k & 1)) & 1) << k for k in range(32))
                for x, y, z in zip(a, b, c, strict=True)
            ]
            assert got.tolist() == expected, f"table {table:#04x}"


def test_lop3_with_a_predicate_result():
    a, b = [0, 0, 3, 4], [7, 7, 1, 3]
    q = [0, 1, 0, 1]
    inputs = {"a": ("b32", a), "b": ("b32", b), "q": ("pred", q)}
    body = "lop3.or.b32 %d|%x, %a, %b, 0, 0xC0, %q; lop3.and.b32 _|%y, %a, %b, 0, 0xC0, !%q;"
    d, x, y = run(body, {"d": "b32", "x": "pred", "y": "pred"}, **inputs)
    assert d.tolist() == [0, 0, 1, 0]
    assert x.tolist() == [False, True, True, True]
    assert y.tolist() == [False, False, True, False]


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_shifts_clamp_their_amount(bits):
    amounts = [0, 1, 7, bits - 1, bits, bits + 1, 63, 64, 65535, 65536, 0x80000000, M32]
    a = [value for value in corners(bits) for _ in amounts]
    b = amounts * len(corners(bits))
    full = (1 << bits) - 1
    results = {"d": f"b{bits}", "e": f"u{bits}", "f": f"s{bits}", "g": f"b{bits}"}
    body = f"shl.b{bits} %d, %a, %b; shr.u{bits} %e, %a, %b; shr.s{bits} %f, %a, %b; shl.b{bits} %g, %a, 3;"
    d, e, f, g = run(body, results, a=(f"b{bits}", a), b=("u32", b))
    rows = list(zip(a, b, strict=True))
    assert d.tolist() == [x << n & full if n < bits else 0 for x, n in rows]
    assert e.tolist() == [x >> n if n < bits else 0 for x, n in rows]
    assert f.tolist() == [signed(x, bits) >> min(n, bits - 1) for x, n in rows]
    assert g.tolist() == [x << 3 & full for x in a]


@pytest.mark.parametrize("mode", ["wrap", "clamp"])
def test_funnel_shifts(mode):
    a, b, _ = triples(32, 360)
    c = [0, 1, 8, 31, 32, 33, 63, 64, M32] * 40
    body = f"shf.l.{mode}.b32 %d, %a, %b, %c; shf.r.{mode}.b32 %e, %a, %b, %c;"
    d, e = run(body, {"d": "b32", "e": "b32"}, a=("b32", a), b=("b32", b), c=("u32", c))
    for x, y, n, left, right in zip(a, b, c, d.tolist(), e.tolist(), strict=True):
        n = min(n, 32) if mode == "clamp" else n % 32
        both = y << 32 | x
        assert left == both << n >> 32 & M32
        assert right == both >> n & M32


def permuted(a, b, selector):
    """PTX ISA, prmt without a mode: four bytes of {b, a}, each unchanged or replaced by its sign."""
    pool = (b << 32 | a).to_bytes(8, "little")
    result = 0
    for k in range(4):
        field = selector >> 4 * k & 15
        byte = pool[field & 7]
        if field & 8:
            byte = 0xFF if byte & 0x80 else 0
        result |= byte << 8 * k
    return result


def test_prmt_picks_bytes():
    a, b, c = triples(32)
    inputs = {"a": ("b32", a), "b": ("b32", b), "c": ("b32", c)}
    (d,) = run("prmt.b32 %d, %a, %b, %c;", {"d": "b32"}, **inputs)
    assert d.tolist() == [permuted(*row) for row in zip(a, b, c, strict=True)]


@pytest.mark.parametrize("selector", [0x5410, 0x7632, 0x3276, 0x1054, 0x1010, 0x0123, 0x7531, 0x9876, 0xFFFF, 0x4440])
def test_prmt_with_a_constant_selector(selector):
    a, b, _ = triples(32, 50)
    body = f"prmt.b32 %d, %a, %b, {selector:#x}; mov.b32 %e, %b; prmt.b32 %e, %a, %e, {selector};"
    d, e = run(body, {"d": "b32", "e": "b32"}, a=("b32", a), b=("b32", b))
    expected = [permuted(x, y, selector) for x, y in zip(a, b, strict=True)]
    assert d.tolist() == expected
    assert e.tolist() == expected


PRMT_TABLES = {  # PTX ISA, prmt, table of modes: bytes from the most to the least significant for selectors 0 to 3
    "f4e": ["3210", "4321", "5432", "6543"],
    "b4e": ["5670", "6701", "7012", "0123"],
    "rc8": ["0000", "1111", "2222", "3333"],
    "ecl": ["3210", "3211", "3222", "3333"],
    "ecr": ["0000", "1110", "2210", "3210"],
    "rc16": ["1010", "3232", "1010", "3232"],
}


@pytest.mark.parametrize("mode", PRMT_TABLES)
def test_prmt_modes(mode):
    a, b, c = triples(32, 100)
    inputs = {"a": ("b32", a), "b": ("b32", b), "c": ("b32", c)}
    (d,) = run(f"prmt.b32.{mode} %d, %a, %b, %c;", {"d": "b32"}, **inputs)
    assert d.tolist() == [
        permuted(x, y, int(PRMT_TABLES[mode][selector & 3], 16)) for x, y, selector in zip(a, b, c, strict=True)
    ]


@pytest.mark.parametrize("bits", [32, 64])
def test_counting_and_reversing(bits):
    a = corners(bits) + [1 << k for k in range(bits)] + [(1 << k) - 1 for k in range(bits)]
    a += [~x & (1 << bits) - 1 for x in a]
    body = f"popc.b{bits} %d, %a; clz.b{bits} %e, %a; brev.b{bits} %f, %a;"
    d, e, f = run(body, {"d": "u32", "e": "u32", "f": f"b{bits}"}, a=(f"b{bits}", a))
    assert d.tolist() == [bin(x).count("1") for x in a]
    assert e.tolist() == [bits - x.bit_length() for x in a]
    assert f.tolist() == [int(format(x, f"0{bits}b")[::-1], 2) for x in a]


@pytest.mark.parametrize("type_name", ["u32", "s32", "u64", "s64"])
def test_bfind(type_name):
    bits = int(type_name[1:])
    a = corners(bits) + [1 << k for k in range(bits)] + [-(1 << k) & (1 << bits) - 1 for k in range(bits)]
    d, e = run(
        f"bfind.{type_name} %d, %a; bfind.shiftamt.{type_name} %e, %a;", {"d": "u32", "e": "u32"}, a=(f"b{bits}", a)
    )
    for x, position, shift in zip(a, d.tolist(), e.tolist(), strict=True):
        value = ~x & (1 << bits) - 1 if type_name[0] == "s" and x >> bits - 1 else x
        highest = value.bit_length() - 1
        assert position == highest & M32
        assert shift == (bits - 1 - highest if highest >= 0 else M32)


def test_nth_set_bit():
    masks, bases, counts = triples(32)
    bases = [base % 32 for base in bases]
    counts = [count % 9 - 4 for count in counts]
    inputs = {"a": ("b32", masks), "b": ("b32", bases), "c": ("s32", counts)}
    (d,) = run("fns.b32 %d, %a, %b, %c;", {"d": "u32"}, **inputs)
    for mask, base, count, got in zip(masks, bases, counts, d.tolist(), strict=True):
        path = range(base, 32) if count > 0 else range(base, -1, -1)
        positions = [position for position in path if mask >> position & 1]
        if count == 0:
            positions, count = [position for position in positions if position == base], 1
        assert got == (positions[abs(count) - 1] if len(positions) >= abs(count) else M32)


FIELDS = [0, 1, 5, 8, 31, 32, 33, 63, 64, 100, 255, 256, 0x11F]


def fields(bits):
    """A value, a position and a length for every pair of the latter, and equally many second values."""
    draw = random.Random(bits)
    positions = [p for p in FIELDS for _ in FIELDS] * 3
    lengths = FIELDS * len(FIELDS) * 3
    pool = [draw.choice([draw.getrandbits(bits), draw.choice(corners(bits))]) for _ in range(2 * len(positions))]
    return pool[: len(positions)], pool[len(positions) :], positions, lengths


@pytest.mark.parametrize("type_name", ["u32", "s32", "u64", "s64"])
def test_bit_field_extract(type_name):
    bits = int(type_name[1:])
    a, _, position, length = fields(bits)
    inputs = {"a": (f"b{bits}", a), "b": ("u32", position), "c": ("u32", length)}
    (d,) = run(f"bfe.{type_name} %d, %a, %b, %c;", {"d": f"u{bits}"}, **inputs)
    top = bits - 1
    for x, pos, size, got in zip(a, position, length, d.tolist(), strict=True):
        pos, size = pos & 255, size & 255
        sign = 0 if type_name[0] == "u" or size == 0 else x >> min(pos + size - 1, top) & 1
        expected = sum((x >> pos + k & 1 if k < size and pos + k <= top else sign) << k for k in range(bits))
        assert got == expected, (hex(x), pos, size)


@pytest.mark.parametrize("bits", [32, 64])
def test_bit_field_insert(bits):
    a, b, position, length = fields(bits)
    inputs = {"a": (f"b{bits}", a), "b": (f"b{bits}", b), "c": ("u32", position), "e": ("u32", length)}
    (d,) = run(f"bfi.b{bits} %d, %a, %b, %c, %e;", {"d": f"b{bits}"}, **inputs)
    for x, into, pos, size, got in zip(a, b, position, length, d.tolist(), strict=True):
        expected = into
        for k in range(size & 255):
            if (pos & 255) + k < bits:
                at = 1 << (pos & 255) + k
                expected = expected | at if x >> k & 1 else expected & ~at
        assert got == expected, (hex(x), hex(into), pos, size)


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_masks_and_extensions(mode):
    sizes = [0, 1, 2, 15, 31, 32, 33, 64, M32]
    a = [value for value in [*corners(32), *sizes] for _ in sizes]
    b = sizes * (len(a) // len(sizes))
    body = f"bmsk.{mode}.b32 %d, %a, %b; szext.{mode}.u32 %e, %a, %b; szext.{mode}.s32 %f, %a, %b;"
    d, e, f = run(body, {"d": "b32", "e": "u32", "f": "u32"}, a=("b32", a), b=("u32", b))
    for x, n, mask, zero, sign in zip(a, b, d.tolist(), e.tolist(), f.tolist(), strict=True):
        start, size = (x, n) if mode == "clamp" else (x & 31, n & 31)
        assert mask == sum(1 << k for k in range(32) if start <= k < start + size)
        low = x & (1 << min(size, 32)) - 1
        assert zero == low
        assert sign == (signed(low, min(size, 32)) & M32 if size else 0)


@pytest.mark.parametrize(
    "instruction",
    [
        "and.u32 %d, %a, %a;",
        "shl.u32 %d, %a, 1;",
        "lop3.b32 %d, %a, %a, %a, %a;",
        "lop3.or.b32 %d, %a, %a, %a, 3;",
        "shf.l.b32 %d, %a, %a, %a;",
        "prmt.b32.f5e %d, %a, %a, %a;",
        "popc.u32 %d, %a;",
        "bfe.b32 %d, %a, 0, 1;",
        "brev.b16 %d, %a;",
        "szext.u32 %d, %a, 3;",
    ],
)
def test_forms_that_do_not_exist_are_refused_with_their_line(instruction):
    with pytest.raises(UnsupportedInstruction, match=r"PTX line \d+: " + instruction.split()[0].replace(".", r"\.")):
        run(instruction, {"d": "b32"}, a=("b32", [1]))
