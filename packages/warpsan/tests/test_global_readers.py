"""Reads and updates of global memory by several warps of a cluster: only later operations, ordered after all of them,
may write.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

import warpsan

HEAD = """.version 8.0
.target sm_90
.address_size 64
.entry k(.param .u64 a) { .reg .b64 %rd<4>; .reg .b32 %r<8>; .reg .pred %p<6>; .shared .b64 bar; ld.param.u64 %rd1, [a];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; shr.u32 %r3, %r2, 5; and.b32 %r4, %r2, 31; setp.eq.u32 %p0, %r4, 0;
    setp.eq.u32 %p1, %r1, 0; setp.eq.and.u32 %p2, %r2, 0, %p1; setp.eq.u32 %p3, %r3, 0; setp.eq.u32 %p4, %r3, 1;
"""
READ, WRITE = "ld.global.u32 %r5, [%rd1];\n", "@%p2 st.global.u32 [%rd1], 9;\n"
MEET = "barrier.cluster.arrive;\nbarrier.cluster.wait;\n"
ADD = "red.global.add.u32 [%rd1], 1;\n"
SCHEDULES = ("lockstep", "forward", "reverse")


def kinds(body: str, grid: int, threads: int, cluster: int, schedule: str) -> set[str]:
    code, array = HEAD + body + "ret; }", np.zeros(1024, np.uint32)
    report = warpsan.launch(code, "k", grid, threads, [array], cluster=(cluster, 1, 1), schedule=schedule, workers=1)
    return {hazard.kind for hazard in report.hazards}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("body", "grid", "threads", "cluster", "race"),
    [
        (READ + MEET + WRITE, 2, 32, 2, False),
        (READ + MEET + WRITE, 2, 96, 2, False),
        (READ + MEET + READ + MEET + WRITE, 8, 64, 8, False),
        (READ.replace("ld", "ld.relaxed.gpu") + MEET + WRITE, 2, 96, 2, False),
        (ADD + MEET + READ, 4, 96, 4, False),
        (READ + MEET + WRITE, 4, 32, 2, True),  # another cluster reads too
        (ADD + MEET + READ, 4, 32, 2, True),
        (READ + WRITE, 2, 32, 2, True),
        (READ + "bar.sync 0;\n" + WRITE, 2, 96, 2, True),
        (MEET + READ + WRITE, 2, 32, 2, True),
        (ADD + READ, 1, 96, 1, True),
        ("@!%p3 " + READ + "@%p3 " + READ + WRITE, 1, 64, 1, True),  # the writer itself was the last to read
        (READ + "@%p3 bar.sync 1, 64;\n@%p4 bar.sync 1, 64;\n" + WRITE, 1, 64, 1, False),
        # the third warp does not take part
        (READ + "@%p3 bar.sync 1, 64;\n@%p4 bar.sync 1, 64;\n" + WRITE, 1, 96, 1, True),
    ],
)
def test_a_write_comes_after_each_of_those_that_have_read(
    body: str, grid: int, threads: int, cluster: int, race: bool, schedule: str
) -> None:
    assert kinds(body, grid, threads, cluster, schedule) == ({"race"} if race else set())


SIGNAL = (
    "mov.u32 %r6, bar; mapa.shared::cluster.u32 %r6, %r6, 0;\n"
    "@%p2 mbarrier.init.shared::cta.b64 [bar], {arrivals};\nfence.mbarrier_init.release.cluster;\n" + MEET + "{reads}"
    "{who} mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];\n@!%p2 bra END;\n"
    "W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p5, [bar], 0;\n@!%p5 bra W;\n"
    "st.global.u32 [%rd1], 9;\nEND:\n" + MEET
)
"""Some warps of two blocks read, then some arrive at the mbarrier in the first block, which then writes."""
FIRST_WARPS = "setp.eq.and.u32 %p4, %r3, 0, %p0;\n@%p4"
ALL_BUT_ONE = "mad.lo.u32 %r7, %r1, 3, %r3; setp.ne.and.u32 %p4, %r7, 4, %p0;\n@%p4"


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("reads", "who", "arrivals", "race"),
    [
        (READ, "@%p0", 6, False),
        (READ + "bar.sync 0;\n", FIRST_WARPS, 2, False),
        (READ, FIRST_WARPS, 2, True),
        (READ, ALL_BUT_ONE, 5, True),
    ],
)
def test_warps_arrive_at_the_writers_mbarrier(reads: str, who: str, arrivals: int, race: bool, schedule: str) -> None:
    body = SIGNAL.format(reads=reads, who=who, arrivals=arrivals)
    assert kinds(body, 2, 96, 2, schedule) == ({"race"} if race else set())


Clock = list[int]
WARPS, CLUSTER = 3, 2


def random_program(draw: random.Random) -> tuple[str, bool]:
    """Six warps of a cluster read, write and update three locations, and synchronize in pairs, by blocks or all.
    Returns the program, and whether two conflicting accesses are unordered, by separate vector clocks.
    """
    actors = WARPS * CLUSTER
    clocks: list[Clock] = [[0] * actors for _ in range(actors)]
    done: list[tuple[int, str, int, int]] = []
    code, race = [], False
    for phase in range(draw.choice((1, 2, 3, 6))):
        for actor in range(actors):
            if draw.random() < 0.5:
                continue
            place, does = draw.randrange(3), draw.choice(("read", "read", "read", "update", "write"))
            word, value = f"[%rd1+{128 * place}]", 100 * phase + actor + 1
            access = {"read": f"ld.global.u32 %r5, {word}", "write": f"st.global.u32 {word}, {value}"}
            clocks[actor][actor] += 1
            for other, did, where, time in done:
                conflict = where == place and (did != does or does == "write")
                race |= conflict and clocks[actor][other] < time
            done.append((actor, does, place, clocks[actor][actor]))
            update = f"red.global.add.u32 {word}, {value}"
            code.append(f"setp.eq.and.u32 %p5, %r7, {actor}, %p0; @%p5 {access.get(does, update)};")
        way = draw.choice(("pair", "pair", "block", "all"))
        pair = draw.sample(range(WARPS), 2)
        for cta in range(CLUSTER):
            met = {"pair": [WARPS * cta + warp for warp in pair], "block": range(WARPS * cta, WARPS * (cta + 1))}
            group = list(met.get(way, range(actors)))
            merged = [max(clocks[actor][k] for actor in group) for k in range(actors)]
            for actor in group:
                clocks[actor] = list(merged)
        apart = "".join(f"setp.eq.u32 %p5, %r3, {warp}; @%p5 bar.sync {phase + 1}, 64;\n" for warp in pair)
        code.append({"pair": apart, "block": "bar.sync 0;"}.get(way, MEET))
    return f"mad.lo.u32 %r7, %r1, {WARPS}, %r3;\n" + "\n".join(code), race


@pytest.mark.parametrize("first", [0, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_programs_of_a_cluster_race_exactly_if_vector_clocks_say_so(first: int) -> None:
    outcomes = set()
    for seed in range(first, first + (30 if first == 0 else 300)):
        draw = random.Random(seed)
        body, race = random_program(draw)
        schedule = draw.choice(SCHEDULES)
        assert kinds(body, CLUSTER, 32 * WARPS, CLUSTER, schedule) == ({"race"} if race else set()), f"seed {seed}"
        outcomes.add(race)
    assert outcomes == {False, True}
