"""Instructions without a model: message, time of rejection, and earlier hazards; and rare forms."""

from __future__ import annotations

import numpy as np
import pytest

import warpsan
from hopper_snippets import CTA_WAIT, MODES, kernel, kinds
from warpsan.analysis.program import build_program
from warpsan.engine.decoded import decode
from warpsan.host.options import SCHEDULES
from warpsan.ptx.linking import link
from warpsan.ptx.parser import parse

THREADS = 64
LINE = 10
"""Line of a body's first line in :func:`kernel`."""


def refusals(body: str, *, variables: tuple[str, ...] = ("buf", "bar")) -> list[str]:
    """Messages for instructions of a body without a model."""
    entry = link(parse(kernel(body)), "k")
    decoded = decode(
        *(entry, build_program(entry)),
        checked=True,
        counted=False,
        target="sm_90a",
        numerics="hardware",
        variables=variables,
    )
    return [str(each) for each in decoded.refused.values()]


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("frobnicate.u32 %r3, %r0;", "opcode frobnicate.u32 is not modelled"),
        ("add.u32 %r3, %r0;", "add.u32: expected 2 source operands"),
        ("and.b32 %r3, %r0, %r0, %r0;", "and.b32: expected 2 source operands"),
        ("setp.eq.u32 %p2, %r0;", "setp.eq.u32: too few operands"),
        ("shfl.sync.idx.b32 %r3, %r0, 1, 31;", "shfl.sync.idx.b32: expected 4 source operands"),
        ("st.global.u32 [%rd2];", "st.global.u32: expected an address and a value"),
        ("add.u32 %r3, %r0, %smid;", "add.u32: register %smid is not modelled: the simulator has no SMs"),
        ("add.u32 %rd3, %r0, %clock;", "add.u32: register %clock is not modelled: a clock, which counts steps here"),
        ("add.u64 %rd3, %rd2, %tid.x;", "add.u64: register %tid.x is not modelled"),
        ("add.u64 %rd3, %rd2, %r0;", "add.u64: a .b32 register cannot be read as .u64"),
        ("add.u64 %r3, %rd2, %rd2;", "add.u64: a .b32 register cannot take a .u64 result"),
        ("add.u32 5, %r0, %r0;", "add.u32: expected a register to write to"),
        ("add.u32 %r3, %r0, nowhere;", "add.u32: operand Symbol(name='nowhere') is not modelled"),
        ("add.u32 %r3, %r0, !%p1;", "add.u32: operand Negated(register=Register(name='%p1')) is not modelled"),
        ("ld.shared.u32 %r3, [nowhere];", "ld.shared.u32: unknown variable nowhere"),
        ("ld.global.u32 %r3, %rd2;", "ld.global.u32: expected an address in brackets"),
        ("ld.global.u32 %r3, [%tid.x];", "ld.global.u32: register %tid.x is not modelled"),
        ("atom.global.add.u64 %r3, [%rd2], 1;", "atom.global.add.u64: a .b32 register cannot take a .u64 result"),
        ("@%smid add.u32 %r3, %r0, %r0;", "add.u32: register %smid is not modelled"),
        ("bar.sync;", "bar.sync: too few operands"),
        ("bar.red.popc.b32 %r3, 0, %p1;", "bar.red.popc.b32: expected one of .u32, not .b32"),
        ("call nothing;", "call: the function nothing is declared, and the PTX does not define it"),
        (
            "fence.proxy.tensormap::generic.acquire.gpu [%rd2], 64;",
            "an acquire takes the address of a tensor map",
        ),
    ],
)
def test_what_is_said_of_an_instruction_that_is_not_modelled(body: str, what: str) -> None:
    (said,) = refusals(body)
    assert said.startswith(f"PTX line {LINE}: ")
    assert what in said


RARE = "setp.eq.u32 %p3, %r0, {};\n@%p3 frobnicate.u32 %r3, %r0;\nst.global.u32 [%rd2], %r0;\n"


