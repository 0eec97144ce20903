"""Executors: jobs in real processes that crash, hang and lie; and what becomes of lost, repeated and late answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from planted_executors import FaultyExecutor, InlineExecutor

from sdpalab import Problem, UserError
from sdpalab.evaluation import Evaluation
from sdpalab.jobs import Executor, Job, JobOutcome, JobResult, executor_named, run_jobs
from sdpalab.jobs import local as jobs_local
from sdpalab.jobs.kinds import KINDS, VALUES, checked_value
from sdpalab.jobs.local import LocalExecutor
from sdpalab.jobs.versions import code_version
from sdpalab.jobs.worker import answer
from sdpalab.kernels.registry import get
from sdpalab.kernels.source import source_digest
from sdpalab.status import Status

SMALL = Problem(1, 1, 64, 64)


def _job(kernel: str, *, source: str = "", seconds: float = 120.0, **more: Any) -> Job:
    """A job that builds a kernel's default configuration."""
    inputs = {
        "kernel": kernel,
        "source": source or source_digest(get("flash")),
        "config": dict(get("flash").default_config),
        "problems": [SMALL.to_dict()],
        "gpus": [{"name": "L4", "arch": "sm_89", "sms": 58}],
    }
    return Job(0, "build", inputs, seconds, more.pop("code", code_version()), **more)


def _planted(name: str, *, seconds: float = 120.0, fresh: bool = False, **inputs: str) -> Job:
    """A job of :mod:`planted_jobs`."""
    return Job(0, name, inputs, seconds, code_version(), fresh)


def _file(folder: Path, name: str, text: str) -> str:
    path = folder / f"{name}.py"
    path.write_text(text)
    return str(path)


@pytest.fixture(scope="module")
def local() -> Iterator[LocalExecutor]:
    executor = LocalExecutor(2)
    yield executor
    executor.close()


