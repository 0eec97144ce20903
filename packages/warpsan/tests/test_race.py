"""Races in shared memory: reported for a missing order, silent otherwise, in any schedule."""

import numpy as np
import pytest

import warpsan

HEAD = ".version 8.0\n.target sm_89\n.address_size 64\n"
SCHEDULES = ("lockstep", "forward", "reverse", "random")


def kernel(body: str) -> str:
    return (
        HEAD
        + ".entry k(.param .u64 p)\n{\n.reg .b32 %r<20>; .reg .b64 %rd<9>; .reg .pred %p<9>; .reg .b16 %h<3>;\n"
        + ".shared .align 16 .b8 buf[4096];\nld.param.u64 %rd1, [p];\nmov.u32 %r0, %tid.x;\nshl.b32 %r1, %r0, 2;\n"
        + "mul.wide.u32 %rd2, %r0, 4; add.u64 %rd3, %rd1, %rd2; shr.u32 %r2, %r0, 5; xor.b32 %r3, %r1, 128;\n"
        + body
        + "\nret;\n}\n"
    )


def kinds(body: str, threads=64, grid=1, **options):
    out = np.zeros(4096, np.uint32)
    report = warpsan.launch(kernel(body), "k", grid, threads, [out], **options)
    return [hazard.kind for hazard in report.hazards], report


STORE = "st.shared.u32 [%r1], %r0;\n"
LOAD_OTHER = "ld.shared.u32 %r4, [%r3];\nst.global.u32 [%rd3], %r4;\n"  # word of the other warp's thread


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_barrier_between_write_and_read_is_an_order(schedule):
    assert kinds(STORE + "bar.sync 0;\n" + LOAD_OTHER, schedule=schedule)[0] == []


@pytest.mark.parametrize("schedule", ["lockstep", "forward", "reverse"])
def test_without_it_the_read_races(schedule):
    reported, report = kinds(STORE + LOAD_OTHER, schedule=schedule, checks=("race",))
    assert "race" in reported
    assert "st.shared.u32 of warp" in report.hazards[0].message or "ld.shared.u32 of warp" in report.hazards[0].message
    assert "missing barrier" in report.hazards[0].message


def test_reading_what_the_own_warp_wrote_needs_nothing():
    assert kinds(STORE + "ld.shared.u32 %r4, [%r1];")[0] == []


def test_overwriting_what_others_still_read():
    body = STORE + "bar.sync 0;\n" + LOAD_OTHER + "{}" + "add.u32 %r5, %r0, 1; st.shared.u32 [%r1], %r5;"
    assert kinds(body.format(""))[0] == ["race"]
    assert "reads" in kinds(body.format(""))[1].hazards[0].message
    assert kinds(body.format("bar.sync 0;\n"))[0] == []


def test_two_warps_write_the_same_place_in_the_same_step():
    assert kinds("mov.u32 %r4, 0; st.shared.u32 [%r4], %r2;")[0] == ["race"]


def test_equal_values_are_benign():
    assert kinds("mov.u32 %r4, 0; st.shared.u32 [%r4], 7; bar.sync 0; st.shared.u32 [%r4], 7;")[0] == []


def test_one_barrier_of_a_subset_orders_only_the_subset():
    """Warps 0 and 1 meet at barrier 1, warp 2 does not."""
    body = (
        "shr.u32 %r6, %r0, 5; setp.lt.u32 %p1, %r6, 2;\nst.shared.u32 [%r1], %r0;\n@%p1 bar.sync 1, 64;\n"
        "and.b32 %r7, %r0, 31; shl.b32 %r7, %r7, 2;\n{}ld.shared.u32 %r8, [%r7+{}];"
    )
    assert kinds(body.format("@%p1 ", 128), threads=96)[0] == []
    assert kinds(body.format("", 128), threads=96)[0] == ["race"]
    assert kinds(body.format("@%p1 ", 256), threads=96)[0] == ["race"]


def test_order_is_passed_on_through_a_third_warp():
    """0 -> 1 by barrier 1, then 1 -> 2 by barrier 2: warp 2 may read the writes of warp 0."""
    body = (
        "setp.eq.u32 %p1, %r2, 0; setp.eq.u32 %p2, %r2, 1; setp.eq.u32 %p3, %r2, 2;\n"
        "@%p1 st.shared.u32 [%r1], %r0;\n@%p1 bar.arrive 1, 64;\n@%p2 bar.sync 1, 64;\n@%p2 bar.arrive 2, 64;\n"
        "{}@%p3 ld.shared.u32 %r4, [%r1+-256];"
    )
    assert kinds(body.format("@%p3 bar.sync 2, 64;\n"), threads=96)[0] == []
    reported, _ = kinds(body.format(""), threads=96, checks=("race",), schedule="forward")
    assert reported == ["race"]


def test_arriving_does_not_let_the_arriver_see():
    """bar.arrive publishes but does not wait, so later reads are unordered."""
    body = (
        "setp.eq.u32 %p1, %r2, 0; setp.eq.u32 %p2, %r2, 1;\n"
        "@%p2 st.shared.u32 [%r1], %r0;\n@%p1 bar.arrive 1, 64;\n@%p2 bar.sync 1, 64;\n"
        "@%p1 ld.shared.u32 %r4, [%r1+128];"
    )
    assert kinds(body, checks=("race",))[0] == ["race"]


