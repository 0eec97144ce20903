"""Sliding windows and soft caps: the oracle, right implementations of both, planted bugs, and who computes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from cuda_candidates import SOURCE, plan

from sdpalab import judge
from sdpalab.bugs import caps, replace_once, windows
from sdpalab.bugs.tiled import TiledAttention
from sdpalab.errors import UserError
from sdpalab.inputs import INPUT_KINDS, Inputs, make_inputs
from sdpalab.inputs.reference import attention_float64
from sdpalab.judge.cases import SMALL_WINDOW, CaseSpec, possible, quick_cases
from sdpalab.judge.diagnose.diagnosis import diagnose
from sdpalab.judge.diagnose.failure import Failure
from sdpalab.judge.parameters import PARAMETERS
from sdpalab.judge.rule.evaluate import judge_output
from sdpalab.judge.rule.exact import exact_elements
from sdpalab.judge.rule.log_sum_exp import log_sum_exp_float64, measure_lse
from sdpalab.judge.rule.numerics import UNDECLARED
from sdpalab.judge.rule.yardstick import torch_output
from sdpalab.judge.sandbox.callables import CallableRunner
from sdpalab.judge.session import judge_candidate
from sdpalab.judge.tensors import from_torch, to_torch
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import CudaKernel, Numerics
from sdpalab.kernels.registry import KERNELS
from sdpalab.problem import Problem

Array = npt.NDArray[Any]
WINDOW = Problem(1, 4, 60, 32, kv_heads=2, window_size=(11, 5))
CAUSAL_WINDOW = Problem(1, 2, 61, 32, causal=True, window_size=(16, -1), dtype="bfloat16")
TALL = Problem(1, 2, 50, 32, seq_kv=20, window_size=(9, 3))  # rows from 29 on see no key
OPEN = Problem(1, 2, 40, 32, window_size=(-1, 4), scale=0.5)
CAPPED = Problem(1, 2, 60, 32, softcap=30.0)
BOTH = Problem(1, 2, 60, 32, causal=True, window_size=(20, 0), softcap=5.0)
PLANTED = {bug.id: bug for file in (windows, caps) for bug in file.BUGS}
ALL = (WINDOW, CAUSAL_WINDOW, TALL, OPEN, CAPPED, BOTH)


def visible(problem: Problem) -> npt.NDArray[np.bool_]:
    """Pair by pair, [Sq, Skv]."""
    left, right = problem.window_size or (-1, -1)
    pairs = [
        (left < 0 or j >= i - left) and (right < 0 or j <= i + right) and (not problem.causal or j <= i)
        for i in range(problem.seq_q)
        for j in range(problem.seq_kv)
    ]
    return np.array(pairs).reshape(problem.seq_q, problem.seq_kv)


def in_torch(problem: Problem, inputs: Inputs, *, double: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores with -inf where a key is hidden, and V as each query head sees it; from torch, in float64 or float32."""
    kind = torch.float64 if double else torch.float32
    q, k, v = (torch.from_numpy(np.nan_to_num(array.astype(np.float32))).to(kind) for array in inputs.arrays.values())
    k, v = (tensor.repeat_interleave(problem.group, dim=1) for tensor in (k, v))
    scores = q @ k.mT * problem.scale
    if problem.softcap:
        scores = problem.softcap * torch.tanh(scores / problem.softcap)
    return scores.masked_fill(~torch.from_numpy(visible(problem)), -torch.inf), v


def softmax_then_round(problem: Problem, inputs: Inputs) -> Array:
    """The usual attention: a float32 softmax, its result in the inputs' type, times V."""
    scores, v = in_torch(problem, inputs, double=False)
    kind = torch.float16 if problem.dtype == "float16" else torch.bfloat16
    return from_torch((torch.softmax(scores, -1).nan_to_num(0.0).to(kind).float() @ v).to(kind))


