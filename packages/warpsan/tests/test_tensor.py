"""ldmatrix, mma and wmma against the manual's fragment tables, element by element."""

import ml_dtypes
import numpy as np
import pytest

import warpsan

HEAD = ".version 8.0\n.target sm_89\n.address_size 64\n"
RNG = np.random.default_rng(7)


def launch_words(body, registers, inputs, outputs, warps=1):
    """Run ``body``: %r0.. hold ``inputs`` (uint32 [lanes, n]) before it, %r100.. the ``outputs`` after it."""
    lanes = 32 * warps
    a = np.ascontiguousarray(inputs, np.uint32).reshape(lanes, -1)
    b = np.zeros((lanes, outputs), np.uint32)
    loads = "\n".join(f"ld.global.u32 %r{i}, [%rd3+{4 * i}];" for i in range(a.shape[1]))
    stores = "\n".join(f"st.global.u32 [%rd4+{4 * i}], %r{100 + i};" for i in range(outputs))
    ptx = (
        f"{HEAD}.entry k(.param .u64 a, .param .u64 b)\n{{\n.reg .b32 %r<{registers}>;\n"
        ".reg .b64 %rd<9>; .reg .u32 %t;\n"
        f".shared .align 16 .b8 buf[2048];\nld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; mov.u32 %t, %tid.x;\n"
        f"mul.wide.u32 %rd3, %t, {4 * a.shape[1]}; add.u64 %rd3, %rd1, %rd3;\n"
        f"mul.wide.u32 %rd4, %t, {4 * outputs}; add.u64 %rd4, %rd2, %rd4;\n{loads}\n{body}\n{stores}\nret;\n}}\n"
    )
    report = warpsan.launch(ptx, "k", 1, lanes, [a, b])
    return report, b


def pack(low, high):
    """Two 16-bit elements in a register, the first lowest."""
    return np.frombuffer(np.array([low, high]).tobytes(), np.uint32)[0]


def regs(first, count):
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


