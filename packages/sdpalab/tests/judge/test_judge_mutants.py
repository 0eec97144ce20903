"""The rule against outputs: right ones in many forms pass, and each planted bug is found where it has an effect."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from attention import mean_v, online, plain_v

from sdpalab.bugs.catalogue import BUGS
from sdpalab.bugs.tiled import TiledAttention
from sdpalab.inputs import INPUT_KINDS, Inputs, make_inputs
from sdpalab.judge.rule.evaluate import Evidence, evaluate
from sdpalab.judge.tensors import from_torch, to_torch
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import Numerics
from sdpalab.problem import MISSION, TWELVE_CASES, Problem

Array = npt.NDArray[Any]
RAGGED = Problem(1, 2, 200, 64)

DECLARED = {
    "kind": "cuda",
    "device": "none",
    "config": "",
    "numerics": asdict(Numerics()),
}
UNDECLARED = {"kind": "callable", "device": "none", "config": ""}


def judged(problem: Problem, inputs: Inputs, out: Array, about: dict[str, Any] | None = None) -> Evidence:
    """Judge's evidence on ``out``."""
    reply = {"status": None, "changed": []}
    return evaluate(problem, inputs, about or DECLARED, reply, {"first.o": out, "second.o": out.copy()})


def computed(attention: Any, problem: Problem, inputs: Inputs) -> Array:
    """The output of an implementation in torch."""
    tensors = [to_torch(array.copy()) for array in inputs.arrays.values()]
    return from_torch(attention(*tensors, **problem.scoring))


def torch_math(problem: Problem, inputs: Inputs) -> Array:
    q, k, v = (to_torch(array) for array in (inputs.q, inputs.k, inputs.v))
    k, v = (tensor.repeat_interleave(problem.group, dim=1) for tensor in (k, v))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=problem.scale, is_causal=problem.causal)
    return from_torch(out)


def softmax_then_round(problem: Problem, inputs: Inputs) -> Array:
    """The usual attention: a float32 softmax, its result in the input's type, times V."""
    q, k, v = (to_torch(array) for array in (inputs.q, inputs.k, inputs.v))
    k, v = (tensor.repeat_interleave(problem.group, dim=1) for tensor in (k, v))
    s = q.float() @ k.float().mT * problem.scale
    if problem.causal:
        s = s.masked_fill(torch.ones(problem.seq_q, problem.seq_kv).triu(1).bool(), -torch.inf)
    return from_torch((torch.softmax(s, -1).to(q.dtype).float() @ v.float()).to(q.dtype))


@pytest.mark.sample(8)
@pytest.mark.parametrize(("dtype", "causal"), [("float16", False), ("bfloat16", True)])
@pytest.mark.parametrize("kind", list(INPUT_KINDS))
def test_right_outputs_pass(kind: str, causal: bool, dtype: str) -> None:
    for problem in (Problem(1, 4, 99, 64, kv_heads=2), Problem(1, 2, 2, 32), Problem(1, 1, 1, 64)):
        problem = problem.with_(causal=causal, dtype=dtype)
        if kind == "nan_heads" and problem.kv_heads == 1:
            continue
        inputs = make_inputs(problem, kind, 5)
        for out in (
            online(problem, inputs, tile=16),
            online(problem, inputs, tile=48, order=-1),
            torch_math(problem, inputs),
        ):
            outcome = judged(problem, inputs, out)
            assert outcome.status is Status.PASSED, outcome.reason
        outcome = judged(problem, inputs, softmax_then_round(problem, inputs), UNDECLARED)
        assert outcome.status is Status.PASSED, outcome.reason


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", range(12))
def test_zeros_mean_v_and_v_fail_each_of_the_twelve_cases(case: int) -> None:
    problem, seed = TWELVE_CASES[case]
    inputs = make_inputs(problem, "normal", seed)
    for out, hint in (
        (np.zeros_like(inputs.q), "all zeros"),
        (mean_v(problem, inputs), "scores have no effect"),
        (plain_v(problem, inputs), "worst row"),
        (make_inputs(problem, "normal", seed + 1).v, "worst row"),
    ):
        outcome = judged(problem, inputs, out)
        assert outcome.status is Status.INCORRECT
        assert hint in outcome.reason


