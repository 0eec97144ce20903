"""Stale reads: each kind of access, with and without a choice of values."""

import numpy as np
import pytest

import warpsan

HEAD = """.version 8.0
.target sm_90
.address_size 64
.entry k(.param .u64 p, .param .u64 f)
{
.reg .b16 %h<9>; .reg .b32 %r<30>; .reg .b64 %rd<20>; .reg .f32 %f<9>; .reg .pred %p<9>;
.shared .align 16 .b8 buf[1024]; .local .align 16 .b8 mine[64];
ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [f]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x;
mul.wide.u32 %rd3, %r0, 16; add.u64 %rd4, %rd1, %rd3; shl.b32 %r2, %r0, 4; mov.u32 %r3, buf; add.u32 %r3, %r3, %r2;
"""
OUT = "add.u64 %rd5, %rd2, %rd3; "

ACCESSES = {
    "signed bytes, late": """ld.global.s8 %r5, [%rd4+3]; st.global.u32 [%rd2+2048], %r0; ld.global.s16 %r6, [%rd4+2];
        ld.global.u8 %h1, [%rd4+5]; cvt.u32.u16 %r7, %h1; st.global.v4.u32 [%rd5], {%r5, %r6, %r7, %r0};""",
    "vectors, late": """ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd4]; ld.global.v2.s32 {%rd6, %rd7}, [%rd4+8];
        st.shared.u32 [%r3], %r0; st.global.v4.u32 [%rd5], {%r8, %r7, %r6, %r5};
        add.u64 %rd6, %rd6, %rd7; st.global.u64 [%rd5], %rd6;""",
    "over what was just written": """st.global.u32 [%rd4], 7; st.global.u8 [%rd4+1], 9; st.global.u16 [%rd4+6], 300;
        ld.global.v2.u32 {%r5, %r6}, [%rd4]; st.global.v2.u32 [%rd5], {%r5, %r6};
        st.global.u32 [%rd1], %r0; ld.global.u32 %r7, [%rd1]; st.global.u32 [%rd5+8], %r7;""",
    "generic addresses": """cvta.shared.u64 %rd6, buf; add.u64 %rd6, %rd6, %rd3; st.v2.u32 [%rd6], {%r0, %r2};
        cvta.local.u64 %rd7, mine; st.u32 [%rd7+4], %r2; ld.u32 %r5, [%rd7+4]; ld.shared.u32 %r6, [%r3+4];
        ld.u32 %r7, [%rd6]; ld.u32 %r8, [%rd4]; st.v4.u32 [%rd5], {%r5, %r6, %r7, %r8};""",
    "atomics of one place": """atom.global.add.u32 %r5, [%rd1], %r0; atom.global.cas.b64 %rd6, [%rd1+8], %rd3, %rd4;
        red.global.add.f32 [%rd1+16], 0f3F800000; atom.global.inc.u32 %r6, [%rd1+20], 5;
        atom.global.exch.b32 %r7, [%rd1+24], %r0; ld.global.u32 %r8, [%rd1];
        st.global.v4.u32 [%rd5], {%r5, %r6, %r7, %r8};""",
    "atomics in shared memory": """st.shared.v4.u32 [%r3], {%r0, %r0, %r0, %r0}; bar.warp.sync -1;
        and.b32 %r9, %r0, 3; shl.b32 %r9, %r9, 4; mov.u32 %r10, buf; add.u32 %r10, %r10, %r9;
        atom.shared.add.f32 %f1, [%r10+4], 0f40000000; atom.shared.max.s32 %r5, [%r10+8], %r2; bar.warp.sync -1;
        ld.shared.v4.u32 {%r5, %r6, %r7, %r8}, [%r3]; st.global.v4.u32 [%rd5], {%r5, %r6, %r7, %r8};""",
    "matrices": """st.shared.v4.u32 [%r3], {%r0, %r2, %r2, %r0};
        ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r5, %r6, %r7, %r8}, [%r3];
        stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r3], {%r6, %r5}; ld.shared.v2.u32 {%r9, %r10}, [%r3];
        st.global.v4.u32 [%rd5], {%r7, %r8, %r9, %r10};""",
    "wmma": """st.shared.v4.u32 [%r3], {%r0, %r2, %r2, %r0}; bar.warp.sync -1; mov.u32 %r3, buf;
        wmma.load.a.sync.aligned.m16n16k16.row.shared.f16 {%r5, %r6, %r7, %r8, %r9, %r10, %r11, %r12}, [%r3], 16;
        wmma.store.d.sync.aligned.m16n16k16.row.global.f32 [%rd2], {%r5, %r6, %r7, %r8, %r9, %r10, %r11, %r12}, 16;
        ld.global.u32 %r5, [%rd5+4]; st.global.u32 [%rd1+2048], %r5;""",
    "behind a guard": """setp.lt.u32 %p1, %r0, 9; mov.u32 %r5, 77; @%p1 ld.global.u32 %r5, [%rd4];
        @!%p1 st.global.u32 [%rd4], 5; @%p1 atom.global.or.b32 %r6, [%rd1+2048], %r0; @!%p1 mov.u32 %r6, 0;
        ld.global.u32 %r7, [%rd4]; st.global.v4.u32 [%rd5], {%r5, %r6, %r7, %r0};""",
}


