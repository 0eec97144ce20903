"""The judge of the backward pass: references, limits, exact elements, candidates and bugs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch
from attention import outputs_of
from gradient_candidates import backward, eager, sdpa, two_of_three, unrelated

from sdpalab.bugs.backward import TiledBackward
from sdpalab.bugs.catalogue import BUGS
from sdpalab.errors import UserError
from sdpalab.inputs import INPUT_KINDS, make_inputs, visible_keys
from sdpalab.judge import judge
from sdpalab.judge.cases import cases_for
from sdpalab.judge.rule import yardstick
from sdpalab.judge.rule.evaluate import judge_output
from sdpalab.judge.rule.exact_gradients import exact_gradients
from sdpalab.judge.rule.gradients import GRADIENTS, attention_gradients, intended_gradients
from sdpalab.judge.rule.numerics import UNDECLARED
from sdpalab.judge.rule.rounding import rounded_to_type
from sdpalab.judge.rule.yardstick import torch_gradients
from sdpalab.judge.session import judge_candidate
from sdpalab.judge.small_cases import possible
from sdpalab.judge.verdict import Status
from sdpalab.kernels.declarations import Numerics
from sdpalab.problem import Problem

SMALL = Problem(2, 4, 48, 32, kv_heads=2, task="backward")
PROBLEMS = (
    SMALL,
    SMALL.with_(causal=True, dtype="bfloat16"),
    SMALL.with_(seq_kv=70, causal=True, bottom_right=True),
    SMALL.with_(seq_kv=30, causal=True, bottom_right=True),
    SMALL.with_(window_size=(9, 4)),
    SMALL.with_(softcap=5.0),
    SMALL.with_(q_lengths=(48, 20), kv_lengths=(30, 48), causal=True, bottom_right=True),
    SMALL.with_(head_dim_v=64),
    SMALL.with_(alibi_slopes=True, sinks=True),
    SMALL.with_(attn_mask="float:B,H"),
)


def by_autograd(problem: Problem, arrays: dict[str, npt.NDArray[Any]]) -> list[npt.NDArray[np.float64]]:
    """dQ, dK and dV in float64 by torch's autograd, of a softmax written for this test."""
    clean = {name: torch.from_numpy(np.nan_to_num(each.astype(np.float64))) for name, each in arrays.items()}
    q, k, v = (clean[name].requires_grad_() for name in "qkv")
    scoring: Any = problem.scoring_with(arrays)
    total = torch.zeros((), dtype=torch.float64)
    for b, h in np.ndindex(problem.batch, problem.heads):
        rows, kv_head = np.arange(problem.seq_q), h // problem.group
        scores = q[b, h] @ k[b, kv_head].mT * problem.scale
        if problem.softcap:
            scores = problem.softcap * torch.tanh(scores / problem.softcap)
        distance = rows[:, None] - np.arange(problem.seq_kv)
        if problem.alibi_slopes:
            scores = scores - float(arrays["alibi_slopes"][h]) * torch.from_numpy(np.abs(distance)).double()
        if problem.attn_mask:
            scores = scores + torch.from_numpy(arrays["attn_mask"][b, h].astype(np.float64))
        seen = torch.from_numpy(visible_keys(rows, problem.seq_kv, head=(b, h), **scoring))
        weights = torch.where(seen, torch.exp(scores), 0.0)
        sink = math.exp(float(arrays["sinks"][h])) if problem.sinks else 0.0
        p = weights / (weights.sum(1, keepdim=True) + sink).clamp_min(1e-300)
        total = total + ((p @ v[b, kv_head]) * clean["do"][b, h]).sum()
    return [each.numpy() for each in torch.autograd.grad(total, (q, k, v))]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda each: each.label)
def test_the_reference_is_the_gradient(problem: Problem) -> None:
    inputs = make_inputs(problem, "normal", 3)
    assert inputs.do is not None
    gradients = attention_gradients(*inputs.qkv, inputs.do, **problem.scoring_with(inputs.arrays))
    for name, expected in zip(GRADIENTS, by_autograd(problem, inputs.arrays), strict=True):
        judged = ~np.isnan(gradients.values[name])
        assert judged.mean() > 0.5
        np.testing.assert_allclose(gradients.values[name][judged], expected[judged], rtol=0, atol=1e-12)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda each: each.label)
def test_declared_arithmetic_keeps_its_own_limits_on_every_kind_of_inputs(problem: Problem) -> None:
    for kind in INPUT_KINDS:
        if not possible(problem, kind):
            continue
        inputs = make_inputs(problem, kind, 1)
        assert inputs.do is not None
        assert inputs.o is not None
        clean = inputs.padded(0.0)
        for numerics in (Numerics(), UNDECLARED):
            outputs = intended_gradients(
                *(np.nan_to_num(each) for each in (*clean.qkv, clean.arrays["do"])),
                clean.arrays["o"],
                numerics=numerics,
                **problem.scoring_with(inputs.arrays),
            )
            judged = judge_output(problem, inputs, outputs, numerics)
            assert judged.status is Status.PASSED, (kind, judged.reason)


