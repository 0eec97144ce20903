"""The oracle, the yardstick, the intended numerics and the rule, as functions of arrays."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch
from attention import online

from sdpalab.errors import UserError
from sdpalab.inputs import Inputs, make_inputs
from sdpalab.inputs.reference import attention_float64, finite, is_finite
from sdpalab.judge.rule.limits import LEAST_SUBNORMAL, UNIT_ROUNDOFF, half_ulp, limits_for, measure, row_errors
from sdpalab.judge.rule.numerics import UNDECLARED, intended_output, orders_of
from sdpalab.judge.rule.yardstick import torch_output
from sdpalab.judge.verdict import LIMITED, Limits, broken_rules
from sdpalab.kernels.kernel import Numerics
from sdpalab.problem import Problem

Array = npt.NDArray[Any]
SHAPES = [
    Problem(2, 4, 33, 64, kv_heads=2),
    Problem(1, 2, 600, 32),  # more rows than one block
    Problem(1, 2, 9, 64, seq_kv=40),
    Problem(1, 2, 40, 64, seq_kv=9),
    Problem(1, 1, 1, 128),
]


def oracle(problem: Problem, inputs: Inputs) -> npt.NDArray[np.float64]:
    return attention_float64(inputs.q, inputs.k, inputs.v, scale=problem.scale, causal=problem.causal)


def intended(problem: Problem, inputs: Inputs, numerics: Numerics | None = None) -> Array:
    arguments: dict[str, Any] = {"scale": problem.scale, "causal": problem.causal, "numerics": numerics or Numerics()}
    return intended_output(inputs.q, inputs.k, inputs.v, **arguments)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("problem", SHAPES, ids=lambda problem: problem.label)
def test_the_oracle_is_torch_in_float64(problem: Problem, causal: bool) -> None:
    problem = problem.with_(causal=causal, scale=0.2)
    inputs = make_inputs(problem, "large_logits", 0)
    q, k, v = (torch.from_numpy(array.astype(np.float64)) for array in (inputs.q, inputs.k, inputs.v))
    k, v = (tensor.repeat_interleave(problem.group, dim=1) for tensor in (k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.2).numpy()
    np.testing.assert_allclose(oracle(problem, inputs), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("scale", [-0.3, 0.0, 0.3])
def test_any_scale_has_a_reference_and_a_yardstick(scale: float) -> None:
    problem = Problem(1, 2, 40, 64, causal=True, scale=scale)
    inputs = make_inputs(problem, "normal", 0)
    scores = np.einsum("bhid,bhjd->bhij", inputs.q.astype(np.float64), inputs.k.astype(np.float64)) * scale
    weights = np.where(np.tri(40, dtype=bool), np.exp(scores), 0.0)
    expected = (weights / weights.sum(axis=-1, keepdims=True)) @ inputs.v.astype(np.float64)
    np.testing.assert_allclose(oracle(problem, inputs), expected, rtol=0, atol=1e-12)
    yardstick = torch_output(inputs.q, inputs.k, inputs.v, scale=scale, causal=True)
    assert measure(yardstick, expected, "float16").rel_l2 < 4e-4


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_yardstick_and_intended_numerics_agree_on_how_large_an_honest_error_is(dtype: str) -> None:
    problem = Problem(1, 4, 256, 64, kv_heads=2, dtype=dtype)
    inputs = make_inputs(problem, "normal", 0)
    reference = oracle(problem, inputs)
    torch_out = torch_output(inputs.q, inputs.k, inputs.v, scale=problem.scale, causal=False)
    torch_error = measure(torch_out, reference, dtype).rel_l2
    own_error = measure(intended(problem, inputs), reference, dtype).rel_l2
    assert own_error == pytest.approx(torch_error, rel=0.05)
    assert 0.4 * UNIT_ROUNDOFF[dtype] < own_error < 0.7 * UNIT_ROUNDOFF[dtype]


def test_intended_numerics_follow_the_declaration() -> None:
    problem = Problem(1, 2, 128, 64)
    inputs = make_inputs(problem, "normal", 0)
    reference = oracle(problem, inputs)
    errors = [
        measure(intended(problem, inputs, Numerics(probabilities=p)), reference, "float16").rel_l2
        for p in ("float32", "problem", "bfloat16")
    ]
    assert errors[0] < 0.9 * errors[1] < 0.5 * errors[2]
    problem = Problem(1, 2, 64, 64, seq_kv=99, dtype="bfloat16")
    same = make_inputs(problem, "equal", 0)
    reference = oracle(problem, same)
    after, before = (intended(problem, same, numerics) for numerics in orders_of(UNDECLARED))
    assert measure(before, reference, "bfloat16").rel_l2 > 1.5 * measure(after, reference, "bfloat16").rel_l2
    for wrong in (Numerics(accumulate="bfloat16"), Numerics(probabilities="float8"), UNDECLARED):
        with pytest.raises(UserError, match="numerics"):
            intended(problem, inputs, wrong)


@pytest.mark.parametrize(("dtype", "kind"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)])
def test_half_ulp_is_half_the_gap_between_neighbours(dtype: str, kind: Any) -> None:
    bits = np.array([0x0001, 0x03FF, 0x0400, 0x3BFF, 0x3C00, 0x3C01, 0x4248, 0x7000], np.uint16)
    values = bits.view(kind).astype(np.float64)
    above = (bits + np.uint16(1)).view(kind).astype(np.float64)
    for value, gap in zip(values, above - values, strict=True):
        assert half_ulp(value, dtype) == half_ulp(-value, dtype) == gap / 2
    assert half_ulp(0.0, dtype) == LEAST_SUBNORMAL[dtype] / 2


def a_case() -> tuple[npt.NDArray[np.float64], Array, Limits]:
    problem = Problem(1, 2, 64, 64)
    inputs = make_inputs(problem, "normal", 0)
    reference = oracle(problem, inputs)
    yardstick = torch_output(inputs.q, inputs.k, inputs.v, scale=problem.scale, causal=False)
    good = online(problem, inputs)
    return reference, good, limits_for(reference, yardstick, [intended(problem, inputs)], "float16")


def broken(out: Array, reference: npt.NDArray[np.float64], limits: Limits) -> tuple[str, ...]:
    return broken_rules(measure(out, reference, "float16"), limits)


def test_each_rule_can_be_the_only_one_that_is_broken() -> None:
    reference, good, limits = a_case()
    assert broken(good, reference, limits) == ()

    # One element: too little for a norm over all, or over its row of the largest norm.
    out = good.astype(np.float64)
    row = np.unravel_index(np.argmax(np.linalg.norm(reference, axis=-1)), reference.shape[:-1])
    out[(*row, 5)] = reference[(*row, 5)] + 1.5 * limits.max_abs
    high_row = replace(limits, rms_row_rel_l2=1.0, worst_row_rel_l2=1.0)
    assert broken(out, reference, high_row) == ("max_abs",)

    # A small relative error everywhere: more than is honest on average, less than the worst honest row's.
    everywhere = reference * (1.0 + 1.1 * limits.rel_l2)
    assert broken(everywhere, reference, limits) == ("rel_l2", "rms_row_rel_l2")
    assert broken(everywhere, reference, replace(limits, rms_row_rel_l2=1.0)) == ("rel_l2",)

    # The same in the half of the rows that have the smaller norms: of all they are the lesser part.
    norms = np.linalg.norm(reference, axis=-1, keepdims=True)
    some = np.where(norms < np.median(norms), everywhere, reference)
    rms = 0.9 * measure(some, reference, "float16").rms_row_rel_l2
    assert broken(some, reference, replace(limits, rms_row_rel_l2=rms)) == ("rms_row_rel_l2",)

    # One row, the smallest of all.
    out = reference.copy()
    row = np.unravel_index(np.argmin(np.linalg.norm(reference, axis=-1)), reference.shape[:-1])
    out[row] *= 1.0 + 1.5 * limits.worst_row_rel_l2
    assert broken(out, reference, limits) == ("worst_row_rel_l2",)

    out = good.copy()
    out[0, 1, 2, 3] = np.inf
    assert broken(out, reference, limits) == ("not_finite",)


def test_measure_names_the_worst_element_and_the_worst_row() -> None:
    reference, _, _ = a_case()
    out = reference.copy()
    out[0, 1, 7, 9] += 0.5
    out[0, 0, 3] = 0.0
    errors = measure(out, reference, "float16")
    assert errors.max_abs == 0.5
    assert errors.max_abs_index == (0, 1, 7, 9)
    assert errors.worst_row == (0, 0, 3) or errors.worst_row == (0, 1, 7)
    assert errors.worst_row == tuple(np.unravel_index(np.argmax(row_errors(out, reference, "float16")), (1, 2, 64)))
    out[0, 0, 0, 0] = np.nan
    assert measure(out, reference, "float16").not_finite == 1
    assert measure(out, reference, "float16").max_abs == 0.5


def test_rows_near_zero_are_measured_against_the_stated_floor() -> None:
    reference = np.ones((1, 1, 4, 64))
    reference[0, 0, 2] = 0.0
    out = reference.copy()
    out[0, 0, 2] = 2.0**-12
    typical = math.sqrt(3 / 4) * 8.0
    assert row_errors(out, reference, "float16")[0, 0, 2] == pytest.approx(8.0 * 2.0**-12 / (2.0**-8 * typical))
    nothing = np.zeros((1, 1, 1, 64))
    assert measure(nothing, nothing, "float16").rel_l2 == 0.0
    assert measure(nothing + LEAST_SUBNORMAL["float16"], nothing, "float16").rel_l2 == pytest.approx(1.0)


def test_limits_are_made_as_stated_and_never_below_their_floor() -> None:
    problem = Problem(1, 1, 1, 64)  # one key: every error is exactly 0
    inputs = make_inputs(problem, "normal", 0)
    reference = oracle(problem, inputs)
    limits = limits_for(reference, inputs.v, [intended(problem, inputs)], "float16")
    assert limits.yardstick_max_abs == 0.0
    assert {getattr(limits, f"intended_{name}") for name in LIMITED} == {0.0}
    assert limits.max_abs == half_ulp(float(np.abs(reference).max()), "float16")
    assert limits.rel_l2 == limits.rms_row_rel_l2 == 1.5 * 2.0**-12
    assert limits.worst_row_rel_l2 == 2.0 * 2.0**-12

    reference, good, limits = a_case()
    assert limits.rel_l2 == 1.5 * limits.intended_rel_l2
    assert limits.rms_row_rel_l2 == 1.5 * limits.intended_rms_row_rel_l2
    assert limits.worst_row_rel_l2 == 2.0 * limits.intended_worst_row_rel_l2
    rounding = half_ulp(float(np.abs(reference).max()), "float16")
    assert limits.max_abs == 2.0 * max(limits.yardstick_max_abs, limits.intended_max_abs) + rounding
    for yardstick, own in ((good, reference * 1.01), (reference * 1.01, good)):
        largest = 0.01 * float(np.abs(reference).max())
        assert limits_for(reference, yardstick, [own], "float16").max_abs == pytest.approx(2.0 * largest + rounding)
    looser = limits_for(reference, good, [good, reference * 1.01], "float16")
    assert looser.intended_rel_l2 == pytest.approx(0.01)
    with pytest.raises(ValueError, match="not finite"):
        limits_for(reference, good * np.float16(np.nan), [good], "float16")
    overflown = good.copy()
    overflown[0, 0, 0, 0] = np.inf
    assert limits_for(reference, good, [overflown], "float16").intended_rel_l2 < limits.rel_l2


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_what_is_not_finite_is_found_by_its_bits(kind: type) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    numbers = every.view(kind) if np.dtype(kind).itemsize == 2 else every.view(np.float16).astype(kind)
    for array in (numbers, numbers.T, numbers[::3, 1::7]):
        with np.errstate(invalid="ignore"):
            expected = np.isfinite(array)
        assert np.array_equal(is_finite(array), expected)
        clean = finite(array)
        assert np.array_equal(clean, np.where(expected, array, array.dtype.type(0)))
        assert clean.dtype == array.dtype
