"""Hazards of communication through memory: locks, flags, counters, fences and the barrier of a grid."""

from __future__ import annotations

import numpy as np
import pytest

import test_native_order as order
import warpsan
from hopper_snippets import CTA_WAIT, kernel
from outcomes import alike, digest
from recorded import Recorded
from test_dynamic_code import OUT, PARAMS, REPLACE
from test_scopes import LOCK, WAITS, passing, program
from warpsan.planting import replace_once

SCHEDULES = ("lockstep", "forward", "reverse", "random")
IN_ORDER = ("lockstep", "forward")
"""Schedules with blocks in grid order."""


def outcome(ptx: str, grid: int, threads: int, **options: object) -> tuple[str, list[warpsan.Hazard], list[int]]:
    """Exception of a launch, if any; its hazards; and the final memory."""
    arrays = [np.zeros(1024, np.uint32), np.zeros(8, np.uint32)][: ptx.count(".param .u64")]
    try:
        report = warpsan.launch(ptx, "k", grid, threads, arrays, max_steps=200_000, **options)
    except warpsan.SimError as error:
        return f"{type(error).__name__}: {error}".split("; before that")[0], list(error.hazards), []
    return "", report.hazards, arrays[0].tolist()


def check(recorded: Recorded, ptx: str, grid: int, threads: int, *, memory: bool = True, **options: object) -> None:
    """Compare the hazards and the final memory of a launch with the records."""
    error, hazards, left = outcome(ptx, grid, threads, **options)
    assert hazards
    recorded.check([error, alike(hazards), *([digest(np.array(left, np.uint32))] if memory else [])])


# ---- patterns of synchronisation -------------------------------------------------------------------------------------

BETWEEN_BLOCKS = {
    "the last block, without fences": order.LAST_BLOCK.replace("FENCE", "").replace("READ", "global"),
    "the last block, with narrow fences": order.LAST_BLOCK.replace("FENCE", "membar.cta;").replace("READ", "global"),
    "turns, without a release": order.TURNS.replace("READ", "acquire").replace("WRITE", "relaxed"),
    "turns, without an acquire": order.TURNS.replace("READ", "relaxed").replace("WRITE", "release"),
    "a chain that is passed on too early": order.CHAIN.replace("MIDDLE", order.RELEASE + order.ACQUIRE),
    "a lock that is released too weakly": order.LOCK.replace("WRITE", "relaxed").replace("COUNT", ""),
}


def threads_of(body: str) -> int:
    """Threads of a block; one in the chain, where all would write the same."""
    return 1 if "THIRD" in body else order.THREADS


@pytest.mark.parametrize("schedule", IN_ORDER)
@pytest.mark.parametrize("name", BETWEEN_BLOCKS)
def test_hazards_between_blocks(name: str, schedule: str, recorded: Recorded) -> None:
    body = BETWEEN_BLOCKS[name]
    check(recorded, order.HEAD + body, order.BLOCKS, threads_of(body), schedule=schedule)


@pytest.mark.parametrize("blocks", [False, True], ids=["warps", "blocks"])
@pytest.mark.parametrize(("release", "acquire"), [("", "acq_rel.gpu"), ("acq_rel.gpu", ""), ("acq_rel.cta", "")])
def test_messages_without_a_fence(release: str, acquire: str, blocks: bool, recorded: Recorded) -> None:
    body = program(passing(blocks, release, acquire, "gpu"))
    for schedule in SCHEDULES if not blocks else IN_ORDER:
        check(recorded, body, 2 if blocks else 1, 32 if blocks else 64, schedule=schedule)


@pytest.mark.parametrize("schedule", IN_ORDER)
@pytest.mark.parametrize(("after", "before"), [("", "fence.acq_rel.cta;"), ("fence.acq_rel.cta;", "")])
def test_a_lock_between_warps_without_a_fence(after: str, before: str, schedule: str, recorded: Recorded) -> None:
    body = LOCK.format(scope="", space="global", after=after, before=before, lock="%rd2", data="%rd1")
    check(recorded, program(body), 1, 96, schedule=schedule)


LOCK_OF_LANES = """L: atom.global.cas.b32 %r5, [%rd2], 0, 1; setp.ne.u32 %p1, %r5, 0; @%p1 bra M;
AFTER ld.global.u32 %r6, [%rd1]; add.u32 %r6, %r6, 1; st.global.u32 [%rd1], %r6; BEFORE
atom.global.exch.b32 %r7, [%rd2], 0; M: @%p1 bra L;"""


