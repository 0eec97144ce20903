"""Unset registers: reported at their use, and nowhere else; and register budgets."""

from __future__ import annotations

import numpy as np
import pytest

import warpsan

HEAD = ".version 8.0\n.target {target}\n.address_size 64\n"
REGISTERS = (
    ".reg .b32 %r<20>; .reg .b64 %rd<9>; .reg .pred %p<9>; .reg .b16 %h<9>; .reg .f32 %f<20>; .reg .b32 %u<9>;\n"
    ".reg .pred %q<3>; .reg .b16 %v<3>; .reg .b64 %ud<3>; .reg .f32 %uf<4>;\n"
)


def kernel(body: str, target: str = "sm_89", directives: str = "") -> str:
    """An entry around a body that leaves %u, %ud, %uf, %q and %v unset; %rd1 is a thread's word in memory."""
    return (
        HEAD.format(target=target) + f".entry k(.param .u64 p) {directives}\n{{\n{REGISTERS}"
        ".local .align 8 .b8 depot[16]; .shared .align 8 .b8 buf[256];\n"
        "ld.param.u64 %rd0, [p]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd0, %rd1;\n"
        f"setp.lt.u32 %p0, %r0, 10; and.b32 %r1, %r0, 31; setp.eq.u32 %p1, %r1, 0;\n{body}\nret;\n}}\n"
    )


def reported(body: str, threads: int = 32, **options: str) -> list[tuple[str, int]]:
    """Message and first thread of each hazard; the same in every schedule."""
    results = []
    for schedule in ("lockstep", "forward", "reverse", "random"):
        report = warpsan.launch(kernel(body, **options), "k", 1, threads, [np.zeros(64, np.uint32)], schedule=schedule)
        assert {hazard.kind for hazard in report.hazards} <= {"uninitialised"}
        results.append([(hazard.message, hazard.thread[0]) for hazard in report.hazards])
    assert all(result == results[0] for result in results)
    return results[0]


STORE = "st.global.u32 [%rd1], {};"
SET = "@%p0 mov.u32 %u1, 5;\n"  # in threads 0 to 9

