"""A judgement as jobs: the verdict of one in one piece, whatever the executor does to the jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planted_executors import FaultyExecutor, InlineExecutor

from sdpalab import Problem, UserError
from sdpalab.errors import MachineError
from sdpalab.jobs import Executor, Job, JobOutcome, JobResult, judging
from sdpalab.jobs.judging import judge_by_jobs
from sdpalab.jobs.local import LocalExecutor
from sdpalab.judge.cases import CaseSpec, quick_cases
from sdpalab.judge.session import judge_candidate
from sdpalab.judge.verdict import Status, Verdict

PROBLEM = Problem(1, 1, 33, 32)
FUNCTION = """
import torch

def attention(q, k, v, *, scale, causal):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=causal)
"""


def public_cases(count: int) -> list[CaseSpec]:
    """Cases with public seeds: two judgements of them are the same."""
    return [replace(spec, seed=7) if spec.seed is None else spec for spec in quick_cases([PROBLEM])[:count]]


@pytest.fixture
def function(tmp_path: Path) -> str:
    path = tmp_path / "function.py"
    path.write_text(FUNCTION)
    return str(path)


def comparable(verdict: Verdict) -> list[tuple[object, ...]]:
    return [(case.name, case.status, case.errors, case.limits, case.digests) for case in verdict.cases]


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_the_verdict_is_that_of_one_piece(function: str, seed: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "CASES_OF_A_JOB", 2)
    executor: Executor = InlineExecutor()
    if seed is not None:
        executor = FaultyExecutor(executor, seed, share=0.4)
    specs, seen, running = public_cases(5), [], []

    def on_start(name: str, total: int) -> None:
        assert total == 5
        if name not in running:  # a lost job starts again
            running.append(name)

    calls = {"on_start": on_start, "on_end": running.remove}
    verdict = judge_by_jobs(executor, function, specs, level="quick", progress=seen.append, **calls)
    assert running == []
    whole = judge_candidate(function, specs)
    assert verdict.passed
    assert (verdict.kernel, verdict.config, verdict.device) == (whole.kernel, whole.config, whole.device)
    assert comparable(verdict) == comparable(whole)
    assert sorted(case.name for case in seen) == sorted(case.name for case in verdict.cases)
    compared = [case.name for case in verdict.cases if case.run.get("witnesses")]
    assert compared == [case.name for case in whole.cases if case.run.get("witnesses")]


class Loses:
    """An executor that loses the second job each time."""

    capacity = 1

    def __init__(self) -> None:
        self._inner, self._lost = InlineExecutor(), list[JobResult]()

    def submit(self, job: Job) -> None:
        if job.inputs["cases"][0]["name"] == public_cases(4)[2].name:
            self._lost.append(JobResult(job.number, JobOutcome.LOST, None, "the machine is gone"))
        else:
            self._inner.submit(job)

    def completed(self, seconds: float) -> list[JobResult]:
        lost, self._lost = self._lost, []
        return [*lost, *self._inner.completed(seconds)]

    def close(self) -> None: ...


def test_cases_of_a_lost_job_are_neither_passed_nor_failed(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "CASES_OF_A_JOB", 2)
    verdict = judge_by_jobs(Loses(), function, public_cases(4))
    assert [case.status for case in verdict.cases] == [Status.PASSED] * 2 + [Status.INFRA_ERROR] * 2
    assert verdict.status is Status.INFRA_ERROR
    assert "the machine is gone" in verdict.reason
    with pytest.raises(MachineError, match="the machine is gone"):
        judge_by_jobs(Loses(), function, public_cases(4)[2:])


def test_another_source_at_the_worker_is_refused(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    submit = InlineExecutor.submit

    def edited(self: InlineExecutor, job: Job) -> None:
        Path(function).write_text(FUNCTION + "\n# edited\n")
        submit(self, job)

    monkeypatch.setattr(InlineExecutor, "submit", edited)
    with pytest.raises(UserError, match="differs at the worker"):
        judge_by_jobs(InlineExecutor(), function, public_cases(1))


def test_headers_of_include_are_those_of_the_worker_or_it_is_refused(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = tmp_path / "include" / "deep" / "tile.cuh"
    header.parent.mkdir(parents=True)
    header.write_text("constexpr int TILE = 16;\n")
    folders = (tmp_path / "include",)
    given: list[object] = []

    def judged(spec: str, specs: object, **options: object) -> Verdict:
        given.append(options["include_dirs"])
        return judge_candidate(spec, public_cases(1), workers=1)

    monkeypatch.setattr(judging, "judge_candidate", judged)
    assert judge_by_jobs(InlineExecutor(), function, public_cases(1), include_dirs=folders).passed
    assert given == [folders]
    submit = InlineExecutor.submit
    for change, words in ((lambda: header.write_text("//"), "differs at the worker"), (folders[0].rename, "no folder")):

        def changed(self: InlineExecutor, job: Job, change: Any = change) -> None:
            change(*([tmp_path / "elsewhere"] if change == folders[0].rename else []))
            submit(self, job)

        monkeypatch.setattr(InlineExecutor, "submit", changed)
        with pytest.raises(UserError, match=words):
            judge_by_jobs(InlineExecutor(), function, public_cases(1), include_dirs=folders)


def test_cases_that_suit_no_kernel_are_bad_input() -> None:
    specs = [CaseSpec("edge", PROBLEM, tile=48)]
    with pytest.raises(UserError, match="none of the requested cases suits"):
        judge_by_jobs(InlineExecutor(), "flash", specs)
    with pytest.raises(UserError, match="there is no problem"):
        judge_by_jobs(InlineExecutor(), "flash", [])


@pytest.mark.slow
def test_each_job_stops_at_its_first_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "CASES_OF_A_JOB", 2)
    path = tmp_path / "zeros.py"
    path.write_text("def zeros(q, k, v, *, scale, causal):\n    return q * 0\n")
    specs = public_cases(4)
    verdict = judge_by_jobs(InlineExecutor(), str(path), specs, until_failure=True)
    assert [case.name for case in verdict.cases] == [specs[0].name, specs[2].name]
    assert verdict.unjudged == (specs[1].name, specs[3].name)
    assert verdict.status is Status.INCORRECT


@pytest.mark.slow
def test_in_real_processes() -> None:
    specs = [replace(spec, problem=Problem(1, 1, 33, 64)) for spec in public_cases(3)]
    executor = LocalExecutor(2)
    try:
        verdict = judge_by_jobs(executor, "flash", specs, device="sim")
    finally:
        executor.close()
    assert comparable(verdict) == comparable(judge_candidate("flash", specs, device="sim"))
