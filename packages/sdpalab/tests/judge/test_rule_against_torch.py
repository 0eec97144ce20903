"""The judge's rule against torch in float64: an implementation that shares no code with it, on every kind of inputs.

The reference and the log-sum-exp must be torch's. The intended numerics must be torch's operations with the same
roundings between them, within what the order of float32 sums may change. The exact elements must be torch's output in
float64, rounded.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from sdpalab.errors import UserError
from sdpalab.inputs import INPUT_KINDS, Inputs, dtype_of, make_inputs
from sdpalab.inputs.reference import attention_float64
from sdpalab.judge.rule.exact import exact_elements
from sdpalab.judge.rule.log_sum_exp import log_sum_exp_float64
from sdpalab.judge.rule.numerics import intended_output
from sdpalab.kernels.kernel import Numerics
from sdpalab.problem import Problem

PROBLEMS = (
    Problem(1, 2, 31, 32),
    Problem(2, 4, 9, 64, kv_heads=2, seq_kv=23, causal=True),
    Problem(1, 1, 1, 64),
    Problem(1, 2, 40, 128, dtype="bfloat16"),
    Problem(1, 2, 33, 64, dtype="bfloat16", causal=True, scale=0.5),
    Problem(1, 2, 30, 32, seq_kv=12, window_size=(9, 3)),  # the last rows see no key
    Problem(1, 2, 31, 64, causal=True, window_size=(6, 0), softcap=20.0),
    Problem(2, 2, 20, 32, seq_kv=33, kv_lengths=(0, 21), attn_mask="bool:B,1"),
    Problem(2, 4, 12, 32, kv_heads=2, attn_mask="float:1,H", causal=True, dtype="bfloat16"),
    Problem(1, 3, 26, 32, alibi_slopes=True, sinks=True, window_size=(9, 4)),
    Problem(1, 4, 21, 32, kv_heads=2, causal=True, dtype="float32"),
    Problem(2, 2, 9, 32, kv_lengths=(0, 7), attn_mask="float:1,H", softcap=9.0, sinks=True, dtype="float32"),
)
PLAIN = ("causal", "kv_lengths", "attn_mask", "window_size")
"""Further fields with which torch's own scaled_dot_product_attention computes a problem, as a mask."""


def made(problem: Problem, kind: str) -> Inputs:
    """The inputs of a kind; skips where this problem has none."""
    try:
        return make_inputs(problem, kind, 11)
    except UserError:
        pytest.skip("this kind cannot be made for this problem")


def judged_rows_of(reference: Any) -> Any:
    """The rows [B, H, Sq] that are judged, at least one: a whole row is NaN or finite."""
    missing = np.isnan(reference)
    assert (missing.all(axis=3) == missing.any(axis=3)).all()
    assert not missing.all()
    return ~missing[..., 0]


def doubled(array: Any) -> torch.Tensor:
    """A tensor in float64; 0 for what is not finite."""
    return torch.nan_to_num(torch.from_numpy(array.astype(np.float64)), 0.0, 0.0, 0.0)


def seen_and_bias(problem: Problem, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Which keys each row sees, and what is added to its scores, [B, H, Sq, Skv]: by index arithmetic in torch."""
    i, j = torch.arange(problem.seq_q)[:, None], torch.arange(problem.seq_kv)[None, :]
    seen = torch.ones(problem.batch, problem.heads, problem.seq_q, problem.seq_kv, dtype=torch.bool)
    bias = torch.zeros(seen.shape, dtype=torch.float64)
    if problem.causal:
        seen &= j <= i
    left, right = problem.window_size or (-1, -1)
    if left >= 0:
        seen &= i - j <= left
    if right >= 0:
        seen &= j - i <= right
    if inputs.kv_lengths is not None:
        seen &= j < torch.from_numpy(inputs.kv_lengths)[:, None, None, None]
    if inputs.alibi_slopes is not None:
        bias = bias - torch.from_numpy(inputs.alibi_slopes.astype(np.float64))[:, None, None] * (i - j).abs()
    if inputs.attn_mask is not None and inputs.attn_mask.dtype == np.uint8:
        seen &= torch.from_numpy(inputs.attn_mask) != 0
    elif inputs.attn_mask is not None:
        mask = torch.from_numpy(inputs.attn_mask.astype(np.float64))
        seen &= mask != -torch.inf
        bias = bias + torch.where(mask == -torch.inf, 0.0, mask)
    return seen, bias


def in_torch(problem: Problem, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores [B, H, Sq, Skv], with -inf where a key is hidden, the same with the sink as a last key, and V by head."""
    q, k, v = (doubled(array) for array in inputs.qkv)
    k, v = (array.repeat_interleave(problem.group, dim=1) for array in (k, v))
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * problem.scale
    if problem.softcap:
        scores = problem.softcap * torch.tanh(scores / problem.softcap)
    seen, bias = seen_and_bias(problem, inputs)
    scores = (scores + bias).masked_fill(~seen, -torch.inf)
    with_sink = scores
    if inputs.sinks is not None:
        logits = torch.from_numpy(inputs.sinks.astype(np.float64))[None, :, None, None]
        with_sink = torch.cat((scores, logits.expand(*scores.shape[:3], 1)), dim=3)
    return scores, with_sink, v


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)
@pytest.mark.parametrize("kind", sorted(INPUT_KINDS))
def test_the_reference_and_the_log_sum_exp_are_torchs(problem: Problem, kind: str) -> None:
    inputs = made(problem, kind)
    scoring = problem.scoring_with(inputs.arrays)
    _, with_sink, v = in_torch(problem, inputs)
    weights = torch.softmax(with_sink, dim=3).nan_to_num(0.0)[..., : problem.seq_kv]
    expected = (weights @ v).numpy()
    reference = attention_float64(*inputs.qkv, **scoring)
    judged = judged_rows_of(reference)
    assert judged.all() or not all(np.isfinite(array.astype(np.float32)).all() for array in inputs.qkv)
    largest = np.abs(expected[judged]).max()
    np.testing.assert_allclose(reference[judged], expected[judged], rtol=1e-9, atol=1e-11 * largest)
    lse, limit = log_sum_exp_float64(*inputs.qkv, **scoring, numerics=Numerics())
    rows = torch.logsumexp(with_sink, dim=3).numpy()
    np.testing.assert_allclose(lse[judged], rows[judged], rtol=1e-12, atol=1e-9)
    assert (limit[judged] < 2.0**-8 * np.maximum(np.abs(np.nan_to_num(rows[judged], neginf=0.0)), 1e5)).all()


