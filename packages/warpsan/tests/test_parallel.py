"""Clusters over several threads: the same report and memory as with one thread."""

import numpy as np
import pytest

import warpsan
from hopper_snippets import CTA_WAIT
from hopper_snippets import kernel as hopper_kernel

BLOCKS, THREADS = 24, 64

OWN = "ld.global.u32 %r4, [%rd3]; add.u32 %r4, %r4, %r3; st.global.u32 [%rd3], %r4;"
EXCHANGE = "st.shared.u32 [%r9], %r3; bar.sync 0; xor.b32 %r5, %r9, 128; ld.shared.u32 %r4, [%r5];\n"
RING = "add.u32 %r5, %r3, {}; mul.wide.u32 %rd2, %r5, 4; add.u64 %rd4, %rd1, %rd2;\n"
"""Address of the word of the thread at a given distance."""


def kernel(body):
    """PTX of an entry ``k(p, f)``: %r0 thread, %r1 block, %r3 both, %rd3 its word of p, %rd7 the thread's, %rd5 f."""
    return (
        ".version 8.0\n.target sm_89\n.address_size 64\n.entry k(.param .u64 p, .param .u64 f)\n{\n"
        ".reg .b32 %r<20>; .reg .b16 %h<3>; .reg .b64 %rd<9>; .reg .pred %p<9>; .shared .align 16 .b8 buf[256];\n"
        "ld.param.u64 %rd1, [p]; ld.param.u64 %rd5, [f];\n"
        "mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r8, buf;\n"
        "mad.lo.u32 %r3, %r1, %r2, %r0; mul.wide.u32 %rd2, %r3, 4; add.u64 %rd3, %rd1, %rd2;\n"
        "mul.wide.u32 %rd6, %r0, 4; add.u64 %rd7, %rd1, %rd6; shl.b32 %r9, %r0, 2; add.u32 %r9, %r9, %r8;\n"
        + body
        + "\nret;\n}\n"
    )


def launched(body, workers, **options):
    """Report and final memory of a launch of many blocks; or the exception."""
    data, flags = np.arange(2 * BLOCKS * THREADS, dtype=np.uint32), np.zeros(8, np.uint32)
    text = body if body.startswith(".version") else kernel(body)
    try:
        report = warpsan.launch(text, "k", BLOCKS, THREADS, [data, flags], workers=workers, **options)
    except warpsan.SimError as error:
        return type(error), str(error), error.hazards
    return report, data.tolist(), flags.tolist()


BULK = (
    "ld.param.u64 %rd3, [f]; mov.u32 %r21, %ctaid.x; shl.b32 %r21, %r21, 8; cvt.u64.u32 %rd4, %r21;\n"
    "add.u64 %rd5, %rd1, %rd4;\n@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\nbar.sync 0;\n"
    "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 32;\n"
    "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd3], 32, [%r2];\n"
    + CTA_WAIT.format(0, "%r2", 0)
    + "@!%p1 bra END;\ncp.async.bulk.global.shared::cta.bulk_group [%rd5], [%r1], 32;\n"
    "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\nEND:"
)

DIVERGENT = (
    "and.b32 %r10, %r3, 7; mov.u32 %r11, 0;\n"
    "LOOP: add.u32 %r11, %r11, 1; setp.lt.u32 %p1, %r11, %r10;\n@%p1 bra LOOP;\nbar.sync 0;\n" + OWN
)

CLEAN = {
    "own": OWN,
    "exchange": EXCHANGE + "st.global.u32 [%rd3], %r4;",
    "divergent": DIVERGENT,
    "some write nothing": "setp.lt.u32 %p1, %r1, 20;\n@%p1 st.global.u32 [%rd3], 7;",
    "equal values in one place": "st.global.u32 [%rd7], 5;\nst.global.u32 [%rd7], 5;",
    "all read one place": "ld.global.u32 %r4, [%rd5]; st.global.u32 [%rd3], %r4;",
    "odd sizes": "and.b32 %r6, %r1, 3; cp.async.ca.shared.global [%r9], [%rd3], 4, %r6;\n"
    "cp.async.wait_all;\nld.shared.u32 %r4, [%r9]; st.global.u32 [%rd3], %r4;",
    "bulk copies": hopper_kernel(BULK, ".param .u64 p, .param .u64 f"),
}


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.sample
@pytest.mark.parametrize("name", CLEAN)
@pytest.mark.parametrize("options", [{}, {"schedule": "random", "seed": 5}, {"checks": (), "counters": True}])
def test_any_number_of_workers_gives_the_same(name, options):
    alone = launched(CLEAN[name], 1, **options)
    assert isinstance(alone[0], warpsan.Report)
    assert alone[0].hazards == []
    for workers in (2, 3):
        assert launched(CLEAN[name], workers, **options) == alone


