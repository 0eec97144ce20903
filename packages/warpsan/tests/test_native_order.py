"""Communication between blocks through global memory."""

from __future__ import annotations

import random

import numpy as np
import pytest

import warpsan
from recorded import Recorded

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
BLOCKS, THREADS = 4, 64

LAST_BLOCK = """.entry k(.param .u64 a) { .reg .b64 %rd<8>; .reg .b32 %r<12>; .reg .pred %p<4>; .shared .u32 s;
    ld.param.u64 %rd1, [a]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mov.u32 %r3, %ntid.x;
    mad.lo.u32 %r4, %r1, %r3, %r2; mul.wide.u32 %rd2, %r4, 4; add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3+1024], %r4; bar.sync 0; setp.ne.u32 %p0, %r2, 0; @%p0 bra W;
    FENCE atom.global.inc.u32 %r5, [%rd1], 3; FENCE st.shared.u32 [s], %r5;
    W: bar.sync 0; ld.shared.u32 %r5, [s]; setp.ne.u32 %p1, %r5, 3; @%p1 bra X;
    mov.u32 %r6, 0; mov.u32 %r7, 0; mul.wide.u32 %rd4, %r2, 4; add.u64 %rd4, %rd1, %rd4;
    L: ld.READ.u32 %r8, [%rd4+1024]; add.u32 %r6, %r6, %r8; add.u64 %rd4, %rd4, 256; add.u32 %r7, %r7, 1;
    setp.lt.u32 %p2, %r7, 4; @%p2 bra L; mul.wide.u32 %rd4, %r2, 4; add.u64 %rd4, %rd1, %rd4;
    st.global.u32 [%rd4+512], %r6; X: ret; }"""
"""Every block writes its part; the last one, by a ticket, sums them up."""

TURNS = """.entry k(.param .u64 a) { .reg .b64 %rd<8>; .reg .b32 %r<12>; .reg .pred %p<4>;
    ld.param.u64 %rd1, [a]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; setp.ne.u32 %p0, %r2, 0; @%p0 bra W;
    L: ld.READ.gpu.global.u32 %r3, [%rd1]; setp.ne.u32 %p1, %r3, %r1; @%p1 bra L;
    W: bar.sync 0; mul.wide.u32 %rd2, %r2, 4; add.u64 %rd3, %rd1, %rd2;
    ld.global.u32 %r4, [%rd3+512]; add.u32 %r4, %r4, %r1; st.global.u32 [%rd3+512], %r4;
    bar.sync 0; @%p0 bra X; add.u32 %r5, %r1, 1; st.WRITE.gpu.global.u32 [%rd1], %r5; X: ret; }"""
"""Each block waits for the previous one, modifies memory, and releases the next one."""

IN_VAIN = """.entry k(.param .u64 a) { .reg .b64 %rd<3>; .reg .b32 %r<5>; .reg .pred %p<3>;
    ld.param.u64 %rd1, [a]; mov.u32 %r1, %ctaid.x; setp.ne.u32 %p0, %r1, 0; @%p0 bra SET;
    L: ld.acquire.gpu.global.u32 %r3, [%rd1]; setp.eq.u32 %p1, %r3, 0; @%p1 bra L; ret;
    SET: st.release.gpu.global.u32 [%rd1], 1; ret; }"""
"""The first block waits for a later one."""

CHAIN = """.entry k(.param .u64 a) { .reg .b64 %rd<3>; .reg .b32 %r<5>; .reg .pred %p<3>;
    ld.param.u64 %rd1, [a]; mov.u32 %r1, %ctaid.x; setp.eq.u32 %p0, %r1, 0; @!%p0 bra SECOND;
    st.global.u32 [%rd1], 1; atom.release.gpu.global.add.u32 %r2, [%rd1+128], 1; ret;
    SECOND: setp.eq.u32 %p0, %r1, 1; @!%p0 bra THIRD; MIDDLE ret;
    THIRD: setp.eq.u32 %p0, %r1, 2; @!%p0 bra END; atom.acquire.gpu.global.add.u32 %r2, [%rd1+256], 0;
    ld.global.u32 %r3, [%rd1]; st.global.u32 [%rd1+384], %r3; END: ret; }"""
"""The second block forwards data of the first to the third, or does not."""
ACQUIRE, RELEASE = (
    f"atom.{order}.gpu.global.add.u32 %r2, [%rd1+{place}], 1;" for order, place in (("acquire", 128), ("release", 256))
)


