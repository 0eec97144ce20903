"""Polling loops: loops whose reads decide their exit, and that have no effect others wait for."""

from __future__ import annotations

import numpy as np
import pytest

import warpsan
from warpsan.analysis.polling import Polling, polling_loops
from warpsan.analysis.program import build_program
from warpsan.ptx.linking import link
from warpsan.ptx.parser import parse

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
FUNCTIONS = """.func (.param .u32 y) seen(.param .u64 x) { .reg .b64 %rd<2>; .reg .b32 %r<2>; ld.param.u64 %rd1, [x];
ld.acquire.gpu.u32 %r1, [%rd1]; st.param.u32 [y], %r1; ret; }
.func (.param .u32 y) differs(.param .u64 x, .param .u32 z) { .reg .b64 %rd<2>; .reg .b32 %r<4>; .reg .pred %p<2>;
ld.param.u64 %rd1, [x]; ld.param.u32 %r2, [z];
{ .param .u64 x; .param .u32 y; st.param.u64 [x], %rd1; call (y), seen, (x); ld.param.u32 %r1, [y]; }
setp.eq.u32 %p1, %r1, %r2; mov.u32 %r3, 0; @%p1 bra N; mov.u32 %r3, 1; N: st.param.u32 [y], %r3; ret; }
.func (.reg .u32 y) looks(.reg .u64 x) { ld.acquire.gpu.u32 y, [x]; ret; }
.func (.param .u32 y) counts(.param .u64 x) { .reg .b64 %rd<2>; .reg .b32 %r<2>; ld.param.u64 %rd1, [x];
atom.add.u32 %r1, [%rd1], 1; st.param.u32 [y], %r1; ret; }
.func (.param .u32 y) again(.param .u64 x) { .reg .b64 %rd<2>; .reg .b32 %r<2>; .reg .pred %p<2>;
ld.param.u64 %rd1, [x]; ld.acquire.gpu.u32 %r1, [%rd1]; setp.ne.u32 %p1, %r1, 0; @%p1 bra N;
{ .param .u64 x; .param .u32 y; st.param.u64 [x], %rd1; call (y), again, (x); ld.param.u32 %r1, [y]; }
N: st.param.u32 [y], %r1; ret; }
"""


def call(name: str, *more: str, address: str = "%rd1") -> str:
    """A call with an address, and optionally a number, with result %r1."""
    given = "".join(f".param .u32 z; st.param.u32 [z], {each};" for each in more)
    return (
        f"{{ .param .u64 x; .param .u32 y; st.param.u64 [x], {address}; {given}"
        f"call (y), {name}, (x{', z' * len(more)}); ld.param.u32 %r1, [y]; }}"
    )


READ = "ld.acquire.gpu.global.u32 %r1, [%rd1];"
BACK = "setp.eq.u32 %p1, %r1, 0; @%p1 bra L;"