def test_neighbouring_halves_of_a_word_are_apart():
    body = (
        "and.b32 %r4, %r0, 31; shl.b32 %r4, %r4, 2; shl.b32 %r5, %r2, 1; add.u32 %r4, %r4, %r5;\n"
        "cvt.u16.u32 %h1, %r0; st.shared.u16 [%r4], %h1;"
    )
    assert kinds(body)[0] == []
    assert kinds(body.replace("shl.b32 %r5, %r2, 1", "mov.u32 %r5, 0"))[0] == ["race"]


def test_atomics_do_not_race_with_each_other_but_with_plain_accesses():
    start = (
        "setp.eq.u32 %p1, %r0, 0;\n@%p1 st.shared.u32 [buf], 0;\n{}"
        "atom.shared.add.u32 %r4, [buf], 1;\n{}ld.shared.u32 %r5, [buf];"
    )
    assert kinds(start.format("bar.sync 0;\n", "bar.sync 0;\n"))[0] == []
    assert kinds(start.format("", "bar.sync 0;\n"))[0] == ["lane-race", "race"]
    assert kinds(start.format("bar.sync 0;\n", ""))[0] == ["race"]


COPY = (
    "shl.b32 %r4, %r0, 4; mul.wide.u32 %rd4, %r0, 16; add.u64 %rd5, %rd1, %rd4; xor.b32 %r5, %r4, 512;\n"
    "cp.async.cg.shared.global [%r4], [%rd5], 16;\ncp.async.commit_group;\n"
)


@pytest.mark.parametrize("mode", ["late", "early"])
def test_a_copy_must_be_waited_for_by_its_warp_and_then_passed_on(mode):
    read = "ld.shared.v4.u32 {%r6, %r7, %r8, %r9}, [%r5];"
    wait, bar = "cp.async.wait_group 0;\n", "bar.sync 0;\n"
    assert kinds(COPY + wait + bar + read, async_mode=mode)[0] == []
    assert kinds(COPY + wait + read, async_mode=mode)[0] == ["race"]
    assert kinds(COPY + bar + read, async_mode=mode)[0] == ["async"]
    assert kinds(COPY + bar + wait + read, async_mode=mode)[0] == ["race"]


def test_a_copy_whose_target_is_not_accessed_need_not_be_waited_for():
    assert kinds(COPY)[0] == []


def test_overwriting_a_copy_in_flight():
    assert "async" in kinds(COPY + "st.shared.u32 [%r4], %r0;\ncp.async.wait_group 0;")[0]


def test_lanes_of_a_warp_in_the_strict_check():
    body = "{}xor.b32 %r4, %r1, 4;\nst.shared.u32 [%r1], %r0;\n{}ld.shared.u32 %r5, [%r4];"
    assert kinds(body.format("", ""), threads=32)[0] == []
    strict = (*warpsan.CHECKS, "strict")
    assert kinds(body.format("", ""), threads=32, checks=strict)[0] == ["lane-race"]
    assert kinds(body.format("", "bar.warp.sync -1;\n"), threads=32, checks=strict)[0] == []
    assert kinds(body.format("", "bar.sync 0;\n"), threads=64, checks=strict)[0] == []


def test_the_strict_check_sees_overwritten_reads():
    body = (
        "xor.b32 %r4, %r1, 4;\nst.shared.u32 [%r1], %r0;\nbar.warp.sync -1;\n"
        "ld.shared.u32 %r5, [%r4];\n{}st.shared.u32 [%r1], %r5;"
    )
    strict = (*warpsan.CHECKS, "strict")
    assert kinds(body.format(""), threads=32, checks=strict)[0] == ["lane-race"]
    assert kinds(body.format("bar.warp.sync -1;\n"), threads=32, checks=strict)[0] == []


def test_each_block_of_a_grid_has_its_own_order():
    assert kinds(STORE + "bar.sync 0;\n" + LOAD_OTHER, grid=600, threads=64)[0] == []


def test_of_two_operations_that_read_the_same_bytes_one_may_end_first():
    """Two bulk stores read one buffer; a wait for the first does not allow overwriting the second's source."""
    body = (
        "mul.wide.u32 %rd4, %r0, 16; add.u64 %rd5, %rd1, %rd4; setp.eq.u32 %p1, %r0, 0;\nmov.u32 %r6, 0;\n"
        "st.shared.u32 [%r1], %r0;\nfence.proxy.async;\nbar.sync 0;\n@!%p1 bra OUT;\n"
        "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r6], 128;\ncp.async.bulk.commit_group;\n"
        "cp.async.bulk.global.shared::cta.bulk_group [%rd1+512], [%r6], 128;\ncp.async.bulk.commit_group;\n"
        "cp.async.bulk.wait_group.read {};\nst.shared.u32 [%r6], 99;\ncp.async.bulk.wait_group 0;\nOUT:"
    )
    text = kernel(body).replace("sm_89", "sm_90a")
    for groups, expected in ((0, []), (1, ["async"])):
        report = warpsan.launch(text.replace("{}", str(groups)), "k", 1, 64, [np.zeros(4096, np.uint32)])
        assert [hazard.kind for hazard in report.hazards] == expected
