"""Lanes of a warp with different operands in one instruction: several spaces, barriers, mbarriers, groups, and numbers
of bytes.
"""

import numpy as np
import pytest

import warpsan
from hopper_snippets import kernel, kinds

SPACES = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 o)
{{
.reg .u32 %r<9>; .reg .u64 %rd<9>; .reg .pred %p<5>;
.shared .align 16 .b8 buf[512]; .local .align 16 .b8 own[16];
ld.param.u64 %rd1, [a]; ld.param.u64 %rd8, [o]; mov.u32 %r5, %tid.x; mul.wide.u32 %rd2, %r5, 4;
add.u64 %rd3, %rd1, %rd2; add.u64 %rd8, %rd8, %rd2;
mov.u64 %rd4, buf; add.u64 %rd4, %rd4, %rd2; st.shared.u32 [%rd4], 100; cvta.shared.u64 %rd5, %rd4;
mov.u64 %rd6, own; st.local.u32 [%rd6], 200; cvta.local.u64 %rd7, %rd6;
setp.lt.u32 %p1, %r5, 10; setp.gt.u32 %p2, %r5, 20;
selp.u64 %rd3, %rd5, %rd3, %p1; selp.u64 %rd3, %rd7, %rd3, %p2;
ld.u32 %r6, [%rd3]; add.u32 %r6, %r6, %r5; st.u32 [%rd3], %r6;
{more}
ld.u32 %r7, [%rd3]; st.global.u32 [%rd8], %r7;
ret;
}}
"""


@pytest.mark.parametrize("counters", [False, True])
@pytest.mark.parametrize(("more", "plus"), [("", 0), ("@!%p2 atom.add.u32 %r1, [%rd3], 7;", 7)])
def test_generic_addresses_of_several_spaces(more, plus, counters):
    a, out, lanes = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32), np.arange(32)
    report = warpsan.launch(SPACES.format(more=more), "k", 1, 32, [a, out], counters=counters)
    assert report.hazards == []
    first = np.where(lanes < 10, 100, np.where(lanes > 20, 200, lanes))
    assert out.tolist() == (first + lanes + np.where(lanes > 20, 0, plus)).tolist()
    assert a.tolist() == np.where((lanes < 10) | (lanes > 20), lanes, 2 * lanes + plus).tolist()
    if counters:
        assert report.counters.compulsory_read_bytes == 64  # elements 10 to 20


def test_a_race_of_a_generic_address_among_several_spaces():
    report = warpsan.launch(SPACES.format(more="st.global.u32 [%rd1], %r5;"), "k", 1, 32, [np.zeros(32, np.uint32)] * 2)
    assert {hazard.kind for hazard in report.hazards} == {"lane-race"}


OUT = "mul.wide.u32 %rd3, %r0, 4; add.u64 %rd3, %rd1, %rd3; st.global.u32 [%rd3], %r4;\n"
TWO = (
    "and.b32 %r3, %r0, 1; setp.eq.u32 %p3, %r3, 0; add.u32 %r5, %r2, 8; selp.u32 %r4, %r2, %r5, %p3;\n"
    "@%p1 mbarrier.init.shared::cta.b64 [%r2], 32; @%p1 mbarrier.init.shared::cta.b64 [%r2+8], {second};\nbar.sync 0;\n"
    "mbarrier.arrive.shared::cta.b64 _, [%r4];\n"
    "W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r4], 0;\n@!%p2 bra W;\n"
)


@pytest.mark.parametrize("counters", [False, True])
@pytest.mark.parametrize("schedule", ["lockstep", "forward", "reverse", "random"])
def test_lanes_wait_for_two_mbarriers(schedule, counters):
    out = np.zeros(64, np.uint32)
    assert kinds(TWO.format(second=32) + OUT, [out], schedule=schedule, counters=counters) == []
    assert (out == np.where(np.arange(64) % 2, 16392, 16384)).all()
    with pytest.raises(warpsan.Deadlock, match="offset 16392 of shared memory is in phase 0, with 1 of 33 arrivals"):
        kinds(TWO.format(second=33) + OUT, [out], schedule=schedule, counters=counters)


@pytest.mark.parametrize("form", ["bar.sync %r4, 64;", "barrier.sync %r4;"])
def test_lanes_name_two_barriers(form):
    """Half of a warp arrives at each barrier: with a thread count the warp counts as a whole, which suffices."""
    body = "and.b32 %r4, %r0, 1; add.u32 %r4, %r4, 1;\n" + form + OUT
    out = np.zeros(64, np.uint32)
    if "64" in form:
        assert kinds(body, [out]) == []
        assert (out == np.arange(64) % 2 + 1).all()
    else:
        with pytest.raises(warpsan.Deadlock, match="barrier 1"):
            kinds(body, [out])


@pytest.mark.parametrize("aligned", ["", ".aligned"])
@pytest.mark.parametrize("schedule", ["lockstep", "forward", "reverse", "random"])
def test_lanes_come_to_the_barrier_of_the_cluster_by_different_instructions(aligned, schedule):
    meet = f"barrier.cluster.arrive{aligned}; barrier.cluster.wait{aligned};"
    body = f"setp.lt.u32 %p3, %r0, 16; @%p3 bra A; {meet} bra B; A: {meet}\nB: add.u32 %r4, %r0, 1;\n" + OUT
    out = np.zeros(64, np.uint32)
    assert kinds(body, [out], grid=2, cluster=(2, 1, 1), schedule=schedule) == []
    assert (out == np.arange(64) + 1).all()


@pytest.mark.parametrize("leave", ["bra A", "exit"])
def test_a_part_of_a_warp_asks_for_registers(leave):
    body = f"setp.lt.u32 %p3, %r0, 16; mov.u32 %r4, 7; @%p3 {leave}; setmaxnreg.dec.sync.aligned.u32 24; A:\n"
    out = np.zeros(64, np.uint32)
    assert kinds(body + OUT, [out]) == ["divergent"]
    assert (out[16:] == 7).all()


@pytest.mark.parametrize(
    ("operation", "function"),
    [
        ("add.u32", np.sum),
        ("min.u32", np.min),
        ("max.u32", np.max),
        ("min.s32", lambda part: np.min(part.view(np.int32))),
        ("max.s32", lambda part: np.max(part.view(np.int32))),
        ("and.b32", np.bitwise_and.reduce),
        ("or.b32", np.bitwise_or.reduce),
        ("xor.b32", np.bitwise_xor.reduce),
    ],
)
def test_halves_of_a_warp_reduce_their_own_values(operation, function):
    body = (
        "setp.lt.u32 %p3, %r0, 16; selp.b32 %r3, 0x0000ffff, 0xffff0000, %p3; ld.global.u32 %r4, [%rd2];\n"
        f"redux.sync.{operation} %r4, %r4, %r3;\nst.global.u32 [%rd2], %r4;\n"
    )
    values = np.random.default_rng(1).integers(0, 2**32, 32, dtype=np.uint32)
    out = values.copy()
    assert kinds(body, [out], block=32) == []
    want = [int(function(half)) % 2**32 for half in (values[:16], values[16:])]
    assert out.tolist() == [want[0]] * 16 + [want[1]] * 16


PARTS = (
    "shl.b32 %r3, %r0, 4; add.u32 %r4, %r1, %r3; mul.wide.u32 %rd3, %r0, 16; add.u64 %rd4, %rd1, %rd3;\n"
    "and.b32 %r5, %r0, 15; cp.async.ca.shared.global [%r4], [%rd4], 16, %r5;\n{wait}"
    "ld.shared.u32 %r6, [%r4]; st.global.u32 [%rd4], %r6;\n"
)


def test_copies_of_different_numbers_of_bytes():
    out = np.full(256, 0x01010101, np.uint32)
    report = warpsan.launch(kernel(PARTS.format(wait="cp.async.wait_all;\n")), "k", 1, 64, [out], counters=True)
    assert report.hazards == []
    assert out[:20:4].tolist() == [0, 1, 0x101, 0x10101, 0x01010101]
    assert kinds(PARTS.format(wait=""), [out]) == ["async"]
