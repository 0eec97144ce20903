"""st.async and red.async: in flight until an mbarrier has counted their bytes, in every order and mode."""

from contextlib import nullcontext

import numpy as np
import pytest

import warpsan
from hopper_snippets import CTA_WAIT, MODES, kernel, kinds

GRID, THREADS = 4, 64
START = (
    "mov.u32 %r3, %ctaid.x; mov.u32 %r4, %cluster_ctarank; xor.b32 %r5, %r4, 1; mad.lo.u32 %r6, %r3, 64, %r0;\n"
    "mul.wide.u32 %rd2, %r6, 4; add.u64 %rd3, %rd1, %rd2; mad.lo.u32 %r9, %r3, 1000, %r0;\n"
    "@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\n{zero}fence.mbarrier_init.release.cluster;\n"
    "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
    "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], {bytes};\n"
    "mapa.shared::cluster.u32 %r10, %r1, %r5; mapa.shared::cluster.u32 %r12, %r2, %r5;\n"
)
END = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
WAIT = CTA_WAIT.format(0, "%r2", 0).replace("parity.", "parity.acquire.cluster.")
PLACE = "shared::cluster.mbarrier::complete_tx::bytes"
STORE = (
    START.format(zero="", bytes=256)
    + f"shl.b32 %r7, %r0, 2; add.u32 %r11, %r10, %r7; st.async.weak.{PLACE}.b32 [%r11], %r9, [%r12];\n"
    + WAIT
    + "add.u32 %r8, %r1, %r7; ld.shared.u32 %r13, [%r8]; st.global.u32 [%rd3], %r13;\n"
    + END
)
ZERO = "add.u32 %r8, %r0, 3; @%p1 st.shared.u32 [%r1], 5;\n"


def reported(body, out, **options):
    return kinds(body, [out], grid=GRID, cluster=(2, 1, 1), **options)


@pytest.mark.parametrize(("mode", "schedule"), MODES)
def test_a_store_into_the_other_blocks_memory(mode, schedule):
    out = np.zeros((GRID, THREADS), np.uint32)
    assert reported(STORE, out, async_mode=mode, schedule=schedule) == []
    assert (out == (np.arange(GRID) ^ 1)[:, None] * 1000 + np.arange(THREADS)).all()


@pytest.mark.parametrize(("mode", "schedule"), MODES)
def test_vectors_of_every_width(mode, schedule):
    """Sixteen threads store 16 bytes each, as four words and as two doublewords."""
    for form, values in (("v4.u32", "{%r9, %r0, %r3, 7}"), ("v2.b64", "{%rd4, %rd5}"), ("v2.f32", "{%r9, %r0}")):
        width = 8 if form == "v2.f32" else 16
        body = (
            START.format(zero="", bytes=64 * width)
            + "mov.b64 %rd4, {%r9, %r0}; mov.b64 %rd5, {%r3, %r0};\n"
            + f"mad.lo.u32 %r11, %r0, {width}, %r10; st.async.{PLACE}.{form} [%r11], {values}, [%r12];\n"
            + WAIT
            + f"mad.lo.u32 %r8, %r0, {width}, %r1; ld.shared.u32 %r13, [%r8]; ld.shared.u32 %r14, [%r8+4];\n"
            "mad.lo.u32 %r13, %r13, 3, %r14; st.global.u32 [%rd3], %r13;\n" + END
        )
        out = np.zeros((GRID, THREADS), np.uint32)
        assert reported(body, out, async_mode=mode, schedule=schedule) == []
        thread = np.arange(THREADS)
        assert (out == 3 * ((np.arange(GRID) ^ 1)[:, None] * 1000 + thread) + thread).all()


@pytest.mark.parametrize("schedule", ["lockstep", "forward"])
@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (WAIT, "", {"race", "async"}),
        ("[%r2], 256;", "[%r2], 128;", {"mbarrier", "async", "race"}),
        ("[%r2], 256;", "[%r2], 512;", {"Deadlock"}),
        ("%r9, [%r12]", "%r9, [%r2]", {"mbarrier"}),
        ("[%r11], %r9", "[%r11+2], %r9", {"misaligned"}),
        ("[%r11], %r9", "[%r11+20000], %r9", {"out-of-bounds"}),
    ],
)
def test_each_mistake_is_found(old, new, kind, schedule):
    body = STORE[::-1].replace(old[::-1], new[::-1], 1)[::-1]
    assert body != STORE
    try:
        assert set(reported(body, np.zeros((GRID, THREADS), np.uint32), schedule=schedule)) & kind
    except warpsan.Deadlock:
        assert kind & {"Deadlock", "mbarrier", "misaligned", "out-of-bounds"}


@pytest.mark.parametrize(("mode", "schedule"), MODES)
@pytest.mark.parametrize(
    ("form", "want"),
    [
        ("add.u32", 5 + sum(range(3, 67))),
        ("max.s32", 66),
        ("min.u32", 3),
        ("and.b32", 0),
        ("or.b32", 127),
        ("xor.b32", 5 ^ np.bitwise_xor.reduce(np.arange(3, 67))),
        ("inc.u32", None),
    ],
)
def test_reductions_into_one_word_of_the_other_block(form, want, mode, schedule, recorded):
    body = (
        START.format(zero=ZERO, bytes=256)
        + f"red.async.relaxed.cluster.{PLACE}.{form} [%r10], %r8, [%r12];\n"
        + WAIT
        + "ld.shared.u32 %r13, [%r1]; st.global.u32 [%rd3], %r13;\n"
        + END
    )
    out = np.zeros((GRID, THREADS), np.uint32)
    with nullcontext() if want is None else recorded.launches():
        assert reported(body, out, async_mode=mode, schedule=schedule, counters=form == "add.u32") == []
    if want is None:  # the thread order matters: each wraps to 0 above its own bound
        assert (out <= 66).all()
    else:
        assert (out == want).all()
    for without in (WAIT, ZERO):
        broken = body.replace(without, "add.u32 %r8, %r0, 3;\n")
        reported_kinds = set(reported(broken, out, async_mode=mode, schedule=schedule))
        assert reported_kinds & {"race", "async", "uninitialised"}


@pytest.mark.parametrize(
    "line",
    [
        f"st.async.{PLACE}.b16 [%r1], %h1, [%r2];",
        f"st.async.{PLACE}.v4.b32 [%r1], {{%r3, %r4}}, [%r2];",
        "st.async.release.gpu.global.b32 [%rd1], %r3;",
        f"red.async.relaxed.cluster.{PLACE}.add.f32 [%r1], %r3, [%r2];",
        f"red.async.relaxed.cluster.{PLACE}.inc.s32 [%r1], %r3, [%r2];",
        f"red.async.{PLACE}.add.u32 [%r1], %r3, [%r2];",
    ],
)
def test_what_is_not_modelled_is_refused_with_its_line(line):
    with pytest.raises(warpsan.UnsupportedInstruction, match=r"PTX line \d+: (st|red)\.async"):
        warpsan.launch(kernel(line), "k", 1, 32, [np.zeros(64, np.uint32)])