def outcome_of(body: str, *, schedule: str = "lockstep", threads: int = THREADS) -> tuple[list[str], np.ndarray]:
    """Hazard kinds of a launch, and the final memory."""
    array = np.zeros(1024, np.uint32)
    report = warpsan.launch(HEAD + body, "k", BLOCKS, threads, [array], schedule=schedule)
    return [hazard.kind for hazard in report.hazards], array


@pytest.mark.parametrize(
    ("fence", "ordered"),
    [("membar.gl;", True), ("fence.acq_rel.gpu;", True), ("fence.sc.sys;", True), ("membar.cta;", False), ("", False)],
)
@pytest.mark.parametrize("read", ["global", "volatile.global", "relaxed.gpu.global"])
def test_the_last_block_comes_after_all_others_if_fences_say_so(fence: str, ordered: bool, read: str) -> None:
    kinds, array = outcome_of(LAST_BLOCK.replace("FENCE", fence).replace("READ", read))
    assert kinds == ([] if ordered else ["race"])
    assert (array[128 : 128 + THREADS] == sum(64 * block + np.arange(THREADS) for block in range(BLOCKS))).all()


@pytest.mark.parametrize("read", ["acquire", "relaxed"])
@pytest.mark.parametrize("write", ["release", "relaxed"])
def test_blocks_take_turns_by_a_flag(read: str, write: str) -> None:
    kinds, array = outcome_of(TURNS.replace("READ", read).replace("WRITE", write))
    ordered = (read, write) == ("acquire", "release")
    assert set(kinds) == (set() if ordered else {"race"})
    assert (array[128 : 128 + THREADS] == sum(range(BLOCKS))).all()


def test_a_block_may_wait_for_a_later_one() -> None:
    """Its first wait is unsuccessful; then the blocks alternate."""
    assert outcome_of(IN_VAIN, threads=32)[0] == []
    assert outcome_of(TURNS.replace("READ", "acquire").replace("WRITE", "release"), schedule="reverse")[0] == []


LOCK = """.entry k(.param .u64 a) { .reg .b64 %rd<3>; .reg .b32 %r<6>; .reg .pred %p<3>;
    ld.param.u64 %rd1, [a]; mov.u32 %r1, %tid.x; setp.ne.u32 %p0, %r1, 0; @%p0 bra END; mov.u32 %r4, -1;
    mov.u32 %r5, %ctaid.x; L: add.u32 %r4, %r4, 1; atom.acquire.gpu.global.exch.b32 %r2, [%rd1], 1;
    setp.ne.u32 %p1, %r2, 0; @%p1 bra L;
    COUNT ld.global.u32 %r3, [%rd1+128]; add.u32 %r3, %r3, 1; bar.warp.sync 1; st.global.u32 [%rd1+128], %r3;
    st.WRITE.gpu.global.u32 [%rd1], 0; END: ret; }"""


@pytest.mark.parametrize("blocks", [4, 6])
@pytest.mark.parametrize("write", ["release", "relaxed"])
def test_blocks_meet_at_a_lock_in_a_random_order(write: str, blocks: int) -> None:
    """Four blocks run together, then the remaining ones."""
    array, ordered = np.zeros(64, np.uint32), write == "release"
    ptx = HEAD + LOCK.replace("WRITE", write).replace("COUNT", "")
    report = warpsan.launch(ptx, "k", blocks, 32, [array], schedule="random")
    assert {hazard.kind for hazard in report.hazards} == (set() if ordered else {"race"})
    assert array[32] == blocks


def test_some_blocks_find_a_lock_taken_in_a_random_order_alone() -> None:
    """Each block stores its number of failed attempts."""
    tries = "mul.wide.u32 %rd2, %r5, 4; add.u64 %rd2, %rd2, %rd1; st.global.u32 [%rd2+64], %r4;"
    for schedule in ("forward", "random"):
        array = np.zeros(64, np.uint32)
        body = HEAD + LOCK.replace("WRITE", "release").replace("COUNT", tries)
        warpsan.launch(body, "k", 4, 32, [array], schedule=schedule)
        assert bool(array[16:20].any()) == (schedule == "random")


def test_blocks_that_wait_for_each_other_run_together_in_a_random_order() -> None:
    body = TURNS.replace("READ", "acquire").replace("WRITE", "release")
    assert outcome_of(body, schedule="random")[0] == []


@pytest.mark.parametrize(("middle", "ordered"), [(ACQUIRE + RELEASE, True), (RELEASE + ACQUIRE, False)])
def test_a_block_passes_on_what_it_has_acquired_before_its_release_alone(middle: str, ordered: bool) -> None:
    kinds, _ = outcome_of(CHAIN.replace("MIDDLE", middle), threads=1)
    assert kinds == ([] if ordered else ["race"])


