"""Rules of CTA barriers: a violation of each, and similar correct uses."""

from __future__ import annotations

import pytest

import warpsan

SCHEDULES = ("lockstep", "forward", "reverse", "random")


def module(body: str) -> str:
    """A kernel ``k``; %p0 to %p3 are the first four warps."""
    return (
        ".version 8.0\n.target sm_80\n.address_size 64\n.entry k()\n{\n.reg .b32 %r<9>; .reg .pred %p<9>, %q<3>;\n"
        "mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; and.b32 %r2, %r0, 31; setp.lt.u32 %q0, %r2, 16;\n"
        + "".join(f"setp.eq.u32 %p{warp}, %r1, {warp};\n" for warp in range(4))
        + f"setp.ne.u32 %p4, %r1, 0;\n{body}\nret;\n}}\n"
    )


def reported(body: str, schedule: str, threads: int = 128, grid: int = 2) -> list[str]:
    """Messages of kind ``barrier``."""
    try:
        hazards = warpsan.launch(module(body), "k", grid, threads, [], schedule=schedule).hazards
    except warpsan.Deadlock as error:
        hazards = list(error.hazards)
    assert {hazard.kind for hazard in hazards} <= {"barrier"}
    return [hazard.message for hazard in hazards]


WRONG = {
    "no multiple of a warp": ("bar.sync 1, 100;", "given 100 threads, which is not a multiple of the 32"),
    "more than the block": ("bar.sync 1, 160;", "given 160 threads, and the block has 128"),
    "no such barrier": ("mov.u32 %r5, 16;\nbar.sync %r5;", "barrier 16 does not exist"),
    "an arrival without a count": ("bar.arrive 1;", "without a number of threads"),
    "two counts": ("@%p0 bar.sync 1, 128;\n@%p1 bar.sync 1, 96;", "in the same phase"),
    "the whole block and part of it": ("@!%p0 bar.sync 1;\n@%p0 bar.sync 1, 96;", "in the same phase"),
    "twice": ("@%p0 bar.arrive 1, 128;\n@%p0 bar.arrive 1, 128;", "again, before the phase is complete"),
    "a wait after an arrival, and nobody else": ("@%p0 bar.arrive 1, 96;\n@%p0 bar.sync 1, 96;", "again, before the"),
    "a wait after an arrival, in the place of another warp that waits": (
        "@%p0 bar.arrive 1, 64;\n@%p0 bar.sync 1, 64;\nbar.sync 0;\n@%p1 bar.sync 1, 64;",
        "again, before the phase is complete",
    ),
    "parts of a warp": ("@%q0 bar.sync 0;\n@!%q0 bar.sync 0;", "part of a warp is at barrier 0, and part at bar.sync"),
    "others have exited before": ("@%p3 exit;\nbar.sync 0;", "32 of the block's 128 threads have exited"),
    "others exit while it waits": (
        "@!%p3 bra WAIT;\nmov.u32 %r5, 0;\nLOOP: add.u32 %r5, %r5, 1;\nsetp.lt.u32 %q1, %r5, 10;\n@%q1 bra LOOP;\n"
        "ret;\nWAIT: bar.sync 0;",
        "32 of the block's 128 threads have exited and never come to barrier 0",
    ),
    "part of a warp has exited": ("@%q0 exit;\nbarrier.sync.aligned 0;", "64 of the block's 128 threads have exited"),
    "warps in two branches": ("@%p0 bar.sync 0;\n@!%p0 bar.sync 0;", "part of the block is at barrier 0, and part at"),
    "a reduction beside a wait": (
        "@%p0 bar.red.popc.u32 %r5, 0, %q0;\n@!%p0 bar.sync 0;",
        "only one of the two is a reduction",
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", WRONG)
def test_a_broken_rule_is_reported(name: str, schedule: str) -> None:
    body, says = WRONG[name]
    assert any(says in message for message in reported(body, schedule)), reported(body, schedule)


RIGHT = {
    "the same count said in two ways": "@%p0 bar.sync 1, 128;\n@!%p0 bar.sync 1;",
    "a producer and a consumer": "@%p0 bar.arrive 1, 64;\n@%p1 bar.sync 1, 64;",
    "one phase after another with another count": (
        "@%p0 bar.sync 1, 64;\n@%p1 bar.sync 1, 64;\nbar.sync 0;\n@%p4 bar.sync 1, 96;"
    ),
    "two arrivals with the phase between": (
        "@%p0 bar.arrive 1, 64;\n@%p1 bar.sync 1, 64;\n@%p1 bar.arrive 2, 64;\n@%p0 bar.sync 2, 64;\n"
        "@%p0 bar.arrive 1, 64;\n@%p1 bar.sync 1, 64;"
    ),
    "a wait after an arrival, both of which count": "@%p0 bar.arrive 1, 64;\n@%p0 bar.sync 1, 64;",
    "a wait after an arrival, beside another warp": (
        "@%p0 bar.arrive 1, 96;\n@%p1 bar.sync 1, 96;\n@%p0 bar.sync 1, 96;\nbar.sync 0;\n"
        "@%p0 bar.arrive 1, 96;\n@%p0 bar.sync 1, 96;\n@%p1 bar.arrive 1, 96;"
    ),
    "a wait after an arrival, and a last arrival that nobody waits for": (
        "@%p0 bar.arrive 1, 96;\n@%p0 bar.sync 1, 96;\n@%p1 bar.sync 1, 96;\nbar.sync 0;\n@%p0 bar.arrive 1, 96;"
    ),
    "a turn that is handed on, with the first arrival by the warp itself, and a last one left over": (
        "@%p0 bar.arrive 1, 64;\n@%p0 bar.sync 1, 64;\n@%p0 bar.arrive 2, 64;\n@%p1 bar.sync 2, 64;\n"
        "@%p1 bar.arrive 1, 64;"
    ),
    "parts of a warp at an unaligned barrier": "@%q0 barrier.sync 0;\n@!%q0 barrier.sync 0;",
    "reductions by two instructions": "@%p0 bar.red.popc.u32 %r5, 0, %q0;\n@!%p0 bar.red.and.pred %q1, 0, %q0;",
    "a named barrier that counts those who are left": "@%p3 exit;\nbar.sync 1, 96;",
    "all have come before some exit": "bar.sync 0;\n@%p3 exit;\nbar.sync 1, 96;",
    "a barrier other than that of __syncthreads by two instructions": "@%p0 bar.sync 1;\n@!%p0 bar.sync 1;",
    "fifteen barriers": "".join(f"bar.sync {name}, 128;\n" for name in range(16)),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_allowed_is_not_reported(name: str, schedule: str) -> None:
    assert reported(RIGHT[name], schedule) == []
    assert reported(RIGHT[name], schedule, grid=300) == []


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("barrier", ["bar.sync 1, 128;", "barrier.cta.sync.aligned 1, 128;"])
def test_a_late_lane_of_a_warp_is_waited_for_and_the_warp_counted_once(barrier: str, schedule: str) -> None:
    """One lane waits for the other warps; the 31 other lanes arrive at the barrier long before."""
    body = (
        ".shared .align 4 .b32 flag;\nmov.u32 %r5, 0;\nst.volatile.shared.u32 [flag], %r5;\nbar.sync 0;\n"
        "@%p4 bra OTHERS;\nsetp.ne.u32 %q1, %r2, 0;\n@%q1 bra MET;\n"
        "LOOP: ld.volatile.shared.u32 %r5, [flag];\nsetp.eq.u32 %q2, %r5, 0;\n@%q2 bra LOOP;\n"
        f"MET: {barrier}\nbar.sync 2, 128;\nret;\n"
        "OTHERS: bar.arrive 1, 128;\nmov.u32 %r6, 1;\nst.volatile.shared.u32 [flag], %r6;\nbar.sync 2, 128;"
    )
    assert warpsan.launch(module(body), "k", 2, 128, [], schedule=schedule).hazards == []


def test_more_threads_than_the_count_in_one_step() -> None:
    """In sequence, two pairs of warps complete a phase each; in lockstep four warps meet."""
    (message,) = reported("bar.sync 1, 64;", "lockstep")
    assert "128 threads are at barrier 1, which is given 64" in message


def test_a_block_that_is_no_whole_number_of_warps() -> None:
    for schedule in SCHEDULES:
        assert reported("bar.sync 0;\nbar.sync 1, 128;", schedule, threads=100) == []
