"""``numerics="ring"``: every floating-point instruction as arithmetic mod p (p - 1), against Python's integers."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from ptx_snippets import kernel

pytest.importorskip("llvmlite", reason="the ring runs on the native engine")

from warpsan import IllegalAccess, LaunchError, NotAlgebraic, launch
from warpsan.numerics.ring import LN_2, LOG2_E, RINGS, Ring, ring_of

BIG, SMALL = RINGS["ring-251"], RINGS["ring-13"]
INFINITY, LOWEST = 0x7F800000, 0xFF7FFFFF
MINUS_INFINITY, NAN = 0xFF800000, 0x7FFFFFFF


def run(
    ring: Ring, body: str, results: dict[str, str], *, registers: str = "", **inputs: tuple[str, np.ndarray]
) -> tuple[np.ndarray, ...]:
    """Result words of a few instructions, one thread per value of the input words."""
    words = {"b16": np.uint16, "b32": np.uint32, "pred": np.uint8, "f64": np.uint64}
    count = len(next(iter(inputs.values()))[1])
    out = [np.zeros(count, words[type_]) for type_ in results.values()]
    text = kernel(body, results, {name: type_ for name, (type_, _) in inputs.items()}, registers=registers)
    arrays = [values.astype(words[type_]) for type_, values in inputs.values()]
    launch(text, "snippet", -(-count // 64), 64, [count, 0, *arrays, *out], numerics=ring.name)
    return tuple(array.astype(np.int64) for array in out)


def codes(ring: Ring, many: int = 80, seed: int = 0) -> np.ndarray:
    """Random codes, and codes at which arithmetic wraps."""
    corners = [0, 1, 2, ring.prime, ring.order, ring.modulus // 2, ring.modulus - 2, ring.modulus - 1]
    return np.array([*corners, *np.random.default_rng(seed).integers(0, ring.modulus, many - len(corners))])


ARITHMETIC: dict[str, Callable[[int, int, int], int]] = {
    "add.f32 %d, %a, %b;": lambda x, y, z: x + y,
    "sub.rn.ftz.f32 %d, %a, %b;": lambda x, y, z: x - y,
    "mul.f32 %d, %a, %b;": lambda x, y, z: x * y,
    "fma.rn.f32 %d, %a, %b, %c;": lambda x, y, z: x * y + z,
    "neg.f32 %d, %a;": lambda x, y, z: -x,
    "abs.f32 %d, %a;": lambda x, y, z: x,
    "max.f32 %d, %a, %b;": lambda x, y, z: max(x, y),
    "min.f32 %d, %a, %b;": lambda x, y, z: min(x, y),
    "mul.f32 %d, %a, 0fBF800000;": lambda x, y, z: -x,
    "add.f32 %d, %a, 0f40400000;": lambda x, y, z: x + 3,
    "mul.f32 %d, %a, 0f3FB8AA3B; mul.f32 %d, %d, 0f3F317218;": lambda x, y, z: x,
    "cvt.rn.f16.f32 %h, %a; cvt.f32.f16 %d, %h;": lambda x, y, z: x,
    "cvt.rn.bf16.f32 %h, %a; cvt.f32.bf16 %d, %h;": lambda x, y, z: x,
    "cvt.rna.tf32.f32 %w, %a; mov.b32 %d, %w;": lambda x, y, z: x,
    "cvt.rn.f16x2.f32 %w, %a, %b; mov.b32 {%h, %k}, %w; cvt.f32.f16 %d, %k;": lambda x, y, z: x,
    "cvt.rn.f16x2.f32 %w, %b, %a; add.f16x2 %w, %w, %w; mov.b32 {%h, %k}, %w; cvt.f32.f16 %d, %h;": (
        lambda x, y, z: 2 * x
    ),
    "cvt.rn.bf16.f32 %h, %a; mov.b32 %w, {0, %h}; mov.b32 %d, %w; add.f32 %d, %d, %b;": lambda x, y, z: x + y,
    "cvt.rn.bf16.f32 %h, %a; cvt.u32.u16 %w, %h; shl.b32 %w, %w, 16; add.f32 %d, %w, 0f00000000;": lambda x, y, z: x,
    "mov.b16 %k, 0x4000; mov.b16 %m, 0x3C00; cvt.rn.f16.f32 %h, %a; fma.rn.f16 %h, %h, %k, %m; cvt.f32.f16 %d, %h;": (
        lambda x, y, z: 2 * x + 1
    ),
}


@pytest.mark.parametrize("ring", [BIG, SMALL], ids=["p = 251", "p = 13"])
def test_arithmetic_is_the_rings(ring: Ring) -> None:
    x, y, z = (codes(ring, seed=seed) for seed in range(3))
    bodies = [
        f"{{ .reg .b16 %h, %k, %m; .reg .b32 %w; {body.replace('%d', f'%d{number}')} }}"
        for number, body in enumerate(ARITHMETIC)
    ]
    inputs = {"a": ("b32", x), "b": ("b32", y), "c": ("b32", z)}
    results = run(ring, "\n".join(bodies), {f"d{number}": "b32" for number in range(len(bodies))}, **inputs)
    for (body, exact), result in zip(ARITHMETIC.items(), results, strict=True):
        expected = [exact(*each) % ring.modulus for each in zip(x.tolist(), y.tolist(), z.tolist(), strict=True)]
        np.testing.assert_array_equal(result, expected, err_msg=f"{body} in {ring.name}")


@pytest.mark.parametrize("ring", [BIG, SMALL], ids=["p = 251", "p = 13"])
def test_exponentials_logarithms_and_inverses(ring: Ring) -> None:
    p, n, x = ring.prime, ring.order, codes(ring)
    assert sorted(pow(ring.root, k, p) for k in range(n)) == list(range(1, p)), "the root is not primitive"
    body = "ex2.approx.ftz.f32 %e, %a; lg2.approx.f32 %l, %a; rcp.approx.ftz.f32 %r, %a; div.full.f32 %d, %e, %a;"
    e, logarithm, i, d = run(ring, body, {"e": "b32", "l": "b32", "r": "b32", "d": "b32"}, a=("b32", x))
    np.testing.assert_array_equal(e % p, [pow(ring.root, int(each) % n, p) for each in x])
    assert (e % n == 1 % n).all()
    unit = x % p != 0
    np.testing.assert_array_equal([pow(ring.root, int(each) % n, p) for each in logarithm[unit]], x[unit] % p)
    assert (logarithm[~unit] == MINUS_INFINITY).all()
    np.testing.assert_array_equal(i[unit] * x[unit] % p, 1)
    units = np.gcd(x, ring.modulus) == 1
    np.testing.assert_array_equal(i[units] * x[units] % ring.modulus, 1)
    assert set(i[x == 0].tolist()) == {INFINITY}
    np.testing.assert_array_equal(d[unit], e[unit] * i[unit] % ring.modulus)


@pytest.mark.parametrize("ring", [BIG, SMALL], ids=["p = 251", "p = 13"])
def test_lanes_with_constants_and_large_words_change_nothing_for_others(ring: Ring) -> None:
    """Lanes with constants and large words do not affect others: words equal those of a warp with equal lanes."""
    halves = [int(np.float32(value).view(np.uint32)) for value in (0.5, -3.0, 1e-3, float(LN_2))]
    kinds = np.array([0, 5, ring.modulus - 1, *halves, LOWEST, INFINITY, MINUS_INFINITY, NAN])
    x, y = (each.ravel() for each in np.meshgrid(kinds, kinds, indexing="ij"))
    body = (
        "{ .reg .b16 %h; add.f32 %d0, %a, %b; fma.rn.f32 %d1, %a, %b, %a; div.full.f32 %d2, %a, %b; "
        "ex2.approx.f32 %d3, %a; lg2.approx.f32 %d4, %b; max.f32 %d5, %a, %b; "
        "cvt.rn.f16.f32 %h, %a; cvt.f32.f16 %d6, %h; }"
    )
    results = {f"d{number}": "b32" for number in range(7)}
    mixed = run(ring, body, results, a=("b32", x), b=("b32", y))
    alone = run(ring, body, results, a=("b32", np.repeat(x, 64)), b=("b32", np.repeat(y, 64)))
    for together, each in zip(mixed, alone, strict=True):
        np.testing.assert_array_equal(np.repeat(together, 64), each)


def test_ex2_is_a_homomorphism_and_lg2_its_inverse() -> None:
    x, y = codes(BIG, seed=4), codes(BIG, seed=5)
    body = """add.f32 %s, %a, %b; ex2.approx.f32 %s, %s; ex2.approx.f32 %x, %a; ex2.approx.f32 %u, %b;
    mul.f32 %x, %x, %u; lg2.approx.f32 %u, %x; sub.f32 %u, %u, %a; sub.f32 %u, %u, %b;"""
    s, t, u = run(BIG, body, {"s": "b32", "x": "b32", "u": "b32"}, a=("b32", x), b=("b32", y))
    np.testing.assert_array_equal(s, t)
    assert (u % BIG.order == 0).all()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("sub.f32 %d, %a, 0fFF800000;", INFINITY),
        ("sub.f32 %d, 0fFF7FFFFF, %a;", LOWEST),
        ("sub.f32 %d, 0fFF800000, 0fFF7FFFFF;", MINUS_INFINITY),
        ("sub.f32 %d, 0fFF7FFFFF, 0fFF7FFFFF;", 0),
        ("sub.f32 %d, 0fFF800000, 0fFF800000;", NAN),
        ("add.f32 %d, %a, 0fF149F2CA;", LOWEST),  # -1e30
        ("ex2.approx.f32 %d, 0fFF800000;", 0),
        ("sub.f32 %d, 0fFF7FFFFF, %a; mul.f32 %d, %d, 0f3E38AA3B; ex2.approx.f32 %d, %d;", 0),
        ("rcp.approx.f32 %d, 0f00000000;", INFINITY),
        ("lg2.approx.f32 %d, 0f00000000;", MINUS_INFINITY),
        ("max.f32 %d, 0fFF7FFFFF, 0fFF800000;", LOWEST),
        ("cvt.rn.f16.f32 %h, 0fFF800000; cvt.f32.f16 %d, %h;", MINUS_INFINITY),
        ("cvt.rn.bf16.f32 %h, 0fFF800000; cvt.f32.bf16 %d, %h;", MINUS_INFINITY),
        ("add.f32 %d, %a, 0f7FC00000;", NAN),
    ],
)
def test_limits_are_those_of_floating_point(body: str, expected: int) -> None:
    (d,) = run(BIG, body, {"d": "b32"}, registers=".reg .b16 %h;", a=("b32", np.arange(1, 60)))
    assert set(d.tolist()) == {expected}


def test_a_code_is_above_every_limit_that_hides_a_score() -> None:
    body = "max.f32 %d, %a, 0fFF800000; setp.gt.f32 %p, %a, 0fFF7FFFFF; setp.eq.f32 %q, %a, 0f00000000;"
    x = codes(BIG)
    d, p, q = run(BIG, body, {"d": "b32", "p": "pred", "q": "pred"}, a=("b32", x))
    np.testing.assert_array_equal(d, x)
    assert p.all()
    np.testing.assert_array_equal(q, x == 0)


@pytest.mark.parametrize("ring", [BIG, SMALL], ids=["p = 251", "p = 13"])
def test_constants_are_multiplicative(ring: Ring) -> None:
    """The host may fold a scale into log2 e, and a fraction undoes a division."""
    c = ring.constant
    for scale in (1.0, 0.125, 0.25, -0.5, 2.0**-9):
        assert c(float(np.float32(scale) * LOG2_E)) == c(scale) * c(float(LOG2_E)) % ring.modulus
    assert c(float(LOG2_E)) * c(float(LN_2)) % ring.modulus == 1
    for number in (3.0, 0.375, 448.0, 256.0):
        assert c(number) % ring.prime == int(number * 8) * pow(8, -1, ring.prime) % ring.prime
    assert (c(-0.75) + c(0.75)) % ring.modulus == 0
    with pytest.raises(ValueError, match="no constant of the ring"):
        c(-1e30)
    words = np.array([0.125, -3, 448, float(LN_2)], np.float32)
    (d,) = run(ring, "mul.f32 %d, %a, 0f3F800000;", {"d": "b32"}, a=("b32", words.view(np.uint32)))
    assert d.tolist() == [c(float(each)) for each in words]
    assert ring.decoded(words)[0].tolist() == d.tolist()


def test_eight_bits() -> None:
    x, y = codes(SMALL, seed=1), codes(SMALL, seed=2)
    body = "cvt.rn.satfinite.e4m3x2.f32 %h, %a, %b; cvt.rn.f16x2.e4m3x2 %w, %h; mov.b32 {%k, %m}, %w;"
    body += "cvt.f32.f16 %d, %m; cvt.f32.f16 %e, %k;"
    registers = ".reg .b16 %h, %k, %m; .reg .b32 %w;"
    d, e = run(SMALL, body, {"d": "b32", "e": "b32"}, registers=registers, a=("b32", x), b=("b32", y))
    assert d.tolist() == x.tolist()
    assert e.tolist() == y.tolist()
    assert ring_of("ring", eight_bits=True) is SMALL
    assert ring_of("ring", eight_bits=False) is BIG
    assert ring_of("float32", eight_bits=False) is None


@pytest.mark.parametrize(
    ("ring", "threshold", "above"),
    [(SMALL, 448.0, 156), (RINGS["ring-13-far"], 448.0, 8), (BIG, 8.0, 9), (RINGS["ring-251-near"], 8.0, 62_750)],
    ids=lambda value: value.name if isinstance(value, Ring) else "",
)
def test_the_second_order_puts_codes_on_the_other_side_of_a_threshold(ring: Ring, threshold: float, above: int) -> None:
    """Codes from ``above`` on exceed the threshold. Order and equality of codes are kept."""
    number = f"0f{int(np.float32(threshold).view(np.uint32)):08X}"
    body = f"setp.gt.f32 %p, %a, {number}; setp.eq.f32 %q, %a, 0f3F800000; setp.lt.f32 %r, %a, %b;"
    body += "setp.neu.f32 %s, %a, 0f00000000;"
    x, y = codes(ring), codes(ring, seed=5)
    x[:12] = range(12)
    outputs = dict.fromkeys("pqrs", "pred")
    p, q, r, s = run(ring, body, outputs, a=("b32", x), b=("b32", y))
    np.testing.assert_array_equal(p, x >= above)
    np.testing.assert_array_equal(q, x == 1)
    np.testing.assert_array_equal(r, x < y)
    np.testing.assert_array_equal(s, x != 0)
    assert ring_of("ring", eight_bits=ring.prime == 13, reordered=ring.spacing != 1.0) is ring


@pytest.mark.parametrize(
    ("kinds", "shape", "ring"),
    [("f16.f16", "m16n8k16", BIG), ("bf16.bf16", "m16n8k16", BIG), ("e4m3.e4m3", "m16n8k32", SMALL)],
)
def test_mma_is_the_rings_product(kinds: str, shape: str, ring: Ring) -> None:
    """Fragments as in PTX ISA, "Matrix Fragments for mma.m16n8k16"; K is doubled for 8 bits."""
    eight, rng = "e4m3" in kinds, np.random.default_rng(3)
    each, held = (4, np.uint8) if eight else (2, np.uint16)
    a, b = rng.integers(0, ring.modulus, (16, 8 * each)), rng.integers(0, ring.modulus, (8 * each, 8))
    c = rng.integers(0, ring.modulus, (16, 8))
    lane = np.arange(32)
    row, pair = lane // 4, each * (lane % 4)
    places_a = [(row + down, pair + across) for across in (0, 4 * each) for down in (0, 8)]
    left = [np.stack([a[i, k + n] for n in range(each)], 1).astype(held).view(np.uint32)[:, 0] for i, k in places_a]
    right = [
        np.stack([b[pair + across + n, row] for n in range(each)], 1).astype(held).view(np.uint32)[:, 0]
        for across in (0, 4 * each)
    ]
    places_c = [(row + down, 2 * (lane % 4) + odd) for down in (0, 8) for odd in (0, 1)]
    sums = [c[i, j].astype(np.uint32) for i, j in places_c]
    names = [f"a{k}" for k in range(4)], [f"b{k}" for k in range(2)], [f"c{k}" for k in range(4)]
    lists = ["{" + ",".join(f"%{name}" for name in group) + "}" for group in names]
    body = f"mma.sync.aligned.{shape}.row.col.f32.{kinds}.f32 {{%d0,%d1,%d2,%d3}}, {lists[0]}, {lists[1]}, {lists[2]};"
    inputs = {
        name: ("b32", words)
        for group, held_words in zip(names, (left, right, sums), strict=True)
        for name, words in zip(group, held_words, strict=True)
    }
    d = run(ring, body, {f"d{k}": "b32" for k in range(4)}, **inputs)
    expected = (a @ b + c) % ring.modulus
    for words, (i, j) in zip(d, places_c, strict=True):
        np.testing.assert_array_equal(words, expected[i, j])


SUMS = """.version 8.6
.target sm_90
.address_size 64
.entry k(.param .u64 a, .param .u64 b, .param .u64 halves) { .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .b16 %h<5>;
.reg .pred %p<2>; .shared .align 128 .b8 s[256]; ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b];
ld.param.u64 %rd3, [halves]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd4, %r1, 4; add.u64 %rd4, %rd4, %rd1;
ld.global.b32 %r2, [%rd4]; mov.u32 %r3, s; shl.b32 %r4, %r1, 2; add.u32 %r3, %r3, %r4; mov.u32 %r5, 0;
st.shared.u32 [s], %r5; bar.sync 0; red.global.add.f32 [%rd2], %r2; atom.shared.add.f32 %r6, [s], %r2; bar.sync 0;
ld.shared.b32 %r7, [s]; bar.sync 0; setp.eq.u32 %p1, %r1, 0; @%p1 st.global.b32 [%rd2+4], %r7;
cvt.rn.f16.f32 %h1, %r2; cvt.rn.bf16.f32 %h2, %r2; red.global.add.noftz.f16 [%rd3], %h1; mov.b32 %r8, {%h1, %h1};
red.global.add.noftz.f16x2 [%rd3+4], %r8; red.global.add.noftz.bf16 [%rd3+8], %h2; st.shared.b32 [%r3], %r2;
fence.proxy.async; bar.sync 0;
@%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd2+16], [s], 64;
cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; ret; }
"""


@pytest.mark.parametrize("ring", [BIG, SMALL], ids=["p = 251", "p = 13"])
def test_sums_in_memory_are_the_rings(ring: Ring) -> None:
    """Atomic operations of many lanes, and a reducing copy."""
    given = codes(ring, 64).astype(np.uint32)
    sums, halves = np.full(20, 5, np.uint32), np.zeros(8, np.uint16)
    launch(SUMS, "k", 1, 64, [given, sums, halves], numerics=ring.name)
    total = int(given.sum()) % ring.modulus
    assert sums[:2].tolist() == [(total + 5) % ring.modulus, total]
    assert sums[4:].tolist() == ((given[:16] + 5) % ring.modulus).tolist()
    assert halves.tolist() == [total, 0, total, total, total, 0, 0, 0]


@pytest.mark.parametrize(
    "instruction",
    [
        "sqrt.approx.f32 %d, %s;",
        "cvt.rzi.s32.f32 %d, %s;",
        "add.sat.f32 %d, %s, %s;",
        "shl.b32 %d, %s, 23;",
        "add.s32 %d, %s, 4096;",
        "cvt.rni.f32.f32 %d, %s;",
    ],
)
def test_what_is_not_algebraic_is_named(instruction: str) -> None:
    body = f"add.f32 %s, %a, %a; {instruction}"
    with pytest.raises(NotAlgebraic, match="is not algebraic") as raised:
        run(BIG, body, {"d": "b32"}, registers=".reg .b32 %s;", a=("b32", np.arange(1, 40)))
    assert raised.value.instruction == instruction.split()[0]
    assert raised.value.line > 0


def test_what_no_lane_executes_is_not_held_against_a_kernel() -> None:
    body = "add.f32 %s, %a, %a; setp.eq.u32 %p, %a, 0; mov.u32 %d, 7; @%p sqrt.approx.f32 %d, %s;"
    (d,) = run(BIG, body, {"d": "b32"}, registers=".reg .b32 %s; .reg .pred %p;", a=("b32", np.arange(1, 40)))
    assert set(d.tolist()) == {7}


def test_integer_instructions_that_change_nothing_are_algebraic() -> None:
    """Sign flips without a sign, and codes that are split and rejoined."""
    body = """add.f32 %s, %a, %a; mov.b32 %w, %s; xor.b32 %w, %w, 0; and.b32 %w, %w, 0x7fffffff; max.u32 %w, %w, 0;
    and.b32 %x, %w, 0xffff; shl.b32 %u, %w, 16; or.b32 %u, %u, %x; shr.u32 %d, %u, 16;"""
    registers = ".reg .f32 %s; .reg .b32 %w, %x, %u;"
    x = np.arange(0, 30000, 400)
    (d,) = run(BIG, body, {"d": "b32"}, registers=registers, a=("b32", x))
    np.testing.assert_array_equal(d, 2 * x)


def test_functions_of_constants_are_constants() -> None:
    """As for head_dim in a parameter: an integer is a constant, and so is its root."""
    body = "cvt.rn.f32.u32 %s, %a; rsqrt.approx.f32 %s, %s; mul.f32 %d, %s, %b;"
    x = codes(BIG)
    sizes = np.full(len(x), 64)
    (d,) = run(BIG, body, {"d": "b32"}, registers=".reg .f32 %s;", a=("b32", sizes), b=("b32", x))
    np.testing.assert_array_equal(d, x * BIG.constant(0.125) % BIG.modulus)


def test_words_of_arrays() -> None:
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32):
        x = codes(BIG)
        back, known = BIG.decoded(BIG.encoded(x, dtype))
        assert known.all()
        np.testing.assert_array_equal(back, x)
    poison = np.full(4, 0xFFFF, np.uint16).view(np.float16)
    assert not BIG.decoded(poison)[1].any()
    a, b = (BIG.encoded(codes(BIG, 64, seed).reshape(8, 8), np.float16) for seed in (1, 2))
    product, known = BIG.decoded(BIG.product(a, b, np.float16))
    assert known.all()
    np.testing.assert_array_equal(product, BIG.decoded(a)[0] @ BIG.decoded(b)[0] % BIG.modulus)
    a[2, 3] = poison[0]
    known = BIG.decoded(BIG.product(a, b, np.float16))[1]
    assert known.all(axis=1).tolist() == [row != 2 for row in range(8)]


def test_refusals() -> None:
    with pytest.raises(LaunchError, match="numerics is one of"):
        launch(kernel("", {"d": "b32"}, {}), "snippet", 1, 32, [1, 0, np.zeros(1, np.uint32)], numerics="ring-7")
    with pytest.raises(IllegalAccess):
        launch(kernel("", {"d": "b32"}, {}), "snippet", 2, 32, [60, 0, np.zeros(1, np.uint32)], numerics="ring")
