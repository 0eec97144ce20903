"""The inputs of a case are made once for all kernels, and no one can change them for the next."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from sdpalab.inputs import Inputs, make_inputs
from sdpalab.judge import case_inputs as module
from sdpalab.judge.case_inputs import case_inputs
from sdpalab.judge.small_cases import CaseSpec
from sdpalab.problem import Problem

PROBLEM = Problem(2, 2, 20, 32, kv_lengths=(3, 20), causal=True)


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds of all inputs that are made; nothing is kept from other tests."""
    drawn: list[int] = []

    def make(problem: Problem, kind: str, seed: int) -> Inputs:
        drawn.append(seed)
        return make_inputs(problem, kind, seed)

    monkeypatch.setattr(module, "_cache", OrderedDict())
    monkeypatch.setattr(module, "make_inputs", make)
    return drawn


@pytest.mark.parametrize("again", [False, True])
def test_they_are_those_of_make_inputs(seeds: list[int], again: bool) -> None:
    expected = make_inputs(PROBLEM, "outlier", 5).arrays
    for array in case_inputs(CaseSpec("case", PROBLEM, "outlier", 5)).arrays.values() if again else ():
        array[...] = 1
    arrays = case_inputs(CaseSpec("case", PROBLEM, "outlier", 5)).arrays
    assert arrays.keys() == expected.keys() == {"q", "k", "v", "kv_lengths"}
    assert all(np.array_equal(arrays[name], expected[name], equal_nan=True) for name in expected)
    assert seeds == [5]


def test_each_argument_makes_others(seeds: list[int]) -> None:
    one = case_inputs(CaseSpec("case", PROBLEM.with_(scale=0.0), "normal", 1))
    for other in (
        case_inputs(CaseSpec("case", PROBLEM.with_(scale=-0.0), "normal", 1)),
        case_inputs(CaseSpec("case", PROBLEM.with_(scale=0.0), "outlier", 1)),
        case_inputs(CaseSpec("case", PROBLEM.with_(scale=0.0), "normal", 2)),
    ):
        assert not np.array_equal(one.q, other.q)
    assert len(seeds) == 4


def test_what_was_used_longest_ago_goes_first(seeds: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 2 * sum(each.nbytes for each in make_inputs(PROBLEM).arrays.values()))
    for seed in (0, 1, 0, 2, 0, 1):
        case_inputs(CaseSpec("case", PROBLEM, "normal", seed))
    assert seeds == [0, 1, 2, 1]