HARMLESS = {
    "a copy": "mov.u32 %r2, %u1;",
    "arithmetic that is not used": "add.u32 %r2, %u1, 1; mul.lo.u32 %r3, %r2, %r2; cvt.rn.f32.u32 %f1, %r3;",
    "the branch that sets it uses it": SET + "add.u32 %r2, %u1, 1;\n@%p0 " + STORE.format("%r2"),
    "a choice of the other": SET + "selp.b32 %r2, %u1, 7, %p0;\n" + STORE.format("%r2"),
    "masked off": "and.b32 %r2, %u1, 0;\n" + STORE.format("%r2"),
    "a bit that is set anyway": "or.b32 %r2, %u1, -1;\n" + STORE.format("%r2"),
    "the low half of a pack": "mov.b32 %r2, {%h1, %v1};\nmov.b32 {%h2, %h3}, %r2;\nst.global.u16 [%rd1], %h2;".replace(
        "mov.b32 %r2, {%h1", "mov.u16 %h1, 3; mov.b32 %r2, {%h1"
    ),
    "the low word of a pack": "mov.b64 %rd2, {%r1, %u1};\ncvt.u32.u64 %r2, %rd2;\n" + STORE.format("%r2"),
    "bits that are shifted out": "shl.b32 %r2, %u1, 16; shl.b32 %r2, %r2, 16;\n" + STORE.format("%r2"),
    "bytes that are not chosen": "prmt.b32 %r2, %r1, %u1, 0x3210;\n" + STORE.format("%r2"),
    "lane 0 sends": "@%p1 mov.u32 %u1, 5;\nshfl.sync.idx.b32 %r2|%p2, %u1, 0, 31, -1;\n" + STORE.format("%r2"),
    "a condition decided by the other": (
        "@%p0 setp.lt.u32 %q1, %r0, 5;\nand.pred %p2, %p0, %q1;\n@%p2 " + STORE.format("%r0")
    ),
    "a spill": "st.local.u32 [depot], %u1; ld.local.u32 %r2, [depot];",
    "set by a load": "ld.global.u32 %u1, [%rd1];\n" + STORE.format("%u1"),
    "set in both branches": SET + "@!%p0 mov.u32 %u1, 6;\n" + STORE.format("%u1"),
    "the low byte of a register": "mov.b32 %u1, {%h1, %v1};\nst.global.u8 [%rd1], %r1;",
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_does_not_matter_is_not_reported(name: str) -> None:
    assert reported(HARMLESS[name]) == []


USES = {
    "stored": (STORE.format("%u1"), "%u1 is used as a stored value", 0),
    "stored after a chain of copies": (
        "mov.u32 %r2, %u1; cvt.u64.u32 %rd2, %r2; cvt.u32.u64 %r3, %rd2; mov.b32 %r4, %r3;\n" + STORE.format("%r4"),
        "%r4 is used as a stored value",
        0,
    ),
    "stored in a vector": ("mov.u32 %r2, 5;\nst.global.v2.u32 [%rd0], {%r2, %u1};", "%u1 is used as a stored value", 0),
    "stored in shared memory": ("st.shared.u32 [buf], %u1;", "%u1 is used as a stored value", 0),
    "added to memory": ("red.global.add.u32 [%rd1], %u1;", "%u1 is used as an operand", 0),
    "computed with": ("fma.rn.f32 %f1, %uf1, %uf1, %uf1;\nst.global.f32 [%rd1], %f1;", "%f1 is used as a stored", 0),
    "set in some threads": (SET + STORE.format("%u1"), "%u1 is used as a stored value", 10),
    "chosen": (SET + "selp.b32 %r2, 7, %u1, %p0;\n" + STORE.format("%r2"), "%r2 is used as a stored value", 10),
    "the condition of a choice": ("selp.b32 %r2, 7, 8, %q1;\n" + STORE.format("%r2"), "%r2 is used as a stored", 0),
    "in a local address": ("and.b32 %r2, %u1, 4;\nst.local.u32 [%r2], %r1;", "%r2 is used as an address", 0),
    "in an address": (
        "mov.u64 %rd2, 0;\n@%p0 mov.u64 %rd2, %ud1;\nand.b64 %rd2, %rd2, 4; add.u64 %rd2, %rd0, %rd2;\n"
        "ld.global.u32 %r2, [%rd2];",
        "%rd2 is used as an address",
        0,
    ),
    "as a guard": ("@%q1 " + STORE.format("%r1"), "%q1 is used as a predicate", 0),
    "as a branch": ("setp.gt.u32 %p2, %u1, 3;\n@%p2 bra L;\nL:", "%p2 is used as a predicate", 0),
    "in an and": ("and.b32 %r2, %u1, 16;\n" + STORE.format("%r2"), "%r2 is used as a stored value", 0),
    "half of a pack": ("mov.b32 %r2, {%v1, %v1};\nmov.b32 {%h2, _}, %r2;\nst.global.u16 [%rd1], %h2;", "%h2", 0),
    "in a vote": ("vote.sync.ballot.b32 %r2, %q1, -1;", "%q1 is used as an operand", 0),
    "sent by a lane without it": (
        "@%p1 mov.u32 %u1, 5;\nshfl.sync.idx.b32 %r2, %u1, 1, 31, -1;\n" + STORE.format("%r2"),
        "%r2 is used as a stored value",
        0,
    ),
    "shifted to the middle": ("shl.b32 %r2, %u1, 16;\n" + STORE.format("%r2"), "%r2 is used as a stored value", 0),
    "as an accumulator": (
        "mov.u32 %r2, 0;\nmma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r2, %r2, %r2, %r2},"
        " {%r2, %r2}, {%uf1, %uf2, %uf2, %uf1};",
        "%uf1 is used as an operand",
        0,
    ),
}


@pytest.mark.parametrize("name", USES)
def test_what_matters_is_reported_once_with_the_register(name: str) -> None:
    body, says, thread = USES[name]
    messages = [(message, first) for message, first in reported(body) if says in message]
    assert len(messages) == 1
    assert messages[0][1] == thread
    assert "never set" in messages[0][0]
    assert "PTX line" in messages[0][0]


def test_a_register_that_is_set_in_a_loop_is_only_reported_before() -> None:
    loop = (
        "mov.u32 %r2, 0;\nL: setp.eq.u32 %p2, %r2, 2;\n@%p2 mov.u32 %u1, %r2;\n{}add.u32 %r2, %r2, 1;\n"
        "setp.lt.u32 %p3, %r2, 4;\n@%p3 bra L;\n" + STORE.format("%u1")
    )
    assert reported(loop.format("")) == []
    assert len(reported(loop.format("setp.eq.u32 %p4, %r2, 3;\n@%p4 st.global.u32 [%rd1], %u1;\n"))) == 0
    assert len(reported(loop.format("setp.eq.u32 %p4, %r2, 1;\n@%p4 st.global.u32 [%rd1], %u1;\n"))) == 1


WGMMA = (
    "mov.u64 %rd2, 0;\nsetp.{} %p2, 0, 1;\nwgmma.fence.sync.aligned;\n"
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{%uf0, %uf1, %uf2, %uf3}}, %rd3, %rd3, %p2, 1, 1, 0, 0;\n"
    "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\nst.global.f32 [%rd1], %uf0;"
)