def run(body: str, *, grid: int = 1, threads: int = 32, **options: object) -> tuple[np.ndarray, np.ndarray]:
    """Final arrays of a launch."""
    data = np.random.default_rng(1).integers(0, 1 << 32, 1024, np.uint32)
    other = np.zeros(1024, np.uint32)
    options = {"checks": (), "schedule": "random", "reads": "stale", **options}
    warpsan.launch(HEAD + OUT + body + "\nret;\n}\n", "k", grid, threads, [data, other], **options)
    return data, other


@pytest.mark.sample
@pytest.mark.parametrize("name", ACCESSES)
@pytest.mark.parametrize("checks", [(), ("memory", "race", "async")])
def test_a_warp_alone_reads_what_it_has_written(name, checks):
    """With a single writer, final memory equals that of a launch without stale reads, for any seed."""
    if name in ("atomics of one place", "over what was just written", "wmma"):
        checks = ()  # lanes write to the same places
    plain = run(ACCESSES[name], reads="latest", checks=checks)
    for seed in range(3):
        for mine, other in zip(run(ACCESSES[name], seed=seed, checks=checks), plain, strict=True):
            assert np.array_equal(mine, other), seed


def test_warps_that_a_barrier_orders_read_the_last_value():
    """Under every order of the warps, and for words, parts of words and matrices."""
    body = """st.shared.v4.u32 [%r3], {%r0, %r2, %r0, %r2}; bar.sync 0; xor.b32 %r4, %r2, 512; mov.u32 %r5, buf;
        add.u32 %r4, %r4, %r5; ld.shared.u16 %h1, [%r4+4]; ld.shared.v2.u32 {%r6, %r7}, [%r4];
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r8}, [%r4]; cvt.u32.u16 %r9, %h1;
        st.global.v4.u32 [%rd5], {%r6, %r7, %r8, %r9};"""
    _, plain = run(body, reads="latest", threads=64, schedule="lockstep")
    for schedule in ("lockstep", "forward", "reverse", "random"):
        _, other = run(body, threads=64, schedule=schedule, seed=2)
        assert np.array_equal(other, plain), schedule


def test_without_the_barrier_they_may_read_old_values():
    """Also for shared memory through ldmatrix."""
    body = """st.shared.v4.u32 [%r3], {%r0, %r0, %r0, %r0}; bar.sync 0; st.shared.v4.u32 [%r3], {77, 77, 77, 77}; MIDDLE
        xor.b32 %r4, %r2, 512; mov.u32 %r5, buf; add.u32 %r4, %r4, %r5;
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r8}, [%r4]; st.global.u32 [%rd5], %r8;"""
    ordered = {
        int(value)
        for seed in range(8)
        for value in run(body.replace("MIDDLE", "bar.sync 0;"), threads=64, seed=seed)[1][0:256:4]
    }
    assert ordered == {77}
    racing = {
        int(value) for seed in range(8) for value in run(body.replace("MIDDLE", ""), threads=64, seed=seed)[1][0:256:4]
    }
    assert {77} < racing


def test_an_illegal_access_is_reported_with_its_place():
    data, other = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
    text = HEAD + OUT + "ld.global.u32 %r5, [%rd4+100000]; st.global.u32 [%rd5], %r5;\nret;\n}\n"
    report = warpsan.launch(text, "k", 1, 4, [data, other], checks=("memory",), schedule="random", reads="stale")
    assert [each.kind for each in report.hazards] == ["out-of-bounds"]
