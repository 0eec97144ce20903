"""Memory orders, scopes and lanes: synchronization of threads without barriers."""

from itertools import product

import numpy as np
import pytest

import warpsan

pytestmark = pytest.mark.usefixtures("recorded_launches")

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
SCHEDULES = ("lockstep", "forward", "reverse", "random")


def program(body: str) -> str:
    """%r0 is the thread, %r1 the block, %r2 the lane; %rd1 is data, %rd2 flags; buf is shared."""
    return (
        HEAD + ".entry k(.param .u64 p, .param .u64 f)\n{\n.reg .b32 %r<20>; .reg .b64 %rd<9>; .reg .pred %p<9>;\n"
        ".shared .align 16 .b8 buf[512];\n"
        "ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [f];\n"
        "mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; and.b32 %r2, %r0, 31;\n"
        "mul.wide.u32 %rd3, %r0, 4; add.u64 %rd4, %rd1, %rd3;\n" + body + "\nret;\n}\n"
    )


def hazards(body: str, grid: int = 1, threads: int = 32, schedules: tuple[str, ...] = SCHEDULES, **options):
    reported = []
    for schedule in schedules:
        arrays = [np.zeros(1024, np.uint32), np.zeros(8, np.uint32)]
        reported += warpsan.launch(program(body), "k", grid, threads, arrays, schedule=schedule, **options).hazards
    return reported


def kinds(body: str, **options) -> set[str]:
    return {hazard.kind for hazard in hazards(body, **options)}


# ---- message passing -------------------------------------------------------------------------------------------------

PASSING = """setp.ne.u32 %p1, {who}, 0; @%p1 bra READER;
st.{space}.u32 [{data}], 7; {release}
st.relaxed.{scope}.{space}.u32 [{flag}], 1; bra END;
READER: setp.ne.u32 %p2, {who}, {reader}; @%p2 bra END;
WAIT: ld.relaxed.{scope}.{space}.u32 %r5, [{flag}]; setp.eq.u32 %p3, %r5, 0; @%p3 bra WAIT;
{acquire} ld.{space}.u32 %r6, [{data}]; END:"""
LEVELS = {"cta": 0, "cluster": 1, "gpu": 2, "sys": 3}


def passing(blocks: bool, release: str, acquire: str, scope: str, space: str = "global") -> str:
    """One thread passes a message to another, in another warp or in another block."""
    where = {"data": "%rd1", "flag": "%rd2"} if space == "global" else {"data": "buf", "flag": "buf+64"}
    who, reader = ("%r3", 128) if blocks else ("%r0", 32)
    begin = "shl.b32 %r3, %r1, 7; add.u32 %r3, %r3, %r0;\n" if blocks else ""
    zero = "" if space == "global" else "st.shared.u32 [buf+64], 0; bar.sync 0;\n"
    fences = {"release": release and f"fence.{release};", "acquire": acquire and f"fence.{acquire};"}
    return begin + zero + PASSING.format(who=who, reader=reader, scope=scope, space=space, **fences, **where)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize(("release", "acquire"), list(product(("", "cta", "gpu"), repeat=2)))
def test_a_message_needs_fences_that_reach_the_other_thread(blocks, release, acquire):
    """Release and acquire patterns: both fences need a scope that includes the other thread."""
    body = passing(blocks, release and f"acq_rel.{release}", acquire and f"acq_rel.{acquire}", "gpu")
    need = LEVELS["gpu"] if blocks else LEVELS["cta"]
    ordered = bool(release and acquire) and min(LEVELS[release], LEVELS[acquire]) >= need
    size = {"grid": 2, "threads": 32} if blocks else {"threads": 64}
    assert (kinds(body, schedules=("forward",), **size) == set()) == ordered


@pytest.mark.parametrize("scope", ["cta", "cluster", "gpu", "sys"])
def test_the_flag_itself_needs_a_scope_with_both_threads(scope):
    for blocks, size in ((False, {"threads": 64}), (True, {"grid": 2})):
        body = passing(blocks, "sc.sys", "sc.sys", scope)
        expected = set() if LEVELS[scope] >= (2 if blocks else 0) else {"race"}
        assert kinds(body, schedules=("forward",), **size) == expected