def test_accumulators_of_a_warpgroup_matter_when_they_are_added_to() -> None:
    fill = (
        ".reg .b64 %rd3; mul.lo.u32 %r3, %r0, 16; mov.u32 %r4, buf; add.u32 %r3, %r3, %r4; mov.u32 %r5, 0;\n"
        "st.shared.v4.u32 [%r3], {%r5, %r5, %r5, %r5};\nbar.sync 0;\nfence.proxy.async;\nbar.sync 0;\n"
        "cvt.u64.u32 %rd3, %r4; shr.u64 %rd3, %rd3, 4; or.b64 %rd3, %rd3, 0x0000000800080000;\n"
    )
    for schedule in ("lockstep", "reverse"):
        for compare, many in (("eq.u32", 0), ("ne.u32", 4)):
            text = kernel(fill + WGMMA.format(compare), "sm_90a").replace("buf[256]", "buf[4096]")
            text = text.replace(".reg .b64 %rd<9>", ".reg .b64 %rd<3>")
            hazards = warpsan.launch(text, "k", 1, 128, [np.zeros(128, np.uint32)], schedule=schedule).hazards
            reported = [hazard for hazard in hazards if hazard.kind == "uninitialised"]
            assert len(reported) == (many > 0), [hazard.message for hazard in hazards]


def test_functions_set_their_results_and_take_what_they_are_given() -> None:
    text = (
        HEAD.format(target="sm_89") + ".func (.reg .b32 %o) twice(.reg .b32 %i)\n{\nadd.u32 %o, %i, %i;\nret;\n}\n"
        ".entry k(.param .u64 p)\n{\n.reg .b32 %r<4>; .reg .b64 %rd<3>;\nld.param.u64 %rd1, [p];\n"
        "mov.u32 %r1, %tid.x;\n{}call (%r2), twice, (%r1);\nst.global.u32 [%rd1], %r2;\n"
        "st.global.u32 [%rd1+4], %r3;\nret;\n}\n"
    )
    hazards = warpsan.launch(text.replace("{}", ""), "k", 1, 1, [np.zeros(4, np.uint32)]).hazards
    assert [hazard.message.split(" is used")[0] for hazard in hazards] == ["uninitialised: register %r3"]
    assert warpsan.launch(text.replace("{}", "mov.u32 %r3, 1;\n"), "k", 1, 1, [np.zeros(4, np.uint32)]).hazards == []


# ---- budgets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("directives", "threads", "message"),
    [
        (".maxnreg 65", 1024, "65, with which a block of 1024 threads takes 73728 registers, and an SM has 65536"),
        (".maxnreg 255", 288, "255, with which a block of 288 threads takes 73728 registers"),
        (".maxnreg 256", 32, "a thread has at most 255 registers"),
    ],
)
def test_a_block_whose_registers_do_not_fit_is_refused(directives: str, threads: int, message: str) -> None:
    with pytest.raises(warpsan.LaunchError, match=message):
        warpsan.launch(kernel("", directives=directives), "k", 1, threads, [np.zeros(1024, np.uint32)])