NEIGHBOUR = RING.format(5 * THREADS)
RACES = {
    "different values in one place": "st.global.u32 [%rd7], %r1;",
    "one more in one place": "ld.global.u32 %r4, [%rd5]; add.u32 %r4, %r4, 1; st.global.u32 [%rd5], %r4;",
    "reads what the next chunk writes": NEIGHBOUR + "ld.global.u32 %r4, [%rd4]; st.global.u32 [%rd3], 1;",
    "writes what the next chunk reads": NEIGHBOUR + "st.global.u32 [%rd4], 9; ld.global.u32 %r4, [%rd3];",
    "the same in the end": "st.global.u32 [%rd7], 0; st.global.u32 [%rd7], 5;",
    "one byte of a word": NEIGHBOUR + "mov.u16 %h1, 3; st.global.u8 [%rd4+2], %h1; ld.global.u8 %h2, [%rd3+2];",
}


@pytest.mark.sample
@pytest.mark.parametrize("name", RACES)
def test_blocks_that_race_do_so_for_any_number_of_workers(name):
    alone = launched(RACES[name], 1)
    assert {hazard.kind for hazard in alone[0].hazards} == {"race"}
    for workers in (2, 5):
        assert launched(RACES[name], workers) == alone


@pytest.mark.usefixtures("recorded_launches")
def test_a_hazard_in_any_block_is_reported():
    late = "setp.eq.u32 %p1, %r1, 23;\n@%p1 ld.shared.u32 %r4, [%r9];\n@%p1 st.global.u32 [%rd3], %r4;"
    alone = launched(late, 1)
    assert [hazard.kind for hazard in alone[0].hazards] == ["uninitialised"]
    assert launched(late, 2) == alone


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize(
    ("body", "error", "options"),
    [
        ("add.u64 %rd3, %rd3, 65536; st.global.u32 [%rd3], 1;", warpsan.IllegalAccess, {"checks": ()}),
        ("LOOP: bra LOOP;", warpsan.StepLimit, {"max_steps": 500}),
        ("setp.eq.u32 %p1, %r0, 3;\n@%p1 bra OUT;\nbar.sync 0, 96;\nOUT:", warpsan.Deadlock, {}),
    ],
)
def test_what_goes_wrong_is_raised_alike(body, error, options):
    alone = launched(body, 1, **options)
    assert alone[0] is error
    assert launched(body, 2, **options) == alone


@pytest.mark.parametrize(
    "body",
    [
        "atom.global.add.u32 %r4, [%rd5], 1;",
        "red.global.add.u32 [%rd5], 1;",
        "st.release.gpu.global.u32 [%rd5], 1;",
        "ld.volatile.global.u32 %r4, [%rd5];",
        "ld.acquire.gpu.u32 %r4, [%rd5];",
    ],
)
def test_blocks_that_communicate(body):
    assert launched(body, 2) == launched(body, 1)


def test_atomics_in_shared_memory_are_a_blocks_own_affair():
    body = "st.shared.u32 [%r9], 0; bar.sync 0; atom.shared.add.u32 %r4, [%r8], 1; ld.volatile.shared.u32 %r5, [%r9];\n"
    assert launched(body + OWN, 2, checks=()) == launched(body + OWN, 1, checks=())


@pytest.mark.parametrize(
    ("option", "words"), [({"workers": 0}, "from 1 on, not 0"), ({"seed": -1}, "from 0 on, not -1")]
)
def test_numbers_that_make_no_sense_are_refused(option, words):
    with pytest.raises(warpsan.LaunchError, match=words):
        warpsan.launch(kernel(OWN), "k", 1, 32, [np.zeros(64, np.uint32), np.zeros(8, np.uint32)], **option)
