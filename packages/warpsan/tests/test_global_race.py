"""Races between blocks, and between a block's warps, in global memory."""

import numpy as np
import pytest

import warpsan

HEAD = ".version 8.0\n.target sm_89\n.address_size 64\n"


def kernel(body: str) -> str:
    return (
        HEAD
        + ".entry k(.param .u64 p, .param .u64 f)\n{\n.reg .b32 %r<20>; .reg .b64 %rd<9>; .reg .pred %p<9>;\n"
        + "ld.param.u64 %rd1, [p]; ld.param.u64 %rd5, [f];\n"
        + "mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x;\n"
        + "mad.lo.u32 %r3, %r1, %r2, %r0; mul.wide.u32 %rd2, %r3, 4; add.u64 %rd3, %rd1, %rd2;\n"
        + "mul.wide.u32 %rd6, %r0, 4; add.u64 %rd7, %rd1, %rd6;\n"
        + body
        + "\nret;\n}\n"
    )


def hazards(body: str, grid=2, threads=64, **options):
    data, flags = np.zeros(4096, np.uint32), np.zeros(8, np.uint32)
    return warpsan.launch(kernel(body), "k", grid, threads, [data, flags], **options).hazards, data, flags


def kinds(body: str, **options):
    return [hazard.kind for hazard in hazards(body, **options)[0]]


def test_blocks_that_keep_to_their_own_part():
    assert kinds("st.global.u32 [%rd3], %r3;\nld.global.u32 %r4, [%rd3];") == []


@pytest.mark.parametrize("grid", [2, 700])
def test_two_blocks_write_different_values_to_one_place(grid):
    reported, _, _ = hazards("st.global.u32 [%rd7], %r1;", grid=grid)
    assert [hazard.kind for hazard in reported] == ["race"]
    assert "st.global.u32 of" in reported[0].message
    assert "of argument 0" in reported[0].message


def test_equal_values_are_benign():
    assert kinds("st.global.u32 [%rd7], 5;") == []


def test_one_block_reads_what_another_writes():
    """Each block writes its own part and reads its neighbour's part."""
    body = (
        "st.global.u32 [%rd3], %r3;\nxor.b32 %r5, %r3, 64; mul.wide.u32 %rd2, %r5, 4; add.u64 %rd4, %rd1, %rd2;\n"
        "{}ld.global.u32 %r4, [%rd4];"
    )
    assert set(kinds(body.format(""))) == {"race"}
    assert set(kinds(body.format("bar.sync 0;\n"))) == {"race"}


def test_a_later_write_meets_an_earlier_read_of_another_block():
    assert kinds(
        "ld.global.u32 %r4, [%rd1];\nbar.sync 0;\nsetp.eq.u32 %p1, %r3, 64;\n@%p1 st.global.u32 [%rd1], 9;"
    ) == ["race"]


def test_warps_of_a_block_need_a_barrier():
    body = (
        "st.global.u32 [%rd3], %r3;\n{}xor.b32 %r5, %r3, 32; mul.wide.u32 %rd2, %r5, 4; add.u64 %rd4, %rd1, %rd2;\n"
        "ld.global.u32 %r4, [%rd4];"
    )
    assert kinds(body.format("bar.sync 0;\n")) == []
    assert kinds(body.format("")) == ["race"]


@pytest.mark.parametrize(("first", "then"), [("st", "st"), ("st", "ld"), ("ld", "st")])
def test_branches_of_a_warp_need_a_barrier(first, then):
    """Each half of the warp accesses the same 64 bytes, side by side."""
    words = {"st": "st.global.u32 [%rd4], %r3;", "ld": "ld.global.u32 %r4, [%rd4];"}
    body = (
        "and.b32 %r5, %r0, 15; mul.wide.u32 %rd2, %r5, 4; add.u64 %rd4, %rd1, %rd2; setp.lt.u32 %p1, %r0, 16;\n"
        f"@%p1 bra LOW;\n{words[then]}\nbra JOIN;\nLOW: {words[first]}\nJOIN: bar.warp.sync -1;\n{{}}"
    )
    assert set(kinds(body.format(""), grid=1, threads=32)) == {"lane-race"}
    apart = body.replace("LOW: ", "LOW: add.u64 %rd4, %rd4, 64;\n")
    assert kinds(apart.format(words[then]), grid=1, threads=32) == []