@pytest.mark.parametrize(
    ("directives", "threads"),
    [(".maxnreg 64", 1024), (".maxnreg 255", 256), (".maxntid 1024, 1, 1 .maxnreg 128", 1024), ("", 1024)],
)
def test_a_block_whose_registers_fit_is_launched(directives: str, threads: int) -> None:
    assert warpsan.launch(kernel("", directives=directives), "k", 1, threads, [np.zeros(1024, np.uint32)]).hazards == []


REBALANCE = (
    "setp.lt.u32 %p2, %r0, 128;\n@%p2 bra PRODUCER;\n{consumer}setmaxnreg.inc.sync.aligned.u32 {inc};\nbra DONE;\n"
    "PRODUCER: {producer}setmaxnreg.dec.sync.aligned.u32 {dec};\nDONE:"
)


@pytest.mark.parametrize("schedule", ["lockstep", "forward", "reverse", "random"])
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, ""),
        ({"inc": 240}, "ask for 66560 registers in all, and a block of 384 threads has 64512"),
        ({"dec": 48, "inc": 232}, "ask for 65536 registers"),
        # The producer waits for the consumers, who wait for registers it has not yet released.
        ({"producer": "bar.sync 0;\n"}, "waits forever"),
        ({"dec": 176}, "a thread is to have 176 registers, more than its 168"),
        ({"inc": 160}, "a thread is to have 160 registers, fewer than its 168"),
    ],
)
def test_setmaxnreg_waits_for_what_others_give_back(schedule: str, changes: dict[str, object], says: str) -> None:
    body = REBALANCE.format(**{"inc": 232, "dec": 40, "consumer": "", "producer": "", **changes})
    text = kernel(body, "sm_90a", ".maxnreg 168")
    stopped = ""
    try:
        hazards = warpsan.launch(text, "k", 2, 384, [np.zeros(384, np.uint32)], schedule=schedule).hazards
    except warpsan.Deadlock as error:
        stopped, hazards = str(error), list(error.hazards)
    assert stopped.startswith("setmaxnreg.inc.sync.aligned.u32 at PTX line" if "ever" in stopped else "")
    assert {hazard.kind for hazard in hazards} == ({"registers"} if says else set())
    assert any(says in hazard.message for hazard in hazards) or not says


@pytest.mark.parametrize("schedule", ["lockstep", "forward", "reverse", "random"])
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("setp.lt.u32 %p2, %r0, 64; @%p2 setmaxnreg.dec.sync.aligned.u32 40;", "only some warps of the warpgroup"),
        ("setp.lt.u32 %p2, %r0, 96; @!%p2 ret; bar.sync 1, 96; setmaxnreg.dec.sync.aligned.u32 40;", "only some warps"),
        (
            "setp.lt.u32 %p2, %r0, 64; @%p2 setmaxnreg.dec.sync.aligned.u32 40;"
            " @!%p2 setmaxnreg.dec.sync.aligned.u32 40;",
            "another warp of the warpgroup executes setmaxnreg.dec",
        ),
        ("setp.lt.u32 %p2, %r0, 128; @%p2 setmaxnreg.dec.sync.aligned.u32 40;", ""),
        ("setmaxnreg.dec.sync.aligned.u32 40; bar.sync 0; setmaxnreg.inc.sync.aligned.u32 80;", ""),
    ],
)
def test_all_warps_of_a_warpgroup_execute_the_same_setmaxnreg(schedule: str, body: str, says: str) -> None:
    text = kernel(body, "sm_90a", ".maxnreg 168")
    hazards = warpsan.launch(text, "k", 2, 256, [np.zeros(384, np.uint32)], schedule=schedule).hazards
    assert {hazard.kind for hazard in hazards} == ({"registers"} if says else set())
    assert all(says in hazard.message for hazard in hazards)


def test_without_checks_too_many_registers_are_a_deadlock() -> None:
    body = REBALANCE.format(inc=240, dec=40, consumer="", producer="")
    with pytest.raises(warpsan.Deadlock, match="66560 registers"):
        warpsan.launch(kernel(body, "sm_90a"), "k", 1, 384, [np.zeros(384, np.uint32)], checks=())