@pytest.mark.usefixtures("recorded_launches")
def test_what_several_warps_have_read_may_be_written_after_a_barrier() -> None:
    body = """.entry k(.param .u64 a) { .reg .b64 %rd<8>; .reg .b32 %r<8>;
    ld.param.u64 %rd1, [a]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mul.wide.u32 %rd2, %r2, 256;
    add.u64 %rd1, %rd1, %rd2; xor.b32 %r3, %r1, 32; mul.wide.u32 %rd3, %r1, 4; add.u64 %rd3, %rd1, %rd3;
    mul.wide.u32 %rd4, %r3, 4; add.u64 %rd4, %rd1, %rd4; ld.global.u32 %r4, [%rd3]; ld.global.u32 %r5, [%rd4];
    BETWEEN add.u32 %r5, %r5, %r1; st.global.u32 [%rd3], %r5; ret; }"""
    assert outcome_of(body.replace("BETWEEN", "bar.sync 0;"))[0] == []
    assert outcome_of(body.replace("BETWEEN", ""))[0] == ["race"]


ORDERS = ("relaxed", "acquire", "release", "acq_rel")


def random_program(draw: random.Random, warps: int, phases: int, scopes: tuple[str, ...] = ("gpu",)) -> str:
    """In each phase the first thread of every warp makes up to three accesses; block barriers separate the phases."""
    code = [
        HEAD,
        ".entry k(.param .u64 a) { .reg .u64 %rd<2>; .reg .u32 %r<7>; .reg .pred %p, %q; ld.param.u64 %rd1, [a];"
        "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; shr.u32 %r3, %r2, 5;"
        f"mad.lo.u32 %r4, %r1, {warps}, %r3; and.b32 %r5, %r2, 31; setp.eq.u32 %q, %r5, 0;",
    ]
    for phase in range(phases):
        for warp in range(3 * warps):
            code.append(f"setp.ne.u32 %p, %r4, {warp}; @%p bra N{phase}_{warp};")
            for _ in range(draw.randrange(4)):
                data, flag = f"[%rd1+{128 * draw.randrange(3)}]", f"[%rd1+{1024 + 128 * draw.randrange(3)}]"
                scope = draw.choice(scopes)
                accesses = (
                    f"st.global.u32 {data}, {draw.randrange(99)}",
                    f"ld.global.u32 %r6, {data}",
                    f"ld.{draw.choice(('relaxed', 'acquire'))}.{scope}.global.u32 %r6, {flag}",
                    f"st.{draw.choice(('relaxed', 'release'))}.{scope}.global.u32 {flag}, {draw.randrange(99)}",
                    f"st.volatile.global.u32 {flag}, {draw.randrange(99)}",
                    f"atom.{draw.choice(ORDERS)}.{scope}.global.add.u32 %r6, {flag}, 3",
                    f"red.{draw.choice(('relaxed', 'release'))}.{scope}.global.add.u32 {flag}, 5",
                    draw.choice(("membar.gl", "fence.acq_rel.gpu", "membar.cta")),
                )
                code.append(f"@%q {draw.choice(accesses)};")
            code.append(f"N{phase}_{warp}:")
        code.append("bar.sync 0;" if phase + 1 < phases else "ret; }")
    return "\n".join(code)


@pytest.mark.parametrize("scopes", [("gpu",), ("gpu", "cta", "cta")], ids=["gpu", "narrow"])
@pytest.mark.parametrize("first", [0, pytest.param(40, marks=pytest.mark.slow)])
def test_random_programs_race_as_recorded(first: int, scopes: tuple[str, ...], recorded: Recorded) -> None:
    """Blocks run in sequence. With narrow scopes, the warps belong to one block in most programs."""
    outcomes: dict[int, set[str]] = {}
    for seed in range(first, first + (12 if first == 0 else 200)):
        draw = random.Random(seed)
        warps = draw.choice((1, 2))
        program = random_program(draw, warps, draw.choice((1, 2, 3)), scopes)
        shape = (1, 96 * warps) if len(scopes) > 1 and draw.randrange(4) else (3, 32 * warps)
        report = warpsan.launch(program, "k", *shape, [np.zeros(512, np.uint32)], schedule="forward", workers=1)
        outcomes[seed] = {each.kind for each in report.hazards}
    recorded.check([seed for seed, kinds in outcomes.items() if kinds])
    assert all(kinds <= {"race"} for kinds in outcomes.values())
    assert sum(not kinds for kinds in outcomes.values()) > 3
