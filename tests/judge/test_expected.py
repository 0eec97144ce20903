"""What the judge computes of the inputs alone is computed once for the same inputs, and only for those."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sdpalab.errors import MachineError
from sdpalab.inputs import Inputs, make_inputs
from sdpalab.judge.rule import expected
from sdpalab.judge.rule.expected import expected_log_sum_exp, expected_output
from sdpalab.judge.rule.reference import attention_float64
from sdpalab.kernels.kernel import Numerics
from sdpalab.problem import Problem

PROBLEM = Problem(1, 2, 20, 32, causal=True)
NUMERICS = Numerics()


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept from other tests."""
    monkeypatch.setattr(expected, "_OUTPUTS", expected._Memo())
    monkeypatch.setattr(expected, "_ROWS", expected._Memo())


def inputs() -> Inputs:
    return make_inputs(PROBLEM)


def test_the_same_content_is_computed_once() -> None:
    assert expected_output(PROBLEM, inputs(), NUMERICS) is expected_output(PROBLEM, inputs(), NUMERICS)
    assert expected_log_sum_exp(PROBLEM, inputs(), NUMERICS) is expected_log_sum_exp(PROBLEM, inputs(), NUMERICS)


def test_it_is_the_oracle_of_these_inputs() -> None:
    found = expected_output(PROBLEM, inputs(), NUMERICS)
    reference = attention_float64(**vars(inputs()), scale=PROBLEM.scale, causal=True)
    assert np.array_equal(found.reference, reference)
    assert np.abs(found.yardstick.astype(np.float64) - reference).max() < 1e-2


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_one_bit_of_an_input_makes_another_result(name: str) -> None:
    changed = inputs()
    getattr(changed, name).view(np.uint16)[0, 1, 3, 7] ^= 1 << 14
    first, second = expected_output(PROBLEM, inputs(), NUMERICS), expected_output(PROBLEM, changed, NUMERICS)
    assert not np.array_equal(first.reference, second.reference)


@pytest.mark.parametrize("problem", [PROBLEM.with_(causal=False), PROBLEM.with_(scale=-0.5)], ids=str)
def test_the_mask_and_the_scale_make_another_result(problem: Problem) -> None:
    first, second = expected_output(PROBLEM, inputs(), NUMERICS), expected_output(problem, inputs(), NUMERICS)
    assert not np.array_equal(first.reference, second.reference)
    rows, others = (expected_log_sum_exp(each, inputs(), NUMERICS)[0] for each in (PROBLEM, problem))
    assert not np.array_equal(rows, others)


def test_what_is_declared_makes_other_limits() -> None:
    half = replace(NUMERICS, accumulate="float16")
    assert (
        expected_output(PROBLEM, inputs(), half).limits.rel_l2
        > expected_output(PROBLEM, inputs(), NUMERICS).limits.rel_l2
    )


def test_nobody_can_change_what_is_kept() -> None:
    for array in (
        *expected_output(PROBLEM, inputs(), NUMERICS).arrays(),
        *expected_log_sum_exp(PROBLEM, inputs(), NUMERICS),
    ):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_what_was_used_longest_ago_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(array.nbytes for array in expected_output(PROBLEM, inputs(), NUMERICS).arrays())
    monkeypatch.setattr(expected, "MOST_BYTES", 2 * size)
    drawn = [make_inputs(PROBLEM, seed=seed) for seed in range(3)]
    first, second = (expected_output(PROBLEM, each, NUMERICS) for each in drawn[:2])
    assert expected_output(PROBLEM, drawn[0], NUMERICS) is first
    expected_output(PROBLEM, drawn[2], NUMERICS)
    assert expected_output(PROBLEM, drawn[0], NUMERICS) is first
    assert expected_output(PROBLEM, drawn[1], NUMERICS) is not second


def test_a_failure_is_not_kept() -> None:
    nothing = inputs()
    nothing.k[...] = np.nan
    for _ in range(2):
        with pytest.raises(MachineError, match="no row is judged"):
            expected_output(PROBLEM, nothing, NUMERICS)
