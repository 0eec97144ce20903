"""Recorded hazards of each kind with their places, equal for any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

import warpsan
from hazard_bugs import PAIRS, Pair
from outcomes import alike
from recorded import Recorded
from source_bugs import BUGS, Edit
from source_programs import DEVICE, PROGRAMS
from warpsan.build.builder import build
from warpsan.build.source import Module
from warpsan.planting import replace_once

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
THREADS = 64
EXCHANGE = (
    HEAD
    + """.entry k(.param .u64 out) {{ .reg .b32 %r<9>; .reg .b64 %rd<4>; .reg .pred %p<3>; .shared .b32 s[{words}];
    mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.u32 %r3, s; add.u32 %r4, %r3, %r2; setp.lt.u32 %p1, %r1, 40;
    {write}
    {between}
    xor.b32 %r5, %r2, {other}; add.u32 %r6, %r3, %r5; ld.shared.u32 %r7, [%r6];
    ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2; {store} ret; }}"""
)
OF_BLOCKS = {"result of other blocks without an atomic"}
"""Bugs in which a racing value decides control flow, so that the block order matters: only the kinds are recorded."""


def exchange(
    *,
    write: str = "st.shared.u32 [%r4], %r1;",
    between: str = "bar.sync 0;",
    other: int = 252,
    store: str = "st.global.u32 [%rd3], %r7;",
    words: int = THREADS,
    size: int = THREADS,
    grid: int = 1,
    **options: object,
) -> tuple[np.ndarray, warpsan.Report]:
    """Each thread passes its number to the opposite thread of the block."""
    out = np.zeros(size, np.uint32)
    ptx = EXCHANGE.format(write=write, between=between, other=other, store=store, words=words)
    return out, warpsan.launch(ptx, "k", grid, THREADS, [out], **options)  # type: ignore[arg-type]


ILLEGAL = {
    "a tile that is too short": {"words": THREADS // 2},
    "an output that is too short": {"size": THREADS // 2},
    "reads that are misaligned": {"other": 2},
    "stores that are misaligned": {"store": "st.global.u32 [%rd3+1], %r7;"},
    "a vector beyond the end": {
        "store": "mul.wide.u32 %rd2, %r1, 16; add.u64 %rd3, %rd1, %rd2; st.global.v4.u32 [%rd3], {%r7, %r7, %r7, %r7};"
    },
    "a null pointer": {"store": "st.global.u32 [%rd2], %r7;"},
    "a wild pointer": {"store": "shl.b64 %rd3, %rd3, 8; st.global.u32 [%rd3], %r7;"},
    "a generic address": {"size": 40, "store": "st.u32 [%rd3], %r7;"},
    "an atomic operation": {"size": 40, "store": "red.global.add.u32 [%rd3], %r7;"},
    "a copy": {
        "size": 40,
        "store": "cp.async.ca.shared.global [%r4], [%rd3], 4; cp.async.wait_all; bar.sync 0; ld.shared.u32 %r8, [%r4];"
        "@%p1 st.global.u32 [%rd3], %r8;",
    },
}
RACES = {
    "no barrier": {"between": ""},
    "a barrier for one warp": {"between": "bar.warp.sync -1;"},
    "a write behind the barrier": {"between": "bar.sync 0; st.shared.u32 [%r4], 7;"},
    "all threads write a place": {"between": "bar.sync 0; st.shared.u32 [s+128], %r1; bar.sync 0;"},
    "all threads write their number": {"store": "st.global.u32 [%rd1], %r7;"},
    "blocks write a place": {"store": "mov.u32 %r8, %ctaid.x; st.global.u32 [%rd3], %r8;", "grid": 3},
    "an atomic operation after a write": {"between": "bar.sync 0; atom.shared.add.u32 %r8, [s+4], 1;"},
    "lanes that have diverged": {
        "between": "bar.sync 0; @%p1 bra L; st.shared.u32 [s+160], %r1; L: setp.eq.u32 %p2, %r1, 32;"
        "@%p2 ld.shared.u32 %r8, [s+160];",
    },
    "a copy that nobody waits for": {
        "between": "ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2; bar.sync 0;"
        "cp.async.ca.shared.global [%r4], [%rd3], 4; cp.async.commit_group; cp.async.wait_group 1; bar.sync 0;",
    },
    "copies of parts of words without a barrier": {
        "write": "ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2; and.b32 %r8, %r1, 3;"
        "cp.async.ca.shared.global [%r4], [%rd3], 4, %r8; cp.async.wait_all;",
        "between": "",
        "store": "add.u32 %r7, %r7, 5; st.global.u32 [%rd3], %r7;",
    },
    "copies of parts of words that another block writes": {
        "write": "ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2; and.b32 %r8, %r1, 3;"
        "mov.u32 %r6, %ctaid.x; setp.eq.u32 %p2, %r6, 0; @%p2 st.shared.u32 [%r4], %r1;"
        "@!%p2 cp.async.ca.shared.global [%r4], [%rd3], 4, %r8; cp.async.wait_all;",
        "store": "@%p2 st.global.u32 [%rd3], %r7;",
        "grid": 2,
    },
    "a copy without a barrier": {
        "write": "ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2;"
        "cp.async.ca.shared.global [%r4], [%rd3], 4; cp.async.wait_all;",
        "between": "",
        "store": "add.u32 %r7, %r7, 5;",
    },
}


RULES = {
    "a predicate that was never set": {"between": "@%p2 bar.sync 0; bar.sync 0;"},
    "a value that was never set": {"store": "st.global.u32 [%rd3], %r8;"},
    "a shuffle in a branch": {
        "between": "bar.sync 0; @!%p1 bra L; shfl.sync.bfly.b32 %r8, %r1, 1, 31, -1; L: bar.sync 0;"
    },
    "a vote without its own lane": {"between": "bar.sync 0; vote.sync.any.pred %p2, %p1, 1;"},
    "a matrix in a branch": {
        "between": "bar.sync 0; @!%p1 bra L; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r8}, [%r3]; L: bar.sync 0;"
    },
    "part of a warp in the number of a barrier": {"between": "bar.sync 0; bar.sync 1, 48;"},
    "a barrier in a branch": {
        "between": "bar.sync 0; setp.lt.u32 %p2, %r1, 32; @%p2 bra L; bar.sync 0; bra M; L: bar.sync 0; M:"
    },
    "a barrier behind a return": {"between": "setp.lt.u32 %p2, %r1, 32; bar.sync 0; @%p2 ret; bar.sync 0;"},
    "an arrival too many": {
        "between": "bar.sync 0; setp.lt.u32 %p2, %r1, 32; @%p2 bar.arrive 1, 64; @%p2 bar.arrive 1, 64; bar.sync 0;"
    },
}
ENDS = {
    "a barrier that nobody else comes to": "bar.sync 0; setp.lt.u32 %p2, %r1, 32; @%p2 bar.sync 1, 64;",
    "a trap": "bar.sync 0; setp.eq.u32 %p2, %r1, 35; @%p2 trap;",
    "a trap behind a race": "setp.eq.u32 %p2, %r1, 35; st.shared.u32 [s+8], %r1; bar.sync 0; @%p2 trap;",
}


@pytest.mark.usefixtures("recorded_wholly")
@pytest.mark.parametrize(
    "change", [*ILLEGAL.values(), *RACES.values(), *RULES.values()], ids=[*ILLEGAL, *RACES, *RULES]
)
def test_a_hazard_is_reported(change: dict[str, object]) -> None:
    _, report = exchange(**change)  # type: ignore[arg-type]
    assert report.hazards


@pytest.mark.usefixtures("recorded_wholly")
@pytest.mark.parametrize("between", ENDS.values(), ids=ENDS)
def test_an_exception_ends_a_launch(between: str) -> None:
    with pytest.raises(warpsan.SimError):
        exchange(between=between)


@pytest.mark.parametrize("change", [ILLEGAL["an output that is too short"], RACES["blocks write a place"]])
def test_the_report_is_the_same_for_any_number_of_threads(change: dict[str, object]) -> None:
    runs = [exchange(**{**change, "grid": 7}, workers=workers) for workers in (1, 2, 3)]  # type: ignore[arg-type]
    for out, report in runs[1:]:
        assert report == runs[0][1]
        assert (out == runs[0][0]).all()


@pytest.mark.parametrize("schedule", ["forward", "reverse", "random"])
@pytest.mark.parametrize("change", [ILLEGAL["a copy"], RACES["a write behind the barrier"]], ids=["illegal", "race"])
def test_every_schedule_reports(schedule: str, change: dict[str, object], recorded: Recorded) -> None:
    _, report = exchange(**change, schedule=schedule)  # type: ignore[arg-type]
    recorded.check(sorted({each.kind for each in report.hazards}))


def test_a_suspicion_that_is_no_hazard_is_not_reported() -> None:
    out, report = exchange(between="bar.sync 0; st.shared.u32 [s+252], 63; bar.sync 0;")
    assert report.hazards == []  # every thread writes the present value
    assert (out == THREADS - 1 - np.arange(THREADS)).all()


# ---- the corpus of planted bugs --------------------------------------------------------------------------------------


def outcome(
    ptx: str, grid: int, block: int, arrays: list[object], *, kinds: bool = False, **options: object
) -> list[object]:
    """The exception of a launch, if any, and its hazards, or with ``kinds`` their kinds."""
    raised, hazards = "", list[warpsan.Hazard]()
    try:
        hazards += warpsan.launch(ptx, "entry", grid, block, arrays, max_steps=2_000, **options).hazards  # type: ignore[arg-type]
    except warpsan.SimError as error:
        raised = type(error).__name__
        hazards += error.hazards
    return [raised, sorted({each.kind for each in hazards}) if kinds else alike(hazards)]


@pytest.mark.sample(8)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.program}: {bug.name}")
def test_planted_bugs_are_reported(bug: Edit, recorded: Recorded) -> None:
    program = PROGRAMS[bug.program]
    ptx = build(
        Module(
            "program.cu", replace_once(program.source, *bug.edits, where=bug.program), "entry", include_dirs=(DEVICE,)
        )
    ).ptx.decode()
    given = np.random.default_rng(program.n).integers(0, 1 << 32, program.n, dtype=np.uint32)
    smem = program.dynamic_smem if bug.dynamic_smem is None else bug.dynamic_smem
    for checks in (warpsan.CHECKS, (*warpsan.CHECKS, "lanes")):
        arrays = [given.copy(), np.full(program.n, 0xFFFFFFFF, np.uint32), program.n]
        options = {"kinds": bug.name in OF_BLOCKS, "dynamic_smem": smem, "checks": checks}
        recorded.check(outcome(ptx, program.grid, program.block, arrays, **options))


@pytest.mark.sample(8)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_broken_twins_are_reported(pair: Pair, recorded: Recorded) -> None:
    ptx = build(Module("program.cu", pair.source(broken=True), "entry", include_dirs=(DEVICE,)), pair.arch).ptx.decode()
    arrays = [np.arange(512, dtype=np.uint32) % 100, np.zeros(1024, np.uint32), 40]
    recorded.check(outcome(ptx, 2, pair.threads, arrays))


# ---- many suspicious places ------------------------------------------------------------------------------------------

MANY = (
    HEAD
    + """.entry k(.param .u64 out) {{ .reg .b32 %r<9>; .reg .pred %p<4>; .shared .b32 s[1024];
    mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 31; mov.u32 %r3, s; mad.lo.u32 %r4, %r2, 4, %r3; mov.u32 %r5, 0;
    L: mad.lo.u32 %r6, %r5, 32, %r1; setp.eq.u32 %p1, %r6, {place}; selp.u32 %r7, 6, 5, %p1;
    st.shared.u32 [%r4], %r7; add.u32 %r4, %r4, 128; add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 32; @%p2 bra L;
    ret; }}"""
)
"""Two warps write equal values to all places; the second omits one ``place``, offset by 32."""


def many(place: int) -> warpsan.Report:
    """A launch of one block."""
    return warpsan.launch(MANY.format(place=place), "k", 1, THREADS, [np.zeros(1, np.uint32)])


@pytest.mark.usefixtures("recorded_wholly")
@pytest.mark.parametrize("place", [5000, 32 + 16, 32 + 900])
def test_one_of_many_suspicious_places_is_a_hazard(place: int) -> None:
    """Most writes do not change the stored value."""
    assert {each.kind for each in many(place).hazards} == ({"race"} if place < 1056 else set())