@pytest.mark.parametrize(
    ("write", "read", "ordered"),
    [("release", "acquire", True), ("release", "relaxed", False), ("relaxed", "acquire", False)],
)
def test_releases_and_acquires_need_no_fence(write, read, ordered):
    body = passing(True, "", "", "gpu").replace("st.relaxed", f"st.{write}").replace("ld.relaxed", f"ld.{read}")
    assert kinds(body, grid=2, schedules=("forward",)) == (set() if ordered else {"race"})


@pytest.mark.parametrize(("release", "ordered"), [("acq_rel.cta", True), ("", False)])
def test_a_flag_in_shared_memory_orders_warps_of_a_block(release, ordered):
    body = passing(False, release, "acq_rel.cta", "cta", "shared")
    assert kinds(body, threads=64) == (set() if ordered else {"race"})


LOCK = """setp.ne.u32 %p1, %r2, 0; @%p1 bra END;
GRAB: atom.{scope}{space}.cas.b32 %r5, [{lock}], 0, 1; setp.ne.u32 %p2, %r5, 0; @%p2 bra GRAB;
{after} ld.{space}.u32 %r6, [{data}]; add.u32 %r6, %r6, 1; st.{space}.u32 [{data}], %r6; {before}
atom.{scope}{space}.exch.b32 %r7, [{lock}], 0; END:"""


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize(
    ("after", "before", "ordered"),
    [("cta", "cta", True), ("", "cta", False), ("cta", "", False)],
)
def test_a_lock_between_warps_is_no_race_if_it_has_its_fences(space, after, before, ordered):
    fences = {"after": after and f"fence.acq_rel.{after};", "before": before and f"fence.acq_rel.{before};"}
    where = {"lock": "%rd2", "data": "%rd1"} if space == "global" else {"lock": "buf", "data": "buf+64"}
    body = LOCK.format(scope="", space=space, **fences, **where)
    if space == "shared":
        body = (
            "setp.eq.u32 %p3, %r0, 0; @%p3 st.shared.u32 [buf], 0; @%p3 st.shared.u32 [buf+64], 0; bar.sync 0;\n" + body
        )
    reported = kinds(body, threads=96)
    assert reported == (set() if ordered else {"race"})


def test_a_lock_of_blocks_needs_the_scope_of_the_gpu():
    body = LOCK.format(
        scope="SCOPE", space="global", after="fence.acq_rel.gpu;", before="fence.acq_rel.gpu;", lock="%rd2", data="%rd1"
    )
    assert kinds(body.replace("SCOPE", "gpu."), grid=3, schedules=("lockstep", "reverse")) == set()
    reported = hazards(body.replace("SCOPE", "cta."), grid=3, schedules=("lockstep", "reverse"))
    assert {hazard.kind for hazard in reported} == {"race"}
    assert any("each of the two must include the other's thread in its scope" in each.message for each in reported)


def test_what_a_reader_passes_on_comes_before_the_third():
    """Causality: block 0 to block 1 to block 2, through two flags."""
    body = """setp.ne.u32 %p1, %r2, 0; @%p1 bra END; setp.eq.u32 %p2, %r1, 1; @%p2 bra SECOND;
    setp.eq.u32 %p3, %r1, 2; @%p3 bra THIRD;
    st.global.u32 [%rd1], 7; st.release.gpu.global.u32 [%rd2], 1; bra END;
    SECOND: ld.acquire.gpu.global.u32 %r5, [%rd2]; setp.eq.u32 %p4, %r5, 0; @%p4 bra SECOND;
    st.{}.gpu.global.u32 [%rd2+4], 1; bra END;
    THIRD: ld.acquire.gpu.global.u32 %r5, [%rd2+4]; setp.eq.u32 %p4, %r5, 0; @%p4 bra THIRD;
    ld.global.u32 %r6, [%rd1]; END:"""
    assert kinds(body.format("release"), grid=3, schedules=("forward",)) == set()
    assert kinds(body.format("relaxed"), grid=3, schedules=("forward",)) == {"race"}


