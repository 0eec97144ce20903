"""The rule for the log-sum-exp: honest float32 arithmetic is within its limits, and every bug is far beyond them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch

from sdpalab.errors import UserError
from sdpalab.inputs import INPUT_KINDS, Inputs, make_inputs
from sdpalab.judge.rule.evaluate import judge_output
from sdpalab.judge.rule.log_sum_exp import log_sum_exp_float64, measure_lse
from sdpalab.judge.rule.numerics import dequantised, intended_output
from sdpalab.judge.verdict import LseErrors, Status
from sdpalab.kernels.kernel import Numerics, Quantisation
from sdpalab.problem import Problem

Array = npt.NDArray[Any]
Compute = Callable[[Problem, Inputs], Array]
F32 = np.float32
PLAIN = Problem(1, 4, 90, 64, kv_heads=2)
PROBLEMS = (PLAIN, PLAIN.with_(causal=True, dtype="bfloat16"), Problem(1, 1, 33, 32, seq_kv=700, scale=-0.3))


def scores(problem: Problem, inputs: Inputs, *, masked: bool = True) -> Array:
    """q k in float32, one term after another, without the scale; -inf where the mask hides the key."""
    q, k = (np.where(np.isfinite(x), x, x.dtype.type(0)).astype(F32) for x in (inputs.q, inputs.k))
    k = np.repeat(k, problem.group, axis=1)
    total = np.zeros((*q.shape[:3], k.shape[2]), F32)
    for d in range(problem.head_dim):
        total += q[..., d : d + 1] * k[:, :, None, :, d]
    if masked and problem.causal:
        total[..., np.triu(np.ones(total.shape[2:], bool), 1)] = -np.inf
    return total


def online(problem: Problem, inputs: Inputs, *, tile: int, reverse: bool = False) -> Array:
    """Tiles of keys, base 2, a rescale for each, the sum key by key: as the kernels do."""
    signed = scores(problem, inputs) * F32(np.sign(problem.scale))
    factor = F32(abs(problem.scale)) * F32(np.log2(np.e))
    most = np.full(signed.shape[:3], np.finfo(F32).min)
    total = np.zeros_like(most)
    starts = range(0, problem.seq_kv, tile)
    for start in reversed(starts) if reverse else starts:
        part = signed[..., start : start + tile]
        before, most = most, np.maximum(most, part.max(axis=-1))
        total *= np.exp2((before - most) * factor)
        for j in range(part.shape[-1]):
            total += np.exp2((part[..., j] - most) * factor)
    return (most * factor + np.log2(total)) * F32(np.log(2.0))


def split(problem: Problem, inputs: Inputs) -> Array:
    """The log-sum-exp of both halves of the keys, merged."""
    scaled = scores(problem, inputs) * F32(problem.scale)
    halves = [torch.logsumexp(torch.from_numpy(part), -1) for part in np.array_split(scaled, 2, axis=-1)]
    return torch.logaddexp(*halves).numpy()


HONEST: dict[str, Compute] = {
    "tiles of 64": partial(online, tile=64),
    "tiles of 16, backwards": partial(online, tile=16, reverse=True),
    "key by key": partial(online, tile=1),
    "split": split,
}


def right(problem: Problem, inputs: Inputs) -> Array:
    """The float64 value, rounded once."""
    return log_sum_exp_float64(**arguments(problem, inputs), numerics=Numerics())[0].astype(F32)


def arguments(problem: Problem, inputs: Inputs) -> dict[str, Any]:
    return {**inputs.arrays, "scale": problem.scale, "causal": problem.causal}


def errors(problem: Problem, inputs: Inputs, lse: Array, numerics: Numerics | None = None) -> LseErrors:
    return measure_lse(lse, *log_sum_exp_float64(**arguments(problem, inputs), numerics=numerics or Numerics()))


def judged(problem: Problem, inputs: Inputs, lse: Array) -> tuple[Status, str]:
    out = intended_output(**arguments(problem, inputs), numerics=Numerics())
    outcome = judge_output(problem, inputs, out, Numerics(), lse)
    return outcome.status, outcome.reason


@pytest.mark.sample(6)
@pytest.mark.parametrize("kind", sorted(INPUT_KINDS))
def test_honest_arithmetic_is_far_within_its_limits_on_every_kind_of_inputs(kind: str) -> None:
    for problem in PROBLEMS:
        try:
            inputs = make_inputs(problem, kind, 0)
        except UserError:
            continue
        for name, compute in HONEST.items():
            lse_errors = errors(problem, inputs, compute(problem, inputs))
            assert lse_errors.within_limit, f"{name} on {problem.label}"
            assert lse_errors.error < 0.1 * lse_errors.limit, f"{name} on {problem.label}: {lse_errors}"


def test_the_reference_is_torchs_in_float64() -> None:
    inputs = make_inputs(PLAIN, "large_logits", 0)
    q, k = (torch.from_numpy(x.astype(np.float64)) for x in (inputs.q, inputs.k))
    theirs = torch.logsumexp(q @ k.repeat_interleave(PLAIN.group, 1).mT * PLAIN.scale, -1)
    actual, _ = log_sum_exp_float64(**arguments(PLAIN, inputs), numerics=Numerics())
    np.testing.assert_allclose(actual, theirs.numpy(), rtol=1e-14)


def _without_keys(problem: Problem, inputs: Inputs, keys: slice) -> Array:
    s = scores(problem, inputs).astype(np.float64) * problem.scale
    s[..., keys] = -np.inf
    return torch.logsumexp(torch.from_numpy(s), -1).float().numpy()


WRONG: dict[str, Compute] = {
    "base 2": lambda p, x: right(p, x) / F32(np.log(2.0)),
    "no scale": lambda p, x: right(p.with_(scale=1.0), x),
    "the mask ignored": lambda p, x: right(p.with_(causal=False), x),
    "the maximum alone": lambda p, x: (scores(p, x) * F32(p.scale)).max(axis=-1),
    "the sum alone": lambda p, x: right(p, x) - (scores(p, x) * F32(p.scale)).max(axis=-1),
    "float16": lambda p, x: right(p, x).astype(np.float16).astype(F32),
    "bfloat16": lambda p, x: right(p, x).astype(ml_dtypes.bfloat16).astype(F32),
    "the last key lost": lambda p, x: _without_keys(p, x, slice(p.seq_kv - 1, None)),
    "the first key lost": lambda p, x: _without_keys(p, x, slice(0, 1)),
    "a padded key counted": lambda p, x: np.logaddexp(right(p, x), F32(0)),
    "a row late": lambda p, x: np.roll(right(p, x), 1, axis=-1),
    "heads swapped": lambda p, x: right(p, x)[:, ::-1],
    "epsilon in the sum": lambda p, x: np.logaddexp(right(p, x), F32(np.log(1e-2))),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", WRONG)
def test_every_bug_is_far_beyond_the_limits(name: str) -> None:
    problem = PLAIN.with_(causal=True, seq_q=300, seq_kv=300)
    inputs = make_inputs(problem, "normal", 0)
    with np.errstate(divide="ignore"):
        lse = WRONG[name](problem, inputs)
    lse = np.where(np.isfinite(lse), lse, F32(0))  # row 0 without its only key
    status, reason = judged(problem, inputs, lse)
    assert status is Status.INCORRECT, name
    assert reason.startswith("the output is right; the log-sum-exp of the worst row (b=0, h="), reason
    lse_errors = errors(problem, inputs, lse)
    assert lse_errors.error > 3 * lse_errors.limit


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_are_seen_on_the_longest_sequences_of_the_judge(dtype: str) -> None:
    """The limit is largest here beside the 16-bit loss."""
    problem = Problem(1, 1, 16, 128, seq_kv=4096, dtype=dtype)
    inputs = make_inputs(problem, "normal", 0)
    assert errors(problem, inputs, online(problem, inputs, tile=64)).within_limit
    for name in ("float16", "bfloat16"):
        lse_errors = errors(problem, inputs, WRONG[name](problem, inputs))
        assert not lse_errors.within_limit


def test_the_message_names_row_share_and_likely_cause() -> None:
    inputs = make_inputs(PLAIN, "normal", 0)
    _, reason = judged(PLAIN, inputs, WRONG["base 2"](PLAIN, inputs))
    assert "instead of" in reason
    assert reason.endswith("360 of 360 rows are wrong; hint: it is the logarithm to base 2")
    _, reason = judged(PLAIN, inputs, WRONG["bfloat16"](PLAIN, inputs))
    assert reason.endswith("hint: it is rounded to bfloat16")
    one = right(PLAIN, inputs)
    one[0, 2, 5] += F32(0.01)
    status, reason = judged(PLAIN, inputs, one)
    assert status is Status.INCORRECT
    assert "the worst row (b=0, h=2, i=5)" in reason
    assert reason.endswith("1 of 360 rows are wrong")


def test_a_row_that_is_not_finite_or_never_written_is_not_finite() -> None:
    inputs = make_inputs(PLAIN, "normal", 0)
    lse = right(PLAIN, inputs)
    lse[0, 3, 7:] = np.frombuffer(b"\xff" * 4, F32)[0]
    lse[0, 1, 0] = -np.inf
    status, reason = judged(PLAIN, inputs, lse)
    assert status is Status.NOT_FINITE
    assert reason == (
        "the output is right; the log-sum-exp of 84 rows is not finite, the first at (b=0, h=1, i=0): -inf "
        "(83 rows still hold the poison, so they were never written)"
    )


def test_a_wrong_output_is_reported_before_a_wrong_log_sum_exp() -> None:
    inputs = make_inputs(PLAIN, "normal", 0)
    out = np.zeros(PLAIN.q_shape, np.float16)
    outcome = judge_output(PLAIN, inputs, out, Numerics(), WRONG["base 2"](PLAIN, inputs))
    assert outcome.status is Status.INCORRECT
    assert outcome.reason.startswith("max error")
    assert outcome.reason.endswith("hint: it is the logarithm to base 2")


def test_rows_that_are_not_judged_may_hold_anything() -> None:
    inputs = make_inputs(PLAIN, "nan_heads", 0)
    lse = right(PLAIN, inputs)
    assert 0 < np.isnan(lse).sum() < lse.size
    assert errors(PLAIN, inputs, lse) == errors(PLAIN, inputs, np.where(np.isnan(lse), F32(7), lse))
    assert judged(PLAIN, inputs, lse)[0] is Status.PASSED


@pytest.mark.parametrize("rows", [0, 16])
def test_quantised_inputs_have_a_log_sum_exp_of_their_own(rows: int) -> None:
    """Held to that of what stands for them: that of the inputs themselves is another."""
    problem = Problem(1, 2, 64, 64)
    inputs = make_inputs(problem, "large_logits", 0)
    numerics = Numerics(quantised=Quantisation(rows=rows))
    stand_ins = Inputs(*(dequantised(x, Quantisation(rows=rows)) for x in inputs.arrays.values()))
    assert errors(problem, inputs, online(problem, stand_ins, tile=32), numerics).within_limit
    assert not errors(problem, inputs, online(problem, inputs, tile=32), numerics).within_limit
    assert not errors(problem, inputs, online(problem, stand_ins, tile=32)).within_limit


def test_a_declared_float16_accumulator_is_allowed_its_roundings_and_no_other_is() -> None:
    problem = Problem(1, 2, 64, 64)
    inputs = make_inputs(problem, "normal", 0)
    q, k = inputs.q.astype(np.float64), inputs.k.astype(np.float64)
    total = np.zeros((1, 2, 64, 64), np.float16)
    for d in range(0, 64, 16):
        total = (total + q[..., d : d + 16] @ k[..., d : d + 16].swapaxes(2, 3)).astype(np.float16)
    lse = torch.logsumexp(torch.from_numpy(total.astype(F32)) * problem.scale, -1).numpy()
    assert errors(problem, inputs, lse, Numerics(accumulate="float16")).within_limit
    assert not errors(problem, inputs, lse).within_limit
