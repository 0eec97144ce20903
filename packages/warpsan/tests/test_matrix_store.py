"""stmatrix, movmatrix and setmaxnreg."""

import numpy as np
import pytest

import warpsan

HEAD = ".version 8.4\n.target sm_90a\n.address_size 64\n"
RNG = np.random.default_rng(5)


def launch(body, fragments, words, *, threads=32, directives="", **options):
    """%f0.. hold ``fragments``; afterwards each thread stores ``words`` words of shared memory to the result."""
    fragments = np.ascontiguousarray(fragments, np.uint32).reshape(threads, -1)
    out = np.zeros((threads, words), np.uint32)
    count = fragments.shape[1]
    loads = "".join(f"ld.global.b32 %f{i}, [%in+{4 * i}];\n" for i in range(count))
    stores = "".join(f"ld.shared.b32 %x, [%o+{4 * i}]; st.global.b32 [%out+{4 * i}], %x;\n" for i in range(words))
    ptx = (
        f"{HEAD}.entry k(.param .u64 inputs, .param .u64 outputs) {directives}\n{{\n.reg .b32 %t, %a, %o, %x, %f<9>;\n"
        ".reg .b64 %in, %out, %wide; .reg .pred %p;\n.shared .align 16 .b8 smem[4096];\n"
        f"mov.u32 %t, %tid.x; ld.param.u64 %in, [inputs]; mul.wide.u32 %wide, %t, {4 * count};\n"
        f"add.u64 %in, %in, %wide; ld.param.u64 %out, [outputs]; mul.wide.u32 %wide, %t, {4 * words};\n"
        "add.u64 %out, %out, %wide;\n"
        f"mul.lo.u32 %o, %t, {4 * words};\n{loads}{body}\nbar.sync 0;\n{stores}ret;\n}}\n"
    )
    report = warpsan.launch(ptx, "k", 1, threads, [fragments, out], **options)
    return report, out


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_stmatrix(number, trans):
    """Lane l holds row l / 4, columns 2 (l % 4).. of each matrix; lanes 8i..8i+7 point to the rows of matrix i."""
    matrices = RNG.integers(0, 65536, (number, 8, 8)).astype(np.uint16)
    fragments = np.zeros((32, number), np.uint32)
    for lane in range(32):
        for i in range(number):
            row, column = lane // 4, 2 * (lane % 4)
            fragments[lane, i] = int(matrices[i, row, column]) | int(matrices[i, row, column + 1]) << 16
    registers = ", ".join(f"%f{i}" for i in range(number))
    body = (  # rows in reverse order, to make the addresses matter
        f"xor.b32 %a, %t, 7; shl.b32 %a, %a, 4;\n"
        f"stmatrix.sync.aligned.m8n8.x{number}{'.trans' if trans else ''}.shared.b16 [%a], {{{registers}}};"
    )
    report, out = launch(body, fragments, number)
    got = out.view(np.uint16).reshape(number, 8, 8)[:, ::-1]
    np.testing.assert_array_equal(got, matrices.swapaxes(1, 2) if trans else matrices)
    assert report.hazards == []


def test_stmatrix_undoes_ldmatrix_across_warps():
    words = RNG.integers(0, 2**32, (64, 4), dtype=np.uint32)
    body = (
        "shl.b32 %a, %t, 4;\nstmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%a], {%f0, %f1, %f2, %f3};\n"
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%f4, %f5, %f6, %f7}, [%a];\n"
        "st.shared.v4.b32 [%a+2048], {%f4, %f5, %f6, %f7};\nadd.u32 %o, %o, 2048;"
    )
    report, out = launch(body, words, 4, threads=64)
    np.testing.assert_array_equal(out, words)
    assert report.hazards == []


def test_stmatrix_is_checked_like_any_store():
    body = "shl.b32 %a, %t, 3;\nstmatrix.sync.aligned.m8n8.x1.shared.b16 [%a], {%f0};"
    kinds = {hazard.kind for hazard in launch(body, np.zeros(32), 1)[0].hazards}
    assert "misaligned" in kinds
    body = "shl.b32 %a, %t, 4; add.u32 %a, %a, 4000;\nstmatrix.sync.aligned.m8n8.x1.shared.b16 [%a], {%f0};"
    assert "out-of-bounds" in {hazard.kind for hazard in launch(body, np.zeros(32), 1)[0].hazards}
    body = "setp.lt.u32 %p, %t, 16; @!%p bra OUT;\nstmatrix.sync.aligned.m8n8.x1.shared.b16 [%a], {%f0};\nOUT:"
    assert "divergent" in {hazard.kind for hazard in launch(body, np.zeros(32), 1)[0].hazards}


def test_movmatrix_transposes():
    matrix = RNG.integers(0, 65536, (8, 8)).astype(np.uint16)
    body = "shl.b32 %a, %t, 2;\nmovmatrix.sync.aligned.m8n8.trans.b16 %f0, %f0;\nst.shared.b32 [%a], %f0;"
    report, out = launch(body, matrix.view(np.uint32), 1)
    np.testing.assert_array_equal(out.view(np.uint16).reshape(8, 8), matrix.T)
    assert report.hazards == []


@pytest.mark.parametrize(
    "text",
    [
        "stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%a], {%f0};",
        "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%a], {%f0};",
        "stmatrix.sync.aligned.m8n8.x1.global.b16 [%a], {%f0};",
        "movmatrix.sync.aligned.m8n8.b16 %f0, %f1;",
        "setmaxnreg.inc.sync.aligned.u32 100;",
        "setmaxnreg.dec.sync.aligned.u32 16;",
        "setmaxnreg.inc.sync.aligned.u32 264;",
        "setmaxnreg.sync.aligned.u32 40;",
        "setmaxnreg.inc.sync.aligned.u32 %t;",
    ],
)
def test_what_is_not_modelled_is_refused(text):
    with pytest.raises(warpsan.UnsupportedInstruction):
        launch(text, np.zeros(32), 1)


REBALANCE = (
    "setp.lt.u32 %p, %t, 128; @%p bra PRODUCER;\nsetmaxnreg.inc.sync.aligned.u32 {};\nbra MEET;\n"
    "PRODUCER: setmaxnreg.dec.sync.aligned.u32 40;\nMEET: mul.lo.u32 %a, %t, 4; st.shared.b32 [%a], %t;"
)


@pytest.mark.parametrize(("directives", "most"), [(".maxnreg 168", 232), ("", 232)])
def test_setmaxnreg_changes_nothing_within_the_budget(directives, most):
    """One warpgroup releases registers down to 128 per thread, two others take 64 each."""
    report, out = launch(REBALANCE.format(most), np.zeros(384), 1, threads=384, directives=directives)
    assert (out[:, 0] == np.arange(384)).all()
    assert report.hazards == []


@pytest.mark.parametrize(("directives", "most"), [(".maxnreg 168", 240), ("", 240)])
def test_setmaxnreg_beyond_the_budget_waits_forever(directives, most):
    with pytest.raises(
        warpsan.Deadlock, match=r"ask for 66560 registers in all, and a block of 384 threads has (64512|65536)"
    ):
        launch(REBALANCE.format(most), np.zeros(384), 1, threads=384, directives=directives)