def tiled(problem: Problem, inputs: Inputs, attention: Any = None, tile: int = 32) -> Array:
    """The output of a tiled implementation."""
    attention = attention or TiledAttention()
    attention.tile = tile
    tensors = [to_torch(array.copy()) for array in inputs.arrays.values()]
    return from_torch(attention(*tensors, **problem.scoring))


@pytest.mark.parametrize("problem", ALL, ids=lambda problem: problem.label)
def test_the_oracle_is_what_the_definition_says(problem: Problem) -> None:
    inputs = make_inputs(problem, "normal", 3)
    scores, v = in_torch(problem, inputs, double=True)
    out = torch.softmax(scores, -1).nan_to_num(0.0) @ v
    np.testing.assert_allclose(attention_float64(**inputs.arrays, **problem.scoring), out.numpy(), rtol=0, atol=1e-12)
    reference, limit = log_sum_exp_float64(**inputs.arrays, **problem.scoring, numerics=Numerics())
    np.testing.assert_allclose(reference, torch.logsumexp(scores, -1).numpy(), rtol=1e-12)
    assert np.array_equal(np.isneginf(reference), np.broadcast_to(~visible(problem).any(axis=1), reference.shape))
    assert not measure_lse(reference.astype(np.float32), reference, limit).not_finite
    yardstick = torch_output(**inputs.arrays, **problem.scoring).astype(np.float64)
    assert np.abs(yardstick - out.numpy()).max() < (2e-3 if problem.dtype == "float16" else 2e-2)
    rows = np.array([0, 7, problem.seq_q - 1])
    assert np.allclose(torch_output(**inputs.arrays, **problem.scoring, rows=rows), yardstick[:, :, rows], atol=2e-2)


def test_a_row_that_sees_no_key_has_minus_infinity_and_nothing_else() -> None:
    inputs = make_inputs(TALL)
    reference, limit = log_sum_exp_float64(**inputs.arrays, **TALL.scoring, numerics=Numerics())
    for wrong in (np.inf, np.nan, 0.0, -1e30):
        lse = reference.astype(np.float32)
        lse[0, 1, 29] = wrong
        assert measure_lse(lse, reference, limit).not_finite == 1


@pytest.mark.parametrize("problem", ALL, ids=lambda problem: problem.label)
def test_right_implementations_pass_on_every_kind_of_inputs(problem: Problem) -> None:
    torch.set_num_threads(1)
    for kind in (kind for kind in INPUT_KINDS if possible(problem, kind)):
        inputs = make_inputs(problem, kind, 5)
        for out in (
            tiled(problem, inputs, tile=16),
            tiled(problem, inputs, tile=48),
            softmax_then_round(problem, inputs),
        ):
            judged = judge_output(problem, inputs, out, UNDECLARED)
            assert judged.status is Status.PASSED, (kind, judged.reason)


@pytest.mark.parametrize("problem", [WINDOW, CAUSAL_WINDOW, OPEN, TALL], ids=lambda problem: problem.label)
def test_needles_lie_at_the_edges_and_forbidden_ones_just_beyond(problem: Problem) -> None:
    seen = visible(problem)
    rows = np.flatnonzero(seen.any(axis=1))
    first, last = seen.argmax(axis=1), problem.seq_kv - 1 - seen[:, ::-1].argmax(axis=1)
    inputs = make_inputs(problem, "needle", 1)
    elements = exact_elements(*inputs.arrays.values(), **problem.scoring)
    key = elements.key[0, 0]
    assert (key[rows] >= 0).all()
    assert {0, 1, 2} <= {int(row) % 3 for row in rows}
    assert all(key[row] == first[row] for row in rows if row % 3 == 0)
    assert all(key[row] == last[row] for row in rows if row % 3 == 1)
    assert all(seen[row, key[row]] for row in rows)
    empty = ~seen.any(axis=1)
    assert elements.mask[:, :, empty].all()
    assert not elements.expected[:, :, empty].any()

    inputs = make_inputs(problem, "forbidden", 1)
    k = np.repeat(inputs.k.astype(np.float64), problem.group, axis=1)
    best = (inputs.q.astype(np.float64) @ k.swapaxes(-1, -2))[0, 0].argmax(axis=1) if problem.scale > 0 else None
    assert best is not None
    for row in rows:
        before, after = first[row] - 1, last[row] + 1
        if before >= 0 or after < problem.seq_kv:
            assert best[row] in (before, after)
            assert not seen[row, best[row]]


