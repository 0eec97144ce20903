"""Torch backends beside a verdict: distances; and the oracle against itself: what is right passes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sdpalab.cli import main
from sdpalab.inputs import E4M3_KINDS, make_inputs
from sdpalab.inputs.reference import attention_float64
from sdpalab.judge import CaseSpec, judge_candidate, quick_cases
from sdpalab.judge.agreement import Agreement, agreement
from sdpalab.judge.rule.evaluate import judge_output
from sdpalab.judge.rule.numerics import UNDECLARED
from sdpalab.judge.torch_backends import BACKENDS, Backend, backend_output
from sdpalab.judge.verdict import Status
from sdpalab.problem import Problem

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="what it compares with are torch's CPU backends")
PROBLEM = Problem(1, 2, 90, 64)


class TorchBackend:
    """torch's attention by one of its backends, as a candidate."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def __call__(self, q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        chosen = {Backend.MATH: SDPBackend.MATH, Backend.FLASH: SDPBackend.FLASH_ATTENTION}[self.backend]
        group = q.shape[1] // k.shape[1]
        k, v = (tensor.repeat_interleave(group, dim=1) for tensor in (k, v))
        with sdpa_kernel(chosen):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)


def compared_by(problem: Problem, backend: Backend) -> Agreement:
    """Agreement of a kernel that is one of torch's backends."""
    inputs = make_inputs(problem)
    out = backend_output(**inputs.arrays, scale=problem.scale, causal=problem.causal, backend=backend)
    compared = agreement(problem, inputs, out)
    assert compared is not None
    return compared


@pytest.mark.parametrize("backend", BACKENDS["cpu"], ids=str)
@pytest.mark.parametrize(
    "problem", [PROBLEM, PROBLEM.with_(causal=True, dtype="bfloat16")], ids=lambda problem: problem.label
)
def test_a_backend_agrees_best_with_itself(backend: Backend, problem: Problem) -> None:
    compared = compared_by(problem, backend)
    own, other = sorted(compared.witnesses, key=lambda backend: backend.from_kernel)
    assert compared.nearest == own
    assert (own.backend, own.from_kernel) == (backend.value, 0.0)
    assert own.from_float64 == compared.kernel_from_float64 > 0.0
    assert other.from_kernel == compared.apart > 0.0


def test_distances_are_relative_to_the_reference_and_of_judged_rows_only() -> None:
    inputs = make_inputs(PROBLEM)
    reference = attention_float64(**inputs.arrays, scale=PROBLEM.scale, causal=False)
    compared = agreement(PROBLEM, inputs, (1.25 * reference).astype(np.float16))
    assert compared is not None
    assert compared.kernel_from_float64 == pytest.approx(0.25, rel=1e-3)
    q = inputs.q.copy()
    q[0, 0, 3] = np.nan
    out = reference.astype(np.float16)
    out[0, 0, 3] = np.nan
    blind = agreement(PROBLEM, replace(inputs, q=q), out)
    assert blind is not None
    assert 0.0 < blind.kernel_from_float64 < 3e-4


def test_there_is_no_distance_from_nan() -> None:
    inputs = make_inputs(PROBLEM)
    assert agreement(PROBLEM, inputs, np.full(PROBLEM.q_shape, np.nan, np.float16)) is None


def test_a_verdict_says_it_of_its_largest_public_case_and_nothing_is_decided() -> None:
    specs = [
        CaseSpec("small", PROBLEM.with_(seq_q=20, seq_kv=20)),
        CaseSpec("public", PROBLEM, seed=3),
        CaseSpec("hidden and larger", PROBLEM.with_(heads=4), seed=None),
        CaseSpec("probe", PROBLEM.with_(heads=4), "needle"),
    ]
    verdict = judge_candidate(TorchBackend(Backend.MATH), specs)
    assert verdict.passed
    recorded = {case.name: case.run["witnesses"] for case in verdict.cases if "witnesses" in case.run}
    assert list(recorded) == ["public"]
    record = json.loads(json.dumps(verdict.to_dict()))["cases"][1]["run"]["witnesses"]
    compared = Agreement.from_dict(record)
    assert compared.to_dict() == record == recorded["public"]
    assert (record["best"], compared.device, compared.torch) == ("math", "cpu", torch.__version__)
    text = "\n".join(compared.lines("public"))
    assert f"torch math: {compared.nearest.from_float64:.1e} from float64, 0.0e+00 from it" in text
    assert f"agrees best with torch math; the backends are up to {compared.apart:.1e} apart" in text


@pytest.mark.slow
def test_the_command_line_says_it_after_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sdpalab.judge.cases.cases_for", lambda *_, **__: (CaseSpec("only", PROBLEM),))
    assert main(["judge", f"{Path(__file__).parent / 'candidates.py'}:good", "--shape", "1,2,90,64"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"torch backends on only, relative L2: this kernel is \d\.\de-04 from float64", printed)
    assert printed.count("from it\n") == len(BACKENDS["cpu"])


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS["cpu"], ids=str)
def test_torchs_own_attention_passes_the_whole_judge(backend: Backend) -> None:
    specs = [spec for spec in quick_cases([Problem(1, 4, 70, 32, kv_heads=2, causal=True)]) if not spec.tile]
    verdict = judge_candidate(TorchBackend(backend), specs)
    assert verdict.passed, verdict.reason
    asked = [spec for spec in specs if spec.inputs not in E4M3_KINDS]  # those are for a candidate that quantises
    assert [spec.name for spec in asked] == [case.name for case in verdict.cases]
    assert len(asked) > 15


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_float64_itself_passes_when_it_is_rounded_to_the_type(dtype: str) -> None:
    for spec in quick_cases([Problem(1, 2, 70, 64, dtype=dtype)]):
        inputs = make_inputs(spec.problem, spec.inputs, spec.seed or 0)
        reference = attention_float64(**inputs.arrays, scale=spec.problem.scale, causal=spec.problem.causal)
        judged = judge_output(spec.problem, inputs, reference.astype(inputs.q.dtype), UNDECLARED)
        assert judged.status is Status.PASSED, (spec.name, judged.reason)
