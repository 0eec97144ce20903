"""Candidates that cheat, crash, hang or break the wire: each has its status, and whoever comes next is not touched."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from sdpalab.judge import Case, CaseSpec, Status, judge_candidate
from sdpalab.problem import Problem

FILE = Path(__file__).parent / "candidates.py"
PROBLEM = Problem(1, 2, 17, 64)


def judged(name: str, *problems: Problem, timeout: float = 60.0) -> tuple[Case, ...]:
    """The cases of one candidate of ``candidates.py``, in one worker at a time."""
    specs = [CaseSpec(problem.label, problem) for problem in problems or (PROBLEM,)]
    return judge_candidate(f"{FILE}:{name}", specs, workers=1, timeout=timeout).cases


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("good", Status.PASSED, ""),
        ("strided", Status.PASSED, ""),
        ("prints_a_lot", Status.PASSED, ""),
        ("zeros", Status.INCORRECT, "all zeros"),
        ("never_written", Status.NOT_FINITE, "2176 still hold the poison"),
        ("partly_written", Status.NOT_FINITE, r"128 of 2176 .* \(b=0, h=0, i=16, d=0\)"),
        ("previous_output", Status.NONDETERMINISTIC, "2176 of 2176"),
        ("noisy", Status.NONDETERMINISTIC, "two runs on the same inputs differ"),
        ("changes_v", Status.INPUT_CHANGED, "input v"),
        ("wrong_shape", Status.BAD_OUTPUT, r"\(1, 17, 2, 64\), not \(1, 2, 17, 64\)"),
        ("wrong_dtype", Status.BAD_OUTPUT, "float32, not torch.float16"),
        ("not_a_tensor", Status.BAD_OUTPUT, "NoneType"),
        ("subclass", Status.BAD_OUTPUT, "Lazy"),
        ("one_nan", Status.NOT_FINITE, r"1 of 2176 .* \(b=0, h=1, i=2, d=3\): nan"),
        ("raises", Status.CRASHED, r"ValueError: tiles do not divide \(candidates.py, line \d+\)"),
        ("exits", Status.CRASHED, r"sys.exit\(0\)"),
        ("leaves", Status.CRASHED, "exit code 0; it last printed: about to leave"),
        ("segfaults", Status.CRASHED, "SIGSEGV"),
        ("eats_memory", Status.CRASHED, "MemoryError"),
        ("forges_a_pass", Status.CRASHED, "no reason"),
        ("sends_garbage", Status.CRASHED, "header that cannot be read"),
    ],
)
def test_every_candidate_has_its_status(name: str, status: Status, words: str) -> None:
    (case,) = judged(name)
    assert case.status is status, case.reason
    assert re.search(words, case.reason)
    assert (case.errors is None) == (status in (Status.BAD_OUTPUT, Status.CRASHED))


def test_a_small_output_that_was_never_written_is_found_too() -> None:
    # 64 bytes: smaller than any block that an allocator hands out fresh.
    (case,) = judged("never_written", Problem(1, 1, 1, 32))
    assert case.status is Status.NOT_FINITE


def test_a_hang_ends_at_its_deadline_and_leaves_nothing_running() -> None:
    started = time.monotonic()
    (case,) = judged("hangs_in_children", timeout=3.0)
    assert case.status is Status.TIMED_OUT
    assert time.monotonic() - started < 60.0
    found = re.search(r"no answer within 3 s; it last printed: child (\d+)", case.reason)
    assert found is not None
    for _ in range(50):
        if not _running(int(found[1])):
            break
        time.sleep(0.1)
    assert not _running(int(found[1]))


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_the_case_after_a_crash_gets_a_fresh_worker() -> None:
    one, two, three = (PROBLEM.with_(seq_q=n) for n in (1, 2, 3))
    cases = judged("segfaults_at_two", one, two, three)
    assert [case.status for case in cases] == [Status.PASSED, Status.CRASHED, Status.PASSED]


def test_a_bystander_is_untouched_bit_for_bit() -> None:
    before = judged("good")
    judged("segfaults")
    after = judged("good")
    assert before == after
    assert before[0].digests["o"] == after[0].digests["o"]


def test_the_environment_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDPALAB_TEST_SECRET", "1")
    (case,) = judged("looks_around")
    assert case.status is Status.PASSED, case.reason
    assert "SDPALAB_TEST_SECRET" in os.environ
