"""Warp-wide instructions wait for the threads of their member mask that have not exited (PTX ISA, "vote.sync")."""

import numpy as np
import pytest

import warpsan
from warpsan.analysis.collectives import member_mask
from warpsan.host.options import SCHEDULES
from warpsan.ptx.ir import Immediate, Register
from warpsan.ptx.parser import parse

HEAD = ".version 8.7\n.target sm_90\n.address_size 64\n"
SPIN = "SPIN: ld.relaxed.gpu.global.u32 %r8, [%a]; setp.eq.u32 %p8, %r8, 0; @%p8 bra SPIN;"
"""Threads that wait until another stores to the first word; all other threads must continue."""


def text(body):
    return (
        f"{HEAD}.entry k(.param .u64 p)\n{{ .reg .b32 %t, %r<9>; .reg .b64 %a, %w; .reg .pred %p<9>;\n"
        f"ld.param.u64 %a, [p]; mov.u32 %t, %tid.x; mul.wide.u32 %w, %t, 4; add.u64 %w, %w, %a;\n{body}\nret;\n}}\n"
    )


def run(body, schedule, block=64):
    out = np.zeros(64, np.uint32)
    report = warpsan.launch(text(body), "k", 1, block, [out], schedule=schedule, max_steps=100_000)
    return out, {hazard.kind for hazard in report.hazards}


@pytest.mark.sample
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("vote", "ballot"),
    [
        ("vote.sync.ballot.b32 %r1, %p2, -1;", 0xA),
        ("vote.sync.ballot.b32 %r1, !%p2, 0xFFF0000F;", 0x5),
        ("redux.sync.add.u32 %r1, %t, -1;", 6),
        ("shfl.sync.bfly.b32 %r1, %t, 3, 31, -1;", 3),
        ("bar.warp.sync -1; mov.u32 %r1, 9;", 9),
        ("mov.u32 %r2, 15; match.any.sync.b32 %r1, 7, %r2;", 15),
    ],
)
def test_threads_that_exit_first_are_not_waited_for(vote, ballot, schedule):
    """Four threads of warp 0 continue and release warp 1 from its loop; the other 28 exit before or after them."""
    body = (
        "setp.ge.u32 %p1, %t, 32; @%p1 bra SPIN; setp.ge.u32 %p3, %t, 4; @%p3 bra LEAVE;\n"
        f"and.b32 %r3, %t, 1; setp.ne.u32 %p2, %r3, 0; {vote}\n"
        "setp.eq.u32 %p4, %t, 0; @%p4 st.release.gpu.global.u32 [%a], %r1; ret;\n"
        f"LEAVE: mov.u32 %r4, 0;\nAGAIN: add.u32 %r4, %r4, 1; setp.lt.u32 %p5, %r4, 5; @%p5 bra AGAIN; ret;\n{SPIN}"
    )
    out, hazards = run(body.replace("ld.relaxed", "ld.acquire"), schedule)
    assert out[0] == ballot
    assert hazards == set()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_threads_outside_the_mask_are_not_waited_for(schedule):
    """The upper half of the warp spins until the lower half has voted."""
    vote = "vote.sync.ballot.b32 %r1, %p2, 0xFFFF; mov.u32 %r2, 0xFFFF; shfl.sync.idx.b32 %r3, %t, 5, 31, %r2;"
    body = (
        "setp.ge.u32 %p1, %t, 16; @%p1 bra SPIN; setp.lt.u32 %p2, %t, 3;\n"
        f"{vote} add.u32 %r1, %r1, %r3; setp.eq.u32 %p4, %t, 0; @%p4 st.relaxed.gpu.global.u32 [%a], %r1; ret;\n{SPIN}"
    )
    out, hazards = run(body, schedule, block=32)
    assert out[0] == 7 + 5
    assert hazards == set()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_warp_with_fewer_threads_than_lanes(schedule):
    """16 threads in warp 1; they count one another while warp 0 spins."""
    body = (
        "setp.lt.u32 %p1, %t, 32; @%p1 bra SPIN; vote.sync.ballot.b32 %r1, 1, -1;\n"
        f"setp.eq.u32 %p4, %t, 32; @%p4 st.relaxed.gpu.global.u32 [%a], %r1; ret;\n{SPIN}"
    )
    assert run(body.replace("ballot.b32 %r1, 1", "ballot.b32 %r1, !%p1"), schedule, block=48)[0][0] == 0xFFFF


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_threads_of_the_mask_that_come_later_are_waited_for(schedule):
    """A long path for half of the warp, longer than the polling limit."""
    body = (
        "mov.u32 %r2, 0; and.b32 %r3, %t, 1; setp.eq.u32 %p1, %r3, 0; @%p1 bra VOTE;\n"
        "AGAIN: add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 9000; @%p2 bra AGAIN;\n"
        "VOTE: vote.sync.ballot.b32 %r1, !%p1, -1; st.global.u32 [%w], %r1;"
    )
    out, hazards = run(body, schedule, block=32)
    assert (out[:32] == 0xAAAAAAAA).all()
    assert hazards == set()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_thread_of_the_mask_that_never_comes_is_reported(schedule):
    """Half of the warp waits at the block's barrier instead."""
    body = "setp.ge.u32 %p1, %t, 16; @%p1 bra MEET; vote.sync.ballot.b32 %r1, %p1, -1; MEET: bar.sync 0;"
    assert run(body, schedule, block=32)[1] == {"divergent"}


@pytest.mark.parametrize(
    ("body", "mask"),
    [
        ("vote.sync.ballot.b32 %r1, %p1, 7; shfl.sync.idx.b32 %r1, %r2, 0, 31, 7;", Immediate(7)),
        ("shfl.sync.idx.b32 %r1, %r2, 0, 31, %r3; elect.sync %r4|%p1, %r3;", Register("%r3")),
        ("mov.u32 %r3, 7; bar.warp.sync %r3;", Immediate(7)),
        ("@%p1 mov.u32 %r3, 7; bar.warp.sync %r3;", None),
        ("mov.u32 %r3, 7; add.u32 %r3, %r3, 1; bar.warp.sync %r3;", None),
        ("bar.warp.sync 7; redux.sync.add.u32 %r1, %r2, 15;", None),
        ("bar.warp.sync 7; activemask.b32 %r1;", None),
    ],
)
def test_the_mask_of_straight_code_where_there_is_one(body, mask):
    common = member_mask(parse(text(body)).entries["k"].instructions[4:])
    assert (common and common[1]) == mask