def test_the_rounding_of_sums_that_cancel_is_within_the_largest_error() -> None:
    problem = Problem(1, 1, 1, 64, task="backward")  # one key: dP = delta, and dS is the rounding of both
    inputs = make_inputs(problem, "normal", 1)
    do, v = (each.astype(np.float32).ravel() for each in (inputs.arrays["do"], inputs.v))
    rounding = np.cumsum(do * v)[-1] - np.cumsum((do * v)[::-1])[-1]
    assert rounding != 0
    for factor, expected in ((1, Status.PASSED), (64, Status.INCORRECT)):
        outputs = {
            "dq": (problem.scale * factor * rounding * inputs.k.astype(np.float32)).astype(np.float16),
            "dk": (problem.scale * factor * rounding * inputs.q.astype(np.float32)).astype(np.float16),
            "dv": inputs.arrays["do"],
        }
        assert judge_output(problem, inputs, outputs, Numerics()).status is expected


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_the_rounding_is_that_of_a_conversion(dtype: Any) -> None:
    words = np.arange(1 << 16, dtype=np.uint16).view(dtype).astype(np.float32)
    words = np.sort(words[np.isfinite(words)])
    ties = (words[1:] / 2 + words[:-1] / 2).astype(np.float32)
    rng = np.random.default_rng(0)
    others = (rng.standard_normal(10_000) * 10.0 ** rng.uniform(-9, 6, 10_000)).astype(np.float32)
    for values in (words, ties, np.nextafter(ties, np.float32(np.inf)), others, np.float32([np.inf, -np.inf, np.nan])):
        with np.errstate(over="ignore"):
            expected = values.astype(dtype).astype(np.float32)
        assert np.array_equal(rounded_to_type(values, np.dtype(dtype)), expected, equal_nan=True)


@pytest.mark.parametrize("rows", [1, 7, 32, 1 << 20])
def test_parts_of_dk_and_dv_are_rounded_after_that_many_rows(rows: int) -> None:
    problem = Problem(1, 4, 100, 16, kv_heads=2, task="backward")
    inputs = make_inputs(problem, "normal", 3)
    assert inputs.do is not None
    assert inputs.o is not None
    numerics = Numerics(probabilities="float32", score_gradients="float32", partial_rows=rows)
    found = intended_gradients(*inputs.qkv, inputs.do, inputs.o, numerics=numerics, **problem.scoring)["dv"]
    q, k, do = (each[0].astype(np.float64) for each in (inputs.q, inputs.k, inputs.do))
    for head in range(2):
        total = np.zeros((100, 16), np.float32)
        for member in (2 * head, 2 * head + 1):
            scores = q[member] @ k[head].T * problem.scale
            p = np.exp(scores - inputs.lse[0, member][:, None])
            for start in range(0, 100, rows):
                part = slice(start, start + rows)
                total = (total + p[part].T @ do[member][part]).astype(np.float16).astype(np.float32)
        # A tie may fall to either side; one rounding too few or too many changes a third of the elements.
        assert (found[0, head] == total.astype(np.float16)).mean() > 0.95


def test_the_yardstick_in_blocks_of_rows_is_that_of_flash_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(2, 4, 100, 32, kv_heads=2, seq_kv=70, causal=True, task="backward")
    inputs = make_inputs(problem, "normal", 3)
    assert inputs.do is not None
    flash = torch_gradients(*inputs.qkv, inputs.do, **problem.scoring)
    monkeypatch.setattr(yardstick, "MOST_FLOAT16", 0)
    monkeypatch.setattr(yardstick, "BLOCK", 32 * 70)
    blocks = torch_gradients(*inputs.qkv, inputs.do, **problem.scoring)
    for name, each in flash.items():
        difference = np.linalg.norm((blocks[name] - each).astype(np.float64))
        assert 0 < difference < 1e-3 * np.linalg.norm(each.astype(np.float64)), name


def test_zeros_are_exact_where_the_inputs_fix_them() -> None:
    problem = Problem(1, 2, 32, 16, seq_kv=40, causal=True, task="backward")
    inputs = make_inputs(problem, "normal", 2)
    assert inputs.do is not None
    inputs.do[:, :, 5] = 0
    exact = exact_gradients(*inputs.qkv, inputs.do, **problem.scoring_with(inputs.arrays))
    assert exact["dq"].mask[:, :, 5].all()
    assert not exact["dq"].mask[:, :, [4, 6]].any()
    for name in ("dk", "dv"):  # no row sees keys 32 to 39
        assert exact[name].mask[:, :, 32:].all()
        assert not exact[name].mask[:, :, :31].any()
        assert (exact[name].expected[:, :, 32:] == 0).all()