@pytest.mark.sample
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("after", "before"), [("membar.gl;", "membar.gl;"), ("", "membar.gl;"), ("membar.gl;", "")])
def test_a_lock_of_lanes_with_and_without_its_fences(after: str, before: str, schedule: str) -> None:
    """64 lanes of each block count in sequence: fences also order the lanes of a warp."""
    ptx, ordered = program(LOCK_OF_LANES.replace("AFTER", after).replace("BEFORE", before)), bool(after and before)
    error, hazards, memory = outcome(ptx, 2, 64, schedule=schedule)
    assert (error, memory[0]) == ("", 128)
    assert {each.kind for each in hazards} == (set() if ordered else {"race", "lane-race"})


def test_hazards_of_a_lock_of_lanes(recorded: Recorded) -> None:
    check(recorded, program(LOCK_OF_LANES.replace("AFTER", "").replace("BEFORE", "membar.gl;")), 1, 40)


def test_what_lanes_pass_on_by_way_of_another_block_is_ordered() -> None:
    """A lane of block 0 writes and sets a flag; block 1 answers; another lane of the same warp, which waited for the
    answer separately, reads.
    """
    body = """setp.ne.u32 %p0, %r1, 0; @%p0 bra B; setp.eq.u32 %p1, %r2, 0; @%p1 bra W; setp.ne.u32 %p2, %r2, 5;
    @%p2 bra END; R: ld.acquire.gpu.global.u32 %r5, [%rd2+4]; setp.eq.u32 %p3, %r5, 0; @%p3 bra R;
    ld.global.u32 %r6, [%rd1]; bra END; W: st.global.u32 [%rd1], 7; st.ORDER.gpu.global.u32 [%rd2], 1; bra END;
    B: setp.ne.u32 %p1, %r2, 0; @%p1 bra END;
    S: ld.acquire.gpu.global.u32 %r5, [%rd2]; setp.eq.u32 %p3, %r5, 0; @%p3 bra S;
    st.release.gpu.global.u32 [%rd2+4], 1; END:"""
    for write, expected in (("release", set()), ("relaxed", {"lane-race"})):
        _, hazards, _ = outcome(program(body.replace("ORDER", write)), 2, 32)
        assert {each.kind for each in hazards} == expected


# ---- the barrier of a grid -------------------------------------------------------------------------------------------

GRID_BARRIER = """mov.u32 %r9, %ntid.x; mad.lo.u32 %r3, %r1, %r9, %r0; mul.wide.u32 %rd5, %r3, 4;
add.u64 %rd6, %rd1, %rd5; st.global.u32 [%rd6], %r3; bar.sync 0; setp.ne.u32 %p1, %r0, 0; @%p1 bra HERE;
FENCE red.relaxed.gpu.global.add.u32 [%rd2], 1;
WAIT: ld.relaxed.gpu.global.u32 %r5, [%rd2]; setp.lt.u32 %p2, %r5, 3; @%p2 bra WAIT; FENCE
HERE: bar.sync 0; sub.u32 %r6, 95, %r3; mul.wide.u32 %rd5, %r6, 4; add.u64 %rd6, %rd1, %rd5;
ld.global.u32 %r7, [%rd6];"""
"""Three blocks of 32 threads write, synchronize, and read the writes of others."""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_barrier_of_the_grid_needs_its_fences(schedule: str) -> None:
    for cooperative in (True, False):
        for fence in ("fence.acq_rel.gpu;", "fence.acq_rel.cta;", ""):
            ptx = program(GRID_BARRIER.replace("FENCE", fence))
            error, hazards, memory = outcome(ptx, 3, 32, schedule=schedule, cooperative=cooperative)
            assert (error, memory[:96]) == ("", list(range(96)))
            assert {each.kind for each in hazards} == (set() if "gpu" in fence else {"race"})


def test_hazards_of_a_cooperative_launch(recorded: Recorded) -> None:
    check(recorded, program(GRID_BARRIER.replace("FENCE", "")), 3, 32, cooperative=True)


# ---- blocks that wait ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_block_may_wait_for_a_later_one(schedule: str) -> None:
    assert outcome(program(WAITS.format(3)), 4, 32, schedule=schedule)[:2] == ("", [])


def test_a_wait_for_a_block_that_has_not_begun(recorded: Recorded) -> None:
    check(recorded, program(WAITS.format(2047)), 2048, 128)


def test_a_wait_for_nothing_ends(recorded: Recorded) -> None:
    ending, *_ = outcome(program(WAITS.format(5)), 2, 32)
    assert ending.startswith("Deadlock: thread (0, 0, 0) of block (0, 0, 0) polls for what")
    recorded.check(ending)