def test_level_rows_of_a_window_are_exact_means() -> None:
    inputs = make_inputs(WINDOW, "uniform", 2)
    elements = exact_elements(*inputs.arrays.values(), **WINDOW.scoring, any_count=True)
    v = np.repeat(inputs.v.astype(np.float64), WINDOW.group, axis=1)
    seen = visible(WINDOW)
    means = np.stack([v[:, :, row].mean(axis=2) for row in seen], axis=2)
    assert elements.mask.mean() > 0.5
    expected = means.astype(np.float32).astype(np.float16)
    np.testing.assert_array_equal(elements.expected[elements.mask], expected[elements.mask])


def test_huge_values_outside_the_window_do_not_spoil_exact_elements() -> None:
    """Sums over the keys before cannot be subtracted where they are too large for float64."""
    problem = Problem(1, 1, 40, 32, window_size=(3, 0), dtype="bfloat16")
    inputs = make_inputs(problem, "uniform", 0)
    inputs.v[0, 0, :10] = 2.0**100
    elements = exact_elements(*inputs.arrays.values(), **problem.scoring, any_count=True)
    reference = attention_float64(**inputs.arrays, **problem.scoring)
    right = reference.astype(np.float32).astype(inputs.v.dtype)
    assert not elements.wrong(right).any()


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_rejected_and_named(name: str) -> None:
    torch.set_num_threads(1)
    bug, failures = PLANTED[name], []
    for spec in quick_cases([bug.problem]):
        if not spec.name.endswith(("seed 0", "negative")):
            continue
        inputs = make_inputs(spec.problem, spec.inputs, spec.seed or 1)
        out = tiled(spec.problem, inputs, bug.edit)
        judged = judge_output(spec.problem, inputs, out, UNDECLARED)
        if judged.status is not Status.PASSED:
            assert judged.status in bug.statuses
            failures.append(Failure(spec.problem, inputs, out, judged.errors, judged.limits))
    assert failures
    diagnosis = diagnose(failures)
    assert bug.cause is None or (diagnosis is not None and diagnosis.cause is bug.cause), diagnosis


def test_the_quick_cases_of_a_long_window_have_windows_that_hide_keys() -> None:
    specs = quick_cases([Problem(1, 8, 8192, 64, causal=True, window_size=(4096, 0))])
    small = [spec.problem for spec in specs if spec.derived and spec.problem.seq_kv > SMALL_WINDOW + 1]
    assert small
    assert all(not visible(problem)[-1].all() for problem in small)
    sides = {problem.window_size for problem in (spec.problem for spec in specs)}
    assert {(0, 0), (15, 0), (16, 0), (63, 0), (64, 0), (70, 0)} <= sides
    both = {spec.problem.window_size for spec in quick_cases([WINDOW.with_(window_size=(40, 0))])}
    assert {right for _, right in both if right is not None} == {0}  # a kernel may have no other
    assert any(not visible(spec.problem).any(axis=1).all() for spec in specs if spec.problem.seq_q < 200)


# ---- who computes them ----------------------------------------------------------------------------------------------


def careless(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, causal: bool, **_: Any) -> Any:
    """Takes everything, and uses nothing of it."""
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=causal)


def test_a_callable_without_the_parameter_is_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match=r"no parameter window_size or softcap, which .* window=20,0 softcap=5 needs"):
        judge(careless, [BOTH])