def test_a_thread_that_was_told_by_a_barrier_is_ordered_too():
    """Thread 0 waits for the flag, the barrier orders the other warp; without it, the warp is unordered."""
    body = """setp.ne.u32 %p1, %r1, 0; @%p1 bra READER; setp.ne.u32 %p2, %r0, 0; @%p2 bra END;
    st.global.u32 [%rd1], 7; st.release.gpu.global.u32 [%rd2], 1; bra END;
    READER: setp.ne.u32 %p3, %r0, 0; @%p3 bra MET;
    WAIT: ld.acquire.gpu.global.u32 %r5, [%rd2]; setp.eq.u32 %p4, %r5, 0; @%p4 bra WAIT;
    MET: {} ld.global.u32 %r6, [%rd1]; END:"""
    assert kinds(body.format("bar.sync 0;"), grid=2, threads=64, schedules=("forward",)) == set()
    assert kinds(body.format(""), grid=2, threads=64, schedules=("forward",)) == {"race"}


COUNTED = """mul.wide.u32 %rd5, %r1, 256; add.u64 %rd6, %rd4, %rd5; st.global.u32 [%rd6], 7; {writer}
bar.sync 0; setp.ne.u32 %p1, %r0, 0; @%p1 bra MET; atom.global.add.u32 %r5, [%rd2], 1; {counter}
st.shared.u32 [buf], %r5;
MET: bar.sync 0; ld.shared.u32 %r5, [buf]; setp.ne.u32 %p2, %r5, 2; @%p2 bra END; {reader}
ld.global.u32 %r6, [%rd4]; ld.global.u32 %r7, [%rd4+256]; END:"""


@pytest.mark.parametrize(
    ("writer", "counter", "reader", "ordered"),
    [
        ("membar.gl;", "", "membar.gl;", True),
        ("membar.gl;", "membar.gl;", "", True),
        ("fence.sc.gpu;", "", "fence.sc.gpu;", True),
        ("membar.gl;", "", "fence.acq_rel.gpu;", False),
        ("fence.acq_rel.gpu;", "", "membar.gl;", False),
        ("membar.cta;", "", "membar.gl;", False),
        ("membar.gl;", "", "membar.cta;", False),
        ("membar.gl;", "", "", False),
        ("", "", "membar.gl;", False),
    ],
)
def test_a_fence_before_the_barrier_covers_the_count_behind_it(writer, counter, reader, ordered):
    """All threads write and call __threadfence(), and after a barrier thread 0 counts: the last block reads the writes
    of all. By Fence-SC order that is no race if its readers, or thread 0, also have a fence.
    """
    body = COUNTED.format(writer=writer, counter=counter, reader=reader)
    assert (kinds(body, grid=3, threads=64, schedules=("lockstep", "reverse")) == set()) == ordered


@pytest.mark.parametrize(("second", "ordered"), [("st.relaxed", True), ("st", False)])
def test_a_release_also_covers_a_later_strong_write_to_its_place(second, ordered):
    """PTX ISA, "Release and Acquire Patterns": st.release [M]; st.relaxed [M]."""
    body = (
        passing(True, "", "", "gpu")
        .replace("ld.relaxed", "ld.acquire")
        .replace("setp.eq.u32 %p3, %r5, 0", "setp.ne.u32 %p3, %r5, 2")
    )
    store = "st.relaxed.gpu.global.u32 [%rd2], 1;"
    scope = ".gpu" if second == "st.relaxed" else ""
    body = body.replace(store, f"st.release.gpu.global.u32 [%rd2], 1; {second}{scope}.global.u32 [%rd2], 2;")
    assert (kinds(body, grid=2, schedules=("forward",)) == set()) == ordered


