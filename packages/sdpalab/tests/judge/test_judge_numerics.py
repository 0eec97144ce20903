"""The declared arithmetic: each rounding is where the declaration says, and what is declared is what is allowed."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from implementations import CORRECT, DECLARED_LESS, WORSE, Implementation
from tiled_attention import quantised

from sdpalab.errors import UserError
from sdpalab.inputs import Inputs, make_inputs
from sdpalab.inputs.reference import attention_float64
from sdpalab.judge.rule.evaluate import judge_output
from sdpalab.judge.rule.limits import measure
from sdpalab.judge.rule.numerics import UNDECLARED, check_numerics, dequantised, intended_output
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import Numerics, Quantisation
from sdpalab.problem import Problem

Array = npt.NDArray[Any]
PROBLEM = Problem(1, 2, 200, 64)
FLOAT8 = "float8_e4m3fn"


def error(numerics: Numerics, problem: Problem = PROBLEM, inputs: Inputs | None = None) -> float:
    """Relative L2 error of the declared arithmetic."""
    inputs = inputs or make_inputs(problem, "normal", 0)
    arguments: dict[str, Any] = {"scale": problem.scale, "causal": problem.causal}
    reference = attention_float64(*inputs.arrays.values(), **arguments)
    out = intended_output(*inputs.arrays.values(), **arguments, numerics=numerics)
    return measure(out, reference, problem.dtype).rel_l2


def test_fewer_bits_err_more() -> None:
    ladder = [
        Numerics(probabilities="float32"),
        Numerics(),
        Numerics(accumulate="float16"),
        Numerics(probabilities="bfloat16"),
        Numerics(probabilities=FLOAT8, probability_scale=448.0),
        Numerics(probabilities=FLOAT8, probability_scale=448.0, quantised=Quantisation(rows=64)),
    ]
    errors = [error(numerics) for numerics in ladder]
    assert all(1.2 * better < worse for better, worse in pairwise(errors)), errors


def test_the_scale_of_p_saves_its_small_weights_from_float8() -> None:
    """e4m3 has nothing between 2**-9 and 0: many keys of weight 0.0015 each are lost, or counted too high."""
    problem = Problem(1, 1, 1, 64, seq_kv=200, scale=1.0)
    inputs = make_inputs(problem, "normal", 0)
    inputs.q[...], inputs.k[...] = 0.0, 0.0
    inputs.q[..., 0], inputs.k[0, 0, 0, 0] = 1.0, 6.5
    plain, scaled = (
        error(Numerics(probabilities=FLOAT8, probability_scale=scale), problem, inputs) for scale in (1.0, 256.0)
    )
    assert scaled < 0.3 * plain


LONG = Problem(1, 2, 400, 64)


def one_large_row() -> Inputs:
    """A row of V so large that what shares its scale falls among float8's subnormals, and whose key has almost no
    weight."""
    inputs = make_inputs(LONG, "normal", 0)
    inputs.q[..., 0], inputs.k[..., 0], inputs.k[:, :, 70, 0] = 8.0, 0.0, -60.0
    inputs.v[...] /= np.float16(8)
    inputs.v[:, :, 70] = 3e4
    return inputs


def test_a_scale_for_few_rows_is_finer_than_one_for_all() -> None:
    inputs = one_large_row()
    whole, blocks = (error(Numerics(quantised=Quantisation(rows=rows)), LONG, inputs) for rows in (0, 64))
    assert blocks < 0.6 * whole
    for rows in (0, 1, 64, 400, 1000):
        np.testing.assert_allclose(dequantised(inputs.v, Quantisation(rows=rows)), quantised(inputs.v, rows), rtol=1e-6)
    few, for_all = (dequantised(inputs.v, Quantisation(rows=rows)) for rows in (64, 0))
    np.testing.assert_array_equal(few[:, :, 64:128], for_all[:, :, 64:128])
    assert np.abs(few - inputs.v)[:, :, 128:].mean() < 0.6 * np.abs(for_all - inputs.v)[:, :, 128:].mean()


def test_quantised_blocks_hold_their_largest_and_nothing_out_of_nothing() -> None:
    array = np.zeros((1, 1, 6, 4), np.float16)
    array[0, 0, 0], array[0, 0, 4, 1] = (448, 3, -1, 0.0009), 6e-8
    numbers = dequantised(array, Quantisation(rows=2))
    assert numbers[0, 0, 0].tolist() == [448.0, 3.0, -1.0, 0.0]  # with a scale of 1: 0.0009 is less than 2**-10
    assert not numbers[0, 0, 2:4].any()
    assert numbers[0, 0, 4, 1] == pytest.approx(float(array[0, 0, 4, 1]))


def test_a_half_accumulator_rounds_every_eight_terms() -> None:
    """2033 and ones: past 2048 float16 counts in twos, and of 8 ones each, all are seen; one at a time, none."""
    problem = Problem(1, 1, 1, 16, seq_kv=32, scale=0.0)
    inputs = make_inputs(problem, "normal", 0)
    inputs.v[...] = 1.0
    inputs.v[0, 0, 0] = 2033.0
    out = intended_output(*inputs.arrays.values(), scale=0.0, causal=False, numerics=Numerics(accumulate="float16"))
    assert out[0, 0, 0, 0] == np.float16((2033 + 15 + 16) / 32)
    inputs.v[0, 0, 31] = 2.0  # 2048 + 17 is rounded to 2064 or 2066, to the even
    out = intended_output(*inputs.arrays.values(), scale=0.0, causal=False, numerics=Numerics(accumulate="float16"))
    assert out[0, 0, 0, 0] == np.float16(2064 / 32)


def test_declared_numerics_that_overflow_leave_limits_for_those_that_do_not() -> None:
    problem = Problem(1, 2, 64, 64)
    inputs = make_inputs(problem, "huge", 0)
    half = Numerics(accumulate="float16")
    overflown = intended_output(*inputs.arrays.values(), scale=problem.scale, causal=False, numerics=half)
    assert not np.isfinite(overflown).all()
    assert judge_output(problem, inputs, overflown, half).status is Status.NOT_FINITE
    good = intended_output(*inputs.arrays.values(), scale=problem.scale, causal=False, numerics=Numerics())
    assert judge_output(problem, inputs, good, half).status is Status.PASSED


def test_the_order_of_normalising_is_a_declaration_like_any_other() -> None:
    """Equal scores over 99 keys: P normalised before is rounded 99 times to the same side, and that shows."""
    problem = Problem(1, 2, 64, 64, seq_kv=99, dtype="bfloat16")
    inputs = make_inputs(problem, "equal", 0)
    before, after = Numerics(normalise="before"), Numerics(normalise="after")
    out = intended_output(*inputs.arrays.values(), scale=problem.scale, causal=False, numerics=before)
    statuses = [judge_output(problem, inputs, out, numerics).status for numerics in (before, UNDECLARED, after)]
    assert statuses == [Status.PASSED, Status.PASSED, Status.INCORRECT]
    inputs = make_inputs(problem, "uniform", 0)  # no power of two of keys: the mean is exact only for who divides last
    exact = [judge_output(problem, inputs, out, numerics).errors.exact for numerics in (before, UNDECLARED, after)]
    assert exact[:2] == [0, 0]
    assert exact[2] > 0


@pytest.mark.parametrize(
    ("numerics", "message"),
    [
        (Numerics(accumulate="bfloat16"), "accumulate must be float32 or float16, not 'bfloat16'"),
        (Numerics(probabilities="float8"), "probabilities must be one of problem, float32, float16"),
        (Numerics(probability_scale=2.0), "must be 1 for 'problem'"),
        (Numerics(probabilities=FLOAT8, probability_scale=0.0), "a positive number of float8_e4m3fn"),
        (Numerics(probabilities=FLOAT8, probability_scale=512.0), "at most 448, not 512"),
        (Numerics(accumulate="float16", accumulate_terms=6), "accumulate_terms must be 4, 8 or 16, not 6"),
        (Numerics(accumulate_terms=8), "for an accumulator in float16, not in float32"),
        (Numerics(normalise="first"), "normalise must be after or before, not 'first'"),
        (Numerics(quantised=Quantisation("int8")), "quantised.dtype must be float8_e4m3fn, not 'int8'"),
        (Numerics(quantised=Quantisation(rows=-1)), "quantised.rows must be a number of rows"),
    ],
)
def test_what_is_not_emulated_is_named(numerics: Numerics, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_numerics(numerics)


@pytest.mark.parametrize("subject", DECLARED_LESS, ids=lambda subject: subject.name)
def test_lower_precision_is_allowed_only_if_it_is_declared(subject: Implementation) -> None:
    inputs = make_inputs(PROBLEM, "normal", 0)
    out = subject.compute(PROBLEM, inputs)
    assert judge_output(PROBLEM, inputs, out, subject.numerics).status is Status.PASSED
    assert judge_output(PROBLEM, inputs, out, Numerics()).status is Status.INCORRECT


def test_a_scale_a_head_is_no_scale_for_64_rows() -> None:
    """The judge detects a coarser quantisation than declared where it matters."""
    inputs = one_large_row()
    whole, blocks = (subject for subject in DECLARED_LESS if "a scale" in subject.name)
    assert judge_output(LONG, inputs, blocks.compute(LONG, inputs), blocks.numerics).status is Status.PASSED
    assert judge_output(LONG, inputs, whole.compute(LONG, inputs), whole.numerics).status is Status.PASSED
    assert judge_output(LONG, inputs, whole.compute(LONG, inputs), blocks.numerics).status is Status.INCORRECT


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["normal", "needle", "uniform", "ramp", "nan_heads"])
def test_a_sample_of_the_calibration_no_correct_implementation_is_rejected(kind: str, dtype: str) -> None:
    problem = Problem(1, 4, 72, 64, kv_heads=2, causal=kind != "uniform", dtype=dtype)
    inputs = make_inputs(problem, kind, 0)
    for subject in CORRECT:
        outcome = judge_output(problem, inputs, subject.compute(problem, inputs), subject.numerics)
        assert outcome.status is Status.PASSED, f"{subject.name}: {outcome.reason}"


def test_a_sample_of_the_calibration_worse_arithmetic_is_rejected() -> None:
    """On the mission's length, where honest rounding averages out, by normal inputs; the rest by large scores."""
    problem = Problem(1, 2, 512, 64)

    def passed(kind: str) -> set[str]:
        inputs = make_inputs(problem, kind, 0)
        return {
            subject.name
            for subject in WORSE
            if judge_output(problem, inputs, subject.compute(problem, inputs), Numerics()).status is Status.PASSED
        }

    assert passed("normal") == {"scaled Q in 16 bits", "P chopped"}
    assert "scaled Q in 16 bits" not in passed("large_logits")


def test_the_committed_calibration_is_of_these_implementations_and_has_no_false_alarm() -> None:
    records = (Path(__file__).parents[4] / "evidence" / "campaigns").glob("calibration-*.json")
    latest = max((json.loads(path.read_text()) for path in records), key=lambda record: record["when"])
    assert latest["false_alarms"] == []
    assert latest["totals"]["runs"] >= 1000
    names = {row["name"] for row in latest["correct"] if row["passed"] == row["runs"] > 0}
    assert names >= {subject.name for subject in (*CORRECT, *DECLARED_LESS)}
    assert {row["name"] for row in latest["worse"]} == {subject.name for subject in WORSE}