def test_the_parameters_of_a_callable_are_those_with_a_name() -> None:
    always = ["scale", "causal"]
    assert CallableRunner(careless).describe()["features"] == always
    beyond = {"do", "o", "lse", "varlen", "paged"}
    beyond |= {"cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"}
    assert set(CallableRunner(TiledAttention()).describe()["features"]) == {*PARAMETERS} - beyond
    assert CallableRunner(lambda q, k, v, *, scale, causal, softcap=0.0: q).describe()["features"] == [
        *always,
        "softcap",
    ]
    assert CallableRunner(max).describe()["features"] == always


@pytest.mark.slow
def test_a_callable_with_the_parameters_is_judged_in_the_whole_judge() -> None:
    assert judge(TiledAttention(), [BOTH]).passed
    wrong = judge(PLANTED["the window's left side is one key too wide"].edit, [BOTH])
    assert wrong.status is Status.INCORRECT


@pytest.mark.parametrize("name", [name for name in KERNELS if not KERNELS[name].features])
def test_shipped_kernels_refuse_what_they_do_not_take(name: str) -> None:
    reason = KERNELS[name].why_not(Problem(1, 1, 64, 64, window_size=(8, 0)))
    assert reason is not None
    assert "does not take window_size" in reason


_HIDDEN = "(WINDOW_LEFT >= 0 && j < row - WINDOW_LEFT) || (WINDOW_RIGHT >= 0 && j > row + WINDOW_RIGHT)"
_LOOP, _CAP = "for (int j = 0; j < keys; ++j) {", "SOFTCAP > 0.0f ? SOFTCAP * tanhf(s * scale / SOFTCAP) : s * scale"
ONE_ROW = Problem(1, 1, 20, 32, seq_kv=9, window_size=(6, 2), softcap=5.0)  # the last rows see no key


def one_row(hidden: str = _HIDDEN) -> CudaKernel:
    """The judge's little CUDA kernel with a window and a soft cap."""
    source = SOURCE.replace(_LOOP, f"{_LOOP}\n        if ({hidden}) continue;")
    source = replace_once(
        source,
        ("fmaxf(largest, s * scale)", f"fmaxf(largest, {_CAP})"),
        ("__expf(s * scale - largest)", f"__expf(({_CAP}) - largest)"),
        ("out[d] / total * GAIN", "total > 0.0f ? out[d] / total : 0.0f"),
    )
    return CudaKernel("one_row", source, "one_row", plan, features=("window_size", "softcap"), lse=True)


@pytest.mark.slow
def test_a_cuda_kernel_gets_both_as_macros_and_is_judged() -> None:
    specs = [CaseSpec("normal", ONE_ROW), CaseSpec("needle", ONE_ROW, "needle")]
    assert judge_candidate(one_row(), specs, workers=1).passed
    wrong = one_row(_HIDDEN.replace("row + WINDOW_RIGHT", "row + WINDOW_RIGHT + 1"))
    assert judge_candidate(wrong, specs, workers=1).status is Status.INCORRECT


def test_macros_are_only_for_kernels_that_take_them() -> None:
    kernel = one_row()

    def macros(kernel: CudaKernel, problem: Problem) -> dict[str, str]:
        return dict(kernel.module(problem, kernel.default_config).defines)

    given = macros(kernel, ONE_ROW)
    assert (given["WINDOW_LEFT"], given["WINDOW_RIGHT"], given["SOFTCAP"]) == ("6", "2", "5.0")
    given = macros(kernel, Problem(1, 1, 40, 32))
    assert (given["WINDOW_LEFT"], given["WINDOW_RIGHT"], given["SOFTCAP"]) == ("-1", "-1", "0.0")
    assert not {"WINDOW_LEFT", "SOFTCAP"} & set(macros(replace(kernel, features=()), Problem(1, 1, 40, 32)))
    with pytest.raises(UserError, match="features must hold some of window_size, softcap"):
        replace(kernel, features=("window",))
    with pytest.raises(UserError, match="lse must be False, because the log-sum-exp is an input of a gradient"):
        replace(kernel, features=("backward",), lse=True)