@pytest.fixture
def _planted_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors start a worker that also runs the jobs of :mod:`planted_jobs`."""
    monkeypatch.setattr(jobs_local, "_WORKER", "planted_jobs")


@pytest.mark.slow
@pytest.mark.usefixtures("_planted_worker")
def test_a_worker_that_crashes_or_hangs_harms_no_other_job() -> None:
    jobs = [_job("flash"), _planted("crash"), _planted("hang", seconds=5.0), _job("flash")]
    with closing(LocalExecutor(2)) as executor:
        good, crashed, hung, last = run_jobs(executor, jobs, attempts=2)
    assert good.outcome is last.outcome is JobOutcome.DONE
    assert good.value is not None
    assert last.value == good.value
    assert crashed.outcome is JobOutcome.LOST
    assert "SIGSEGV" in crashed.reason
    assert hung.outcome is JobOutcome.TIMED_OUT
    assert "5 s" in hung.reason


def test_a_users_file_that_crashes_is_the_users_error_and_the_worker_lives(
    local: LocalExecutor, tmp_path: Path
) -> None:
    crash = _file(tmp_path, "crash", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    (result,) = run_jobs(local, [_job(crash)])
    assert result.value is not None
    assert "crash.py: the process ended with SIGSEGV" in result.value["bad_input"]


def test_what_cannot_be_asked_for_is_said_and_is_no_verdict(local: LocalExecutor, tmp_path: Path) -> None:
    broken = _file(tmp_path, "broken", "raise RuntimeError('not today')\n")
    jobs = [_job("flush"), _job(broken), _job("flash", source="0" * 64), _job("flash", code="0.0.1 other")]
    reasons = [result.value["bad_input"] for result in run_jobs(local, jobs) if result.value]
    assert "did you mean 'flash'" in reasons[0]
    assert "not today" in reasons[1]
    assert "was changed during the search" in reasons[2]
    assert "the job is of 0.0.1 other" in reasons[3]


PLACES = ("os:system", "planted_jobs:process", "sdpalab.search.gates:build_gate", "sdpalab.jobs.worker:answer", "", "x")


@pytest.mark.parametrize("kind", PLACES)
def test_a_worker_runs_no_function_that_a_job_names(kind: str) -> None:
    reply = answer(kind, {"kernel": "flash"}, code_version())
    assert reply == {"bad_input": f"there is no kind of job {kind!r}: the kinds are {', '.join(KINDS)}"}


@pytest.mark.usefixtures("_planted_worker")
def test_an_answer_that_is_no_value_of_its_kind_is_no_answer() -> None:
    with closing(LocalExecutor(1)) as executor:
        lost, refused = run_jobs(executor, [_planted("full"), _planted("refuses")], attempts=2)
    assert lost.outcome is JobOutcome.LOST
    assert lost.reason.startswith("its worker answered what is no value of a job full (")
    assert refused.value == {"bad_input": "no such thing ?[2J"}


GOOD: dict[str, dict[str, Any]] = {
    "build": {"identity": {"L4": "a"}, "ptx_sha256": {"L4": ["a"]}, "resources": {"L4": {"registers": 1}}},
    "count": {"times_us": {"L4": {"1x1x64x64": 2.5}}},
    "compare": {"ratios": {"L4": {"1x1x64x64": 2}}},
    "prove": {"gates": ["sanitize", "quick judge"]},
    "race": {"times_us": {"1x1x64x64": {"a": 1.0}}, "outcomes": {"1x1x64x64": {}}, "reasons": {"b": "slow"}},
    "full": {"verdict": {"passed": True, "level": "full", "cases": 1, "devices": ["simulator"], "judge": "a"}},
    "held_out": {"cases": 0},
    "judge": {"verdict": None},
    "sanitize": {"runs": ["a"], "hazards": [], "notes": []},
    "evaluate": Evaluation(Status.PASSED, stages={"quick": "PASSED"}).to_dict(),
    "submission": {"evaluation": Evaluation(Status.PASSED).to_dict(), "confinement": "namespaces", "cpu_seconds": 0.5},
    "machine": {"evaluation": Evaluation(Status.PASSED).to_dict(), "confinement": "namespaces", "versions": "1"},
    "deletion": {
        "subject": "a",
        "configurations": ["a"],
        "arch": "sm_89",
        "ptx_sha256": ["a"],
        "problems": [],
        "mutants": [{"opcode": "bar", "ptx_line": 1, "source": "a:1", "text": "a", "killed_by": None, "reason": ""}],
    },
}


def test_every_kind_has_a_type() -> None:
    assert VALUES.keys() == KINDS.keys() == GOOD.keys() | {"bug"}


@pytest.mark.parametrize("kind", GOOD)
def test_a_value_has_the_type_of_its_kind(kind: str) -> None:
    good = GOOD[kind]
    assert checked_value(kind, good) == good
    assert checked_value(kind, {"bad_input": "a"}) == {"bad_input": "a"}
    first = next(iter(good))
    bad: list[Any] = [{}, [], None, "a", {**good, "more": 1}, {**good, first: object()}, {**good, first: 7.5}]
    bad += [{**good, "bad_input": "a"}, {"bad_input": 1}, {**good, first: float("nan")}]
    if kind in ("build", "count", "compare", "prove", "full", "held_out"):
        bad += [{"standing": "PASSED", "reason": "a"}, {"standing": "HAZARD"}, {"standing": "HAZARD", "reason": ""}]
        failed = {"standing": "HAZARD", "reason": "two warps write one word"}
        assert checked_value(kind, failed) == failed
    for value in bad:
        with pytest.raises(ValueError, match=r"\w"):
            checked_value(kind, value)


@pytest.mark.usefixtures("_planted_worker")
def test_a_fresh_job_has_a_process_that_ran_nothing_before() -> None:
    executor = LocalExecutor(1)
    try:
        jobs = [_planted("process"), _planted("process"), _planted("process", fresh=True)]
        first, second, fresh = (result.value["process"] for result in run_jobs(executor, jobs) if result.value)
    finally:
        executor.close()
    assert first == second
    assert fresh != first


@pytest.mark.usefixtures("_planted_worker")
def test_a_closed_executor_leaves_no_process(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    executor = LocalExecutor(1)
    try:
        executor.submit(_planted("hang", note=str(note)))
        end = time.monotonic() + 60
        while not (note.exists() and note.read_text()) and time.monotonic() < end:
            time.sleep(0.1)
        worker = Path("/proc") / note.read_text() / "stat"
        assert worker.exists()
    finally:
        executor.close()
    state = worker.read_text().rpartition(")")[2].split()[0] if worker.exists() else "Z"
    assert state in "ZX", "the worker still runs"
    assert [result.outcome for result in executor.completed(0)] == [JobOutcome.LOST]


def _double(job: Job) -> JobResult:
    return JobResult(job.number, JobOutcome.DONE, {"twice": 2 * job.inputs["n"]})


def _jobs(n: int) -> list[Job]:
    return [Job(0, "double", {"n": number}, 10.0, "1") for number in range(n)]


@pytest.mark.parametrize("seed", range(5))
def test_lost_repeated_and_reordered_answers_change_nothing(seed: int) -> None:
    faulty = FaultyExecutor(InlineExecutor(_double, capacity=7), seed, share=0.3)
    results = run_jobs(faulty, _jobs(200), attempts=30)
    assert [result.value for result in results] == [{"twice": 2 * n} for n in range(200)]
    assert faulty.lost > 20
    assert faulty.repeated > 20


class _Silent:
    """Takes jobs and never answers the first ones."""

    capacity = 2

    def __init__(self, silent: int) -> None:
        self._silent, self._results = silent, list[JobResult]()

    def submit(self, job: Job) -> None:
        if self._silent:
            self._silent -= 1
        else:
            self._results.append(_double(job))

    def completed(self, seconds: float) -> list[JobResult]:
        time.sleep(min(seconds, 0.01))
        found, self._results = self._results, []
        return found

    def close(self) -> None:
        """Nothing is open."""


def test_a_job_of_which_nothing_is_heard_is_lost_and_tried_again() -> None:
    jobs = [Job(0, "double", {"n": n}, 0.01, "1") for n in range(3)]
    executor: Executor = _Silent(2)
    assert [result.outcome for result in run_jobs(executor, jobs, grace=0.05)] == [JobOutcome.DONE] * 3
    (lost,) = run_jobs(_Silent(100), jobs[:1], grace=0.05)
    assert lost.outcome is JobOutcome.LOST
    assert "no answer" in lost.reason


def test_an_executor_is_never_given_more_than_it_runs_at_a_time() -> None:
    class Counting(InlineExecutor):
        most = 0

        def submit(self, job: Job) -> None:
            super().submit(job)
            self.most = max(self.most, len(self._results))

    executor = Counting(_double, capacity=3)
    run_jobs(executor, _jobs(20))
    assert executor.most == 3


def test_a_result_is_a_value_or_a_reason() -> None:
    with pytest.raises(ValueError, match="a value if DONE"):
        JobResult(1, JobOutcome.DONE)
    with pytest.raises(ValueError, match="a value if DONE"):
        JobResult(1, JobOutcome.LOST, {"passed": True}, "died")


def test_unknown_executors_and_a_stray_address_are_refused() -> None:
    with pytest.raises(UserError, match="no executor 'slurm'"):
        executor_named("slurm")
    with pytest.raises(UserError, match="give --executor ray"):
        executor_named("local", address="head:6379")
