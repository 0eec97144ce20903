"""Clock of the native checks: races are found after any number of synchronizations."""

from __future__ import annotations

import numpy as np
import pytest

import warpsan
from outcomes import alike
from sdpalab.bugs import replace_once
from source_bugs import BUGS, Edit
from source_programs import DEVICE, PROGRAMS
from warpsan.build.builder import build
from warpsan.build.source import Module
from warpsan.engine import layout, state

BLOCKS, THREADS, TURNS = 24, 64, 6
STARTS = {
    "a restart": layout.LAST_TIME // 2 - 300,
    "31 bits": (1 << 31) - 300,
    "32 bits": (1 << 32) - 300,
    "40 bits": (1 << 40) - 300,
}
"""Start times of a launch: some blocks run before the next power of two, others after it."""
HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
EXCHANGE = (
    HEAD
    + """.entry k(.param .u64 out) {{
    .reg .b32 %r<9>; .reg .b64 %rd<4>; .reg .pred %p<5>; .shared .b32 s[{threads}];
    ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, s; mad.lo.u32 %r3, %r1, 4, %r2;
    mov.u32 %r4, %ctaid.x; mad.lo.u32 %r4, %r4, {threads}, %r1; mul.wide.u32 %rd2, %r4, 4; add.u64 %rd2, %rd1, %rd2;
    xor.b32 %r5, %r3, 128; xor.b64 %rd3, %rd2, 128; mov.u32 %r6, 0; mov.u32 %r7, 0;
    mov.u32 %r8, %ctaid.x; setp.ge.u32 %p3, %r8, {broken}; setp.lt.u32 %p2, %r1, 32;
    st.shared.u32 [%r3], %r1;
L:  bar.sync 0;
    {first} @%p3 bra M; bar.sync 0; M: {second}
    bar.sync 0; add.u32 %r6, %r6, 1; setp.lt.u32 %p1, %r6, {turns}; @%p1 bra L;
    ret;
}}"""
)
"""Each warp of a block uses the other's data, with a barrier in between except in blocks from ``broken`` on."""
PARTS = {
    "a write and a read": ("@%p2 st.shared.u32 [%r3], %r6;", "@!%p2 ld.shared.u32 %r7, [%r5];"),
    "an atomic operation and a read": ("@%p2 atom.shared.add.u32 %r7, [%r3], 1;", "@!%p2 ld.shared.u32 %r7, [%r5];"),
    "a global write and read": ("@%p2 st.global.u32 [%rd2], %r6;", "@!%p2 ld.global.u32 %r7, [%rd3];"),
    "a global atomic operation and read": ("@%p2 red.global.add.u32 [%rd2], 1;", "@!%p2 ld.global.u32 %r7, [%rd3];"),
}
CHAIN = (
    HEAD
    + """.entry k(.param .u64 out) {{
    .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<5>;
    ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r4, 0;
    setp.ne.u32 %p1, %r1, 0; @%p1 bra END;
    mul.wide.u32 %rd2, %r2, 8; add.u64 %rd2, %rd1, %rd2; setp.eq.u32 %p2, %r2, 0; @%p2 bra FIRST;
WAIT: ld.{acquire}.gpu.global.u32 %r3, [%rd2+-8]; setp.eq.u32 %p3, %r3, 0; @%p3 bra WAIT;
    ld.global.u32 %r4, [%rd2+-4];
    setp.lt.u32 %p4, %r2, 9; @%p4 bra FIRST; ld.global.u32 %r5, [%rd2+-68];
FIRST: add.u32 %r4, %r4, 1; st.global.u32 [%rd2+4], %r4; st.release.gpu.global.u32 [%rd2], 1;
END: bar.sync 0; bar.sync 0; bar.sync 0; ret;
}}"""
)
"""Each block reads the writes of the previous block, and those of eight blocks before."""

LANES = (
    HEAD
    + """.entry k(.param .u64 out) {{
    .reg .b32 %r<9>; .reg .b64 %rd<2>; .reg .pred %p<5>; .shared .align 8 .b64 m; .shared .b32 s[1];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; setp.eq.u32 %p1, %r1, 0; @%p1 mbarrier.init.shared.b64 [m], {threads};
    setp.ge.u32 %p3, %r2, {broken}; mov.u32 %r6, 0; bar.sync 0;
L:  setp.ne.u32 %p2, %r1, 7; @%p2 bra M; st.shared.u32 [s], %r6;
M:  @%p3 bra N; mbarrier.arrive.shared.b64 %rd1, [m];
W:  mbarrier.try_wait.shared.b64 %p4, [m], %rd1; @!%p4 bra W;
N:  setp.eq.u32 %p2, %r1, 9; @%p2 ld.shared.u32 %r7, [s];
    bar.sync 0; add.u32 %r6, %r6, 1; setp.lt.u32 %p1, %r6, {turns}; @%p1 bra L;
    ret;
}}"""
)
"""One lane writes data that another lane of its warp reads, with an mbarrier in between except in blocks from
``broken`` on.
"""


