"""Sums of the tensor cores: against exact arithmetic on fractions, and recorded bits."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

import warpsan
from mma_fragments import BITS, DTYPES, SUBNORMALS, a_fragment, b_fragment, c_fragment, regs
from warpsan.numerics.tensor_cores import rule_of

TARGETS = ("sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a")
DEPTHS = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32}
FORMS = [
    *(("f32", kind, kind) for kind in ("f16", "bf16", "tf32")),
    ("f16", "f16", "f16"),
    *((result, a, b) for result in ("f32", "f16") for a, b in (("e4m3", "e4m3"), ("e5m2", "e4m3"))),
]
NUMERICS = ("hardware", "float32")


def mma(target, form, depth, fragments, numerics="hardware"):
    """Run an instruction on the registers of A, B and C [warps, 32, n] (uint32), and return those of D."""
    result, kind_a, kind_b = form
    held, per = (2 if result == "f16" else 4), depth * BITS[kind_a] // 128
    fragments = np.ascontiguousarray(fragments, np.uint32)
    warps, _, count = fragments.shape
    assert count == 3 * per + held
    out = np.zeros((warps, 32, held), np.uint32)
    operands = [regs("d", 0, held), regs("r", 0, 2 * per), regs("r", 2 * per, per), regs("r", 3 * per, held)]
    ptx = (
        f".version 8.7\n.target {target}\n.address_size 64\n.entry k(.param .u64 a, .param .u64 b)\n{{\n"
        ".reg .b32 %t, %c, %r<20>, %d<9>; .reg .b64 %in, %out, %w;\n"
        "mov.u32 %t, %tid.x; mov.u32 %c, %ctaid.x; mad.lo.u32 %t, %c, 32, %t;\n"
        f"ld.param.u64 %in, [a]; mul.wide.u32 %w, %t, {4 * count}; add.u64 %in, %in, %w;\n"
        f"ld.param.u64 %out, [b]; mul.wide.u32 %w, %t, {4 * held}; add.u64 %out, %out, %w;\n"
        + "".join(f"ld.global.b32 %r{i}, [%in+{4 * i}];\n" for i in range(count))
        + f"mma.sync.aligned.m16n8k{depth}.row.col.{result}.{kind_a}.{kind_b}.{result} {', '.join(operands)};\n"
        + "".join(f"st.global.b32 [%out+{4 * i}], %d{i};\n" for i in range(held))
        + "ret;\n}\n"
    )
    assert warpsan.launch(ptx, "k", warps, 32, [fragments, out], numerics=numerics).hazards == []
    return out


# ---- the rule in exact arithmetic ------------------------------------------------------------------------------------


def exponent(value: Fraction, least: int) -> int:
    """floor(log2) of the magnitude of a nonzero number, or ``least`` if that is greater."""
    size = abs(value)
    guess = size.numerator.bit_length() - size.denominator.bit_length()
    return max(guess if size >= Fraction(2) ** guess else guess - 1, least)


def cut(value: Fraction, unit: int) -> Fraction:
    """Truncate toward zero, to a multiple of ``2**unit``."""
    return int(value / Fraction(2) ** unit) * Fraction(2) ** unit


def nearest_f16(value: Fraction) -> float:
    if value == 0:
        return 0.0
    unit = Fraction(2) ** (exponent(value, -14) - 10)
    rounded = round(value / unit) * unit  # Python rounds fractions with ties to even
    return float(rounded) if abs(rounded) < 65536 else float("inf") * (1 if value > 0 else -1)


def summed(products, before, fraction, result, precision, least):
    """One block: products are pairs of factors."""
    terms = [(a * b, exponent(a, least) + exponent(b, least)) for a, b in products if a * b]
    if before:
        terms.append((before, exponent(before, -14 if result == "f16" else -126)))
    if not terms:
        return Fraction(0)
    unit = max(each for _, each in terms) - fraction
    total = sum(cut(value, unit) for value, _ in terms)
    if result == "f16":
        return Fraction(nearest_f16(total))
    return cut(total, exponent(total, -126) - precision) if total else total


def expected(a, b, c, blocks, fraction, precision, result, least, *, last=False):
    """Elements [16, 8] of a chain of blocks; only in the rows of ``SOME``, because fractions are slow."""
    out = np.zeros((16, 8))
    for row, column in itertools.product(SOME, range(8)):
        start = Fraction(float(c[row, column]))
        total = Fraction(0) if last else start
        for block in blocks:
            pairs = [(Fraction(float(a[row, k])), Fraction(float(b[column, k]))) for k in block]
            total = summed(pairs, total, fraction, result, precision, least)
        value = total + start if last else total
        # The conversion of a fraction rounds a sum of two f32 numbers once more than needed exactly in f64.
        out[row, column] = nearest_f16(value) if result == "f16" else np.float32(float(value))
    return out


SOME = (0, 6, 13)


def some(fragment):
    """The rows of ``SOME`` of an accumulator's registers, in order."""
    by_row = fragment.reshape(8, 4, 2, 2).transpose(2, 0, 1, 3).reshape(16, 8)
    return by_row[list(SOME)]