# ---- instructions with special writes --------------------------------------------------------------------------------

TILES = """.entry k(.param .u64 p) { .reg .b64 %rd<3>; .reg .b32 %r<9>; .reg .f32 %f<9>; ld.param.u64 %rd1, [p];
mov.u32 %r1, %tid.x; shr.u32 %r1, %r1, 5; cvt.rn.f32.u32 %f0, %r1; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
mov.f32 %f4, %f0; mov.f32 %f5, %f0; mov.f32 %f6, %f0; mov.f32 %f7, %f0; mul.wide.u32 %rd2, %r1, APART;
add.u64 %rd1, %rd1, %rd2; wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd1], {%f0,%f1,%f2,%f3,%f4,%f5,%f6,%f7};
ret; }"""
"""Each warp writes a tile filled with its number."""
LINES = """.entry k(.param .u64 p) { .reg .b64 %rd<3>; .reg .b32 %r<3>; .reg .pred %p; ld.param.u64 %rd1, [p];
mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd2, %rd1, %rd2; setp.lt.u32 %p, %r1, 32;
@!%p st.global.u32 [%rd2-128], %r1; bar.sync 0; setp.ne.u32 %p, %r1, 0; @%p bra END; discard.global.L2 [%rd1], 128;
END: ret; }"""
"""The second warp writes a line, and the first one discards it."""


def test_tiles_of_several_warps_that_overlap(recorded: Recorded) -> None:
    overlapping = order.HEAD + TILES.replace("APART", "64")
    check(recorded, overlapping, 1, 64, memory=False)  # the last store wins, in any order
    assert outcome(order.HEAD + TILES.replace("APART", "1024"), 1, 64)[:2] == ("", [])


def test_a_line_that_is_discarded_without_a_barrier(recorded: Recorded) -> None:
    check(recorded, order.HEAD + replace_once(LINES, ("bar.sync 0;", "")), 1, 64)
    assert outcome(order.HEAD + LINES, 1, 64)[:2] == ("", [])


SECOND_MAP = """bar.warp.sync -1; add.u64 %rd8, %rd5, 64;
@%p1 tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r8], %rd8; bar.warp.sync -1;
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd6], [%r8], 128;
fence.proxy.tensormap::generic.acquire.gpu [%rd6], 128; bar.sync 0;
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 1024; add.u32 %r9, %r1, 4096;
@%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r9], [%rd6, {0, 4}], [%r2];
"""
"""The kernel modifies its map again: a second copy reads the other half of each row."""
WRITE = "@%p1 st.global.u32 [%rd5+576], 7;\n"
"""A write to the other half."""
FIRST_WAIT, SECOND_WAIT = (CTA_WAIT.format(number, "%r2", number) for number in range(2))
CHANGED_MAPS = {
    "no wait": REPLACE + OUT,
    "no proxy fence, and the second copy reads": replace_once(
        REPLACE + FIRST_WAIT + SECOND_MAP + SECOND_WAIT + OUT, ("@%p1 mbarrier.init", f"{WRITE}@%p1 mbarrier.init")
    ),
}


@pytest.mark.parametrize("name", CHANGED_MAPS)
def test_hazards_of_copies_by_a_tensor_map_that_the_kernel_changes(name: str, recorded: Recorded) -> None:
    """The map's value at the copy determines the accesses."""
    text = kernel(CHANGED_MAPS[name], PARAMS).replace(".version 8.0", ".version 8.5")
    first, second = (np.arange(64 * 32, dtype=np.float16).reshape(64, 32) + add for add in (0, 1))
    args = [warpsan.TensorMap(first, (16, 32)), np.zeros(4096, np.uint32), second, np.zeros(128, np.uint8)]
    hazards = warpsan.launch(text, "k", 1, 32, args).hazards
    assert {each.kind for each in hazards} == {"async" if name == "no wait" else "proxy"}
    assert len(hazards) == 1 or name == "no wait"
    recorded.check(alike(hazards))


@pytest.mark.parametrize("name", BETWEEN_BLOCKS)
def test_the_report_is_the_same_every_time_and_for_any_number_of_threads(name: str) -> None:
    body = BETWEEN_BLOCKS[name]
    reports = []
    for workers in (1, 2, 3, 3):
        arrays = [np.zeros(1024, np.uint32)]
        ptx, threads = order.HEAD + body, threads_of(body)
        reports.append(warpsan.launch(ptx, "k", 7, threads, arrays, schedule="random", workers=workers))
    assert reports[0].hazards
    assert all(report.hazards == reports[0].hazards for report in reports)
