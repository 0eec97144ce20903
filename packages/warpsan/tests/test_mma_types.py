"""mma.sync on tf32, 8-bit floats, integers and f64: fragments from the manual's tables, element by element."""

import numpy as np
import pytest

import warpsan
from mma_fragments import BITS, DTYPES, a_fragment, b_fragment, c_fragment, regs

HEAD = ".version 8.4\n.target sm_90a\n.address_size 64\n"
RNG = np.random.default_rng(3)


def launch_words(body, inputs, outputs):
    """One warp: %r0.. hold ``inputs`` (uint32 [32, n]), %d0.. the results."""
    inputs = np.ascontiguousarray(inputs, np.uint32)
    out = np.zeros((32, outputs), np.uint32)
    loads = "".join(f"ld.global.b32 %r{i}, [%in+{4 * i}];\n" for i in range(inputs.shape[1]))
    stores = "".join(f"st.global.b32 [%out+{4 * i}], %d{i};\n" for i in range(outputs))
    ptx = (
        f"{HEAD}.entry k(.param .u64 a, .param .u64 b)\n{{\n.reg .b32 %t, %r<20>, %d<9>; .reg .b64 %in, %out, %w;\n"
        f".reg .f64 %x<7>;\nmov.u32 %t, %tid.x; ld.param.u64 %in, [a]; mul.wide.u32 %w, %t, {4 * inputs.shape[1]};\n"
        f"add.u64 %in, %in, %w; ld.param.u64 %out, [b]; mul.wide.u32 %w, %t, {4 * outputs}; add.u64 %out, %out, %w;\n"
        f"{loads}{body}\n{stores}ret;\n}}\n"
    )
    report = warpsan.launch(ptx, "k", 1, 32, [inputs, out])
    assert report.hazards == []
    return out