def blocks_of(width, depth):
    return [range(at, at + width) for at in range(0, depth, width)]


PAIRS_OF_FOUR = [[k for k in range(32) if k % 4 < 2], [k for k in range(32) if k % 4 >= 2]]
STATED = {
    ("sm_75", "f16", "f32"): (blocks_of(8, 16), 24, 23),
    ("sm_80", "f16", "f32"): (blocks_of(8, 16), 24, 23),
    ("sm_89", "f16", "f16"): (blocks_of(8, 16), 24, 23),
    ("sm_80", "bf16", "f32"): (blocks_of(8, 16), 24, 23),
    ("sm_80", "tf32", "f32"): (blocks_of(4, 8), 24, 23),
    ("sm_89", "e4m3", "f32"): (blocks_of(16, 32), 13, 13),
    ("sm_89", "e4m3", "f16"): (blocks_of(16, 32), 13, 23),
    ("sm_90a", "f16", "f32"): (blocks_of(16, 16), 25, 23),
    ("sm_90a", "tf32", "f32"): (blocks_of(8, 8), 25, 23),
    ("sm_90a", "e4m3", "f32"): (PAIRS_OF_FOUR, 25, 23),
    ("sm_90a", "e4m3", "f16"): (PAIRS_OF_FOUR, 25, 23),
    ("sm_100a", "f16", "f16"): (blocks_of(16, 16), 25, 23),
    ("sm_120a", "e4m3", "f32"): (blocks_of(32, 32), 25, 23),
}
"""Blocks, fraction bits and result bits, from the table of the models."""


@pytest.mark.parametrize(("target", "kind", "result"), STATED)
def test_a_sum_is_aligned_cut_off_and_rounded_once(target, kind, result):
    blocks, fraction, precision = STATED[target, kind, result]
    rng, depth = np.random.default_rng(5), DEPTHS[kind]
    a, b = (np.exp2(rng.uniform(-6, 6, (rows, depth))) * rng.choice([-1, 1], (rows, depth)) for rows in (16, 8))
    if kind == "tf32":
        a, b = ((x.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a, b))
    a, b = (x.astype(DTYPES[kind]).astype(float) for x in (a, b))
    c = (rng.normal(size=(16, 8)) * 200).astype(np.float16 if result == "f16" else np.float32)
    words = c_fragment(c).view(np.uint32)
    fragments = np.hstack([a_fragment(a, kind), b_fragment(b, kind), words])
    out = mma(target, (result, kind, kind), depth, fragments[None])[0]
    least = {"bf16": -126, "tf32": -126}.get(kind, -14)
    want = expected(a, b, c, blocks, fraction, precision, result, least, last=blocks is PAIRS_OF_FOUR)
    got = out.view(np.float16 if result == "f16" else np.float32)
    np.testing.assert_array_equal(some(got), want.astype(got.dtype)[list(SOME)])


def test_a_term_below_the_last_digit_is_lost_and_the_blocks_decide_which():
    """1 + 2**-24 in products, and C: on sm_80 the second block has 2**-24 twice, beside the 1 of the first block."""
    a, b = np.zeros((16, 16)), np.ones((8, 16))
    a[:, 0], a[:, 8], a[:, 9] = 1, 2.0**-24, 2.0**-24
    fragments = np.hstack([a_fragment(a, "f16"), b_fragment(b, "f16"), np.zeros((32, 4))])
    for target, value in (("sm_70", 1), ("sm_80", 1 + 2.0**-23), ("sm_90", 1 + 2.0**-23)):
        assert (mma(target, ("f32", "f16", "f16"), 16, fragments[None]).view(np.float32) == np.float32(value)).all()


@pytest.mark.parametrize("numerics", NUMERICS)
def test_no_zero_is_negative(numerics):
    a, b = -np.zeros((16, 16)), np.ones((8, 16))
    for result, zero in (("f32", 0x80000000), ("f16", 0x80008000)):
        words = np.full((32, 4 if result == "f32" else 2), zero)
        fragments = np.hstack([a_fragment(a, "f16"), b_fragment(b, "f16"), words])
        assert not mma("sm_89", (result, "f16", "f16"), 16, fragments[None], numerics).any()