@pytest.mark.sample
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("bug", "problem", "kind"),
    [
        ("a scale that is 1% too large", RAGGED, "normal"),
        ("query i sees key i + 1", RAGGED.with_(causal=True), "normal"),
        ("the keys after the last whole tile are left out", RAGGED, "normal"),
        ("weights below 2**-8 are taken for 0", RAGGED, "normal"),
        ("the rescale of the sum is lost", RAGGED, "normal"),
        ("the rescale of O is lost", RAGGED, "normal"),
        ("the rescale of the sum is lost", RAGGED, "ramp"),
        ("the rescale of O is lost", RAGGED, "ramp"),
        ("P in float8 e4m3", RAGGED, "normal"),
        ("O accumulates in float16", MISSION, "normal"),
        ("zeros up to the end of the tile count as keys", RAGGED, "normal"),
        ("zeros up to the end of the tile count as keys", RAGGED, "uniform"),
        ("rows 8 apart change places (an accumulator's layout misread)", RAGGED, "normal"),
        ("rows 8 apart change places (an accumulator's layout misread)", RAGGED, "needle"),
        ("V of the next head", RAGGED, "normal"),
        ("the last row is not written", RAGGED, "normal"),
    ],
)
def test_a_planted_bug_is_found(bug: str, problem: Problem, kind: str, dtype: str) -> None:
    problem = problem.with_(dtype=dtype)
    inputs = make_inputs(problem, kind, 0)
    assert judged(problem, inputs, computed(TiledAttention(), problem, inputs)).status is Status.PASSED
    outcome = judged(problem, inputs, computed(BUGS[bug].edit, problem, inputs))
    assert outcome.status is Status.INCORRECT
    assert outcome.errors is not None
    assert outcome.limits is not None
    b, h, i = outcome.errors.worst_row
    assert f"worst row (b={b}, h={h}, i={i})" in outcome.reason
    b, h, i, d = outcome.errors.max_abs_index
    assert f"at (b={b}, h={h}, i={i}, d={d})" in outcome.reason


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_under_a_causal_mask_the_rms_of_the_rows_shows_what_the_norm_over_all_hides(dtype: str) -> None:
    """The first rows, which a 16-bit accumulator hardly touches, are most of the norm."""
    problem = MISSION.with_(causal=True, dtype=dtype)
    inputs = make_inputs(problem, "normal", 0)
    assert judged(problem, inputs, computed(TiledAttention(), problem, inputs)).status is Status.PASSED
    accumulator = type(BUGS["O accumulates in float16"].edit)()
    accumulator.tile = 64
    outcome = judged(problem, inputs, computed(accumulator, problem, inputs))
    assert outcome.status is Status.INCORRECT
    assert "RMS of the rows' relative L2" in outcome.reason
    assert outcome.errors is not None
    assert outcome.limits is not None
    assert outcome.errors.rel_l2 < outcome.limits.rel_l2
    assert outcome.errors.rms_row_rel_l2 > outcome.limits.rms_row_rel_l2


def test_scores_in_sixteen_bits_are_lower_precision_than_any_declares() -> None:
    problem = MISSION.with_(dtype="bfloat16")
    inputs = make_inputs(problem, "normal", 0)
    q, k, v = (to_torch(array) for array in (inputs.q, inputs.k, inputs.v))
    out = from_torch(torch.softmax(q @ k.mT * problem.scale, -1) @ v)
    assert judged(problem, inputs, out, UNDECLARED).status is Status.INCORRECT


def test_hints_name_the_pattern() -> None:
    inputs = make_inputs(RAGGED, "normal", 0)
    good = online(RAGGED, inputs)
    rows, heads, tail, scaled = good.copy(), good.copy(), good.copy(), (good * np.float16(0.9)).astype(np.float16)
    rows[0, 0, [3, 8]] = good[0, 0, [8, 3]]
    heads[0, 1] = heads[0, 1] + np.float16(1.0)
    tail[:, :, 192:] = tail[:, :, 192:] + np.float16(1.0)
    causal = RAGGED.with_(causal=True)
    means = np.cumsum(inputs.v.astype(np.float32), axis=2) / np.arange(1, 201, dtype=np.float32)[:, None]
    for problem, out, hint in (
        (RAGGED, rows, "2 of 400 rows hold the row 5 before or after; in 2 of 400 rows, with i from 3 to 8"),
        (RAGGED, heads, "1 of 2 heads, the first at (b=0, h=1)"),
        (RAGGED, tail, "rows from i=192 on, after the last multiple of 128"),
        (RAGGED, scaled, "0.9 times the right one"),
        (causal, means.astype(np.float16), "each row is the mean of the V that it sees"),
    ):
        drawn = judged(problem, make_inputs(problem, "normal", 0) if problem is RAGGED else inputs, out)
        assert drawn.status is Status.INCORRECT
        assert hint in drawn.reason