def random(kind, rows, depth):
    """Integers as int64, floats as float64, representable in the type."""
    if kind[0] in "su":
        bits = BITS[kind]
        low = -(1 << bits - 1) if kind[0] == "s" else 0
        return RNG.integers(low, low + (1 << bits), (rows, depth))
    values = RNG.normal(size=(rows, depth))
    if kind == "tf32":
        return (values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(float)
    return values.astype(DTYPES[kind]).astype(float)


def mma(depth, kinds, a, b, words, saturate=""):
    """Run the instruction on fragments and ``words`` of accumulator; its words."""
    fragments = np.hstack([a_fragment(a, kinds[1]), b_fragment(b, kinds[2]), words.view(np.uint32)])
    k_regs, count = a.shape[1] * BITS[kinds[1]] // 128, words.shape[1]
    body = (
        f"mma.sync.aligned.m16n8k{depth}.row.col{saturate}.{'.'.join(kinds)} {regs('d', 0, count)}, "
        f"{regs('r', 0, 2 * k_regs)}, {regs('r', 2 * k_regs, k_regs)}, {regs('r', 3 * k_regs, count)};"
    )
    return launch_words(body, fragments, count)


FLOATS = [
    *(("tf32", "tf32", depth) for depth in (4, 8)),
    *((a, b, depth) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2") for depth in (16, 32)),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize(("kind_a", "kind_b", "depth"), FLOATS)
def test_floats_with_f32_accumulator(kind_a, kind_b, depth):
    a, b = random(kind_a, 16, depth), random(kind_b, 8, depth)
    c = RNG.normal(size=(16, 8)).astype(np.float32)
    got = mma(depth, ("f32", kind_a, kind_b, "f32"), a, b, c_fragment(c)).view(np.float32)
    np.testing.assert_allclose(got, c_fragment(a @ b.T + c), rtol=1e-5, atol=1e-5)


@pytest.mark.sample(4)
@pytest.mark.parametrize(("kind_a", "kind_b", "depth"), [item for item in FLOATS if item[0] != "tf32"])
def test_8_bit_floats_with_f16_accumulator(kind_a, kind_b, depth):
    a, b = random(kind_a, 16, depth), random(kind_b, 8, depth)
    c = RNG.normal(size=(16, 8)).astype(np.float16)
    words = c_fragment(c).view(np.uint32)
    got = mma(depth, ("f16", kind_a, kind_b, "f16"), a, b, words).view(np.float16)
    want = c_fragment((a @ b.T + c).astype(np.float16))
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=2.0**-10, atol=2.0**-10)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("kind_a", "kind_b", "depth"),
    [
        *((a, b, depth) for a in ("s8", "u8") for b in ("s8", "u8") for depth in (16, 32)),
        *((a, b, depth) for a in ("s4", "u4") for b in ("s4", "u4") for depth in (32, 64)),
    ],
)
def test_integers_are_exact(kind_a, kind_b, depth):
    a, b = random(kind_a, 16, depth), random(kind_b, 8, depth)
    c = RNG.integers(-(2**20), 2**20, (16, 8)).astype(np.int32)
    got = mma(depth, ("s32", kind_a, kind_b, "s32"), a, b, c_fragment(c)).view(np.int32)
    np.testing.assert_array_equal(got, c_fragment(a @ b.T + c))


@pytest.mark.parametrize("sign", [1, -1])
def test_integer_overflow_wraps_or_saturates(sign):
    a, b = np.full((16, 32), 127), np.full((8, 32), sign * 127)
    start = sign * (2**31 - 100)
    c, total = np.full((32, 4), start, np.int32), start + sign * 32 * 127**2
    kinds = ("s32", "s8", "s8", "s32")
    assert (mma(32, kinds, a, b, c).view(np.int32) == total - sign * 2**32).all()
    clamped = 2**31 - 1 if sign > 0 else -(2**31)
    assert (mma(32, kinds, a, b, c, saturate=".satfinite").view(np.int32) == clamped).all()


def test_tf32_ignores_the_last_13_bits():
    a, b = random("tf32", 16, 8), random("tf32", 8, 8)
    dirty = (a.astype(np.float32).view(np.uint32) | np.uint32(0x1FFF)).view(np.float32).astype(float)
    zero, kinds = np.zeros((32, 4), np.float32), ("f32", "tf32", "tf32", "f32")
    np.testing.assert_array_equal(mma(8, kinds, dirty, b, zero), mma(8, kinds, a, b, zero))


def test_f64():
    a, b, c = RNG.normal(size=(8, 4)), RNG.normal(size=(8, 4)), RNG.normal(size=(8, 8))
    doubles = np.hstack([a.reshape(32, 1), b.reshape(32, 1), c.reshape(32, 2)])
    body = "".join(f"mov.b64 %x{i}, {{%r{2 * i}, %r{2 * i + 1}}};\n" for i in range(4))
    body += "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%x4, %x5}, {%x0}, {%x1}, {%x2, %x3};\n"
    body += "mov.b64 {%d0, %d1}, %x4; mov.b64 {%d2, %d3}, %x5;"
    got = launch_words(body, doubles.view(np.uint32).reshape(32, 8), 4).view(np.float64)
    np.testing.assert_allclose(got.reshape(8, 8), a @ b.T + c, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    "text",
    [
        "m16n8k32.row.col.f32.f16.f16.f32 {%d0, %d1, %d2, %d3}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%r6, %r7, %r8, %r9}",
        "m16n8k32.row.col.f32.e4m3.s8.f32 {%d0, %d1, %d2, %d3}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%r6, %r7, %r8, %r9}",
        "m16n8k32.row.col.f32.s8.s8.f32 {%d0, %d1, %d2, %d3}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%r6, %r7, %r8, %r9}",
        "m16n8k32.row.col.s32.s8.s4.s32 {%d0, %d1, %d2, %d3}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%r6, %r7, %r8, %r9}",
        "m16n8k32.row.col.satfinite.f32.e4m3.e4m3.f32 "
        "{%d0, %d1, %d2, %d3}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%r6, %r7, %r8, %r9}",
        "m16n8k32.row.col.f16.e4m3.e4m3.f16 {%d0, %d1, %d2}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%r6, %r7, %r8}",
        "m16n8k16.row.row.s32.s8.s8.s32 {%d0, %d1, %d2, %d3}, {%r0, %r1}, {%r4}, {%r6, %r7, %r8, %r9}",
        "m8n8k16.row.col.s32.s8.s8.s32 {%d0, %d1}, {%r0}, {%r4}, {%r6, %r7}",
        "m16n8k128.row.col.s32.b1.b1.s32.xor.popc {%d0, %d1, %d2, %d3}, {%r0, %r1}, {%r4}, {%r6, %r7, %r8, %r9}",
    ],
)
def test_other_types_and_shapes_are_refused(text):
    with pytest.raises(warpsan.UnsupportedInstruction):
        launch_words(f"mma.sync.aligned.{text};", np.zeros((32, 10)), 4)


def test_sparse_products_are_refused():
    operands = "{%d0, %d1, %d2, %d3}, {%r0, %r1, %r2, %r3}, {%r4, %r5, %r6, %r7}, {%r6, %r7, %r8, %r9}, %r0, 0"
    with pytest.raises(warpsan.UnsupportedInstruction):
        launch_words(f"mma.sp.sync.aligned.m16n8k64.row.col.f32.e4m3.e4m3.f32 {operands};", np.zeros((32, 10)), 4)


@pytest.mark.parametrize(
    ("types", "factors", "addend", "canonical"),
    [
        ("m16n8k16.row.col.f32.f16.f16.f32", 0xFE01FE01, 4, 0x7FFFFFFF),
        ("m16n8k16.row.col.f16.f16.f16.f16", 0xFE01FE01, 2, 0x7FFF7FFF),
        ("m16n8k8.row.col.f32.tf32.tf32.f32", 0xFFC12345, 4, 0x7FFFFFFF),
    ],
)
def test_a_nan_is_canonical_whatever_the_payloads_of_the_factors(types, factors, addend, canonical):
    inputs = np.full((32, 6 + addend), factors, np.uint32)
    operands = [regs("d", 0, addend), regs("r", 0, 4), regs("r", 4, 2), regs("r", 6, addend)]
    out = launch_words(f"mma.sync.aligned.{types} {', '.join(operands)};", inputs, addend)
    assert np.array_equal(out, np.full((32, addend), canonical, np.uint32))
