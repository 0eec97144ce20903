"""The lanes check: lanes that execute an instruction together may also execute it at different times."""

from __future__ import annotations

import random

import numpy as np
import pytest

import warpsan
from outcomes import alike
from recorded import Recorded

HEAD = """.version 8.0
.target sm_90
.address_size 64
.entry k(.param .u64 a) { .reg .u64 %rd<8>; .reg .b32 %r<24>; .reg .pred %p<8>; .shared .align 16 .b8 s[4096];
ld.param.u64 %rd1, [a]; mov.u32 %r0, %tid.x; and.b32 %r9, %r0, 31; mov.u32 %r1, s; mul.wide.u32 %rd2, %r0, 16;
add.u64 %rd2, %rd2, %rd1; mad.lo.u32 %r2, %r0, 16, %r1; mov.u32 %r8, 1; st.shared.v4.u32 [%r2], {%r8, %r8, %r8, %r8};
"""
NEIGHBOURS = "".join(
    f"xor.b32 %r10, %r0, {by}; mad.lo.u32 %r{3 + k}, %r10, 16, %r1; mul.wide.u32 %rd{3 + k}, %r10, 16;"
    f"add.u64 %rd{3 + k}, %rd{3 + k}, %rd1;\n"
    for k, by in enumerate((1, 5, 32))
)
LANES = (*warpsan.CHECKS, "lanes")
FIRST_WARP = "bar.sync 0; setp.ge.u32 %p4, %r0, 32; @%p4 ret;"
READ_16 = "ld.shared.v4.u32 {%r11, %r12, %r13, %r14}, [s]"


def launched(body: str, checks: tuple[str, ...] = LANES) -> list[warpsan.Hazard]:
    """The hazards of a launch."""
    ptx, arrays = f"{HEAD}{NEIGHBOURS}{body} ret; }}", [np.zeros(1024, np.uint32)]
    return warpsan.launch(ptx, "k", 1, 64, arrays, checks=checks, schedule="forward").hazards


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize(
    ("body", "lanes_race"),
    [
        ("ld.shared.u32 %r11, [%r3];", True),
        ("bar.warp.sync -1; ld.shared.u32 %r11, [%r3];", False),
        ("ld.shared.u32 %r11, [%r2];", False),
        ("bar.sync 0; ld.shared.u32 %r11, [%r3]; st.shared.u32 [%r2], %r0;", True),
        ("bar.sync 0; ld.shared.u32 %r11, [%r3]; bar.warp.sync -1; st.shared.u32 [%r2], %r0;", False),
        ("st.global.u32 [%rd2], %r0; ld.global.u32 %r11, [%rd3];", True),
        ("st.global.u32 [%rd2], %r0; bar.warp.sync -1; ld.global.u32 %r11, [%rd3];", False),
        ("bar.sync 0; ld.shared.u32 %r11, [s]; setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [s], %r0;", True),
        *(  # the warp's last lane reads and writes a word; the other lanes' reads are unordered with the write
            (f"{FIRST_WARP} {READ_16}; {sync} setp.eq.u32 %p1, %r0, 31; @%p1 st.shared.u32 [s+{at}], %r0;", race)
            for at, sync, race in ((0, "", True), (8, "", True), (16, "", False), (8, "bar.warp.sync -1;", False))
        ),
    ],
)
def test_lanes_come_after_each_other_where_they_meet(body: str, lanes_race: bool) -> None:
    kinds = {hazard.kind for hazard in launched(body)}
    assert kinds - {"race"} == ({"lane-race"} if lanes_race else set())
    assert kinds == set() or lanes_race
    if lanes_race and "%p1" not in body:
        assert launched(body, warpsan.CHECKS) == []


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize("writer", [3, 20])
@pytest.mark.parametrize("checks", [warpsan.CHECKS, LANES])
@pytest.mark.parametrize("sync", ["", "bar.warp.sync -1;"])
def test_lanes_that_read_apart_do_not_come_before_a_write(writer: int, checks: tuple[str, ...], sync: str) -> None:
    """Each half of a warp reads in its own branch, and a lane of one half writes to the places read by both."""
    body = f"""{FIRST_WARP} setp.ge.u32 %p1, %r9, 16; @%p1 bra A; {READ_16}; bra B; A: {READ_16}; B: {sync}
    setp.eq.u32 %p2, %r0, {writer}; @%p2 st.shared.u32 [s+4], %r0;"""
    assert {hazard.kind for hazard in launched(body, checks)} == (set() if sync else {"lane-race"})


