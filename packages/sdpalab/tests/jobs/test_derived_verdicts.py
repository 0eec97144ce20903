"""A verdict of workers on other machines: derived here from what the candidate's processes answered, or not at all."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted_executors import InlineExecutor, answered

from sdpalab import Problem
from sdpalab.errors import MachineError
from sdpalab.jobs import Job, JobResult, judging
from sdpalab.jobs.judging import judge_by_jobs
from sdpalab.judge.cases import CaseSpec, quick_cases
from sdpalab.judge.session import judge_candidate
from sdpalab.judge.verdict import Status, Verdict

PROBLEM = Problem(1, 1, 33, 32)
RIGHT = """
import torch

def attention(q, k, v, *, scale, causal):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=causal)
"""
WRONG = RIGHT.replace("is_causal=causal)", "is_causal=causal) * 1.01")


class Remote(InlineExecutor):
    """Workers on another machine, whose answer to a job may be changed on its way."""

    remote = True

    def __init__(self, change: Callable[[dict[str, Any]], Any] = lambda value: None) -> None:
        self.values: list[dict[str, Any]] = []

        def run(job: Job) -> JobResult:
            result = answered(job)
            value = json.loads(json.dumps(result.value))
            change(value)
            self.values.append(value)
            return replace(result, value=value)

        super().__init__(run)


def public(count: int) -> list[CaseSpec]:
    return [replace(spec, seed=7) if spec.seed is None else spec for spec in quick_cases([PROBLEM])[:count]]


def written(folder: Path, text: str) -> str:
    path = folder / "function.py"
    path.write_text(text)
    return str(path)


def comparable(verdict: Verdict) -> list[tuple[object, ...]]:
    names = ("status", "reason", "errors", "limits", "digests")
    return [(case.name, *(getattr(case, name) for name in names), case.run.get("witnesses")) for case in verdict.cases]


def relations() -> list[CaseSpec]:
    return [spec for spec in quick_cases([PROBLEM]) if spec.relation][:2]


def test_the_verdict_of_honest_workers_is_that_of_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "CASES_OF_A_JOB", 3)
    spec, cases = written(tmp_path, RIGHT), [*public(4), *relations()]
    remote = Remote()
    verdict = judge_by_jobs(remote, spec, cases)
    assert verdict.passed
    whole = judge_candidate(
        spec, [replace(case, seed=made.seed) for case, made in zip(cases, verdict.cases, strict=True)]
    )
    assert (verdict.kernel, verdict.device) == (whole.kernel, whole.device)
    assert comparable(verdict) == comparable(whole)
    assert all(value["verdict"] is None for value in remote.values)


def test_a_kernel_of_the_lab_its_algebra_and_hidden_seeds() -> None:
    cases = [
        CaseSpec("a", PROBLEM, "normal", None),
        CaseSpec("b", PROBLEM, "normal", 7),
        CaseSpec("c", PROBLEM, "needle", 7),
    ]
    verdict = judge_by_jobs(Remote(), "scalar", cases)
    assert verdict.passed
    assert {case.run["ptx_sha256"][0] for case in verdict.cases}
    assert verdict.cases[0].seed not in (0, 7)
    whole = judge_candidate("scalar", [replace(cases[0], seed=verdict.cases[0].seed), *cases[1:]], workers=1)
    # The case of the torch backends has a public seed: there it is the second, and here the first.
    assert [row[:-1] for row in comparable(verdict)] == [row[:-1] for row in comparable(whole)]
    assert [each.to_dict() for each in verdict.algebra] == [each.to_dict() for each in whole.algebra]


def test_a_worker_that_says_passed_of_a_wrong_kernel_is_not_used(tmp_path: Path) -> None:
    right = Remote()
    judge_by_jobs(right, written(tmp_path, RIGHT), public(2))

    def says_passed(value: dict[str, Any]) -> None:
        value["verdict"] = None
        value["more"] = "PASSED"

    def verdict_alone(value: dict[str, Any]) -> None:
        del value["answers"]

    spec = written(tmp_path, WRONG)
    assert judge_by_jobs(Remote(), spec, public(2)).status is Status.INCORRECT
    for change in (says_passed, verdict_alone):
        with pytest.raises(MachineError, match=r"no value of a job judge|sent no answers"):
            judge_by_jobs(Remote(change), spec, public(2))


def outputs(value: dict[str, Any]) -> list[dict[str, Any]]:
    return [answer["outputs"] for answer in value["answers"] if answer["call"] == "run"]


def changed(sent: dict[str, Any], change: Callable[[np.ndarray], np.ndarray]) -> dict[str, Any]:
    array = np.frombuffer(zlib.decompress(base64.b64decode(sent["data"])), np.float16).reshape(sent["shape"])
    return {**sent, "data": base64.b64encode(zlib.compress(change(array).tobytes())).decode()}


def test_an_output_is_held_against_the_oracle_here(tmp_path: Path) -> None:
    def double(value: dict[str, Any]) -> None:
        for each in outputs(value):
            each.update({name: changed(sent, lambda array: 2 * array) for name, sent in each.items()})

    verdict = judge_by_jobs(Remote(double), written(tmp_path, RIGHT), public(3))
    assert [case.status for case in verdict.cases] == [Status.INCORRECT] * 3

    def second_alone(value: dict[str, Any]) -> None:
        for each in outputs(value):
            each["second.o"] = changed(each["second.o"], lambda array: 2 * array)

    verdict = judge_by_jobs(Remote(second_alone), written(tmp_path, RIGHT), public(3))
    assert not any(case.passed for case in verdict.cases)


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "none": lambda value: value["answers"].clear(),
    "one less": lambda value: value["answers"].pop(),
    "another order": lambda value: value["answers"].reverse(),
    "no object": lambda value: value["answers"].__setitem__(1, 7),
    "no start": lambda value: value["answers"][0].pop("device"),
    "no reply": lambda value: value["answers"][1].pop("reply"),
    "no output": lambda value: value["answers"][1].update(outputs={}),
    "no base64": lambda value: outputs(value)[0]["first.o"].update(data="?"),
    "no stream": lambda value: outputs(value)[0]["first.o"].update(data="aaaa"),
    "a bomb": lambda value: outputs(value)[0]["first.o"].update(
        data=base64.b64encode(zlib.compress(bytes(1 << 26))).decode()
    ),
    "a large array": lambda value: outputs(value)[0]["first.o"].update(shape=[1 << 20, 1 << 20]),
    "no dtype": lambda value: outputs(value)[0]["first.o"].update(dtype="object"),
    "passed": lambda value: value["answers"][1].update(reply={"status": "PASSED", "reason": "it did"}),
    "no status": lambda value: value["answers"][1].update(failure="died", status="PASSED", reason="it did"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_answers_that_are_none_make_no_case(tmp_path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    spec = written(tmp_path, RIGHT)
    try:
        verdict = judge_by_jobs(Remote(change), spec, public(1))
    except MachineError:
        return
    assert [case.status for case in verdict.cases] == [Status.INFRA_ERROR]


def test_a_candidate_that_dies_is_judged_as_in_one_piece(tmp_path: Path) -> None:
    spec = written(tmp_path, RIGHT.replace("    return", "    import os; os._exit(3)\n    return"))
    verdict = judge_by_jobs(Remote(), spec, public(2))
    assert [case.status for case in verdict.cases] == [Status.CRASHED] * 2
    assert "exit code 3" in verdict.reason