def test_atomics_do_not_race_with_each_other():
    reported, data, _ = hazards("atom.global.add.u32 %r4, [%rd1], 1;")
    assert reported == []
    assert data[0] == 128


def test_plain_stores_race_with_atomics():
    assert kinds("st.global.u32 [%rd7], %r3;\nsetp.eq.u32 %p1, %r1, 1;\n@%p1 atom.global.add.u32 %r4, [%rd7], 1;") == [
        "race"
    ]


LAST_BLOCK = (
    "st.global.u32 [%rd3], %r3;\nbar.sync 0;\nsetp.eq.u32 %p1, %r0, 0;\n{}{}{}bar.sync 0;\n"
    "setp.ne.u32 %p2, %r1, 1;\n@%p2 bra OUT;\n"
    "xor.b32 %r5, %r3, 64; mul.wide.u32 %rd2, %r5, 4; add.u64 %rd4, %rd1, %rd2;\n"
    "ld.global.u32 %r6, [%rd4];\nOUT:"
)
FENCE, COUNT = "@%p1 fence.acq_rel.gpu;\n", "@%p1 atom.global.add.u32 %r4, [%rd5], 1;\n"


@pytest.mark.parametrize(
    ("before", "count", "after", "says"),
    [
        (FENCE, COUNT, FENCE, ""),
        ("", COUNT.replace("atom", "atom.acq_rel.gpu"), "", ""),
        (FENCE, "", FENCE, "blocks run in any order"),
        ("", COUNT, FENCE, "no fence or release is between it and the operation that the other thread saw"),
        (FENCE, COUNT, "", "the operation that saw the release is relaxed, and no fence follows it"),
        (FENCE.replace("gpu", "cta"), COUNT, FENCE, "the fence is .cta, and the reader is in another block: use __thr"),
        (FENCE, COUNT, FENCE.replace("gpu", "cluster"), "the fence after it is .cluster, and the writer is in another"),
        (FENCE, COUNT.replace("atom", "atom.relaxed.cta"), FENCE, "each of the two must include the other's thread"),
        ("", COUNT.replace("atom", "atom.release.gpu"), "", "the operation that saw the release is relaxed"),
    ],
)
def test_the_last_block_may_read_what_the_others_left_if_an_atomic_says_so(before, count, after, says):
    """The pattern of split-KV merges: every block increments a counter, the last one reads the parts of all."""
    reported, _, _ = hazards(LAST_BLOCK.format(before, count, after))
    assert [hazard.kind for hazard in reported] == (["race"] * len(reported) if says else [])
    assert not says or any(says in hazard.message for hazard in reported)


def test_a_fence_before_the_barrier_covers_its_own_thread_alone():
    body = LAST_BLOCK.replace("bar.sync 0;\n", "fence.acq_rel.gpu;\nbar.sync 0;\n", 1).format("", COUNT, FENCE)
    reported, _, _ = hazards(body)
    assert ["put the fence directly before that operation" in hazard.message for hazard in reported] == [True]


def test_a_flag_that_is_polled_orders_too():
    body = (
        "setp.eq.u32 %p1, %r1, 0;\n@!%p1 bra WAIT;\nst.global.u32 [%rd3], %r3;\nbar.sync 0;\nmembar.gl;\n"
        "st.release.gpu.global.u32 [%rd5], 1;\nbra OUT;\n"
        "WAIT: ld.acquire.gpu.global.u32 %r4, [%rd5]; setp.eq.u32 %p2, %r4, 0;\n@%p2 bra WAIT;\n"
        "ld.global.u32 %r6, [%rd7];\nOUT:"
    )
    assert kinds(body) == []
    assert "race" in kinds(
        body.replace("ld.acquire.gpu.global", "ld.global").replace("st.release.gpu.global", "st.global")
    )