MBARRIER = """.version 8.0
.target sm_90
.address_size 64
.entry k(.param .u64 a) {{ .reg .b64 %rd<2>; .reg .b32 %r<4>; .reg .pred %p<5>;
.shared .align 8 .b8 s[64]; .shared .align 8 .b64 m; ld.param.u64 %rd1, [a]; mov.u32 %r0, %tid.x;
setp.eq.u32 %p0, %r0, 0; @%p0 mbarrier.init.shared.b64 [m], 1; bar.sync 0;
setp.eq.u32 %p1, %r0, {writes}; @!%p1 bra A; st.shared.u32 [s], %r0;
A: setp.eq.u32 %p2, %r0, {arrives}; @%p2 mbarrier.arrive.shared.b64 _, [m];
L: mbarrier.try_wait.parity.shared.b64 %p4, [m], 0; @!%p4 bra L;
setp.eq.u32 %p3, %r0, {reads}; @!%p3 bra B; ld.shared.u32 %r3, [s]; st.global.u32 [%rd1], %r3; B: ret; }}
"""


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize(
    ("writes", "arrives", "reads", "ordered"), [(5, 0, 7, False), (5, 5, 7, True), (5, 0, 5, True), (0, 0, 9, True)]
)
@pytest.mark.parametrize("checks", [warpsan.CHECKS, LANES])
def test_a_lane_passes_on_at_an_mbarrier_what_it_did_itself(
    writes: int, arrives: int, reads: int, ordered: bool, checks: tuple[str, ...]
) -> None:
    body = MBARRIER.format(writes=writes, arrives=arrives, reads=reads)
    report = warpsan.launch(body, "k", 1, 32, [np.zeros(4, np.uint32)], checks=checks)
    assert [hazard.kind for hazard in report.hazards] == ([] if ordered else ["lane-race"])


def random_program(draw: random.Random) -> str:
    """Lanes access their own and other places, partly diverged, with and without synchronization."""

    def shared() -> str:
        return f"[%r{draw.choice((2, 2, 2, 3, 4, 5))}+{draw.choice((0, 4))}]"

    def private() -> str:
        return f"[%rd{draw.choice((2, 2, 2, 3, 4, 5))}+{draw.choice((0, 4))}]"

    body = [f"setp.lt.u32 %p{k}, %r9, {draw.randrange(1, 32)};" for k in range(3)] + [draw.choice(("bar.sync 0;", ""))]
    for place in range(draw.randrange(2, 9)):
        access = draw.choice(
            [
                *(f"ld.shared.u32 %r11, {shared()};", f"st.shared.u32 {shared()}, %r0;", "ld.shared.u32 %r11, [s+8];"),
                *(f"ld.global.u32 %r11, {private()};", f"st.global.u32 {private()}, %r0;"),
                *(f"red.shared.add.u32 {shared()}, 1;", f"red.global.add.u32 {private()}, 1;"),
                *("bar.warp.sync -1;", "bar.warp.sync -1;", "bar.sync 0;"),
            ]
        )
        if "bar" not in access and draw.random() < 0.5:
            access = f"@%p{draw.randrange(3)} bra N{place}; {access} N{place}:"
        body.append(access)
    return "\n".join(body)


@pytest.mark.parametrize("first", [0, pytest.param(50, marks=pytest.mark.slow)])
def test_random_programs_race_as_recorded(first: int, recorded: Recorded) -> None:
    seeds = range(first, first + (12 if first == 0 else 300))
    outcomes = [alike(launched(random_program(random.Random(seed)))) for seed in seeds]
    recorded.check(["; ".join(each.partition(":")[0] for each in outcome) for outcome in outcomes])
    assert sum(not each for each in outcomes) > 2
