"""Chunks of CTAs over several processes: the same report and memory as from one, and no process left behind."""

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hopper_snippets import CTA_WAIT
from hopper_snippets import kernel as hopper_kernel

from sdpalab import sim
from sdpalab.sim import parallel
from sdpalab.sim.setup import Chunks

BLOCKS, THREADS = 24, 64

OWN = "ld.global.u32 %r4, [%rd3]; add.u32 %r4, %r4, %r3; st.global.u32 [%rd3], %r4;"
EXCHANGE = "st.shared.u32 [%r9], %r3; bar.sync 0; xor.b32 %r5, %r9, 128; ld.shared.u32 %r4, [%r5];\n"
RING = "add.u32 %r5, %r3, {}; mul.wide.u32 %rd2, %r5, 4; add.u64 %rd4, %rd1, %rd2;\n"
"""The place of a thread that many further on."""


@pytest.fixture(autouse=True)
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are the reference engine's; the native one has threads."""
    monkeypatch.setenv("SDPALAB_SIM_ENGINE", "reference")


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


def children():
    """Numbers of this process's children, of those too that have ended and were not waited for."""
    pids = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if entry.read_text().rpartition(")")[2].split()[1] == str(os.getpid()):
                pids.add(entry.parent.name)
    return pids


def launched(body, workers, **options):
    """The report of a launch of many chunks, and what it left in memory; or the exception."""
    data, flags = np.arange(2 * BLOCKS * THREADS, dtype=np.uint32), np.zeros(8, np.uint32)
    text = body if body.startswith(".version") else kernel(body)
    before = children()
    try:
        report = sim.launch(text, "k", BLOCKS, THREADS, [data, flags], workers=workers, **options)
    except sim.SimError as error:
        return type(error), str(error), error.hazards
    finally:
        assert children() <= before  # dead ones count
    return report, data.tolist(), flags.tolist()


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """A few blocks are a chunk, and the last chunk has fewer."""
    module = sys.modules["sdpalab.sim.launch"]  # the name is the function's too
    monkeypatch.setattr(module, "_LANES_AT_LEAST", 5 * THREADS)
    monkeypatch.setattr(module, "_LANES_AT_MOST", 5 * THREADS)


@pytest.fixture
def outcomes(monkeypatch):
    """Of each time that chunks were handed out, whether that was the end of it."""
    # A process with other threads is not forked, and these tests would say nothing.
    assert threading.active_count() == 1, threading.enumerate()
    seen, shared_out = [], parallel._shared_out

    def watched(*args):
        seen.append(shared_out(*args))
        return seen[-1]

    monkeypatch.setattr(parallel, "_shared_out", watched)
    return seen


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


@pytest.mark.sample
@pytest.mark.parametrize("name", CLEAN)
@pytest.mark.parametrize("options", [{}, {"schedule": "random", "seed": 5}, {"checks": (), "counters": True}])
def test_any_number_of_workers_gives_the_same(name, options, outcomes):
    alone = launched(CLEAN[name], 1, **options)
    assert isinstance(alone[0], sim.Report)
    assert alone[0].hazards == []
    assert outcomes == []
    for workers in (2, 3):
        assert launched(CLEAN[name], workers, **options) == alone
    assert outcomes == [True, True]


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
@pytest.mark.parametrize("checks", [sim.CHECKS, ()])
def test_chunks_that_notice_each_other_get_the_report_and_the_memory_of_one_process(name, checks, outcomes):
    alone = launched(RACES[name], 1, checks=checks)
    if checks:
        assert {hazard.kind for hazard in alone[0].hazards} == {"race"}
    for workers in (2, 5):
        assert launched(RACES[name], workers, checks=checks) == alone
    assert not checks or outcomes == [False, False]  # without, one worker may have had all the chunks in question


def test_a_hazard_in_any_chunk_leaves_everything_to_one_process(outcomes):
    late = "setp.eq.u32 %p1, %r1, 23;\n@%p1 ld.shared.u32 %r4, [%r9];\n@%p1 st.global.u32 [%rd3], %r4;"
    alone = launched(late, 1)
    assert [hazard.kind for hazard in alone[0].hazards] == ["uninitialised"]
    assert launched(late, 2) == alone
    assert outcomes == [False]