@pytest.mark.parametrize("checks", [(), ("race", "memory", "async")])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_instruction_that_is_not_modelled_matters_where_a_lane_reaches_it(
    schedule: str, checks: tuple[str, ...]
) -> None:
    for _ in range(2):
        out = np.zeros(THREADS, np.uint32)
        assert kinds(RARE.format(THREADS), [out], checks=checks, schedule=schedule) == []
        assert (out == np.arange(THREADS)).all()
        with pytest.raises(warpsan.UnsupportedInstruction, match=r"opcode frobnicate.u32 is not") as stopped:
            kinds(RARE.format(40), [out], checks=checks, schedule=schedule)
        assert stopped.value.line == LINE + 1
        assert stopped.value.hazards == ()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("end", ["frobnicate.u32 %r3, %r0;", "bar.sync.fancy 0;", "@%p2 bra.hot L;\nL:"])
def test_what_was_found_before_is_kept(end: str, schedule: str) -> None:
    race = "st.shared.u32 [%r1], %r0;\nbar.sync 0;\n"
    with pytest.raises(warpsan.UnsupportedInstruction) as stopped:
        kinds(f"setp.eq.u32 %p2, 1, 1;\n{race}{end}", [np.zeros(1, np.uint32)], schedule=schedule)
    assert ("race", LINE + 1) in [(hazard.kind, hazard.ptx_line) for hazard in stopped.value.hazards]
    with pytest.raises(warpsan.UnsupportedInstruction) as unwatched:
        kinds(f"setp.eq.u32 %p2, 1, 1;\n{race}{end}", [np.zeros(1, np.uint32)], schedule=schedule, checks=())
    assert unwatched.value.hazards == ()


def test_two_ends_of_blocks_one_behind_the_other_have_their_own_sentences() -> None:
    body = "setp.eq.u32 %p3, %r0, {};\n@%p3 bar.sync.fancy 0;\nfrobnicate.u32 %r3, %r0;"
    for number, what in ((3, "not modelled: .fancy"), (THREADS, "opcode frobnicate")):
        with pytest.raises(warpsan.UnsupportedInstruction, match=what):
            kinds(body.format(number), [np.zeros(1, np.uint32)], schedule="forward")


def test_in_a_ring_too() -> None:
    with pytest.raises(warpsan.UnsupportedInstruction, match=r"opcode frobnicate.u32 is not modelled"):
        kinds(RARE.format(3), [np.zeros(THREADS, np.uint32)], numerics="ring")


# ---- calls -----------------------------------------------------------------------------------------------------------

FUNCTIONS = """.version 8.0
.target sm_90a
.address_size 64
.func (.param .b32 out) one (.param .align 1 .b8 x[4])
{ .reg .b32 %v; ld.param.b32 %v, [x]; add.u32 %v, %v, 1; st.param.b32 [out], %v; ret; }
.func (.param .b32 out) wide (.param .b64 x)
{ .reg .b64 %w; .reg .b32 %v; ld.param.b64 %w, [x]; cvt.u32.u64 %v, %w; st.param.b32 [out], %v; ret; }
.func none () { ret; }
.entry k(.param .u64 p) {
.reg .b32 %r<4>; .reg .b64 %rd<6>; .reg .pred %p;
mov.u32 %r0, %tid.x; ld.param.u64 %rd1, [p]; mul.wide.u32 %rd2, %r0, 4; add.u64 %rd2, %rd1, %rd2;
"""


def _called(body: str) -> np.ndarray:
    out = np.zeros(THREADS, np.uint32)
    warpsan.launch(FUNCTIONS + body + "\nst.global.u32 [%rd2], %r3; ret; }", "k", 1, THREADS, [out])
    return out


def test_a_register_may_be_passed_for_bytes_at_any_address() -> None:
    assert (_called("call (%r3), one, (%r0);") == np.arange(THREADS) + 1).all()


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("call (%r3), one, ();", "one has 1 arguments, and 0 are given"),
        ("call one, (%r0);", "one has 1 results, and 0 are given"),
        ("call (%r3), one, (%rd1);", "8 bytes are passed for 4 bytes of one"),
        ("call (%rd3), one, (%r0);", "8 bytes are passed for 4 bytes of one"),
        ("call (%r3), one, (p);", "expected a register or a .param variable, not Symbol"),
    ],
)
def test_a_call_that_is_not_of_the_functions_parameters(call: str, what: str) -> None:
    with pytest.raises(warpsan.UnsupportedInstruction, match=what):
        _called(call)