@pytest.mark.parametrize(("target", "halves"), [("sm_80", 2), ("sm_90", 1)])
def test_an_f16_sum_in_float32_is_rounded_after_each_block_of_the_hardware(target, halves):
    a, b = np.zeros((16, 16)), np.ones((8, 16))
    a[:, 0], a[:, 8] = 2.0**-11, 2.0**-11  # half an f16 unit of 1, twice: lost in one-by-one sums
    words = np.full((32, 2), 0x3C003C00)
    fragments = np.hstack([a_fragment(a, "f16"), b_fragment(b, "f16"), words])
    out = mma(target, ("f16", "f16", "f16"), 16, fragments[None], "float32").view(np.float16)
    assert (out == (1 if halves == 2 else 1 + 2.0**-10)).all()


def products(target, form, factors, c, corner=None):
    """Sums of an mma of 8-bit factors, with the same few products in all rows and columns; C is ``c`` everywhere except
    its first element, with ``corner``.
    """
    result, kind_a, kind_b = form
    a, b = np.zeros((16, 32)), np.zeros((8, 32))
    for k, (left, right) in enumerate(factors):
        a[:, k], b[:, k] = left, right
    added = np.full((16, 8), c, np.float16 if result == "f16" else np.float32)
    added[0, 0] = c if corner is None else corner
    words = added.view(np.uint32).reshape(2, 32).T if result == "f16" else c_fragment(added).view(np.uint32)
    out = mma(target, form, 32, np.hstack([a_fragment(a, kind_a), b_fragment(b, kind_b), words])[None])
    return out.view(np.uint16 if result == "f16" else np.uint32)


@pytest.mark.parametrize(("kind_a", "kind_b", "a", "b", "result", "c", "bits"), SUBNORMALS)
def test_an_8_bit_subnormal_has_the_least_exponent_of_its_own_type(kind_a, kind_b, a, b, result, c, bits):
    assert (products("sm_89", (result, kind_a, kind_b), [(a, b)], c) == bits).all()


def test_sums_in_integers_have_the_same_exponents():
    """An infinity anywhere selects integer sums for the whole tile."""
    for kind_a, kind_b, a, b, result, c, bits in SUBNORMALS:
        out = products("sm_89", (result, kind_a, kind_b), [(a, b)], c, corner=np.inf)
        assert (out == bits).sum() == out.size - 1


def test_more_bits_keep_less_of_what_lies_below_a_subnormal():
    """On sm_120 25 bits are kept: the last digit beside 2**-9 in e4m3 is 2**-31, and beside 2**-16 in e5m2 2**-39."""
    assert (products("sm_120a", ("f32", "e4m3", "e4m3"), [(2.0**-9, 1)], 2.0**-32) == 0x3B000000).all()
    assert (products("sm_120a", ("f32", "e5m2", "e4m3"), [(2.0**-16, 1)], 2.0**-39) == 0x37800001).all()


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_factors_that_are_unpacked_have_the_exponents_of_f16(target):
    """2**-9 of e4m3 is not subnormal in f16: the greatest exponent is 6, the last digit 2**-19, and 2**-17 is kept."""
    factors = [(2.0**-9, 2.0**15), (2.0**-9, 2.0**-8)]
    assert (products(target, ("f32", "e4m3", "e5m2"), factors, 0) == 0x42800001).all()


# ---- recorded bits ---------------------------------------------------------------------------------------------------


def bits_of(kind, rng, shape, spread):
    """Registers of a type: normal numbers, arbitrary exponents, or arbitrary bits."""
    if spread == "any":
        return rng.integers(0, 1 << 32, shape, np.uint32)
    dtype, per = DTYPES[kind], 32 // BITS[kind]
    values = rng.normal(size=(*shape, per)) * (np.exp2(rng.uniform(-40, 40, (*shape, per))) if spread == "wide" else 1)
    values[rng.random(values.shape) < 0.1] = 0
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values.astype(dtype)).view(np.uint32).reshape(shape)