def a_fragment(matrix):
    """PTX ISA, "mma.m16n8k16 with floating point type": row g or g + 8, columns 2t.. or 2t + 8.."""
    out = np.zeros((32, matrix.shape[1] // 4), np.uint32)
    for lane in range(32):
        g, t = lane // 4, lane % 4
        for i in range(out.shape[1]):
            row, col = g + 8 * (i % 2), 2 * t + 8 * (i // 2)
            out[lane, i] = pack(matrix[row, col], matrix[row, col + 1])
    return out


def b_fragment(matrix):
    """Same page: column g, rows 2t.. or 2t + 8.."""
    out = np.zeros((32, matrix.shape[0] // 8), np.uint32)
    for lane in range(32):
        g, t = lane // 4, lane % 4
        for i in range(out.shape[1]):
            out[lane, i] = pack(matrix[2 * t + 8 * i, g], matrix[2 * t + 8 * i + 1, g])
    return out


def c_fragment(matrix):
    out = np.zeros((32, 4), np.float32)
    for lane in range(32):
        g, t = lane // 4, lane % 4
        out[lane] = [matrix[g, 2 * t], matrix[g, 2 * t + 1], matrix[g + 8, 2 * t], matrix[g + 8, 2 * t + 1]]
    return out


@pytest.mark.parametrize(("kind", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
@pytest.mark.parametrize("k", [8, 16])
def test_mma_with_float32_accumulator(kind, dtype, k):
    a, b = (RNG.normal(size=shape).astype(dtype) for shape in ((16, k), (k, 8)))
    c = RNG.normal(size=(16, 8)).astype(np.float32)
    na, nb = k // 4, k // 8
    inputs = np.hstack([a_fragment(a), b_fragment(b), c_fragment(c).view(np.uint32)])
    body = (
        f"mma.sync.aligned.m16n8k{k}.row.col.f32.{kind}.{kind}.f32 "
        f"{regs(100, 4)}, {regs(0, na)}, {regs(na, nb)}, {regs(na + nb, 4)};"
    )
    report, out = launch_words(body, 110, inputs, 4)
    exact = a.astype(np.float64) @ b.astype(np.float64) + c
    assert report.hazards == []
    np.testing.assert_allclose(out.view(np.float32), c_fragment(exact), rtol=1e-5, atol=1e-5)


def test_mma_with_float16_accumulator_rounds_once():
    a, b, c = (RNG.normal(size=shape).astype(np.float16) for shape in ((16, 16), (16, 8), (16, 8)))
    packed = np.array(
        [[pack(*c[lane // 4 + 8 * i, 2 * (lane % 4) : 2 * (lane % 4) + 2]) for i in range(2)] for lane in range(32)]
    )
    inputs = np.hstack([a_fragment(a), b_fragment(b), packed])
    body = (
        f"mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {regs(100, 2)}, {regs(0, 4)}, {regs(4, 2)}, {regs(6, 2)};"
    )
    _, out = launch_words(body, 110, inputs, 2)
    exact = (a.astype(np.float64) @ b.astype(np.float64) + c).astype(np.float16)
    want = np.array(
        [[pack(*exact[lane // 4 + 8 * i, 2 * (lane % 4) : 2 * (lane % 4) + 2]) for i in range(2)] for lane in range(32)]
    )
    difference = np.abs(out.view(np.float16).astype(float) - want.astype(np.uint32).view(np.float16).astype(float))
    assert difference.max() <= 2.0**-8


def test_chained_products_are_the_same_fused_or_not():
    """Two k steps and two n tiles are fused into one product; reading the intermediate sum keeps them apart."""
    a = [RNG.normal(size=(16, 16)).astype(np.float16) for _ in range(2)]
    b = [[RNG.normal(size=(16, 8)).astype(np.float16) for _ in range(2)] for _ in range(2)]
    inputs = np.hstack([a_fragment(a[0]), a_fragment(a[1]), *(b_fragment(b[k][n]) for k in range(2) for n in range(2))])
    op = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    zero = "{%r60, %r60, %r60, %r60}"
    body = (
        f"mov.b32 %r60, 0;\n{op} {regs(40, 4)}, {regs(0, 4)}, {regs(8, 2)}, {zero};\n"
        f"{op} {regs(44, 4)}, {regs(0, 4)}, {regs(10, 2)}, {zero};\n"
        f"{op} {regs(100, 4)}, {regs(4, 4)}, {regs(12, 2)}, {regs(40, 4)};\n"
        f"{op} {regs(104, 4)}, {regs(4, 4)}, {regs(14, 2)}, {regs(44, 4)};\n"
    )
    want = [sum(a[k].astype(float) @ b[k][n].astype(float) for k in range(2)) for n in range(2)]
    first = a[0].astype(float) @ b[0][0].astype(float)
    for text, outputs in ((body, 8), (body + "mov.b32 %r108, %r40;", 9)):
        _, out = launch_words(text, 120, inputs, outputs)
        got = out.view(np.float32)
        for n in range(2):
            np.testing.assert_allclose(got[:, 4 * n : 4 * n + 4], c_fragment(want[n]), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(got[:, 8], c_fragment(first)[:, 0], rtol=1e-5, atol=1e-4)


def test_a_factor_that_is_overwritten_is_used_as_it_was():
    a, b = RNG.normal(size=(16, 16)).astype(np.float16), RNG.normal(size=(16, 8)).astype(np.float16)
    inputs = np.hstack([a_fragment(a), b_fragment(b)])
    op = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    zero = "{%r60, %r60, %r60, %r60}"
    body = (
        f"mov.b32 %r60, 0;\n{op} {regs(100, 4)}, {regs(0, 4)}, {regs(4, 2)}, {zero};\nmov.b32 %r4, 0;\nmov.b32 %r0, 0;"
    )
    _, out = launch_words(body, 110, inputs, 4)
    np.testing.assert_allclose(
        out.view(np.float32), c_fragment(a.astype(float) @ b.astype(float)), rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_ldmatrix(number, trans):
    """Lanes 8i..8i+7 point to the rows of matrix i; lane l gets row l / 4, columns 2 (l % 4).. of each."""
    matrices = RNG.integers(0, 65536, size=(4, 8, 8)).astype(np.uint16)
    inputs = matrices.reshape(32, 8).view(np.uint32)
    body = (
        f"shl.b32 %r50, %t, 4;\nst.shared.v4.u32 [%r50], {regs(0, 4)};\nbar.warp.sync -1;\n"
        f"ldmatrix.sync.aligned.m8n8.x{number}{'.trans' if trans else ''}.shared.b16 {regs(100, number)}, [%r50];"
    )
    report, out = launch_words(body, 110, inputs, number)
    for i in range(number):
        matrix = matrices[i].T if trans else matrices[i]
        want = np.ascontiguousarray(matrix).view(np.uint32).reshape(32)
        assert (out[:, i] == want).all()
    assert report.hazards == []


def test_a_divergent_mma_is_reported():
    op = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    body = (
        ".reg .pred %p; setp.lt.u32 %p, %t, 16;\n@!%p bra OUT;\n"
        f"{op} {regs(100, 4)}, {regs(0, 4)}, {regs(4, 2)}, {regs(6, 4)};\nOUT:"
    )
    report, _ = launch_words(body, 110, np.zeros((32, 10), np.uint32), 4)
    # The lanes that skipped it then store undefined values.
    assert {hazard.kind for hazard in report.hazards} == {"divergent", "uninitialised"}
    assert "all 32 lanes" in report.hazards[0].message


def test_wmma_tiles_in_every_layout():
    for a_layout in ("row", "col"):
        for b_layout in ("row", "col"):
            for d_layout in ("row", "col"):
                check_wmma(a_layout, b_layout, d_layout)


def check_wmma(a_layout, b_layout, d_layout):
    a, b = (RNG.normal(size=(16, 16)).astype(np.float16) for _ in range(2))
    stored = [m if layout == "row" else m.T for m, layout in ((a, a_layout), (b, b_layout))]
    ld = 24  # a padded leading dimension
    padded = np.zeros((2, 16, ld), np.float16)
    for i in range(2):
        padded[i, :, :16] = stored[i]
    out = np.full((16, 20), -1, np.float32)
    f = "{" + ", ".join(f"%f{i}" for i in range(8)) + "}"
    ptx = (
        f"{HEAD}.entry k(.param .u64 a, .param .u64 b)\n{{\n.reg .b32 %r<20>; .reg .f32 %f<8>; .reg .b64 %rd<9>;\n"
        "ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b];\n"
        f"wmma.load.a.sync.aligned.{a_layout}.m16n16k16.global.f16 {regs(0, 8)}, [%rd1], {ld};\n"
        f"wmma.load.b.sync.aligned.{b_layout}.m16n16k16.global.f16 {regs(8, 8)}, [%rd1+{16 * ld * 2}], {ld};\n"
        + "".join(f"mov.f32 %f{i}, 0f00000000;\n" for i in range(8))
        + f"wmma.mma.sync.aligned.{a_layout}.{b_layout}.m16n16k16.f32.f32 {f}, {regs(0, 8)}, {regs(8, 8)}, {f};\n"
        f"wmma.store.d.sync.aligned.{d_layout}.m16n16k16.global.f32 [%rd2], {f}, 20;\nret;\n}}\n"
    )
    report = warpsan.launch(ptx, "k", 1, 32, [padded, out])
    want = a.astype(float) @ b.astype(float)
    np.testing.assert_allclose(out[:, :16], want if d_layout == "row" else want.T, rtol=1e-5, atol=1e-4)
    assert (out[:, 16:] == -1).all()
    assert report.hazards == []
