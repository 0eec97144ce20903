"""The elements of an output that its inputs fix bit for bit, written a second time."""

from __future__ import annotations

from typing import Any

import numpy as np

from sdpalab.evidence.verifier.arrays import Problem, rounded
from sdpalab.evidence.verifier.attention import judged_rows, weights_of

__all__ = ["fixed_elements"]


def fixed_elements(q: Any, k: Any, v: Any, problem: Problem, any_count: bool) -> tuple[Any, Any]:
    """The elements of the output that the inputs fix bit for bit: their values and where they are, [B, H, Sq, D].

    Two kinds of rows have them. Where one key outweighs all others together, the row of O is that row of V; where all
    scores are 0 and V are integers, it is their exact mean (of a power of two of keys, unless ``any_count``). Of
    either, an element is fixed if all that float32 arithmetic may make of it rounds to one number.
    """
    expected, mask = np.zeros(q.shape, np.float32), np.zeros(q.shape, bool)
    judged = judged_rows(q, k, v)
    q, k, v = (np.where(np.isfinite(x), x, np.float32(0)).astype(np.float64) for x in (q, k, v))
    last = np.full(problem["seq_q"], problem["seq_kv"] - 1)
    if problem["causal"]:
        last = np.minimum(np.arange(problem["seq_q"]), last)
    countable = np.array([any_count or not n & (n - 1) for n in (last + 1).tolist()])
    for (b, h, rows), head, weights in weights_of(q, k, problem):
        values, keys, end = v[head], k[head], last[rows]
        # level rows
        level = (q[b, h, rows] == 0).all(axis=1) | np.logical_and.accumulate((keys == 0).all(axis=1))[end]
        level = (level | (problem["scale"] == 0)) & countable[rows]
        whole = np.logical_and.accumulate(values == np.rint(values), axis=0)[end]
        whole &= np.cumsum(np.abs(values), axis=0)[end] <= 2.0**24
        mean = np.cumsum(values, axis=0)[end] / (end + 1)[:, None]
        largest = np.maximum.accumulate(np.abs(values), axis=0)[end]
        reach = 2.0**-14 * np.abs(mean) + 2.0**-18 * largest + 2.0**-126
        # dominated rows
        rest, chosen = weights.sum(axis=1) - 1, values[weights.argmax(axis=1)]
        score = abs(problem["scale"]) * np.sqrt(np.sum(q[b, h, rows] ** 2, axis=1) * np.sum(keys**2, axis=1).max())
        rest = rest * 2 * np.exp(np.minimum(2.0**-21 * problem["head_dim"] * score, 100))
        near = rest[:, None] * (np.abs(values).max(axis=0) + np.abs(chosen)) + 2.0**-126 * (chosen != 0)
        near = near + np.abs(chosen) * (2.0**-14 + 2.0**-23 * score)[:, None]
        for value, radius, holds in (
            (mean, reach, whole & level[:, None]),
            (chosen, near, np.broadcast_to((rest < 2.0**-14)[:, None], chosen.shape)),
        ):
            low, high = (rounded(value + side * radius, problem["dtype"]) for side in (-1, 1))
            fixed = holds & (low == high) & judged[b, h, rows][:, None]
            expected[b, h, rows] = np.where(fixed, low, expected[b, h, rows])
            mask[b, h, rows] |= fixed
    return expected, mask
