"""Elements that the inputs fix bit for bit: which they are, that they are right, and that one ulp beside is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from attention import online

from sdpalab.errors import UserError
from sdpalab.inputs import INPUT_KINDS, Inputs, dtype_of, make_inputs
from sdpalab.inputs.reference import attention_float64
from sdpalab.judge.rule.evaluate import judge_output
from sdpalab.judge.rule.exact import ExactElements, exact_elements, has_exact_elements
from sdpalab.judge.verdict import Status, broken_rules
from sdpalab.kernels.kernel import Numerics, Quantisation
from sdpalab.problem import Problem

Array = npt.NDArray[Any]
DTYPES = ["float16", "bfloat16"]


def exact(problem: Problem, inputs: Inputs, any_count: bool = False) -> ExactElements:
    return exact_elements(inputs.q, inputs.k, inputs.v, **problem.scoring, any_count=any_count)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", list(INPUT_KINDS))
def test_what_is_called_exact_is_the_reference_rounded(kind: str, dtype: str) -> None:
    """Sound on every kind of inputs; and complete where a probe is made for it."""
    for problem in (
        Problem(1, 4, 64, 64, kv_heads=2, causal=True),
        Problem(2, 2, 40, 64, seq_kv=128),
        Problem(1, 2, 3, 64),
    ):
        problem = problem.with_(dtype=dtype)
        inputs = make_inputs(problem, kind, 1)
        reference = attention_float64(inputs.q, inputs.k, inputs.v, **problem.scoring)
        for any_count in (False, True):
            elements = exact(problem, inputs, any_count)
            rounded = reference.astype(np.float32).astype(dtype_of(problem.dtype))
            assert (rounded == elements.expected)[elements.mask].all()
            assert not elements.wrong(np.where(elements.mask, rounded, 0)).any()
            if kind == "needle":
                assert elements.mask.all()
            if problem.causal and kind != "nan_heads":
                assert (elements.key[:, :, 0] == 0).all() or kind in ("uniform", "uniform_e4m3", "tiny", "onehot")


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_ulp_beside_a_needle_is_wrong_and_nothing_else_would_say_so(dtype: str) -> None:
    problem = Problem(1, 2, 64, 64, dtype=dtype)
    inputs = make_inputs(problem, "needle", 0)
    out = online(problem, inputs)
    assert judge_output(problem, inputs, out, Numerics()).status is Status.PASSED
    median = np.unravel_index(np.argsort(np.abs(out.astype(np.float64)), axis=None)[out.size // 2], out.shape)
    out[median] = np.nextafter(out[median], out.dtype.type(0))
    outcome = judge_output(problem, inputs, out, Numerics())
    assert outcome.status is Status.INCORRECT
    assert broken_rules(outcome.errors, outcome.limits) == ("exact_wrong",)
    assert (outcome.errors.exact, outcome.errors.exact_wrong) == (out.size, 1)
    key = int(np.argmax((inputs.q @ inputs.k.swapaxes(-1, -2))[median[:3]]))
    b, h, i, d = (int(n) for n in median)
    right = inputs.v[b, h, key, d]
    assert f"(b={b}, h={h}, i={i}, d={d}): {out[median]} instead of {right} (V of key j={key}" in outcome.reason


@pytest.mark.parametrize("dtype", DTYPES)
def test_level_rows_are_means_of_a_power_of_two_of_keys_or_of_any_number(dtype: str) -> None:
    problem = Problem(1, 1, 48, 32, dtype=dtype, causal=True)
    inputs = make_inputs(problem, "uniform", 2)
    few, all_counts = exact(problem, inputs), exact(problem, inputs, any_count=True)
    rows = np.flatnonzero(few.mask.any(axis=(0, 1, 3))) + 1
    assert rows.tolist() == [1, 2, 4, 8, 16, 32]
    assert (few.mask <= all_counts.mask).all()
    assert np.count_nonzero(all_counts.mask.any(axis=(0, 1, 3))) > 40
    values = inputs.v[0, 0].astype(np.float64)
    np.testing.assert_array_equal(
        few.expected[0, 0, 3][few.mask[0, 0, 3]], values[:4].mean(axis=0).astype(few.expected.dtype)[few.mask[0, 0, 3]]
    )
    for change in ({"v": inputs.v + inputs.v.dtype.type(0.5)}, {"k": inputs.k + inputs.k.dtype.type(1)}):
        assert not exact(problem, replace(inputs, **change)).mask[:, :, 1:].any()  # no integers; scores that differ


@pytest.mark.parametrize("dtype", DTYPES)
def test_near_a_tie_or_where_v_cancels_nothing_is_exact(dtype: str) -> None:
    problem = Problem(1, 1, 1, 4, dtype=dtype, seq_kv=2)
    ulp = 2.0 ** (1 - 11 if dtype == "float16" else 1 - 8)
    values = np.array([[1, 1, 1, 2 / ulp], [1, 1 + 2, -1, 2 / ulp + 2]])
    zero = np.zeros((1, 1, 1, 4), dtype_of(problem.dtype))
    v = values.astype(dtype_of(problem.dtype))[None, None]
    elements = exact(problem, Inputs(zero, np.zeros_like(v), v))
    # 1; 2; 0 out of 1 - 1; halfway between two numbers.
    assert elements.mask[0, 0, 0].tolist() == [True, True, False, False]


@pytest.mark.parametrize("dtype", DTYPES)
def test_how_far_a_key_must_dominate(dtype: str) -> None:
    """The runner-up's weight, times what its V differs by, must vanish beside the rounding of the result."""
    masks = []
    for gap in (2, 4, 6, 8, 10, 12, 14, 40):
        problem = Problem(1, 1, 1, 32, dtype=dtype, seq_kv=2, scale=1.0)
        q, k = np.zeros((1, 1, 1, 32)), np.zeros((1, 1, 2, 32))
        q[..., 0], k[0, 0, 0, 0] = 1, gap
        v = np.stack([np.linspace(1.0, 1.99, 32), np.linspace(-2, 2, 32)])[None, None]
        inputs = Inputs(*(x.astype(dtype_of(problem.dtype)) for x in (q, k, v)))
        elements = exact(problem, inputs)
        reference = attention_float64(inputs.q, inputs.k, inputs.v, scale=1.0, causal=False)
        np.testing.assert_array_equal(
            reference.astype(np.float32).astype(elements.expected.dtype)[elements.mask],
            elements.expected[elements.mask],
        )
        np.testing.assert_array_equal(elements.expected[elements.mask], inputs.v[:, :, :1][elements.mask])
        masks.append(elements.count)
    assert masks[:3] == [0, 0, 0]
    assert masks[-1] == 32
    assert masks == sorted(masks)