def test_volatile_is_relaxed_by_the_letter_and_data_on_request():
    body = "setp.eq.u32 %p1, %r2, 0; @%p1 st.volatile.global.u32 [%rd1], %r0;"
    assert kinds(body, threads=64) == set()
    assert kinds(body, threads=64, volatile="data") == {"race"}
    assert kinds("ld.volatile.global.u32 %r5, [%rd4];", threads=64, volatile="data") == set()
    reported = hazards(body, threads=64, volatile="data")
    assert {hazard.kind for hazard in reported} == {"race"}
    assert "by the letter of PTX they are relaxed operations" in reported[0].message
    with pytest.raises(warpsan.LaunchError, match="volatile is one of sync, data, not 'weak'"):
        hazards(body, volatile="weak")


PLAIN = ("ld.global.u32 %r5, [%rd1];", "st.global.u32 [%rd1], 9;")


@pytest.mark.parametrize(("plain", "first"), list(product(PLAIN, (0, 1))))
def test_an_atomic_races_with_a_plain_access_whichever_comes_first(plain, first):
    """Between two blocks, and between two warps of one block."""
    one = "setp.ne.u32 %p2, %r2, 0; @%p2 bra END;\n"
    body = f"setp.eq.u32 %p1, WHO, {first}; @%p1 bra ATOMIC; {plain} bra END;\n"
    body += "ATOMIC: red.global.add.u32 [%rd1], 1; END:"
    assert "race" in kinds(one + body.replace("WHO", "%r1"), grid=2, threads=1)
    assert "race" in kinds(one + "shr.u32 %r3, %r0, 5;\n" + body.replace("WHO", "%r3"), threads=64)


# ---- lanes -----------------------------------------------------------------------------------------------------------

DIVERGED = {
    "global": ("setp.eq.u32 %p1, %r2, 3; @%p1 st.global.u32 [%rd1], 7; {} ld.global.u32 %r5, [%rd1];", "ld.global"),
    "shared": ("setp.eq.u32 %p1, %r2, 3; @%p1 st.shared.u32 [buf], 7; {} ld.shared.u32 %r5, [buf];", "ld.shared"),
}


@pytest.mark.parametrize("space", DIVERGED)
def test_lanes_that_diverged_need_a_syncwarp(space):
    body, text = DIVERGED[space]
    reported = hazards(body.format(""))
    assert {(hazard.kind, hazard.text.startswith(text)) for hazard in reported} == {("lane-race", True)}
    assert "a missing __syncwarp() between them: the warp had diverged" in reported[0].message
    assert kinds(body.format("bar.warp.sync -1;")) == set()
    assert kinds(body.format("bar.sync 0;")) == set()


def test_syncwarp_orders_the_lanes_of_its_mask_alone():
    body = (
        "setp.eq.u32 %p1, %r2, 0; @%p1 st.shared.u32 [buf], 7;\nsetp.gt.u32 %p2, %r2, 15; @%p2 bra REST;\n"
        "bar.warp.sync 0xffff; ld.shared.u32 %r5, [buf]; bra END;\nREST: {} END:"
    )
    assert kinds(body.format("")) == set()
    assert kinds(body.format("ld.shared.u32 %r6, [buf];")) == {"lane-race"}


def test_lanes_that_run_together_are_compared_in_strict_only():
    body = "st.{0}.u32 [{1}], %r0; xor.b32 %r3, %r2, 1; {2} ld.{0}.u32 %r5, [{3}];"
    shared = body.format("shared", "%r4", "shl.b32 %r3, %r3, 2;", "%r3")
    shared = "shl.b32 %r4, %r2, 2;\n" + shared
    in_global = body.format("global", "%rd4", "mul.wide.u32 %rd5, %r3, 4; add.u64 %rd6, %rd1, %rd5;", "%rd6")
    for text in (shared, in_global):
        assert kinds(text) == set()
        assert kinds(text, checks=("race", "memory", "async", "strict")) == {"lane-race"}


@pytest.mark.parametrize("place", ["st.global.u32 [%rd1], {};", "st.shared.u32 [buf], {};"])
def test_lanes_of_one_instruction_write_different_values(place):
    assert kinds(place.format("%r2")) == {"lane-race"}
    assert kinds(place.format("5")) == set()