def kinds(ptx: str, words: int, **options: object) -> list[str]:
    """Hazard kinds of a launch."""
    report = warpsan.launch(ptx, "k", BLOCKS, THREADS, [np.zeros(words, np.uint32)], **options)  # type: ignore[arg-type]
    return sorted({each.kind for each in report.hazards})


def begin_at(monkeypatch: pytest.MonkeyPatch, start: int) -> None:
    """Set the start time of launches."""
    monkeypatch.setattr(state, "_FIRST_TIME", start)


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
@pytest.mark.parametrize("swapped", [False, True], ids=["", "swapped"])
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_races_are_found_and_no_others(
    parts: tuple[str, str], swapped: bool, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = reversed(parts) if swapped else parts
    begin_at(monkeypatch, start)
    for broken, expected in ((BLOCKS, []), (BLOCKS - 1, ["race"])):
        ptx = EXCHANGE.format(threads=THREADS, turns=TURNS, broken=broken, first=first, second=second)
        assert kinds(ptx, BLOCKS * THREADS, workers=1) == expected


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
@pytest.mark.parametrize(("acquire", "expected"), [("acquire", []), ("relaxed", ["race"])])
def test_blocks_are_ordered_across_a_restart(
    acquire: str, expected: list[str], start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_at(monkeypatch, start)
    assert kinds(CHAIN.format(acquire=acquire), 2 * BLOCKS) == expected


@pytest.mark.parametrize("broken", [BLOCKS, BLOCKS - 1, 0])
def test_a_clock_that_restarts_every_few_blocks_finds_the_same(broken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_LAST_TIME", 2 * (layout.FIRST_TIME + 150))
    for parts in PARTS.values():
        for first, second in (parts, parts[::-1]):
            ptx = EXCHANGE.format(threads=THREADS, turns=TURNS, broken=broken, first=first, second=second)
            assert kinds(ptx, BLOCKS * THREADS, workers=1) == (["race"] if broken < BLOCKS else [])
    ptx = LANES.format(threads=THREADS, turns=TURNS, broken=broken)
    assert kinds(ptx, 1, workers=1) == (["lane-race"] if broken < BLOCKS else [])
    for acquire in ("acquire", "relaxed"):
        assert kinds(CHAIN.format(acquire=acquire), 2 * BLOCKS) == (["race"] if acquire == "relaxed" else [])


@pytest.mark.sample(6)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.program}: {bug.name}")
def test_planted_bugs_are_reported_at_any_time(bug: Edit, monkeypatch: pytest.MonkeyPatch) -> None:
    program = PROGRAMS[bug.program]
    source = replace_once(program.source, *bug.edits, where=bug.program)
    ptx = build(Module("program.cu", source, "entry", include_dirs=(DEVICE,))).ptx.decode()
    given = np.random.default_rng(program.n).integers(0, 1 << 32, program.n, dtype=np.uint32)
    smem = program.dynamic_smem if bug.dynamic_smem is None else bug.dynamic_smem
    outcomes = []
    for start in (layout.FIRST_TIME, (1 << 31) - 8):
        begin_at(monkeypatch, start)
        arrays = [given.copy(), np.full(program.n, 0xFFFFFFFF, np.uint32), program.n]
        try:
            hazards = warpsan.launch(ptx, "entry", program.grid, program.block, arrays, dynamic_smem=smem).hazards
        except warpsan.SimError as error:
            hazards = list(error.hazards)
        outcomes.append(alike(hazards))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("last", [BLOCKS, BLOCKS - 1])
def test_a_block_beyond_the_last_time_ends_the_launch(last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_LAST_TIME", layout.FIRST_TIME + 200)
    first, second = PARTS["a write and a read"]
    ptx = EXCHANGE.format(threads=THREADS, turns=1000, broken=last, first=first, second=second)
    with pytest.raises(warpsan.StepLimit, match="the checks follow at most 264 releases and asynchronous operations"):
        kinds(ptx, BLOCKS * THREADS)
    assert kinds(ptx, BLOCKS * THREADS, checks=()) == []