ENDLESS = {
    "a flag": f"L: {READ} {BACK}",
    "a flag, with a rest": f"L: {READ} nanosleep.u32 20; {BACK}",
    "an address made anew": f"L: add.u64 %rd2, %rd1, 64; ld.volatile.u32 %r1, [%rd2]; {BACK}",
    "what a pointer in memory points to": f"L: ld.volatile.u64 %rd2, [%rd1]; ld.volatile.u32 %r1, [%rd2]; {BACK}",
    "one of two flags": f"L: {READ} setp.ne.u32 %p2, %r1, 0; @%p2 bra E; ld.volatile.u32 %r1, [%rd1+4]; {BACK}",
    "a lock": f"L: atom.global.exch.b32 %r1, [%rd1], 1; xor.b32 %r1, %r1, 1; {BACK}",
    "a register that two ways set": f"L: mov.u32 %r1, 0; {READ.replace('%r1', '%r2')} setp.eq.u32 %p2, %r2, 7;"
    f"@!%p2 bra M; mov.u32 %r1, 1; M: {BACK}",
    "a count of tries between rests": f"mov.u32 %r3, 0; L: {READ} setp.ne.u32 %p1, %r1, 0; @%p1 bra E;"
    "setp.gt.u32 %p2, %r3, 9; @%p2 bra M; add.u32 %r3, %r3, 1; bra L; M: nanosleep.u32 20; mov.u32 %r3, 0; bra L;",
    "a clock that decides how long it rests": f"mov.u64 %rd3, %globaltimer; L: {READ} setp.ne.u32 %p1, %r1, 0;"
    "@%p1 bra E; mov.u64 %rd4, %globaltimer; sub.u64 %rd4, %rd4, %rd3; setp.lt.u64 %p2, %rd4, 99; @%p2 bra L;"
    "nanosleep.u32 99; bra L;",
    "lanes that agree": f"L: {READ} setp.eq.u32 %p2, %r1, 0; vote.sync.any.pred %p1, %p2, -1; bar.warp.sync -1;"
    "@%p1 bra L;",
    "an exit": f"L: {READ} setp.ne.u32 %p1, %r1, 0; @%p1 exit; bra L;",
    "a call": f"L: {call('seen')} {BACK}",
    "a call with registers": f"L: call (%r1), looks, (%rd1); {BACK}",
    "a call in a call": f"L: {call('differs', '1')} setp.ne.u32 %p1, %r1, 0; @%p1 bra L;",
    "two calls": f"L: {call('seen')} setp.ne.u32 %p2, %r1, 0; @%p2 bra E; add.u64 %rd2, %rd1, 4;"
    f"{call('seen', address='%rd2')} {BACK}",
    "the one before": f"mov.u32 %r3, 9; O: {READ} setp.eq.u32 %p1, %r1, 0; @%p1 bra O; add.u64 %rd1, %rd1, 4;"
    "add.u32 %r3, %r3, -1; setp.ne.u32 %p2, %r3, 0; @%p2 bra O;",
}
"""Loops that only memory can end."""
BOUNDED = {
    "a count of tries": f"mov.u32 %r3, 0; L: {READ} setp.ne.u32 %p1, %r1, 0; @%p1 bra E; add.u32 %r3, %r3, 1;"
    "setp.lt.u32 %p2, %r3, 99; @%p2 bra L;",
    "a flag and a count at once": f"mov.u32 %r3, 0; L: {READ} setp.eq.u32 %p1, %r1, 0; add.u32 %r3, %r3, 1;"
    "setp.lt.and.u32 %p2, %r3, 99, %p1; @%p2 bra L;",
    "a count of calls": f"mov.u32 %r3, 0; L: {call('seen')} setp.ne.u32 %p1, %r1, 0; @%p1 bra E; add.u32 %r3, %r3, 1;"
    "setp.lt.u32 %p2, %r3, 99; @%p2 bra L;",
    "a call with a count": f"mov.u32 %r3, 0; L: add.u32 %r3, %r3, 1; {call('differs', '%r3')}"
    f"setp.eq.u32 %p2, %r1, 0; @%p2 bra E; {READ} {BACK}",
    "a clock": f"L: {READ} setp.ne.u32 %p1, %r1, 0; @%p1 bra E; mov.u32 %r3, %clock; setp.lt.u32 %p2, %r3, 99;"
    "@%p2 bra L;",
}
"""Loops that may end without memory."""
OTHERS = {
    "a count": "mov.u32 %r3, 0; L: add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, 9; @%p1 bra L;",
    "a search": f"L: add.u64 %rd1, %rd1, 4; {READ} {BACK}",
    "a list": "L: ld.global.u64 %rd1, [%rd1]; setp.ne.u64 %p1, %rd1, 0; @%p1 bra L;",
    "work": f"L: ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd1+4], %r1; {BACK}",
    "a lock of lanes": "L: atom.global.cas.b32 %r1, [%rd1], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra M;"
    "st.global.u32 [%rd1+4], 5; st.release.gpu.global.u32 [%rd1], 0; M: @%p1 bra L;",
    "a barrier": f"L: {READ} bar.sync 0; {BACK}",
    "a ticket": "L: atom.global.add.u32 %r1, [%rd1], 1; setp.lt.u32 %p1, %r1, 9; @%p1 bra L;",
    "constants": f"L: ld.param.u32 %r1, [a]; {BACK}",
    "a wait for an mbarrier": "L: mbarrier.try_wait.parity.shared.b64 %p1, [m], 0; @!%p1 bra L;",
    "two calls of a function": 2 * call("seen"),
    "a search by calls": f"L: add.u64 %rd1, %rd1, 4; {call('seen')} {BACK}",
    "a call that counts": f"L: {call('counts')} {BACK}",
    "a call of itself": f"L: {call('again')} {BACK}",
    "a call of malloc": f"L: {call('malloc')} {READ} {BACK}",
}
DELAY = (
    f"L: {READ} setp.ne.u32 %p1, %r1, 0; @%p1 bra E; mov.u32 %r3, 0;"
    "D: add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 500; @%p2 bra D; bra L;"
)
"""A flag, and a delay between reads of it longer than the scheduler's limit."""


