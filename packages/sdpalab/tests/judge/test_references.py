"""The judge computes a reference of the inputs alone once for the same inputs, and only for those."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest

from sdpalab.errors import MachineError
from sdpalab.inputs import Inputs, make_inputs
from sdpalab.inputs.reference import attention_float64
from sdpalab.judge.rule import references
from sdpalab.judge.rule.exact import exact_elements
from sdpalab.judge.rule.limits import limits_for
from sdpalab.judge.rule.log_sum_exp import log_sum_exp_float64
from sdpalab.judge.rule.numerics import intended_output
from sdpalab.judge.rule.references import references_of
from sdpalab.kernels.kernel import Numerics, Quantisation
from sdpalab.problem import Problem

PROBLEM = Problem(1, 2, 20, 32, causal=True)
NUMERICS = Numerics()


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept from other tests."""
    monkeypatch.setattr(references, "_cache", OrderedDict())


def inputs() -> Inputs:
    return make_inputs(PROBLEM)


def test_the_same_content_is_computed_once() -> None:
    one, other = references_of(PROBLEM, inputs()), references_of(PROBLEM, inputs())
    assert one is other
    assert one.reference is other.reference
    assert one.limits(NUMERICS) is other.limits(NUMERICS)
    assert one.log_sum_exp(NUMERICS) is other.log_sum_exp(NUMERICS)


def test_it_is_the_oracle_of_these_inputs() -> None:
    references = references_of(PROBLEM, inputs())
    reference = attention_float64(**inputs().arrays, scale=PROBLEM.scale, causal=True)
    assert np.array_equal(references.reference, reference)
    assert np.abs(references.yardstick.astype(np.float64) - reference).max() < 1e-2


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_one_bit_of_an_input_makes_another_result(name: str) -> None:
    changed = inputs()
    getattr(changed, name).view(np.uint16)[0, 1, 3, 7] ^= 1 << 14
    first, second = references_of(PROBLEM, inputs()), references_of(PROBLEM, changed)
    assert not np.array_equal(first.reference, second.reference)


@pytest.mark.parametrize("problem", [PROBLEM.with_(causal=False), PROBLEM.with_(scale=-0.5)], ids=str)
def test_the_mask_and_the_scale_make_another_result(problem: Problem) -> None:
    first, second = references_of(PROBLEM, inputs()), references_of(problem, inputs())
    assert not np.array_equal(first.reference, second.reference)
    assert not np.array_equal(first.log_sum_exp(NUMERICS)[0], second.log_sum_exp(NUMERICS)[0])


@pytest.mark.parametrize("first", [None, Quantisation(rows=8), Quantisation()], ids=str)
@pytest.mark.parametrize("quantised", [None, Quantisation(rows=8), Quantisation()], ids=str)
def test_each_quantisation_has_the_weights_of_its_own(
    first: Quantisation | None, quantised: Quantisation | None
) -> None:
    drawn, numerics = inputs(), replace(NUMERICS, quantised=quantised)
    scoring = PROBLEM.scoring_with(drawn.arrays)
    references = references_of(PROBLEM, drawn)
    references.limits(replace(NUMERICS, quantised=first))  # which computes its weights
    intended = intended_output(*drawn.qkv, numerics=numerics, **scoring)
    expected = limits_for(references.reference, references.yardstick, [intended], PROBLEM.dtype)
    assert references.limits(numerics) == expected
    for mine, alone in zip(
        references.log_sum_exp(numerics),
        log_sum_exp_float64(*drawn.qkv, numerics=numerics, **scoring),
        strict=True,
    ):
        assert np.array_equal(mine, alone, equal_nan=True)
    mine, alone = references.exact(numerics), exact_elements(*drawn.qkv, any_count=True, quantised=quantised, **scoring)
    assert mine is not None
    assert np.array_equal(mine.mask, alone.mask)
    assert np.array_equal(mine.expected, alone.expected)


def test_what_is_declared_makes_other_limits() -> None:
    references, half = references_of(PROBLEM, inputs()), replace(NUMERICS, accumulate="float16")
    assert references.limits(half).rel_l2 > references.limits(NUMERICS).rel_l2


def test_what_is_kept_cannot_be_changed() -> None:
    references = references_of(PROBLEM, inputs())
    for array in (references.reference, references.yardstick, *references.log_sum_exp(NUMERICS)):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_what_was_used_longest_ago_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [make_inputs(PROBLEM, seed=seed) for seed in range(3)]
    first, second = (references_of(PROBLEM, each) for each in drawn[:2])
    for each in (first, second):
        assert each.reference.size
    monkeypatch.setattr(references, "MOST_BYTES", 2 * first.nbytes)
    assert references_of(PROBLEM, drawn[0]) is first
    assert references_of(PROBLEM, drawn[2]).reference.size
    assert references_of(PROBLEM, drawn[0]) is first
    assert references_of(PROBLEM, drawn[1]) is not second


def test_a_failure_is_not_kept() -> None:
    nothing = inputs()
    nothing.k[...] = np.nan
    for _ in range(2):
        with pytest.raises(MachineError, match="no row is judged"):
            references_of(PROBLEM, nothing).limits(NUMERICS)