QUICK = [("sm_89", "hardware", form) for form in FORMS[:4]] + [("sm_90a", "hardware", form) for form in FORMS[3:6]]
QUICK += [("sm_80", "float32", FORMS[3]), ("sm_90a", "float32", FORMS[5])]
EVERY = itertools.product(TARGETS, NUMERICS, FORMS)


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize(
    ("target", "numerics", "form"),
    [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in EVERY if each not in QUICK)],
)
def test_bits_are_those_that_are_recorded(target, numerics, form):
    rng = np.random.default_rng(11)
    depth, held = DEPTHS[form[1]], 2 if form[0] == "f16" else 4
    per = depth * BITS[form[1]] // 128
    for spread in ("normal", "wide", "any"):
        c = bits_of("f16" if held == 2 else "tf32", rng, (2, 32, held), spread)
        a, b = bits_of(form[1], rng, (2, 32, 2 * per), spread), bits_of(form[2], rng, (2, 32, per), spread)
        mma(target, form, depth, np.concatenate([a, b, c], axis=2), numerics)


def test_the_rule_of_an_unknown_architecture_is_that_of_the_nearest_older_one_and_says_so():
    for target, like in (("sm_87", "sm_86"), ("sm_103", "sm_100"), ("sm_121a", "sm_120a")):
        rule, known = (rule_of(each, "mma", "f16", 16, "f32") for each in (target, like))
        assert (rule.blocks, rule.fraction, rule.evidence) == (known.blocks, known.fraction, "nearest")
        assert known.evidence in ("words", "model")


def test_infinities_and_nan():
    inf, nan = np.inf, np.nan
    a, b, c = np.ones((16, 16)), np.ones((8, 16)), np.zeros((16, 8), np.float32)
    a[1, 3], a[2, 3], a[3, :2], a[4, 0], c[5, :], c[6, :], a[6, 0] = inf, -inf, (inf, -inf), nan, -inf, inf, -inf
    b[7, 3] = 0
    fragments = np.hstack([a_fragment(a, "f16"), b_fragment(b, "f16"), c_fragment(c).view(np.uint32)])
    want = np.full((16, 8), 16.0)
    want[:, 7] = 15
    want[1], want[2], want[3], want[4], want[5], want[6] = inf, -inf, nan, nan, -inf, nan
    want[1:3, 7] = nan
    for target in ("sm_80", "sm_90"):
        out = mma(target, ("f32", "f16", "f16"), 16, fragments[None])[0]
        np.testing.assert_array_equal(out.view(np.float32), c_fragment(want.astype(np.float32)))
        assert (out[np.isnan(out.view(np.float32))] == 0x7FFFFFFF).all()


def test_a_sum_beyond_the_range_is_infinite():
    a, b = np.full((16, 16), 2.0**15), np.full((8, 16), 2.0**15)
    fragments = np.hstack([a_fragment(a, "f16"), b_fragment(b, "f16"), np.full((32, 2), 0)])
    assert np.isinf(mma("sm_89", ("f16", "f16", "f16"), 16, fragments[None]).view(np.float16)).all()
    big = np.full((16, 8), 2.0**64)
    fragments = np.hstack([a_fragment(np.tile(big, 2), "bf16"), b_fragment(np.tile(big[:8], 2), "bf16")])
    fragments = np.hstack([fragments, np.zeros((32, 4))])
    assert (mma("sm_90", ("f32", "bf16", "bf16"), 16, fragments[None]).view(np.float32) == np.inf).all()


@pytest.mark.usefixtures("recorded_launches")
def test_the_greatest_sums_need_all_32_bits():
    """All factors at the end of their binade, and C of the same size: on sm_90 the aligned sum exceeds 2**31."""
    a, b = np.full((16, 16), 2047.0), np.full((8, 16), 2047.0)
    c = np.full((16, 8), 2.0**21 - 2.0**-2, np.float32)
    for sign in (1, -1):
        fragments = np.hstack([a_fragment(sign * a, "f16"), b_fragment(b, "f16"), c_fragment(sign * c).view(np.uint32)])
        out = mma("sm_90", ("f32", "f16", "f16"), 16, fragments[None])[0].view(np.float32)
        want = expected(sign * a, b, sign * c, blocks_of(16, 16), 25, 23, "f32", -14)
        np.testing.assert_array_equal(some(out), want.astype(np.float32)[list(SOME)])


@pytest.mark.parametrize("sign", [1, -1])
def test_the_greatest_sums_of_32_products_need_more_than_32_bits(sign):
    """On sm_120 a sum of 8-bit factors keeps 25 bits of 32 products: of the greatest significands, 2**31.8 units."""
    out = products("sm_120a", ("f32", "e4m3", "e4m3"), [(15, 15 * sign)] * 32, 0.0).view(np.float32)
    assert (out == sign * 32 * 225).all()
