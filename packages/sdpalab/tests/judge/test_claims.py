"""The judge tests every claim of a candidate, even unasked, and the verdict says what it covers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from sdpalab.bugs.catalogue import BUGS
from sdpalab.campaigns.self_test import specs_of
from sdpalab.errors import UserError
from sdpalab.judge import Verdict, judge_candidate
from sdpalab.judge.cases import CaseSpec, cases_for
from sdpalab.judge.claims import CLAIMED_HEAD_DIMS
from sdpalab.judge.parameters import PARAMETERS, parameter_names
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import supports_all
from sdpalab.kernels.registry import CUDA_KERNELS
from sdpalab.problem import FEATURES, Problem

SMALL = Problem(1, 2, 40, 32)


UNCLAIMED = {"scale", "do", "o", "lse", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"}
"""Parameters that come with others."""


def claimed(level: str, problem: Problem = SMALL) -> list[CaseSpec]:
    """The cases that are there for claims alone."""
    asked = {spec.name for spec in cases_for(level, [problem], claims=False)}
    return [spec for spec in cases_for(level, [problem]) if spec.name not in asked]


def test_every_claim_has_cases_at_level_quick_and_none_was_asked_for() -> None:
    specs = claimed("quick")
    assert {spec.claim for spec in specs} == {*PARAMETERS, "dtype", "head_dim", "append", "e4m3_cache"} - UNCLAIMED
    assert all(spec.derived for spec in specs)
    assert {spec.problem.dtype for spec in specs if spec.claim == "dtype"} == {"bfloat16"}
    assert {spec.problem.head_dim for spec in specs if spec.claim == "head_dim"} == {*CLAIMED_HEAD_DIMS} - {32}
    assert all(spec.claim in spec.problem.features for spec in specs if spec.claim in FEATURES)
    alone = {spec.claim for spec in specs if spec.problem.features == (spec.claim,)}
    assert alone == set(FEATURES) - {"backward", "e4m3_cache"}  # a cache in e4m3 has pages
    assert {spec.inputs for spec in specs if spec.claim == "causal"} == {
        "normal",
        "forbidden",
        "uniform",
        "uniform_e4m3",
    }
    assert len(specs) < 72


def test_the_cases_differ_from_what_was_asked_for() -> None:
    specs = claimed("quick", Problem(1, 4, 40, 64, kv_heads=2, dtype="bfloat16", causal=True, softcap=9.0))
    assert not {"causal", "softcap", "enable_gqa"} & {spec.claim for spec in specs}
    assert {spec.problem.causal for spec in specs if not spec.claim} == {False}
    assert {spec.problem.dtype for spec in specs if spec.claim == "dtype"} == {"float16"}
    windows = [spec.problem.window_size for spec in claimed("quick", Problem(1, 1, 8, 64)) if spec.problem.window_size]
    assert windows, "a short problem has windows, too"
    assert all(left + right < 7 for left, right in windows), "and they hide keys"


def test_level_full_has_every_kind_of_inputs_for_what_is_further() -> None:
    few, many = claimed("quick"), claimed("full")
    assert {spec.claim for spec in many} >= set(FEATURES) - {"backward"}
    assert len(many) > 3 * len(few)


def with_names(q: Any, k: Any, v: Any, window: Any = None, *, softmax_scale: float, is_causal: bool = False) -> Any:
    return q


def with_anything(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return q


def with_nothing(q: Any, k: Any, v: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (with_names, {"scale": "softmax_scale", "causal": "is_causal", "window_size": "window"}),
        (with_anything, {"scale": "scale", "causal": "causal"}),
        (with_nothing, {}),
        (partial(with_names, is_causal=True), {"scale": "softmax_scale", "causal": "is_causal"}),
        (max, {"scale": "scale", "causal": "causal"}),
    ],
)
def test_a_parameter_is_a_claim_by_any_of_its_names(function: Any, names: dict[str, str]) -> None:
    assert names.items() <= parameter_names(function).items()


@pytest.fixture(scope="module")
def without_a_mask() -> Verdict:
    """A callable that takes neither a mask nor a scale, on normal inputs and on what it might claim."""
    specs = [spec for spec in cases_for("quick", [SMALL]) if spec.inputs == "normal" and not spec.tile]
    return judge_candidate(with_nothing, specs, workers=1)


@pytest.mark.slow
def test_what_is_not_claimed_is_not_judged_and_not_covered(without_a_mask: Verdict) -> None:
    assert without_a_mask.passed, without_a_mask.reason
    assert without_a_mask.covers == ["not causal", "float16", "D 32"]
    assert not any("claim" in case.run for case in without_a_mask.cases)
    scaled = SMALL.with_(scale=2.0)
    for asked, words in ((SMALL.with_(causal=True), "no parameter causal"), (scaled, "no parameter scale")):
        with pytest.raises(UserError, match=words):
            judge_candidate(with_nothing, [CaseSpec("asked", asked)])


def test_a_mask_that_nobody_asked_for_is_judged_and_the_reason_says_why() -> None:
    bug = BUGS["unasked: query i sees key i + 1 by is_causal"]
    specs = [spec for spec in specs_of(bug) if spec.claim == "causal" or spec.problem == bug.problem]
    verdict = judge_candidate(bug.candidate, specs, workers=1)
    assert verdict.status is Status.INCORRECT
    assert "judged unasked, because its parameter causal claims it" in verdict.reason
    assert [case.passed for case in verdict.cases if "claim" not in case.run] == [True, True]
    assert verdict.covers == []
    assert judge_candidate(bug.candidate, [spec for spec in specs if not spec.claim], workers=1).passed


def test_a_kernel_claims_what_it_does_not_refuse() -> None:
    specs = claimed("quick", Problem(1, 1, 33, 64))
    refused = replace(CUDA_KERNELS["flash"], supports=lambda problem: "no masks" if problem.causal else None)
    chosen = [spec for spec in specs if spec.claim in ("causal", "sinks", "dtype") and spec.inputs == "normal"]
    verdict = judge_candidate(refused, chosen, workers=1, algebra=False)
    assert verdict.passed, verdict.reason
    assert [case.run["claim"] for case in verdict.cases] == ["dtype"]
    assert verdict.covers == ["not causal", "bfloat16", "D 64", "log-sum-exp"]


def test_a_kernel_that_does_not_say_what_it_supports_claims_no_more_than_is_asked_for() -> None:
    silent = replace(CUDA_KERNELS["flash"], supports=supports_all)
    specs = [spec for spec in claimed("quick", Problem(1, 1, 33, 64)) if spec.claim in ("causal", "softcap")]
    specs = [CaseSpec("asked", Problem(1, 1, 33, 64)), *(spec for spec in specs if spec.inputs == "normal")]
    verdict = judge_candidate(silent, specs, workers=1, algebra=False)
    assert verdict.passed, verdict.reason
    assert [case.run.get("claim") for case in verdict.cases] == [None, "softcap"]  # flash takes that


@pytest.mark.slow
def test_a_record_without_what_it_covers_is_read_and_a_wrong_one_is_not(without_a_mask: Verdict) -> None:
    record = without_a_mask.to_dict()
    assert Verdict.from_dict({name: value for name, value in record.items() if name != "covers"}) == without_a_mask
    with pytest.raises(ValueError, match="covers is"):
        Verdict.from_dict(record | {"covers": [*record["covers"], "causal"]})