def test_equal_values_race_only_on_request():
    body = "setp.eq.u32 %p1, %r1, 0; st.global.u32 [%rd1], 5;"
    assert kinds(body, grid=2) == set()
    assert kinds(body, grid=2, threads=1, schedules=("forward",), checks=("race", "values")) == {"race"}


RETURNING = """setp.eq.u32 %p1, %r1, 1; @%p1 bra OTHER; setp.eq.u32 %p2, %r0, 0; @%p2 bra WRITER;
setp.ne.u32 %p2, %r0, {reader}; @%p2 bra END;
WAIT: ld.acquire.gpu.global.u32 %r5, [%rd2+4]; setp.eq.u32 %p3, %r5, 0; @%p3 bra WAIT;
ld.global.u32 %r6, [%rd1]; bra END;
WRITER: st.global.u32 [%rd1], 7; st.release.gpu.global.u32 [%rd2], 1; bra END;
OTHER: setp.ne.u32 %p2, %r0, 0; @%p2 bra END;
BETWEEN: ld.{acquire}.gpu.global.u32 %r5, [%rd2]; setp.eq.u32 %p3, %r5, 0; @%p3 bra BETWEEN;
st.release.gpu.global.u32 [%rd2+4], 1; END:"""


@pytest.mark.parametrize("reader", [32, 5])
@pytest.mark.parametrize("acquire", ["acquire", "relaxed"])
def test_what_comes_back_by_way_of_another_block_is_ordered(acquire, reader):
    """Thread 0 passes a message to another thread of its block (in its warp, or in another) through block 1."""
    reported = kinds(
        RETURNING.format(acquire=acquire, reader=reader), grid=2, threads=64, checks=warpsan.thorough_checks()
    )
    assert reported == (set() if acquire == "acquire" else {"race" if reader == 32 else "lane-race"})


# ---- order of blocks, polling ----------------------------------------------------------------------------------------


