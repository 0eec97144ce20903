"""Rows with an input that is not finite are not judged; all others are, as if those were not there."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from attention import online

from sdpalab.errors import MachineError
from sdpalab.inputs import Inputs, make_inputs
from sdpalab.inputs.reference import attention_float64, judged_rows
from sdpalab.judge.rule.evaluate import Evidence, evaluate, judge_output
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import Numerics
from sdpalab.problem import Problem

Array = npt.NDArray[Any]
PROBLEM = Problem(1, 4, 70, 64, kv_heads=2, causal=True)
ABOUT = {"device": "none", "config": "", "numerics": asdict(Numerics())}


def clean(kind: str = "normal") -> Inputs:
    return make_inputs(PROBLEM, kind, 3)


def spoilt(value: float = np.nan) -> Inputs:
    """One K/V head (of two query heads) with bad numbers in V, and one row of Q in the other."""
    inputs = clean()
    inputs.v[0, 1, 69, 3] = value
    inputs.q[0, 0, 5, 0] = value
    return inputs


def judged(inputs: Inputs, first: Array, second: Array | None = None) -> Evidence:
    outputs = {"first.o": first, "second.o": first.copy() if second is None else second}
    return evaluate(PROBLEM, inputs, ABOUT, {"status": None}, outputs)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_mask_follows_from_the_inputs_alone(value: float) -> None:
    assert judged_rows(*clean().arrays.values()).all()
    mask = judged_rows(*spoilt(value).arrays.values())
    assert not mask[0, 2:].any()
    assert not mask[0, 0, 5]
    assert mask.sum() == 2 * 70 - 1
    inputs = spoilt(value)
    inputs.k[0, 0, 69, 0] = value  # hidden from all rows but the last, and yet in their tile
    assert not judged_rows(*inputs.arrays.values()).any()


def test_the_reference_is_that_of_the_clean_inputs_wherever_it_is_judged() -> None:
    inputs = spoilt()
    reference = attention_float64(*inputs.arrays.values(), scale=PROBLEM.scale, causal=True)
    mask = judged_rows(*inputs.arrays.values())
    assert np.isnan(reference[~mask]).all()
    expected = attention_float64(*clean().arrays.values(), scale=PROBLEM.scale, causal=True)
    np.testing.assert_array_equal(reference[mask], expected[mask])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_whatever_is_in_ignored_rows_the_verdict_is_that_of_the_others(value: float) -> None:
    inputs, good = spoilt(value), online(PROBLEM, clean())
    mask = judged_rows(*inputs.arrays.values())
    for filling in (0.0, 6e4, np.nan, -np.inf):
        out = good.copy()
        out[~mask] = filling
        outcome = judged(inputs, out)
        assert outcome.status is Status.PASSED, outcome.reason
        assert outcome.errors is not None
        assert outcome.errors.ignored_rows == 2 * 70 + 1
        assert judged(inputs, out, good).status is Status.PASSED  # runs may differ there
        wrong = out.copy()
        wrong[0, 1, 69, 5] += np.float16(0.25)
        outcome = judged(inputs, wrong)
        assert outcome.status is Status.INCORRECT
        assert "max error 0.25 at (b=0, h=1, i=69, d=5)" in outcome.reason
        wrong[0, 1, 2, 3] = np.nan
        outcome = judged(inputs, wrong)
        assert outcome.status is Status.NOT_FINITE
        assert f"1 of {139 * 64} elements are not finite, the first at (b=0, h=1, i=2, d=3): nan" in outcome.reason
        late = out.copy()
        late[0, 1, 3, 3] = np.nextafter(late[0, 1, 3, 3], np.float16(9))
        assert judged(inputs, out, late).status is Status.NONDETERMINISTIC
    seen = judged(inputs, good).limits
    assert seen is not None
    assert 0 < seen.intended_rms_row_rel_l2 < 4e-4


def test_without_a_single_row_to_judge_there_is_no_verdict() -> None:
    inputs = clean()
    inputs.v[...] = np.nan
    with pytest.raises(MachineError, match="no row is judged"):
        judge_output(PROBLEM, inputs, clean().q, Numerics())


def test_other_data_in_the_same_memory_have_their_own_right_output() -> None:
    """A result cached by pointer is right on its inputs, and stale on the others."""
    inputs, other = clean(), make_inputs(PROBLEM, "normal", 4)
    good, fresh = online(PROBLEM, inputs), online(PROBLEM, other)
    outputs = {"first.o": good, "second.o": good}
    evidence = evaluate(PROBLEM, inputs, ABOUT, {"status": None}, {**outputs, "other.o": fresh}, other)
    assert evidence.status is Status.PASSED
    evidence = evaluate(PROBLEM, inputs, ABOUT, {"status": None}, {**outputs, "other.o": good}, other)
    assert evidence.status is Status.STALE
    assert "the output for the data that were there before" in evidence.reason
    evidence = evaluate(PROBLEM, inputs, ABOUT, {"status": None}, {**outputs, "other.o": np.zeros_like(good)}, other)
    assert evidence.status is Status.STALE
    assert "there before" not in evidence.reason
    assert "all zeros" in evidence.reason
    evidence = evaluate(PROBLEM, inputs, ABOUT, {"status": None}, {**outputs, "other.o": good[:, :1]}, other)
    assert evidence.status is Status.BAD_OUTPUT
