"""Other inputs that look the same: every fingerprint is kept, and the answer is another."""

from __future__ import annotations

import numpy as np
import pytest

from sdpalab.inputs import make_inputs
from sdpalab.inputs.reference import attention_float64
from sdpalab.judge.stale import other_inputs
from sdpalab.problem import Problem


@pytest.mark.parametrize("problem", [Problem(2, 4, 33, 32, kv_heads=2), Problem(1, 2, 64, 64, seq_kv=5, causal=True)])
def test_fingerprints_are_kept_and_the_answer_is_not(problem: Problem) -> None:
    inputs = make_inputs(problem)
    other = other_inputs(inputs, 7)
    for name, array in inputs.arrays.items():
        changed = getattr(other, name)
        assert changed.tobytes() != array.tobytes()
        assert changed.dtype == array.dtype
        assert np.array_equal(changed[:, :, [0, -1]], array[:, :, [0, -1]])
        assert np.array_equal(np.sort(changed, axis=2), np.sort(array, axis=2))  # so are sums, norms and extremes
    answers = [
        attention_float64(each.q, each.k, each.v, scale=problem.scale, causal=problem.causal)
        for each in (inputs, other)
    ]
    rows = np.linalg.norm(answers[0] - answers[1], axis=-1) / np.linalg.norm(answers[0], axis=-1)
    assert np.median(rows) > 0.1


def test_the_order_is_drawn_from_the_seed() -> None:
    inputs = make_inputs(Problem(1, 1, 33, 32))
    drawn = [other_inputs(inputs, seed).k.tobytes() for seed in (1, 2, 1)]
    assert drawn[0] == drawn[2] != drawn[1]


@pytest.mark.parametrize(
    "problem", [Problem(1, 1, 1, 32), Problem(1, 1, 3, 32, seq_kv=40), Problem(1, 1, 40, 32, seq_kv=1)]
)
def test_where_there_is_nothing_to_reorder_v_is_negated(problem: Problem) -> None:
    inputs = make_inputs(problem)
    assert np.array_equal(other_inputs(inputs, 0).v, -inputs.v)