def test_blocks_run_backward_and_shuffled():
    """Each block appends its number: the order is that of the schedule."""
    body = "setp.ne.u32 %p1, %r0, 0; @%p1 bra END; atom.global.add.u32 %r5, [%rd2], 1;\n"
    body += "mul.wide.u32 %rd5, %r5, 4; add.u64 %rd6, %rd1, %rd5; st.global.u32 [%rd6], %r1; END:"
    orders = {}
    for schedule in SCHEDULES:
        data = np.zeros(1024, np.uint32)
        warpsan.launch(program(body), "k", 8, 32, [data, np.zeros(8, np.uint32)], schedule=schedule, checks=())
        orders[schedule] = data[:8].tolist()
    assert orders["lockstep"] == orders["forward"] == list(range(8))
    assert orders["reverse"] == list(range(8))[::-1]
    assert sorted(orders["random"]) == list(range(8)) != orders["random"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_polling_warp_lets_the_others_run(schedule):
    """Warp 1 waits for warp 0, and warp 0 for warp 1."""
    body = """setp.ge.u32 %p1, %r0, 32; @%p1 bra SECOND; setp.ne.u32 %p2, %r2, 0; @%p2 bra END;
    st.release.gpu.global.u32 [%rd2], 1;
    ONE: ld.acquire.gpu.global.u32 %r5, [%rd2+4]; setp.eq.u32 %p3, %r5, 0; @%p3 bra ONE; bra END;
    SECOND: setp.ne.u32 %p2, %r2, 0; @%p2 bra END;
    TWO: atom.acquire.gpu.global.add.u32 %r5, [%rd2], 0; setp.eq.u32 %p3, %r5, 0; @%p3 bra TWO;
    st.release.gpu.global.u32 [%rd2+4], 1; END:"""
    arrays = [np.zeros(1024, np.uint32), np.zeros(8, np.uint32)]
    report = warpsan.launch(program(body), "k", 1, 64, arrays, schedule=schedule, max_steps=2000)
    assert report.hazards == []


WAITS = """setp.ne.u32 %p1, %r0, 0; @%p1 bra END; setp.eq.u32 %p2, %r1, {0}; @%p2 bra SET;
WAIT: ld.acquire.gpu.global.u32 %r5, [%rd2]; setp.eq.u32 %p3, %r5, 0; @%p3 bra WAIT; bra END;
SET: st.release.gpu.global.u32 [%rd2], 1; END:"""


def test_a_wait_for_a_block_that_has_not_begun_is_reported():
    arrays = [np.zeros(1024, np.uint32), np.zeros(8, np.uint32)]
    with pytest.raises(warpsan.Deadlock, match="polls for what no thread that has begun can write any more") as raised:
        warpsan.launch(program(WAITS.format(2047)), "k", 2048, 128, arrays)
    assert {hazard.kind for hazard in raised.value.hazards} == {"progress"}
    assert warpsan.launch(program(WAITS.format(0)), "k", 2048, 128, arrays).hazards == []


def test_a_wait_for_nothing_is_a_deadlock():
    arrays = [np.zeros(1024, np.uint32), np.zeros(8, np.uint32)]
    with pytest.raises(warpsan.Deadlock, match="and so does every other that could run") as raised:
        warpsan.launch(program(WAITS.format(5)), "k", 2, 32, arrays)
    assert raised.value.hazards == ()


@pytest.mark.parametrize(("mask", "ordered"), [("0xff", True), ("0xf", False)])
def test_lanes_that_sync_together_with_other_masks_are_not_ordered(mask, ordered):
    """All lanes of a warp execute one bar.warp.sync, each for its group of eight or of four lanes."""
    body = (
        "shl.b32 %r3, %r2, 2; mov.u32 %r4, buf; add.u32 %r3, %r3, %r4; xor.b32 %r5, %r3, 16;\n"
        f"and.b32 %r6, %r2, {28 if mask == '0xf' else 24}; mov.u32 %r7, {mask}; shl.b32 %r7, %r7, %r6;\n"
        "st.shared.u32 [%r3], %r2; bar.warp.sync %r7; ld.shared.u32 %r8, [%r5];"
    )
    assert kinds(body, checks=warpsan.thorough_checks()) == (set() if ordered else {"lane-race"})


@pytest.mark.parametrize("space", [".global", ""])
def test_blocks_that_pass_something_on_go_in_other_orders_than_together(space):
    """Block 1 takes the flag without an acquire, if block 0 has set it; reversed, block 1 runs first."""
    body = f"""setp.ne.u32 %p1, %r2, 0; @%p1 bra END; setp.eq.u32 %p2, %r1, 1; @%p2 bra SECOND;
    st.global.u32 [%rd1], 7; st.release.gpu{space}.u32 [%rd2], 1; bra END;
    SECOND: ld.relaxed.gpu{space}.u32 %r5, [%rd2]; setp.eq.u32 %p3, %r5, WHEN; @%p3 bra END;
    ld.global.u32 %r6, [%rd1]; END:"""
    for when, schedule in ((0, "forward"), (1, "reverse")):
        reported = kinds(body.replace("WHEN", str(when)), grid=2, schedules=(schedule,))
        assert reported == {"race"}, schedule
        other = "reverse" if schedule == "forward" else "forward"
        assert kinds(body.replace("WHEN", str(when)), grid=2, schedules=(other,)) == set()


@pytest.mark.parametrize(("load", "clean"), [("ld.global", True), ("ld.global.nc", False)])
def test_a_load_that_is_not_coherent_must_not_read_what_the_kernel_has_written(load, clean):
    body = "st.global.u32 [%rd4], %r0; bar.sync 0; xor.b32 %r3, %r0, 32; mul.wide.u32 %rd5, %r3, 4;\n"
    body += f"add.u64 %rd6, %rd1, %rd5; {load}.u32 %r5, [%rd6]; {load}.u32 %r6, [%rd2];"
    reported = hazards(body, threads=64)
    assert {hazard.kind for hazard in reported} == (set() if clean else {"race"})
    assert all("reads through a cache that is not coherent what st.global.u32" in each.message for each in reported)