def test_large_scores_leave_no_room_in_float32() -> None:
    """The exponent of a score of 10**5 is only known to 0.01: a kernel that errs there is not wrong."""
    problem = Problem(1, 1, 4, 64, seq_kv=9)
    inputs = make_inputs(problem, "needle", 0)
    assert exact(problem, inputs).mask.all()
    assert not exact(problem.with_(scale=1e3), inputs).mask.any()


def test_zeros_of_either_sign_are_equal() -> None:
    problem = Problem(1, 1, 1, 32)
    inputs = make_inputs(problem, "normal", 0)
    inputs.v[..., :2] = (0.0, -0.0)
    out = inputs.v.copy()
    out[..., :2] = (-0.0, 0.0)
    elements = exact(problem, inputs)
    assert elements.mask.all()
    assert not elements.wrong(out).any()


def test_where_it_cannot_be_asked_it_is_not() -> None:
    problem = Problem(1, 2, 32, 64)
    inputs = make_inputs(problem, "needle", 0)
    out = online(problem, inputs)
    for quantised in (None, Quantisation(rows=16)):
        numerics = Numerics(accumulate="float16", quantised=quantised)
        assert not has_exact_elements(numerics)
        assert judge_output(problem, inputs, out, numerics).errors.exact == 0
    for numerics in (Numerics(), Numerics(probabilities="float8_e4m3fn", probability_scale=448.0)):
        assert judge_output(problem, inputs, out, numerics).errors.exact == out.size
    with pytest.raises(UserError, match="probability_scale must be a positive number of float8"):
        judge_output(problem, inputs, out, Numerics(probabilities="float8_e4m3fn", probability_scale=100.0))
