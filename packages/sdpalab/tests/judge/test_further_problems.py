"""Key padding, masks, ALiBi and sinks: the oracle, right implementations, planted bugs, and who computes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from attention import output_of

from sdpalab import judge
from sdpalab.bugs import Bug, alibi, lengths, masks, sinks
from sdpalab.bugs.cause import Cause
from sdpalab.bugs.tiled import TiledAttention
from sdpalab.inputs import INPUT_KINDS, Inputs, make_inputs
from sdpalab.inputs.reference import attention_float64
from sdpalab.judge.cases import CaseSpec, possible, quick_cases
from sdpalab.judge.diagnose.diagnosis import diagnose
from sdpalab.judge.diagnose.failure import Failure
from sdpalab.judge.rule.evaluate import judge_output
from sdpalab.judge.rule.exact import exact_elements
from sdpalab.judge.rule.log_sum_exp import log_sum_exp_float64, measure_lse
from sdpalab.judge.rule.numerics import UNDECLARED
from sdpalab.judge.rule.relations import RELATIONS
from sdpalab.judge.rule.yardstick import torch_output
from sdpalab.judge.sandbox.callables import CallableRunner
from sdpalab.judge.session import judge_candidate
from sdpalab.judge.stale import other_inputs
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import Numerics
from sdpalab.kernels.plan import LaunchPlan
from sdpalab.kernels.userfile import load_user_kernel
from sdpalab.problem import ARRAYS, Problem

Array = npt.NDArray[Any]
PADDED = Problem(2, 4, 40, 32, kv_heads=2, kv_lengths=(40, 13))
EMPTY_ENTRY = Problem(2, 2, 30, 32, seq_kv=50, kv_lengths=(0, 33), causal=True)
BOOLEAN = Problem(2, 2, 40, 32, attn_mask="bool:B,1")
ADDITIVE = Problem(2, 2, 40, 32, seq_kv=33, attn_mask="float:1,H", causal=True)
SLOPED = Problem(1, 4, 40, 32, alibi_slopes=True, dtype="bfloat16")
SINK = Problem(1, 4, 40, 32, sinks=True)
ALL_AT_ONCE = Problem(
    2,
    *(2, 40, 32),
    kv_lengths=(0, 20),
    window_size=(9, 3),
    softcap=20.0,
    attn_mask="float:B,H",
    alibi_slopes=True,
    sinks=True,
)
ALL = (PADDED, EMPTY_ENTRY, BOOLEAN, ADDITIVE, SLOPED, SINK, ALL_AT_ONCE)
PLANTED = {bug.id: bug for file in (lengths, masks, alibi, sinks) for bug in file.BUGS}
EXAMPLE = str(Path(__file__).resolve().parents[4] / "examples" / "my_masked.py")


def visible(problem: Problem, inputs: Inputs) -> npt.NDArray[np.bool_]:
    """Pair by pair, [B, H, Sq, Skv]."""
    left, right = problem.window_size or (-1, -1)
    seen = np.ones((problem.batch, problem.heads, problem.seq_q, problem.seq_kv), np.bool_)
    for b, h, i, j in np.ndindex(seen.shape):
        sides = (left < 0 or j >= i - left) and (right < 0 or j <= i + right) and (not problem.causal or j <= i)
        there = problem.kv_lengths is None or j < problem.kv_lengths[b]
        entry: Any = 1
        if inputs.attn_mask is not None:
            first = inputs.attn_mask.shape
            entry = float(inputs.attn_mask[b if first[0] > 1 else 0, h if first[1] > 1 else 0, i, j])
        seen[b, h, i, j] = sides and there and entry != (0 if "bool" in problem.attn_mask else -np.inf)
    return seen


def by_definition(problem: Problem, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """O and the log-sum-exp in float64, by torch."""
    q, k, v = (torch.from_numpy(np.nan_to_num(array.astype(np.float64))) for array in inputs.qkv)
    k, v = (tensor.repeat_interleave(problem.group, dim=1) for tensor in (k, v))
    scores = q @ k.mT * problem.scale
    if problem.softcap:
        scores = problem.softcap * torch.tanh(scores / problem.softcap)
    if inputs.alibi_slopes is not None:
        distance = (torch.arange(problem.seq_q)[:, None] - torch.arange(problem.seq_kv)).abs()
        scores = scores - torch.from_numpy(inputs.alibi_slopes).double()[:, None, None] * distance
    if inputs.attn_mask is not None and "float" in problem.attn_mask:
        scores = scores + torch.from_numpy(inputs.attn_mask.astype(np.float64))
    scores = scores.masked_fill(~torch.from_numpy(visible(problem, inputs)), -torch.inf)
    if inputs.sinks is not None:
        logits = torch.from_numpy(inputs.sinks).double()[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, logits), -1)
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    return weights[..., : problem.seq_kv] @ v, torch.logsumexp(scores, -1)


class Whole:
    """The usual attention: a float32 softmax of whole rows, rounded before or after it is normalised."""

    def __init__(self, before: bool) -> None:
        self._before = before

    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        scale: float,
        causal: bool,
        softcap: float = 0.0,
        window_size: Any = None,
        kv_lengths: Any = None,
        attn_mask: Any = None,
        alibi_slopes: Any = None,
        sinks: Any = None,
    ) -> torch.Tensor:
        group, dtype = q.shape[1] // k.shape[1], q.dtype
        if kv_lengths is not None:  # a weight of 0 times NaN is NaN
            padding = (torch.arange(k.shape[2]) >= kv_lengths[:, None])[:, None, :, None]
            k, v = (tensor.masked_fill(padding, 0.0) for tensor in (k, v))
        k, v = (tensor.repeat_interleave(group, dim=1).float() for tensor in (k, v))
        scores, away = q.float() @ k.mT * scale, torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        if alibi_slopes is not None:
            scores = scores - alibi_slopes[:, None, None] * away.abs()
        if attn_mask is not None:
            away_by_mask = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if away_by_mask else scores + attn_mask.float()
        left, right = window_size or (-1, -1)
        hidden = (away < 0 if causal else away < -(1 << 20)) | (away > (left if left >= 0 else 1 << 20))
        hidden = hidden | (away < -(right if right >= 0 else 1 << 20))
        if kv_lengths is not None:
            hidden = hidden | (torch.arange(k.shape[2]) >= kv_lengths[:, None, None, None])
        scores = scores.masked_fill(hidden, -torch.inf)
        sink = sinks[:, None, None] if sinks is not None else torch.tensor(-torch.inf)
        if self._before:
            scores = torch.cat((scores, sink.expand(*scores.shape[:3], 1)), -1)
            weights = torch.softmax(scores, -1)[..., :-1].nan_to_num(0.0)
            return (weights.to(dtype).float() @ v).to(dtype)
        top = scores.amax(-1, keepdim=True)
        top = top.where(top > -torch.inf, 0.0)
        weights = (scores - top).exp()
        total = weights.sum(-1, keepdim=True) + (sink - top).exp()
        return ((weights.to(dtype).float() @ v) / total.where(total > 0.0, 1.0)).to(dtype)


@pytest.mark.parametrize("problem", ALL, ids=lambda problem: problem.label)
def test_the_oracle_is_what_the_definition_says(problem: Problem) -> None:
    for kind in ("normal", "uniform", "hidden_rows") if problem.attn_mask else ("normal", "uniform"):
        inputs = make_inputs(problem, kind, 3)
        scoring = problem.scoring_with(inputs.arrays)
        out, lse = by_definition(problem, inputs)
        np.testing.assert_allclose(attention_float64(*inputs.qkv, **scoring), out.numpy(), rtol=0, atol=1e-12)
        reference, limit = log_sum_exp_float64(*inputs.qkv, **scoring, numerics=Numerics())
        np.testing.assert_allclose(reference, lse.numpy(), rtol=1e-12)
        assert not measure_lse(reference.astype(np.float32), reference, limit).not_finite
        yardstick = torch_output(*inputs.qkv, **scoring).astype(np.float64)
        scale = 1e-3 if problem.dtype == "float16" else 1e-2
        assert np.linalg.norm(yardstick - out.numpy()) < scale * np.linalg.norm(out.numpy())


@pytest.mark.sample(3)
@pytest.mark.parametrize("problem", ALL, ids=lambda problem: problem.label)
def test_right_implementations_pass_on_every_kind_of_inputs(problem: Problem) -> None:
    torch.set_num_threads(1)
    for kind in (kind for kind in INPUT_KINDS if possible(problem, kind)):
        inputs = make_inputs(problem, kind, 5)
        narrow, wide = TiledAttention(), TiledAttention()
        narrow.tile, wide.tile = 16, 48
        for attention in (narrow, wide, Whole(before=True), Whole(before=False)):
            judged = judge_output(problem, inputs, output_of(attention, problem, inputs), UNDECLARED)
            assert judged.status is Status.PASSED, (kind, judged.reason)


@pytest.mark.parametrize("problem", [PADDED, BOOLEAN, ADDITIVE], ids=lambda problem: problem.label)
def test_needles_are_seen_and_forbidden_keys_are_not(problem: Problem) -> None:
    inputs = make_inputs(problem, "needle", 1)
    seen = visible(problem, inputs)
    elements = exact_elements(*inputs.qkv, **problem.scoring_with(inputs.arrays))
    rows = seen.any(axis=-1)
    assert (elements.key[rows] >= 0).all()
    assert np.take_along_axis(seen, np.maximum(elements.key, 0)[..., None], axis=-1)[..., 0][rows].all()
    inputs = make_inputs(problem, "forbidden", 1)
    seen = visible(problem, inputs)
    k = np.repeat(inputs.k.astype(np.float64), problem.group, axis=1)
    best = (inputs.q.astype(np.float64) @ k.swapaxes(-1, -2)).argmax(axis=-1)
    hidden = ~seen.all(axis=-1)
    assert hidden.mean() > 0.4
    assert not np.take_along_axis(seen, best[..., None], axis=-1)[..., 0][hidden].any()


def test_a_sink_of_zero_is_one_key_more_in_the_mean() -> None:
    problem = SINK.with_(seq_q=20, seq_kv=7)
    inputs = make_inputs(problem, "uniform", 2)
    elements = exact_elements(*inputs.qkv, **problem.scoring_with(inputs.arrays), any_count=True)
    mean = inputs.v.astype(np.float64).sum(axis=2, keepdims=True) / 8.0
    assert elements.mask.mean() > 0.9
    expected = np.broadcast_to(mean, elements.mask.shape)[elements.mask]
    np.testing.assert_array_equal(elements.expected[elements.mask], expected.astype(np.float16))


NAMED_OTHERWISE = {
    "scores are rounded to 16 bits with the mask": Cause.PLACE,  # it shows in few rows
    "rows that the mask hides are the mean of V": Cause.RANGE,  # rows without a key are not finite
    "ALiBi is under the soft cap": Cause.CAP,  # "it is applied to the bias, too"
    "all batch entries have the length of the first": Cause.PADDING,  # where that is the longest
}
"""Planted bugs of which the diagnosis names another cause than the catalogue."""


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_rejected_and_named(name: str) -> None:
    torch.set_num_threads(1)
    bug, failures = PLANTED[name], []
    for spec in quick_cases([bug.problem]):
        kinds = ("seed 0", "finite_mask", "hidden_rows", "0,120 hidden seed", "0,150 hidden seed")
        if spec.name.endswith(kinds) and (not failures or spec.name.endswith("seed 0")):
            failures += failed(bug, spec)
    assert bool(failures) is not bool(bug.equivalent)
    diagnosis = diagnose(failures)
    cause = NAMED_OTHERWISE.get(name, bug.cause)
    assert cause is None or (diagnosis is not None and diagnosis.cause is cause), diagnosis


def failed(bug: Bug, spec: CaseSpec) -> list[Failure]:
    """The case, if the bug fails it."""
    inputs = make_inputs(spec.problem, spec.inputs, spec.seed or 1)
    assert callable(bug.edit)
    out = output_of(bug.edit, spec.problem, inputs)
    judged = judge_output(spec.problem, inputs, out, UNDECLARED)
    if judged.status is Status.PASSED:
        return []
    assert judged.status in bug.statuses
    return [Failure(spec.problem, inputs, out, judged.errors, judged.limits, written=True)]


def test_the_small_cases_of_lengths_have_two_entries_and_every_edge() -> None:
    specs = quick_cases([Problem(4, 8, 1000, 64, kv_lengths=(1000, 200, 900, 600))])
    small = {spec.problem.kv_lengths for spec in specs if spec.problem.batch == 2}
    assert {(36, 18), (0, 180), (180, 1), (179, 180), (63, 64), (64, 65)} <= small
    one = [spec.problem.kv_lengths for spec in specs if spec.problem.batch == 1]
    assert one
    assert all(length is not None and len(length) == 1 and length[0] > 0 for length in one)


def oracle(problem: Problem, inputs: Inputs) -> Array:
    return attention_float64(*inputs.qkv, **problem.scoring_with(inputs.arrays))


def test_related_and_other_inputs_keep_what_belongs_together() -> None:
    inputs = make_inputs(ALL_AT_ONCE, seed=3)
    for relation in RELATIONS.values():
        problem, related = relation.inputs(ALL_AT_ONCE, inputs)
        out, original = oracle(problem, related), oracle(ALL_AT_ONCE, inputs)
        expected, where = relation.expected(original, ALL_AT_ONCE)
        np.testing.assert_allclose(out[where], expected[where], rtol=1e-9)
        assert {name: array.shape for name, array in related.arrays.items() if name in ARRAYS} == {
            name: shape for name, (shape, _) in problem.array_shapes.items()
        }
    other = other_inputs(inputs, 7)
    assert (other.kv_lengths == inputs.kv_lengths).all() if inputs.kv_lengths is not None else False
    for name in ("attn_mask", "alibi_slopes", "sinks"):
        assert (getattr(other, name) != getattr(inputs, name)).any()
        assert sorted(getattr(other, name).ravel()) == sorted(getattr(inputs, name).ravel())


# ---- who computes them ----------------------------------------------------------------------------------------------


def test_a_callable_gets_tensors_of_their_types() -> None:
    given: dict[str, Any] = {}

    def attention(q: Any, *_: Any, kv_lengths: Any, attn_mask: Any, alibi_slopes: Any, sinks: Any, **__: Any) -> Any:
        given.update(kv_lengths=kv_lengths, attn_mask=attn_mask, alibi_slopes=alibi_slopes, sinks=sinks)
        return torch.zeros_like(q)

    problem = ALL_AT_ONCE.with_(attn_mask="bool:1,H")
    inputs = make_inputs(problem)
    runner = CallableRunner(attention)
    named = {"kv_lengths", "attn_mask", "alibi_slopes", "sinks"}
    assert set(runner.describe()["features"]) == {"scale", "causal", *named}
    runner.run(problem, inputs.arrays, 0xFF, False, CaseSpec("", problem).strides)
    types = {name: tensor.dtype for name, tensor in given.items()}
    assert types == {
        "kv_lengths": torch.int32,
        "attn_mask": torch.bool,
        "alibi_slopes": torch.float32,
        "sinks": torch.float32,
    }
    assert given["attn_mask"].shape == (1, 2, 40, 40)
    assert given["kv_lengths"].tolist() == [0, 20]


def test_a_kernel_gets_arrays_or_null_pointers_and_macros() -> None:
    kernel: Any = load_user_kernel(EXAMPLE)
    plan: LaunchPlan = kernel.launch_plan(Problem(2, 2, 40, 32, kv_lengths=(40, 3), attn_mask="bool:B,1"))
    assert plan.launches[0].args[4:8] == ("kv_lengths", "attn_mask", 0, 0)
    assert (plan.buffer("attn_mask").shape, plan.buffer("attn_mask").dtype) == ((2, 1, 40, 40), "uint8")
    module: Any = plan.launches[0].module
    given = {name: module.defines[name] for name in ("ATTN_MASK", "ATTN_MASK_PER_BATCH", "ATTN_MASK_PER_HEAD")}
    assert given == {"ATTN_MASK": "1", "ATTN_MASK_PER_BATCH": "1", "ATTN_MASK_PER_HEAD": "0"}
    assert (module.defines["KV_LENGTHS"], module.defines["SINKS"]) == ("1", "0")
    reason = replace(kernel, features=("sinks",)).why_not(ALL_AT_ONCE)
    assert reason is not None
    assert "does not take window_size and softcap and kv_lengths and attn_mask and alibi_slopes" in reason


@pytest.mark.slow
@pytest.mark.parametrize("problem", [PADDED, BOOLEAN, ADDITIVE, ALL_AT_ONCE], ids=lambda problem: problem.label)
def test_the_example_passes_on_the_simulator(problem: Problem) -> None:
    specs = [CaseSpec(kind, problem, kind) for kind in ("normal", "needle", "uniform")]
    verdict = judge_candidate(EXAMPLE, specs, workers=1)
    assert verdict.passed, verdict.reason


@pytest.mark.slow
def test_callables_are_judged_in_the_whole_judge() -> None:
    assert judge(TiledAttention(), [ALL_AT_ONCE]).passed
    wrong = judge(PLANTED["the sink is that of the next head"].edit, [SINK])  # type: ignore[arg-type]
    assert wrong.status is Status.INCORRECT