@pytest.mark.parametrize("problem", [p for p in PROBLEMS if set(p.features) <= set(PLAIN)], ids=lambda p: p.label)
@pytest.mark.parametrize("kind", sorted(INPUT_KINDS))
def test_the_reference_is_that_of_torchs_own_attention(problem: Problem, kind: str) -> None:
    """By the math backend in float64, with every mask as one mask; rows that see no key are 0 by definition."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    inputs = made(problem, kind)
    seen, bias = seen_and_bias(problem, inputs)
    q, k, v = (doubled(array) for array in inputs.qkv)
    k, v = (array.repeat_interleave(problem.group, dim=1) for array in (k, v))
    with sdpa_kernel(SDPBackend.MATH):
        mask = bias.masked_fill(~seen, -torch.inf)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=problem.scale)
    expected = torch.where(seen.any(dim=3, keepdim=True), out, 0.0).numpy()
    reference = attention_float64(*inputs.qkv, **problem.scoring_with(inputs.arrays))
    judged = judged_rows_of(reference)
    largest = np.abs(expected[judged]).max()
    np.testing.assert_allclose(reference[judged], expected[judged], rtol=1e-9, atol=1e-11 * largest)


@pytest.mark.parametrize("problem", [p for p in PROBLEMS if p.dtype != "float32"], ids=lambda p: p.label)
@pytest.mark.parametrize("normalise", ["after", "before"])
@pytest.mark.parametrize("kind", ["normal", "uniform", "outlier", "tiny", "large_logits"])
def test_the_intended_numerics_are_torchs_operations_with_their_roundings(
    problem: Problem, normalise: str, kind: str
) -> None:
    """P rounded to the problem's type before or after the division, O rounded once: but for one step of that type."""
    inputs = made(problem, kind)
    kind_of_torch = torch.float16 if problem.dtype == "float16" else torch.bfloat16
    _, with_sink, v = in_torch(problem, inputs)
    top = with_sink.max(dim=3, keepdim=True).values
    weights = torch.exp(with_sink - torch.where(top == -torch.inf, 0.0, top)).float()
    total = weights.double().sum(dim=3, keepdim=True).float()
    total = torch.where(total == 0, 1.0, total)
    p = weights[..., : problem.seq_kv]
    p = p / total if normalise == "before" else p
    out = (p.to(kind_of_torch).double() @ v).float()
    expected = (out if normalise == "before" else out / total).to(kind_of_torch).double().numpy()
    own = intended_output(*inputs.qkv, **problem.scoring_with(inputs.arrays), numerics=Numerics(normalise=normalise))
    judged = judged_rows_of(attention_float64(*inputs.qkv, **problem.scoring_with(inputs.arrays)))
    differ = own[judged].astype(np.float64) != expected[judged]
    assert differ.mean() < 0.01
    step = ml_dtypes.finfo(dtype_of(problem.dtype)).eps
    np.testing.assert_allclose(own[judged].astype(np.float64), expected[judged], rtol=float(step), atol=1e-7)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)
@pytest.mark.parametrize("kind", ["needle", "uniform", "onehot", "equal", "constant"])
def test_exact_elements_are_torchs_output_rounded(problem: Problem, kind: str) -> None:
    inputs = made(problem, kind)
    _, with_sink, v = in_torch(problem, inputs)
    expected = (torch.softmax(with_sink, dim=3).nan_to_num(0.0)[..., : problem.seq_kv] @ v).numpy()
    for any_count in (False, True):
        exact = exact_elements(*inputs.qkv, **problem.scoring_with(inputs.arrays), any_count=any_count)
        rounded = expected.astype(np.float32).astype(dtype_of(problem.dtype))
        assert (rounded[exact.mask] == exact.expected[exact.mask]).all()
