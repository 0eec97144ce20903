"""Comparisons and selections: every operator on every type, with NaN, infinities, zeros and subnormals."""

import itertools
import math
import operator
import struct

import ml_dtypes
import numpy as np
import pytest

from ptx_snippets import corners, pairs, run, signed
from warpsan import UnsupportedInstruction

RELATIONS = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
FLOATS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
SMALLEST = {"f16": 2.0**-24, "bf16": 2.0**-133, "f32": 2.0**-149, "f64": 5e-324}


def float_pairs(type_name):
    """Every pair of a few values, as arrays of the type and as Python floats."""
    tiny = SMALLEST[type_name]
    values = [0.0, -0.0, 1.0, -1.5, 300.0, tiny, -tiny, 5 * tiny, math.inf, -math.inf, math.nan, -math.nan]
    first, second = zip(*itertools.product(values, values), strict=True)
    arrays = [np.array(column, dtype=np.float64).astype(FLOATS[type_name]) for column in (first, second)]
    return arrays, first, second


def float_relation(name, x, y):
    """PTX ISA, "Floating Point Comparisons": ordered comparisons are false for a NaN, unordered ones true."""
    unordered = math.isnan(x) or math.isnan(y)
    if name in ("num", "nan"):
        return unordered == (name == "nan")
    if unordered:
        return name.endswith("u")
    return RELATIONS[name[:2]](x, y)


@pytest.mark.parametrize("type_name", ["b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64"])
def test_integer_comparisons(type_name):
    kind, bits = type_name[0], int(type_name[1:])
    names = {"b": ["eq", "ne"], "u": [*RELATIONS, *UNSIGNED_NAMES], "s": list(RELATIONS)}[kind]
    a, b = pairs(bits)
    inputs = {"a": (f"b{bits}", a), "b": (f"b{bits}", b)}
    body = "".join(f"setp.{name}.{type_name} %{name}, %a, %b;" for name in names)
    for name, got in zip(names, run(body, dict.fromkeys(names, "pred"), **inputs), strict=True):
        relation = RELATIONS[UNSIGNED_NAMES.get(name, name)]
        read = (lambda v: signed(v, bits)) if kind == "s" else (lambda v: v)
        assert got.tolist() == [relation(read(x), read(y)) for x, y in zip(a, b, strict=True)], name


