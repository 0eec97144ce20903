"""The judge's self-test: every planted bug can be planted, and is found; what is no bug is not."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from attention import outputs_of
from planted_executors import InlineExecutor

from sdpalab import cli
from sdpalab.bugs import Bug, Family
from sdpalab.bugs.backward import TiledBackward
from sdpalab.bugs.catalogue import BUGS
from sdpalab.bugs.sequences import SequenceAttention
from sdpalab.bugs.tiled import TiledAttention
from sdpalab.campaigns import self_test as campaign
from sdpalab.campaigns.self_test import BugResult, SelfTest, self_test, specs_of
from sdpalab.inputs import E4M3_KINDS, Inputs
from sdpalab.judge.case_inputs import case_inputs
from sdpalab.judge.cases import CaseSpec, quick_cases
from sdpalab.judge.parameters import PARAMETERS, parameter_names
from sdpalab.judge.rule.evaluate import judge_output
from sdpalab.judge.rule.numerics import UNDECLARED
from sdpalab.judge.rule.relations import RELATIONS, broken_relation
from sdpalab.judge.sandbox.callables import BadOutput
from sdpalab.judge.session import judge_candidate
from sdpalab.judge.strides import Strides
from sdpalab.judge.verdict import Status
from sdpalab.problem import Problem

Array = npt.NDArray[np.generic]
CAMPAIGNS = Path(__file__).resolve().parents[4] / "evidence" / "campaigns"
IN_PYTHON = [bug for bug in BUGS.values() if not bug.in_source]


def first_failure(function: Any, specs: Sequence[CaseSpec]) -> tuple[str, Status] | None:
    """The first of these cases that ``function`` fails, run here and not in a process of its own."""

    def run(problem: Problem, inputs: Inputs, strides: Strides = Strides.CONTIGUOUS) -> dict[str, Array]:
        return outputs_of(function, problem, inputs, strides)

    for spec in specs:
        inputs = case_inputs(replace(spec, seed=1 if spec.seed is None else spec.seed))
        try:
            out = run(spec.problem, inputs, spec.strides)
        except BadOutput:
            return spec.name, Status.BAD_OUTPUT
        except RuntimeError:  # a crash on some strides; another case shows the status that the bug is listed with
            continue
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


TWO_RUNS = (
    "the output of the call before",
    "backward: dQ is a sum in an order that differs between runs, without a declaration",
)
"""Bugs that take two runs to find."""


@cache
def right_everywhere(specs: tuple[CaseSpec, ...]) -> bool:
    problem = specs[0].problem
    forward = TiledAttention() if problem.layout_form.dense else SequenceAttention()
    right = TiledBackward() if problem.backward else forward
    return first_failure(right, specs) is None


@pytest.mark.sample(8)
@pytest.mark.parametrize("bug", IN_PYTHON, ids=lambda bug: bug.id)
def test_a_bug_in_python_is_found(bug: Bug) -> None:
    torch.set_num_threads(1)
    specs = tuple(spec for spec in specs_of(bug) if spec.claim in ("", *PARAMETERS) and spec.inputs not in E4M3_KINDS)
    if bug.claims:  # nothing that was asked for shows it
        asked = tuple(spec for spec in specs if not spec.claim)
        assert first_failure(bug.edit, asked) is None
        specs = tuple(spec for spec in specs if spec.claim in parameter_names(bug.edit))
    assert right_everywhere(specs)
    failure = first_failure(bug.edit, specs)
    if bug.equivalent:
        assert failure is None
    elif bug.id in TWO_RUNS:
        assert Status.NONDETERMINISTIC in bug.statuses
    else:
        assert failure is not None
        assert failure[1] in bug.statuses


SAMPLE = (
    "scalar: rows past the end of K and V are loaded",
    "wmma: query i sees key i + 1",
    "warp_specialized: Q is never given back",
    "flash: no barrier after a tile's copy",
    "fp8_simulated: the scale of K left out",
    "fp8: keys widened in the wrong order",
    "hopper: K's descriptor does not advance",
    "hopper_fp8: rescale of O lost",
    "gradients_template: dK and dV of K/V head h sum the query heads h, h + Hkv, ...",
)


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("bug", SAMPLE)
def test_a_bug_in_a_kernel_is_found_in_the_whole_judge(bug: str) -> None:
    (result,) = self_test([BUGS[bug]], InlineExecutor()).mutants
    assert result.as_it_should, (result.status, result.reason)
    assert result.harmless is (Status.PASSED if BUGS[bug].harmless else None)


def test_a_hazard_of_the_run_without_the_log_sum_exp_alone_is_found_in_the_whole_judge() -> None:
    (result,) = self_test([BUGS["scalar: log-sum-exp written to a null pointer"]], InlineExecutor()).mutants
    assert result.as_it_should, (result.status, result.reason)


def test_bugs_of_two_runs_are_found_in_the_whole_judge() -> None:
    record = self_test([BUGS[name] for name in TWO_RUNS], InlineExecutor())
    assert all(result.as_it_should for result in record.mutants), [result.reason for result in record.mutants]
    assert record.classes == {name: {"planted": 1, "killed": 1} for name in ("degenerate", "gradients")}


def test_historical_bugs_have_the_address_of_a_report() -> None:
    links = [bug.link for bug in BUGS.values() if bug.link]
    assert len(links) >= 50
    assert all(
        re.fullmatch(r"https://github\.com/[^/]+/[^/]+/(issues/\d+|commit/[0-9a-f]{8}|blob/main/.+)", each)
        for each in links
    )


def test_what_survives_and_what_is_no_bug_are_counted_apart() -> None:
    fields = {"family": Family.MASK, "problem": "1x1x8x32", "case": "", "reason": "", "harmless": None}
    survivor = BugResult(**fields, id="a", expected=(Status.INCORRECT,), status=Status.PASSED, equivalent="")
    harmful = replace(survivor, status=Status.INCORRECT, harmless=Status.HAZARD)
    equivalent = replace(survivor, expected=(Status.PASSED,), equivalent="it computes the same")
    record = SelfTest((survivor, harmful, replace(harmful, harmless=Status.PASSED), equivalent))
    assert [result.as_it_should for result in record.mutants] == [False, False, True, True]
    assert record.totals == {"planted": 3, "killed": 1}
    assert SelfTest.from_dict(record.to_dict()) == record
    changed = record.to_dict() | {"totals": {"planted": 3, "killed": 3}}
    with pytest.raises(ValueError, match="totals"):
        SelfTest.from_dict(changed)


@pytest.mark.slow
def test_the_command_and_the_campaign_print_the_rate_and_write_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    equivalent = next(bug for bug in BUGS.values() if bug.equivalent)
    missed = replace(equivalent, id="a bug that is none", equivalent="")
    monkeypatch.setattr(campaign, "BUGS", {bug.id: bug for bug in (BUGS["zeros"], equivalent, missed)})
    monkeypatch.setattr(Bug, "specs", property(lambda self: quick_cases([self.problem])[:1]))
    monkeypatch.setattr("sdpalab.jobs.executor_named", lambda *_, **__: InlineExecutor())
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "record.json"
    for words in (["judge", "--self-test", "--json", str(file)], ["campaign", "self-test", "--out", str(file)]):
        assert cli.main(words) == 1
        out = capsys.readouterr().out
        assert "1 of 2 planted bugs rejected (50.0%)" in out
        assert "a bug that is none: PASSED where it should be INCORRECT or NOT_FINITE" in out
        record = json.loads(file.read_text())
        record = record.get("record", record)
        assert (record["campaign"], record["command"]) == ("self-test", "sdpalab campaign self-test")
        assert record["totals"] == {"planted": 2, "killed": 1}
        assert [each["as_it_should"] for each in record["mutants"]] == [True, True, False]
    assert cli.main(["campaign", "self-test", "--only", "zeros"]) == 0
    out = capsys.readouterr().out
    assert "1 of 1 planted bugs rejected" in out
    assert "record" not in out
    assert cli.main(["campaign", "self-test", "--since", str(file), "--out", str(tmp_path / "next.json")]) == 1
    again = json.loads((tmp_path / "next.json").read_text())
    assert (again["since"], again["earlier"], len(again["mutants"])) == ("record.json", 2, 3)
    assert cli.main(["campaign", "self-test", "--since", str(tmp_path / "none.json")]) == 2
    assert "is no record of the campaign self-test" in capsys.readouterr().err
    assert cli.main(["campaign", "self-test", "--only", "no such words"]) == 2
    assert "no bug of the catalogue has 'no such words' in its id" in capsys.readouterr().err


def test_the_committed_record_is_of_these_bugs_and_all_are_rejected() -> None:
    records = [json.loads(path.read_text()) for path in CAMPAIGNS.glob("self-test-*.json")]
    newest = max(records, key=lambda each: str(each["when"]))
    fields = ("mutants", "format", "totals", "classes", "since", "earlier")
    record = SelfTest.from_dict({name: newest[name] for name in fields if name in newest})
    described = [(each.family, each.id, each.problem, each.equivalent) for each in record.mutants]
    assert described == [(bug.family, bug.id, bug.problem.label, bug.equivalent) for bug in BUGS.values()]
    assert all(result.as_it_should for result in record.mutants)
    assert record.totals["killed"] == record.totals["planted"] > 200


def test_a_candidate_is_judged_until_it_fails() -> None:
    specs = quick_cases([Problem(1, 1, 20, 32)])
    verdict = judge_candidate(BUGS["zeros"].candidate, specs, workers=1, until_failure=True)
    assert [case.passed for case in verdict.cases] == [False]
    assert verdict.status is Status.INCORRECT
