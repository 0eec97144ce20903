"""Stale reads: the axioms of PTX's memory model, and the effect of a missing fence on the output."""

import numpy as np
import pytest

import warpsan
from ptx_axioms import Axioms

# ---- the axioms themselves -------------------------------------------------------------------------------------------


def reads(*threads: str, blocks: bool = True) -> set[tuple[int, ...]]:
    """Values that the axioms allow for the reads of a program; operations are separated by semicolons."""
    ops = [[op.strip() for op in thread.split(";")] for thread in threads]
    places = list(range(len(ops))) if blocks else [0] * len(ops)
    return {outcome[0] for outcome in Axioms(ops, places, places).outcomes()}


def test_the_examples_of_the_manual():
    """PTX ISA, "Axioms": message passing, CoRR, store buffering and load buffering, with their forbidden outcomes."""
    assert (1, 0) in reads("st x 1; st y 1", "ld y; ld x")
    assert (1, 0) not in reads("st x 1; st.release.gpu y 1", "ld.acquire.gpu y; ld x")
    assert (1, 0) in reads("st x 1; st.release.cta y 1", "ld.acquire.gpu y; ld x")
    assert (1, 0) not in reads("st.relaxed.gpu x 1", "ld.relaxed.gpu x; ld.relaxed.gpu x")
    fenced = "fence.sc.gpu"
    assert (0, 0) not in reads(f"st x 1; {fenced}; ld y", f"st y 1; {fenced}; ld x")
    assert (0, 0) in reads("st x 1; fence.acq_rel.gpu; ld y", "st y 1; fence.acq_rel.gpu; ld x")
    assert (1, 1) in reads("ld.relaxed.gpu x; st.relaxed.gpu y 1", "ld.relaxed.gpu y; st.relaxed.gpu x 1")
    writer = "st.relaxed.gpu {} 1"
    iriw = [writer.format("x"), "ld.acquire.gpu x; ld.acquire.gpu y", writer.format("y"), "ld.acquire.gpu y; ld x"]
    assert (1, 0, 1, 0) in reads(*iriw)
    assert (1, 0, 1, 0) not in reads(*(each.replace("; ", f"; {fenced}; ") for each in iriw))


def test_barriers_and_fences_of_other_threads():
    """A fence before a barrier covers a count after it only if both sides have fence.sc: Fence-SC order cannot
    contradict causality order.
    """
    body = ["st x 1; FENCE; bar", "bar; add.relaxed.gpu y 1", "add.relaxed.gpu y 0; bar", "bar; FENCE; ld x"]

    def stale(fence: str) -> bool:
        ops = [each.replace("FENCE", fence).split("; ") for each in body]
        return any(outcome[0][1:] == (1, 0) for outcome in Axioms(ops, [0, 0, 1, 1], [0, 0, 1, 1]).outcomes())

    assert not stale("fence.sc.gpu")
    assert stale("fence.sc.cta")
    assert stale("fence.acq_rel.gpu")


# ---- the simulator ---------------------------------------------------------------------------------------------------


HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n.entry k(.param .u64 p, .param .u64 f)\n{\n"
HEAD += ".reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .pred %p<9>; .shared .align 16 .b8 buf[512];\n"
HEAD += "ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [f];\nmov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x;\n"


def launched(body: str, seed: int, grid: int = 2, threads: int = 32, **options):
    data, flags = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
    options = {"checks": (), "schedule": "random", "reads": "stale", **options}
    warpsan.launch(HEAD + body + "\nret;\n}\n", "k", grid, threads, [data, flags], seed=seed, **options)
    return data


POLL = """setp.ne.u32 %p0, %r0, 0; @%p0 bra END; setp.eq.u32 %p1, %r1, 1; @%p1 bra READER;
st.global.u32 [%rd1], 7; FENCE st.relaxed.gpu.global.u32 [%rd2], 1; bra END;
READER: ld.relaxed.gpu.global.u32 %r2, [%rd2]; setp.eq.u32 %p2, %r2, 0; @%p2 bra READER;
FENCE ld.global.u32 %r3, [%rd1]; st.global.u32 [%rd1+4], %r3; END:"""


def test_a_missing_fence_shows_in_the_output():
    """The reader waits for the flag, also with late reads of it, and then reads old data without the fences."""
    assert {int(launched(POLL.replace("FENCE", "membar.gl;"), seed)[1]) for seed in range(12)} == {7}
    assert {int(launched(POLL.replace("FENCE", ""), seed)[1]) for seed in range(12)} == {0, 7}
    assert {int(launched(POLL.replace("FENCE", ""), seed, reads="latest")[1]) for seed in range(4)} == {7}


def test_words_of_64_bits_are_not_torn():
    body = """setp.ne.u32 %p0, %r0, 0; @%p0 bra END; setp.eq.u32 %p1, %r1, 1; @%p1 bra READER;
    mov.u64 %rd5, 0x0000000100000001; st.relaxed.gpu.global.u64 [%rd1], %rd5;
    add.u64 %rd5, %rd5, %rd5; st.relaxed.gpu.global.u64 [%rd1], %rd5; bra END;
    READER: ld.relaxed.gpu.global.u64 %rd6, [%rd1]; st.global.u64 [%rd1+8], %rd6; END:"""
    pairs = {tuple(launched(body, seed)[2:4].tolist()) for seed in range(40)}
    assert pairs == {(0, 0), (1, 1), (2, 2)}


def test_a_counter_of_the_gpu_loses_nothing_and_one_of_the_block_does():
    body = "setp.ne.u32 %p0, %r0, 0; @%p0 bra END; red.SCOPE.global.add.u32 [%rd1], 1; END:"
    sums = {scope: {int(launched(body.replace("SCOPE", f"relaxed.{scope}"), seed, grid=8)[0]) for seed in range(6)}
            for scope in ("gpu", "cta")}  # fmt: skip
    assert sums["gpu"] == {8}
    assert min(sums["cta"]) < 8


def test_what_barriers_order_is_never_stale():
    """Warps reverse shared memory, block by block, ten times; also in bytes and halves."""
    body = """and.b32 %r2, %r0, 127; shl.b32 %r3, %r2, 2; mov.u32 %r4, buf; add.u32 %r5, %r4, %r3;
    sub.u32 %r6, 508, %r3; add.u32 %r6, %r4, %r6; st.shared.u32 [%r5], %r2; mov.u32 %r7, 0;
    AGAIN: bar.sync 0; ld.shared.u16 %r8, [%r6]; ld.shared.u8 %r9, [%r6+2]; bar.sync 0; st.shared.u16 [%r5], %r8;
    add.u32 %r7, %r7, 1; setp.lt.u32 %p1, %r7, 9; @%p1 bra AGAIN;
    bar.sync 0; ld.shared.u32 %r8, [%r6]; setp.ge.u32 %p2, %r0, 64; @%p2 bra END;
    mul.wide.u32 %rd5, %r0, 4; add.u64 %rd6, %rd1, %rd5; st.global.u32 [%rd6], %r8; END:"""
    for seed in range(3):
        assert launched(body, seed, grid=1, threads=128).tolist() == list(range(64))


def test_a_choice_that_is_none_is_refused():
    with pytest.raises(warpsan.LaunchError, match="reads is one of latest, stale, not 'old'"):
        launched("", 0, reads="old")


def test_stale_reads_in_a_ring():
    """Integers and memory behave equally in a ring."""
    pytest.importorskip("llvmlite")
    options = {"numerics": "ring"}
    assert {int(launched(POLL.replace("FENCE", "membar.gl;"), seed, **options)[1]) for seed in range(6)} == {7}
    assert {int(launched(POLL.replace("FENCE", ""), seed, **options)[1]) for seed in range(12)} == {0, 7}
