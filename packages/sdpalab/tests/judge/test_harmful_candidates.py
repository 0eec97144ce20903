"""Callables that harm what is around them: each has its status, nothing is left running, and no other process is
touched."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harmful_candidates import CATALOGUE, FIRST_SEQ, LEFT

from sdpalab.judge import Case, CaseSpec, Status, judge_candidate
from sdpalab.judge.sandbox import guarded
from sdpalab.problem import Problem

FILE = Path(__file__).parent / "harmful_candidates.py"
NAMES = [candidate.__name__ for candidate in CATALOGUE]


def judged(names: list[str], timeout: float = 10.0) -> dict[str, Case]:
    """One judgement of some entries, by one worker as long as it lives."""
    specs = [CaseSpec(name, Problem(1, 2, FIRST_SEQ + NAMES.index(name), 64)) for name in names]
    return {case.name: case for case in judge_candidate(f"{FILE}:catalogue", specs, workers=1, timeout=timeout).cases}


def left_behind() -> list[str]:
    """Processes that a candidate left, from wherever they are seen."""
    processes = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if comm.read_text().strip() == LEFT:
                processes.append(comm.parent.name)
    return processes


def nothing_left() -> bool:
    """Whether all of them are gone, within a few seconds."""
    end = time.monotonic() + 10
    while (processes := left_behind()) and time.monotonic() < end:
        time.sleep(0.1)
    return not processes


@pytest.fixture(scope="module")
def cases(namespaces: None) -> dict[str, Case]:
    return judged(NAMES)


EXPECTED = {
    "leaves_daemons": (Status.PASSED, ""),
    "fills_its_folder": (Status.CRASHED, r"OSError: .*(No space left|File too large)"),
    "floods_the_pipe": (Status.PASSED, ""),
    "kills_its_parent": (Status.PASSED, ""),
    "changes_files": (Status.INCORRECT, "all zeros"),
    "finds_a_disk": (Status.INCORRECT, "all zeros"),
    "calls_home": (Status.INCORRECT, "all zeros"),
    "bombs": (Status.CRASHED, r"it had \d+ processes, and at most 64 are allowed|Resource temporarily unavailable"),
    "hoards_memory": (Status.CRASHED, r"it held \d+\.\d GiB, and at most 16\.0 are allowed"),
    "aborts": (Status.CRASHED, "SIGABRT"),
    "stops_itself": (Status.TIMED_OUT, "no answer within 10 s"),
    "closes_its_pipes": (Status.CRASHED, "its end of the wire closed"),
    "good": (Status.PASSED, ""),
}


def assert_status(name: str, case: Case) -> None:
    status, words = EXPECTED[name]
    assert case.status is status, case.reason
    assert re.search(words, case.reason)
    assert "\x1b" not in case.reason


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_candidate_has_its_status(cases: dict[str, Case], name: str) -> None:
    assert_status(name, cases[name])


@pytest.mark.slow
def test_some_candidates_have_their_status_and_leave_nothing_running(namespaces: None) -> None:
    for name, case in judged(["leaves_daemons", "changes_files", "aborts", "closes_its_pipes", "good"]).items():
        assert_status(name, case)
    assert nothing_left(), left_behind()


@pytest.mark.slow
def test_nothing_is_left_running(cases: dict[str, Case]) -> None:
    assert nothing_left(), left_behind()


@pytest.mark.slow
def test_who_comes_after_them_is_judged_as_if_alone(cases: dict[str, Case]) -> None:
    assert cases["good"] == judged(["good"])["good"]


@pytest.mark.slow
def test_without_namespaces_remaining_processes_are_killed(unconfined: None) -> None:
    cases = judged(["leaves_daemons", "bombs", "good"], timeout=60.0)  # 64 starts take a busy machine over 10 s
    assert {name: case.status for name, case in cases.items()} == {
        "leaves_daemons": Status.PASSED,
        "bombs": Status.CRASHED,
        "good": Status.PASSED,
    }
    assert "processes, and at most 64" in cases["bombs"].reason
    assert cases["good"].run["confinement"] == "processes"
    assert nothing_left(), left_behind()


@pytest.mark.slow
def test_the_descriptors_of_the_guard_are_not_inherited(tmp_path: Path) -> None:
    file = tmp_path / "lists.py"
    file.write_text(
        "import os\n"
        "def lists(q, k, v, *, scale, causal):\n"
        "    open_fds = [os.readlink(f'/proc/self/fd/{fd}') for fd in map(int, os.listdir('/proc/self/fd')) if fd > 2\n"
        "                and os.path.islink(f'/proc/self/fd/{fd}')]\n"
        "    raise ValueError(sum(name.startswith('pipe:') for name in open_fds))\n"
    )
    (case,) = judge_candidate(str(file), [CaseSpec("one", Problem(1, 1, 8, 32))]).cases
    assert "ValueError: 2 (" in case.reason  # the two pipes of the wire


def test_guard_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import json, runpy, sys; runpy.run_path(sys.argv[1], run_name='guard'); print(json.dumps(list(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, guarded._GUARD], capture_output=True, text=True)
    loaded = json.loads(done.stdout)
    assert not [name for name in loaded if name.partition(".")[0] in ("sdpalab", "numpy", "torch", "site")]