def text(body: str) -> str:
    return (
        HEAD + FUNCTIONS + ".entry k(.param .u64 a) { .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .pred %p<9>;"
        f".shared .align 8 .b64 m; ld.param.u64 %rd1, [a]; {body}\nE: ret; }}"
    )


def loops(body: str) -> Polling:
    entry = link(parse(text(body)), "k")
    return polling_loops(entry, build_program(entry))


@pytest.mark.parametrize("name", ENDLESS)
def test_a_loop_that_only_memory_can_end(name: str) -> None:
    polling = loops(ENDLESS[name])
    assert set(polling.endless) == polling.blocks != set()
    assert all(each.opcode in ("ld", "atom") for each in polling.endless.values())


@pytest.mark.parametrize("name", BOUNDED)
def test_a_loop_that_may_end_otherwise(name: str) -> None:
    polling = loops(BOUNDED[name])
    assert polling.blocks
    assert not polling.endless


@pytest.mark.parametrize("name", OTHERS)
def test_other_loops(name: str) -> None:
    assert not loops(OTHERS[name]).blocks


def test_a_function_that_is_called_from_elsewhere_is_no_part_of_the_loop() -> None:
    """A lane in the function may come from another caller, and continue."""
    alone, shared = (loops(f"{before} L: {call('seen')} {BACK}") for before in ("", call("seen")))
    assert len(shared.blocks) == len(alone.blocks) - 1
    assert set(shared.endless) == shared.blocks


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize("schedule", ["lockstep", "forward", "reverse", "random"])
@pytest.mark.parametrize("before", ["", call("seen")], ids=["alone", "shared"])
def test_lanes_wait_by_calls_for_another_warp(before: str, schedule: str) -> None:
    body = (
        f"{before} mov.u32 %r2, %tid.x; setp.ge.u32 %p3, %r2, 32; @%p3 bra S; L: {call('seen')} {BACK} bra E;"
        "S: st.release.gpu.global.u32 [%rd1], 1;"
    )
    report = warpsan.launch(text(body), "k", 1, 64, [np.zeros(8, np.uint32)], schedule=schedule, max_steps=100_000)
    assert report.hazards == []


@pytest.mark.usefixtures("recorded_launches")
def test_a_wait_by_calls_for_what_never_comes_is_a_deadlock() -> None:
    with pytest.raises(warpsan.Deadlock, match=r"polls for .* \(PTX line 5\)"):
        warpsan.launch(text(f"L: {call('seen')} {BACK}"), "k", 1, 64, [np.zeros(8, np.uint32)], max_steps=1_000_000)


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize("schedule", ["lockstep", "forward", "reverse", "random"])
def test_a_delay_between_two_looks_is_no_deadlock(schedule: str) -> None:
    """Warp 0 polls a flag of warp 1, which first waits for another one: each has a delay between reads."""
    second = DELAY.translate(str.maketrans("LDE", "MNF")).replace("%rd1]", "%rd1+4]")
    body = (
        f"mov.u32 %r2, %tid.x; setp.ge.u32 %p3, %r2, 32; @%p3 bra S; st.release.gpu.global.u32 [%rd1+4], 1; {DELAY}"
        f"S: {second.replace('bra F', 'bra G')} G: st.release.gpu.global.u32 [%rd1], 1;"
    )
    assert set(loops(body).endless) < loops(body).blocks
    array = np.zeros(8, np.uint32)
    warpsan.launch(text(body), "k", 1, 64, [array], schedule=schedule, max_steps=100_000)
    assert array[:2].tolist() == [1, 1]