def test_an_exact_mean_and_a_copy_are_gradients_of_v() -> None:
    uniform = Problem(1, 2, 32, 16, task="backward")
    inputs = make_inputs(uniform, "uniform", 2)
    assert inputs.do is not None
    exact = exact_gradients(*inputs.qkv, inputs.do, **uniform.scoring_with(inputs.arrays))["dv"]
    mean = inputs.do.astype(np.float64).sum(axis=2, keepdims=True) / 32
    assert exact.mask.mean() > 0.25
    assert (np.broadcast_to(mean, exact.mask.shape)[exact.mask] == exact.expected[exact.mask]).all()
    needles = make_inputs(uniform, "needle", 2)
    assert needles.do is not None
    exact = exact_gradients(*needles.qkv, needles.do, **uniform.scoring_with(needles.arrays))["dv"]
    assert exact.mask.mean() > 0.9
    zeros = exact_gradients(*needles.qkv, needles.do, zeros_only=True, **uniform.scoring_with(needles.arrays))["dv"]
    assert not zeros.expected.any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("right", [sdpa, eager, backward, TiledBackward()], ids=["sdpa", "eager", "explicit", "tiled"])
def test_right_gradients_pass(right: Callable[..., Any], dtype: str) -> None:
    verdict = judge(right, [Problem(1, 4, 70, 32, kv_heads=2, task="backward", dtype=dtype)])
    assert verdict.passed, verdict.reason
    assert all(set(case.figures) == set(GRADIENTS) for case in verdict.cases)
    assert "backward" in verdict.covers
    assert "log-sum-exp" not in verdict.covers


@pytest.mark.parametrize(
    ("bug", "words"),
    [
        ("delta is left out", "dq and dk: delta, the sum of dO * O of each row, is wrong (delta is left out); look at"),
        ("dQ is summed in bfloat16", "dq: the error is noise"),
        ("dK and dV are those of the last query head of the group", "dk and dv: dK and dV are not the sums over"),
    ],
)
def test_a_bug_is_found_and_named_with_its_gradient(bug: str, words: str) -> None:
    planted = BUGS[f"backward: {bug}"]
    verdict = judge_candidate(planted.candidate, cases_for("quick", [planted.problem]), until_failure=True)
    assert verdict.status is Status.INCORRECT, verdict.reason
    assert f"; hint: {words}" in verdict.reason
    failed = next(case for case in verdict.cases if not case.passed)
    assert verdict.reason.startswith(f"{words.partition(' ')[0].rstrip(':')}: ")
    assert max(failed.figures, key=lambda name: failed.figures[name].share) in failed.reason


def test_a_gradient_that_cancels_is_measured_at_its_magnitude() -> None:
    """One key and a sink: dS is the small difference of two large numbers, whose rounding errors may not cancel."""
    problem = Problem(1, 2, 1, 32, kv_heads=1, alibi_slopes=True, sinks=True, task="backward")
    inputs = make_inputs(problem, "normal", 1)
    outputs = outputs_of(TiledBackward(), problem, inputs)
    assert judge_output(problem, inputs, outputs, UNDECLARED).status is Status.PASSED
    outputs["dq"] = outputs["dq"] + np.float16(0.01)
    assert judge_output(problem, inputs, outputs, UNDECLARED).status is Status.INCORRECT


def test_a_candidate_without_a_gradient_is_a_bad_output() -> None:
    problem = [Problem(1, 2, 20, 16, task="backward")]
    for candidate, words in (
        (unrelated, "autograd finds no gradient of k"),
        (two_of_three, "2 tensors, not dq, dk, dv"),
    ):
        verdict = judge(candidate, problem, claims=False)
        assert verdict.status is Status.BAD_OUTPUT
        assert words in verdict.reason


def test_a_kernel_that_does_not_claim_gradients_is_refused() -> None:
    with pytest.raises(UserError, match="flash does not take backward"):
        judge("flash", [Problem(1, 2, 20, 32, task="backward")], claims=False)


def test_a_record_without_the_figures_of_each_gradient_is_invalid() -> None:
    verdict = judge(backward, [Problem(1, 2, 20, 16, task="backward")], claims=False)
    fields = verdict.cases[0].to_dict()
    assert type(verdict.cases[0]).from_dict(json.loads(json.dumps(fields))) == verdict.cases[0]
    del fields["figures"]["dk"]
    with pytest.raises(ValueError, match="needs the figures of dq, dk, dv"):
        type(verdict.cases[0]).from_dict(fields)


def test_a_bundle_of_gradients_verifies(tmp_path: Path, cli_here: Callable[..., Any]) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n\n\ndef mine(q, k, v, *, scale, causal):\n"
        "    attention = torch.nn.functional.scaled_dot_product_attention\n"
        "    return attention(q, k, v, is_causal=causal, scale=scale)\n"
    )
    words = ["judge", str(tmp_path / "mine.py:mine"), "--task", "backward", "--shape", "1,2,20,16"]
    done = cli_here(*words, "--bundle", str(tmp_path / "bundle"))
    assert done.returncode == 0, done.stderr
    (archive,) = (tmp_path / "bundle").glob("*.tar.gz")
    assert cli_here("verify", str(archive)).returncode == 0
    refused = cli_here("torch-matrix", str(tmp_path / "mine.py:mine"), "--task", "backward")
    assert refused.returncode == 2
    assert "forward problems only" in refused.stderr