@pytest.mark.parametrize(
    ("body", "error", "options"),
    [
        ("add.u64 %rd3, %rd3, 65536; st.global.u32 [%rd3], 1;", sim.IllegalAccess, {"checks": ()}),
        ("LOOP: bra LOOP;", sim.StepLimit, {"max_steps": 500}),
        ("setp.eq.u32 %p1, %r0, 3;\n@%p1 bra OUT;\nbar.sync 0, 96;\nOUT:", sim.Deadlock, {}),
    ],
)
def test_what_goes_wrong_in_a_worker_is_raised_as_one_process_raises_it(body, error, options, outcomes):
    alone = launched(body, 1, **options)
    assert alone[0] is error
    assert launched(body, 2, **options) == alone
    assert outcomes == [False]


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
def test_blocks_that_talk_to_each_other_stay_in_one_process(body, outcomes):
    assert launched(body, 2) == launched(body, 1)
    assert outcomes == []


def test_atomics_in_shared_memory_are_a_blocks_own_affair(outcomes):
    body = "st.shared.u32 [%r9], 0; bar.sync 0; atom.shared.add.u32 %r4, [%r8], 1; ld.volatile.shared.u32 %r5, [%r9];\n"
    assert launched(body + OWN, 2, checks=()) == launched(body + OWN, 1, checks=())
    assert outcomes == [True]


def test_chunks_draw_alike_in_any_order(monkeypatch):
    """The random schedule of a chunk, and so its steps, do not depend on what ran before."""
    steps = {}
    run = Chunks.run

    def counted(chunks, number):
        before = int(chunks.tally.steps[0])
        run(chunks, number)
        steps.setdefault(number, []).append(int(chunks.tally.steps[0]) - before)

    monkeypatch.setattr(Chunks, "run", counted)
    body = "setp.lt.u32 %p1, %r0, 32;\n@%p1 bra A;\nadd.u32 %r4, %r3, 1; bra B;\nA: add.u32 %r4, %r3, 2;\nB:\n"
    launched(body + DIVERGENT, 1, schedule="random")
    monkeypatch.setattr(
        sys.modules["sdpalab.sim.launch"],
        "run_chunks",
        lambda chunks, *_: [chunks.run(number) for number in reversed(range(len(chunks.setup.chunks)))],
    )
    launched(body + DIVERGENT, 1, schedule="random")
    assert len(steps) == 5
    assert all(first == second for first, second in steps.values())


# ---- processes -------------------------------------------------------------------------------------------------------


def test_a_worker_that_is_killed_is_an_error_that_says_so(monkeypatch):
    parent = os.getpid()

    def killed(chunks, number):
        assert os.getpid() != parent
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(Chunks, "run", killed)
    error, message, _ = launched(OWN, 2)
    assert error is sim.SimError
    assert "was ended by SIGKILL" in message
    assert "workers=1" in message


@pytest.mark.parametrize("there", [0, 1])
def test_where_no_more_processes_are_to_be_had_one_does_it(monkeypatch, outcomes, there):
    alone, forks, fork = launched(OWN, 1), [], os.fork

    def full():
        forks.append(None)
        if len(forks) > there:
            raise BlockingIOError("Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr(os, "fork", full)
    assert launched(OWN, 3) == alone
    assert outcomes == [False]


def test_an_interrupt_ends_the_workers(monkeypatch):
    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(parallel.time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        launched("LOOP: bra LOOP;", 3)


def test_what_waits_to_be_written_is_written_once(tmp_path, outcomes):
    with (tmp_path / "out").open("w") as file:
        file.write("once")
        launched(OWN, 3)
    assert (tmp_path / "out").read_text() == "once"
    assert outcomes == [True]


def test_by_itself_a_launch_takes_workers_only_where_they_pay(monkeypatch, outcomes):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    launched(OWN, None)
    assert outcomes == []
    monkeypatch.setattr(parallel, "_WORTH", 1e-9)
    launched(OWN, None)
    assert outcomes == [True]
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    launched(OWN, None)
    assert outcomes == [True]


def test_a_process_with_threads_is_not_forked(outcomes):
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        launched(OWN, 2)
    finally:
        over.set()
        thread.join()
    assert outcomes == []


def test_workers_must_fit_into_memory(monkeypatch, outcomes):
    monkeypatch.setattr(sys.modules["sdpalab.sim.launch"], "MEMORY_BUDGET", 4 << 20)
    launched(OWN, 4)
    assert outcomes == []


@pytest.mark.parametrize(
    ("option", "words"), [({"workers": 0}, "from 1 on, not 0"), ({"seed": -1}, "from 0 on, not -1")]
)
def test_numbers_that_make_no_sense_are_refused(option, words):
    with pytest.raises(sim.LaunchError, match=words):
        sim.launch(kernel(OWN), "k", 1, 32, [np.zeros(64, np.uint32), np.zeros(8, np.uint32)], **option)
