"""The judge's self-test: every planted bug can be planted, and is found; what is no bug is not."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from sdpalab.bugs import Bug, Mutant
from sdpalab.bugs.catalogue import mutants
from sdpalab.bugs.fp8 import FP8_KERNELS
from sdpalab.bugs.tiled import TiledAttention
from sdpalab.campaigns.self_test import rates, self_test
from sdpalab.inputs import Inputs, make_inputs
from sdpalab.judge.cases import quick_cases
from sdpalab.judge.rule.evaluate import judge_output
from sdpalab.judge.rule.numerics import UNDECLARED
from sdpalab.judge.rule.relations import RELATIONS, broken_relation
from sdpalab.judge.session import judge_candidate
from sdpalab.judge.tensors import from_torch, to_torch
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import CudaKernel
from sdpalab.problem import Problem

Array = npt.NDArray[np.generic]
CAMPAIGNS = Path(__file__).resolve().parents[2] / "evidence" / "campaigns"
MUTANTS = mutants()
IN_PYTHON = [mutant for mutant in MUTANTS if not isinstance(mutant.candidate, CudaKernel)]
IN_CUDA = [mutant for mutant in MUTANTS if isinstance(mutant.candidate, CudaKernel)]


def first_failure(function: Any, problem: Problem) -> tuple[str, Status] | None:
    """The first quick case that ``function`` fails, run here and not in a process of its own."""

    def run(problem: Problem, inputs: Inputs) -> Array:
        tensors = [to_torch(array.copy()) for array in vars(inputs).values()]
        return from_torch(function(*tensors, scale=problem.scale, causal=problem.causal))

    for spec in quick_cases([problem]):
        inputs = make_inputs(spec.problem, spec.inputs, 1 if spec.seed is None else spec.seed)
        out = run(spec.problem, inputs)
        judged = judge_output(spec.problem, inputs, out, UNDECLARED)
        if judged.status is not Status.PASSED:
            return spec.name, judged.status
        if spec.relation:
            relation = RELATIONS[spec.relation]
            changed, related = relation.inputs(spec.problem, inputs)
            again = run(changed, related)
            broken, _ = broken_relation(
                relation,
                spec.problem,
                out,
                changed,
                related,
                again,
                UNDECLARED,
            )
            if broken:
                return spec.name, Status.INCONSISTENT
    return None


@cache
def right_everywhere(problem: Problem) -> bool:
    return first_failure(TiledAttention(), problem) is None


@pytest.mark.parametrize("mutant", IN_PYTHON, ids=lambda mutant: mutant.name)
def test_a_bug_in_python_is_found(mutant: Mutant) -> None:
    torch.set_num_threads(1)
    assert right_everywhere(mutant.problem)
    failure = first_failure(mutant.candidate, mutant.problem)
    if mutant.equivalent:
        assert failure is None
    elif mutant.statuses >= {Status.NONDETERMINISTIC}:
        assert mutant.name == "the output of the call before"  # which takes two runs to tell
    else:
        assert failure is not None
        assert failure[1] in mutant.statuses


SAMPLE = ("no barrier after a tile's copy", "rows past the end of K and V are loaded", "query i sees key i + 1")


@pytest.mark.parametrize("kernel", ["scalar", "wmma", "flash"])
def test_bugs_in_cuda_are_found(kernel: str) -> None:
    chosen = [mutant for mutant in IN_CUDA if mutant.name.startswith(kernel) and mutant.name.endswith(SAMPLE)]
    assert len(chosen) == (3 if kernel == "flash" else 2)
    for outcome in self_test(chosen):
        assert outcome.as_it_should, (outcome.mutant.name, outcome.status, outcome.reason)
        if outcome.mutant.bug is Bug.CUDA:
            assert outcome.harmless is Status.PASSED


@pytest.mark.parametrize(
    "name",
    [*(f"{kernel}: the scale of K left out" for kernel in FP8_KERNELS), "fp8: keys widened in the wrong order"],
)
def test_a_bug_of_8_bits_is_found(name: str) -> None:
    (chosen,) = (mutant for mutant in IN_CUDA if mutant.name == name)
    (outcome,) = self_test([chosen])
    assert outcome.as_it_should, (outcome.status, outcome.reason)
    assert outcome.harmless is Status.PASSED


def test_the_output_of_the_call_before_is_found_in_the_whole_judge() -> None:
    mutant = next(mutant for mutant in IN_PYTHON if mutant.name == "the output of the call before")
    (outcome,) = self_test([mutant])
    assert outcome.as_it_should, outcome.reason
    (rate,) = rates([outcome])
    assert (rate.bug, rate.planted, rate.killed, rate.equivalent) == (Bug.DEGENERATE, 1, 1, 0)


def test_there_are_more_than_a_hundred_bugs_of_every_class() -> None:
    assert {mutant.bug for mutant in MUTANTS} == set(Bug)
    assert len(IN_PYTHON) > 100
    assert len(IN_CUDA) > 50
    assert len({(mutant.name, mutant.problem.label) for mutant in MUTANTS}) == len(MUTANTS)
    assert all(len(mutant.equivalent) > 60 for mutant in MUTANTS if mutant.equivalent)


def test_the_committed_record_is_of_these_bugs_and_all_are_rejected() -> None:
    records = [json.loads(path.read_text()) for path in CAMPAIGNS.glob("self-test-*.json")]
    assert records, "run: sdpalab judge --self-test --json evidence/campaigns/self-test-COMMIT.json"
    record = max(records, key=lambda each: str(each["when"]))
    named = [(each["class"], each["name"], each["problem"]) for each in record["mutants"]]
    assert named == [(mutant.bug.value, mutant.name, mutant.problem.label) for mutant in MUTANTS]
    assert all(each["as_it_should"] for each in record["mutants"])
    assert record["totals"]["killed"] == record["totals"]["planted"] > 100


def test_a_candidate_is_judged_until_it_fails() -> None:
    zeros = next(mutant for mutant in IN_PYTHON if mutant.name == "zeros")
    specs = quick_cases([Problem(1, 1, 20, 32)])
    verdict = judge_candidate(zeros.candidate, specs, workers=1, until_failure=True)
    assert [case.passed for case in verdict.cases] == [False]
    assert verdict.status is Status.INCORRECT