def test_a_call_through_a_register_of_a_function_with_other_parameters() -> None:
    """Only the lane that calls it ends the launch."""
    prototype = "f: .callprototype (.param .b32 _) _ (.param .align 1 .b8 _[4]);\n"
    body = (
        prototype
        + "mov.u64 %rd3, one; mov.u64 %rd4, wide; setp.eq.u32 %p, %r0, {}; selp.b64 %rd3, %rd4, %rd3, %p;\n"
        + "call (%r3), %rd3, (%r0), f;"
    )
    assert (_called(body.format(THREADS)) == np.arange(THREADS) + 1).all()
    with pytest.raises(warpsan.UnsupportedInstruction, match="4 bytes are passed for 8 bytes of wide"):
        _called(body.format(5))


# ---- rare forms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "schedule"), MODES)
def test_mbarriers_at_generic_addresses(mode: str, schedule: str) -> None:
    """Without a state space an address is a generic one (PTX ISA, "mbarrier")."""
    wait = CTA_WAIT.format(0, "%rd4", 0).replace(".shared::cta", "")
    body = (
        "cvt.u64.u32 %rd3, %r2; cvta.shared.u64 %rd4, %rd3;\n@%p1 mbarrier.init.b64 [%rd4], 64;\nbar.sync 0;\n"
        "shl.b32 %r3, %r0, 2; add.u32 %r4, %r1, %r3; xor.b32 %r5, %r4, 128;\nst.shared.u32 [%r4], %r0;\n"
        f"{{}}mbarrier.arrive.b64 %rd5, [%rd4];\n{wait}mbarrier.test_wait.b64 %p4, [%rd4], %rd5;\n"
        "ld.shared.u32 %r6, [%r5];\nselp.u32 %r6, %r6, 99, %p4;\nst.global.u32 [%rd2], %r6;\n"
    )
    out = np.zeros(64, np.uint32)
    assert kinds(body.format(""), [out], async_mode=mode, schedule=schedule) == []
    assert (out == np.arange(64) ^ 32).all()
    early = body.format("").replace("mbarrier.arrive.b64", "mbarrier.arrive.relaxed.cta.b64")
    assert kinds(early, [out], async_mode=mode, schedule=schedule) == ["race"]
    elsewhere = "mov.u64 %rd4, %rd1;\n"
    assert "out-of-bounds" in kinds(f"{elsewhere}@%p1 mbarrier.init.b64 [%rd4], 64;", [out], async_mode=mode)


COPIES = (
    "@%p1 mbarrier.init.shared::cta.b64 [%r2], 64;\nbar.sync 0;\n"
    "shl.b32 %r3, %r0, 4; add.u32 %r4, %r1, %r3; mul.wide.u32 %rd3, %r0, 16; add.u64 %rd4, %rd1, %rd3;\n"
    "cp.async.cg.shared.global [%r4], [%rd4], 16;\ncp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r2];\n"
    + CTA_WAIT.format(0, "%r2", 0)
    + "fence.proxy.async;\nbar.sync 0;\nadd.u64 %rd5, %rd1, 1024;\n"
    "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd5], [%r1], 1024;\n"
    "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n"
)


@pytest.mark.parametrize(("mode", "schedule"), MODES)
def test_copies_that_arrive_when_they_have_landed_and_a_bulk_copy_of_what_they_brought(
    mode: str, schedule: str
) -> None:
    words = np.arange(512, dtype=np.uint32)
    assert kinds(COPIES, [words], async_mode=mode, schedule=schedule) == []
    assert (words[256:] == np.arange(256)).all()
    unfenced = COPIES.replace("fence.proxy.async;\n", "")
    assert kinds(unfenced, [words], async_mode=mode, schedule=schedule) == ["proxy"]
