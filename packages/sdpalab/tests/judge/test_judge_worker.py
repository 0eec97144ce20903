"""Candidates that cheat, crash, hang or break the wire: each has its status, and the next candidate is not affected."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from candidates import CATALOGUE, FIRST_SEQ

from sdpalab.judge import Case, CaseSpec, Status, judge_candidate
from sdpalab.problem import Problem

pytestmark = pytest.mark.first

FILE = Path(__file__).parent / "candidates.py"
NAMES = [function.__name__ for function in CATALOGUE]


def problem_of(name: str) -> Problem:
    """The problem on which the catalogue behaves as ``name``."""
    return Problem(1, 2, FIRST_SEQ + NAMES.index(name), 64)


@pytest.fixture(scope="module")
def cases() -> dict[int, Case]:
    """One judgement of the whole catalogue, by sequence length: a worker that dies is followed by a fresh one."""
    specs = [CaseSpec(f"{n} {name}", Problem(1, 2, FIRST_SEQ + n, 64)) for n, name in enumerate(NAMES)]
    os.environ["SDPALAB_TEST_SECRET"] = "1"
    try:
        verdict = judge_candidate(f"{FILE}:catalogue", specs, workers=1, timeout=10.0)
    finally:
        del os.environ["SDPALAB_TEST_SECRET"]
    return {case.problem.seq_q: case for case in verdict.cases}


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("good", Status.PASSED, ""),
        ("strided", Status.PASSED, ""),
        ("prints_a_lot", Status.PASSED, ""),
        ("zeros", Status.INCORRECT, "all zeros"),
        ("never_written", Status.NOT_FINITE, "ALL still hold the poison"),
        ("partly_written", Status.NOT_FINITE, r"128 of ALL .* \(b=0, h=0, i=LAST, d=0\)"),
        ("previous_output", Status.NONDETERMINISTIC, "ALL of ALL"),
        ("noisy", Status.NONDETERMINISTIC, "two runs on the same inputs differ"),
        ("changes_v", Status.INPUT_CHANGED, "input v"),
        ("wrong_shape", Status.BAD_OUTPUT, r"shape \(1, SEQ, 2, 64\), not \(1, 2, SEQ, 64\)"),
        ("wrong_dtype", Status.BAD_OUTPUT, "float32, not torch.float16"),
        ("not_a_tensor", Status.BAD_OUTPUT, "NoneType"),
        ("subclass", Status.BAD_OUTPUT, "Lazy"),
        ("one_nan", Status.NOT_FINITE, r"1 of ALL .* \(b=0, h=1, i=2, d=3\): nan"),
        ("raises", Status.CRASHED, r"ValueError: tiles do not divide \(candidates.py, line \d+\)"),
        ("exits", Status.CRASHED, r"sys.exit\(0\)"),
        ("eats_memory", Status.CRASHED, "MemoryError"),
        ("leaves", Status.CRASHED, "exit code 0; it last printed: .*about to leave"),
        ("segfaults", Status.CRASHED, "SIGSEGV"),
        ("forges_a_pass", Status.CRASHED, "a message that answers no order"),
        ("sends_garbage", Status.CRASHED, "header that cannot be read"),
        ("looks_around", Status.PASSED, ""),
        ("hangs_in_children", Status.TIMED_OUT, r"no answer within 10 s; it last printed: child of a child"),
    ],
)
def test_every_candidate_has_its_status(cases: dict[int, Case], name: str, status: Status, words: str) -> None:
    problem = problem_of(name)
    case = cases[problem.seq_q]
    assert case.status is status, case.reason
    numbers = {"ALL": 2 * 64 * problem.seq_q, "SEQ": problem.seq_q, "LAST": problem.seq_q - 1}
    for word, number in numbers.items():
        words = words.replace(word, str(number))
    assert re.search(words, case.reason)
    assert (case.errors is None) == (status in (Status.BAD_OUTPUT, Status.CRASHED, Status.TIMED_OUT))


def test_the_control_case_after_them_all_is_untouched_bit_for_bit(cases: dict[int, Case]) -> None:
    case = cases[max(cases)]
    alone = judge_candidate(f"{FILE}:good", [CaseSpec(case.name, case.problem)]).cases[0]
    assert case.status is Status.PASSED
    assert case == alone


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)
    return condition()


def _named(name: str) -> list[str]:
    """Numbers of the running processes that call themselves so."""
    names = []
    for file in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if file.read_text().strip() == name:
                names.append(file.parent.name)
    return names


@pytest.mark.sample(1)
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_a_judge_that_is_stopped_leaves_no_worker(tmp_path: Path, sent: signal.Signals) -> None:
    name = f"slow-{os.getpid()}"
    file = tmp_path / "slow.py"
    file.write_text(
        "import ctypes, time\n"
        "def slow(q, k, v, *, scale, causal):\n"
        f"    ctypes.CDLL(None).prctl(15, {name.encode()!r}, 0, 0, 0)  # PR_SET_NAME\n"
        "    time.sleep(600)\n"
    )
    code = (
        "import sdpalab, signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"sdpalab.judge({str(file)!r}, [sdpalab.Problem(1, 1, 8, 32)])"
    )
    judge = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    try:
        assert _wait(lambda: bool(_named(name)), 60)
        judge.send_signal(sent)
        assert judge.wait(timeout=30) != 0
        assert _wait(lambda: not _named(name), 10)
    finally:
        judge.kill()


def test_a_small_output_that_was_never_written_is_found_too() -> None:
    # 64 bytes: of the sizes that an allocator likes to hand out again as they are.
    (case,) = judge_candidate(f"{FILE}:never_written", [CaseSpec("one row", Problem(1, 1, 1, 32))]).cases
    assert case.status is Status.NOT_FINITE