ORDERS = [*RELATIONS, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"]


@pytest.mark.parametrize("type_name", FLOATS)
def test_float_comparisons(type_name):
    (a, b), first, second = float_pairs(type_name)
    body = "".join(f"setp.{name}.{type_name} %{name}, %a, %b;" for name in ORDERS)
    results = run(body, dict.fromkeys(ORDERS, "pred"), a=(type_name, a), b=(type_name, b))
    for name, got in zip(ORDERS, results, strict=True):
        expected = [float_relation(name, x, y) for x, y in zip(first, second, strict=True)]
        assert got.tolist() == expected, name


@pytest.mark.parametrize("type_name", ["f16", "f32"])
def test_ftz_compares_subnormals_as_zeros(type_name):
    (a, b), first, second = float_pairs(type_name)
    least = 2.0**-14 if type_name == "f16" else 2.0**-126
    body = "".join(f"setp.{name}.ftz.{type_name} %{name}, %a, %b;" for name in ORDERS)
    results = run(body, dict.fromkeys(ORDERS, "pred"), a=(type_name, a), b=(type_name, b))
    for name, got in zip(ORDERS, results, strict=True):
        flushed = [[0.0 if abs(x) < least else x for x in column] for column in (first, second)]
        assert got.tolist() == [float_relation(name, x, y) for x, y in zip(*flushed, strict=True)], name


@pytest.mark.parametrize("type_name", ["f16x2", "bf16x2"])
def test_packed_comparisons_have_a_predicate_for_each_half(type_name):
    (a, b), first, second = float_pairs(type_name[:-2])
    low, high = np.stack([a, b], axis=1), np.stack([b, a], axis=1)
    p, q = run(f"setp.ltu.{type_name} %p|%q, %a, %b;", {"p": "pred", "q": "pred"}, a=("b32", low), b=("b32", high))
    assert p.tolist() == [float_relation("ltu", x, y) for x, y in zip(first, second, strict=True)]
    assert q.tolist() == [float_relation("ltu", y, x) for x, y in zip(first, second, strict=True)]


@pytest.mark.parametrize(("combine", "function"), [("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)])
def test_combination_with_a_predicate_and_the_complement(combine, function):
    a, b, c = zip(*itertools.product([1, 2], [1, 2], [False, True]), strict=True)
    body = f"setp.lt.{combine}.u32 %p|%q, %a, %b, %c; setp.lt.{combine}.u32 %r, %a, %b, !%c; setp.lt.u32 _|%s, %a, %b;"
    results = dict.fromkeys("pqrs", "pred")
    p, q, r, s = run(body, results, a=("u32", a), b=("u32", b), c=("pred", c))
    rows = list(zip(a, b, c, strict=True))
    assert p.tolist() == [function(x < y, z) for x, y, z in rows]
    assert q.tolist() == [function(x >= y, z) for x, y, z in rows]
    assert r.tolist() == [function(x < y, not z) for x, y, z in rows]
    assert s.tolist() == [x >= y for x, y, z in rows]


def test_constants_may_be_compared_with():
    values = [1.0, 0.5, -2.0, math.nan]
    body = "setp.gt.f32 %p, %a, 0f3F000000; setp.eq.f32 %q, 0f7F800000, %a; setp.ge.s32 %r, %b, -3;"
    p, q, r = run(body, {"p": "pred", "q": "pred", "r": "pred"}, a=("f32", values), b=("s32", [-4, -3, 0, 7]))
    assert p.tolist() == [True, False, False, False]
    assert q.tolist() == [False] * 4
    assert r.tolist() == [False, True, True, True]


def test_set_gives_numbers():
    a, b = pairs(32)
    inputs = {"a": ("b32", a), "b": ("b32", b), "c": ("pred", [x & 1 for x in a])}
    body = "set.lt.u32.s32 %d, %a, %b; set.hi.f32.u32 %e, %a, %b; set.eq.xor.s32.b32 %f, %a, %b, !%c;"
    d, e, f = run(body, {"d": "u32", "e": "f32", "f": "s32"}, **inputs)
    rows = list(zip(a, b, strict=True))
    assert d.tolist() == [0xFFFFFFFF if signed(x, 32) < signed(y, 32) else 0 for x, y in rows]
    assert e.tolist() == [float(x > y) for x, y in rows]
    assert f.tolist() == [-int((x == y) ^ (not x & 1)) for x, y in rows]


def test_set_of_halves():
    (a, b), first, second = float_pairs("f16")
    inputs = {"a": ("b16", a), "b": ("b16", b)}
    packed = {"x": ("b32", np.stack([a, b], axis=1)), "y": ("b32", np.stack([b, a], axis=1))}
    body = """set.lt.f16.f16 %d, %a, %b; set.lt.u16.f16 %e, %a, %b; set.ltu.f16x2.f16x2 %f, %x, %y;
        set.lt.u32.f16x2 %g, %x, %y;"""
    d, e, f, g = run(body, {"d": "f16", "e": "u16", "f": "f16x2", "g": "u16x2"}, **inputs, **packed)
    less = [x < y for x, y in zip(first, second, strict=True)]
    more = [x > y for x, y in zip(first, second, strict=True)]
    assert d.tolist() == [float(x) for x in less]
    assert e.tolist() == [0xFFFF * x for x in less]
    unordered = [math.isnan(x) or math.isnan(y) for x, y in zip(first, second, strict=True)]
    assert f.tolist() == [[float(x | n), float(y | n)] for x, y, n in zip(less, more, unordered, strict=True)]
    assert g.tolist() == [[0xFFFF * x, 0xFFFF * y] for x, y in zip(less, more, strict=True)]


@pytest.mark.parametrize("type_name", ["b16", "u32", "s64", "f32", "f64"])
def test_selp_copies_bits(type_name):
    bits = int(type_name[1:])
    a, b = pairs(bits)
    c = [k % 3 == 0 for k in range(len(a))]
    (d,) = run(
        f"selp.{type_name} %d, %a, %b, %c;", {"d": f"b{bits}"}, a=(f"b{bits}", a), b=(f"b{bits}", b), c=("pred", c)
    )
    assert d.tolist() == [x if z else y for x, y, z in zip(a, b, c, strict=True)]


def test_slct_goes_by_the_sign():
    least = struct.unpack("<f", struct.pack("<I", 0x80000001))[0]
    c = [1.0, 0.0, -0.0, -1.0, math.nan, least]
    count = len(c)
    inputs = {"a": ("u32", [1] * count), "b": ("u32", [2] * count), "c": ("f32", c)}
    body = "slct.u32.f32 %d, %a, %b, %c; slct.ftz.u32.f32 %e, %a, %b, %c;"
    d, e = run(body, {"d": "u32", "e": "u32"}, **inputs)
    assert d.tolist() == [1, 1, 1, 2, 2, 2]
    assert e.tolist() == [1, 1, 1, 2, 2, 1]
    values = corners(32)
    (f,) = run("slct.f32.s32 %f, 0f3F800000, 0f00000000, %c;", {"f": "f32"}, c=("s32", values))
    assert f.tolist() == [float(signed(x, 32) >= 0) for x in values]


@pytest.mark.parametrize(("type_name", "least"), [("f32", 2.0**-126), ("f64", 2.0**-1022)])
def test_testp(type_name, least):
    values = [0.0, -0.0, least, -least, least / 2, -least / 4, 1.5, math.inf, -math.inf, math.nan]
    tests = {
        "finite": math.isfinite,
        "infinite": math.isinf,
        "number": lambda x: not math.isnan(x),
        "notanumber": math.isnan,
        "normal": lambda x: math.isfinite(x) and abs(x) >= least,
        "subnormal": lambda x: 0 < abs(x) < least,
    }
    body = "".join(f"testp.{name}.{type_name} %{name}, %a;" for name in tests)
    array = np.array(values, dtype=FLOATS[type_name])
    for name, got in zip(tests, run(body, dict.fromkeys(tests, "pred"), a=(type_name, array)), strict=True):
        assert got.tolist() == [tests[name](x) for x in values], name


@pytest.mark.parametrize(
    "instruction",
    [
        "setp.lt.b32 %p, %a, %a;",
        "setp.lo.s32 %p, %a, %a;",
        "setp.equ.u32 %p, %a, %a;",
        "setp.hi.f32 %p, %a, %a;",
        "setp.lt.ftz.s32 %p, %a, %a;",
        "setp.lt.f16x2 %p, %a, %a;",
        "setp.u32 %p, %a, %a;",
        "setp.lt.nand.u32 %p, %a, %a, %p;",
        "testp.tiny.f32 %p, %a;",
        "testp.finite.f16 %p, %a;",
    ],
)
def test_forms_that_do_not_exist_are_refused_with_their_line(instruction):
    with pytest.raises(UnsupportedInstruction, match=r"PTX line \d+: " + instruction.split()[0].replace(".", r"\.")):
        run(instruction, {"p": "pred"}, a=("b32", [1]))
