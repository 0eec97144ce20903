"""Elements of the gradients that the inputs fix bit for bit (:mod:`sdpalab.judge.rule.exact` has those of O).

- dQ of a row is 0 if its dO is 0, because dP and delta are then 0; if it sees no key; or if all its keys are 0.
- dK of a key is 0 if every row that sees it has a dO of 0 or a Q of 0; a key that no row sees is such a key.
- dV of a key is 0 if every row that sees it has a dO of 0. Otherwise it is fixed where each row that sees it is *level*
  (all weights are equal, and their number is a power of 2, so that P is exact) or *dominated* (one key has all but
  2**-14 of the weight, and P is 1 there and negligible elsewhere), and the sum of P dO, with the float32 errors of P
  and of the sum on either side, rounds to one number of the output type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import visible_keys
from sdpalab.inputs.reference import finite, weight_blocks, weight_sums
from sdpalab.judge.rule.exact import (
    EXP_ERROR,
    EXPONENT_ERROR,
    LEAST_NORMAL,
    MERGE_ERROR,
    MOST_INTEGER,
    MOST_REST,
    TERM_ERROR,
    ExactElements,
    rounded_to,
)
from sdpalab.judge.rule.gradients import judged_gradients

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdpalab.scoring import Scoring

__all__ = ["exact_gradients"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
F64 = npt.NDArray[np.float64]

LEVEL_ERROR = EXP_ERROR
"""Relative error of P in a level row, from exp of the difference of a score and its log-sum-exp, without rounding to 16
bits."""
TOP_ERROR = 2.0**-13
"""Largest error of the P of a dominant key that is less than half an ulp of 1 in float16."""


def exact_gradients(
    q: Array, k: Array, v: Array, do: Array, *, zeros_only: bool = False, **scoring: Unpack[Scoring]
) -> dict[str, ExactElements]:
    """The exact elements of dQ, dK and dV, by name.

    Parameters
    ----------
    q, k, v, do, **scoring
        As in :func:`sdpalab.judge.rule.gradients.attention_gradients`.
    zeros_only : bool
        Whether only zeros are exact: true for candidates that may add up parts of dV in 16 bits, as torch does on CPUs.
    """
    group, rows = q.shape[1] // k.shape[1], np.arange(q.shape[2])
    judged = judged_gradients(q, k, v, do, **scoring)
    q, k, do = finite(q), finite(k), finite(do)
    zero = {name: np.ones(array.shape, np.bool_) for name, array in judged.items()}
    value, reach = np.zeros(v.shape), np.zeros(v.shape)
    for each in weight_blocks(q, k, **scoring):
        b, h, block = each.place
        at = b, h // group
        gradient = do[b, h, block].astype(np.float64)
        active = gradient.any(axis=1)
        visible = visible_keys(rows[block], k.shape[2], head=(b, h), **scoring)
        zero["dq"][b, h, block] = ~active | ~(visible & k[at].any(axis=1)).any(axis=1)
        zero["dk"][at] &= ~visible[active & q[b, h, block].any(axis=1)].any(axis=0)
        zero["dv"][at] &= ~visible[active].any(axis=0)
        weights, total = each.weights, weight_sums(each.total)
        level, dominated = _regular_rows(weights, total, visible, "sinks" in scoring)
        fixed_rows = level | dominated
        if fixed_rows.any():
            query, p = q[b, h, block][fixed_rows].astype(np.float64), weights[fixed_rows] / total[fixed_rows]
            score_error = abs(scoring["scale"]) * _score_errors(query, k[at].astype(np.float64))
            level_rows = level[fixed_rows]
            certain = level_rows | (score_error <= TOP_ERROR / 2.0)
            errors = np.where(level_rows[:, None], LEVEL_ERROR * p, np.where(p > 0.5, TOP_ERROR, 4.0 * p))
            terms = gradient[fixed_rows][certain]
            value[at] += p[certain].T @ terms
            reach[at] += (errors[certain] + MERGE_ERROR * p[certain]).T @ np.abs(terms)
            fixed_rows[fixed_rows] = certain
        free = ~fixed_rows
        if free.any():  # no sum with such a row is fixed
            reach[at][np.ix_((weights[free] > 0.0).any(axis=0), gradient[free].any(axis=0))] = np.inf
    results = {}
    for name, array in (("dq", q), ("dk", k)):
        mask = np.broadcast_to((zero[name] & judged[name])[..., None], array.shape)
        results[name] = ExactElements(np.zeros(array.shape, q.dtype), mask, _no_keys(mask))
    reach += np.where(reach > 0.0, LEAST_NORMAL, 0.0)
    zeros = zero["dv"][..., None]
    low, high = rounded_to(value - reach, v.dtype), rounded_to(value + reach, v.dtype)
    fixed = (((low == high) & (not zeros_only)) | zeros) & judged["dv"][..., None]
    results["dv"] = ExactElements(np.where(fixed & ~zeros, low, low.dtype.type(0)), fixed, _no_keys(fixed))
    return results


def _score_errors(q: F64, k: F64) -> F64:
    """Largest float32 error of the products of each row of Q with all K, and of the exponent, [rows].

    The products have no error where all their terms are multiples of one number, and small.
    """
    largest = np.linalg.norm(q, axis=1) * np.linalg.norm(k, axis=1).max()
    steps = np.abs(q).sum(axis=1) * np.abs(k).max() / (_unit(q) * _unit(k))
    errors: F64 = largest * (EXPONENT_ERROR + np.where(steps < MOST_INTEGER, 0.0, TERM_ERROR * q.shape[1]))
    return errors


def _unit(values: F64) -> float:
    """The largest power of 2 of which all values, of at most 24 bits, are multiples; 1 if all are 0."""
    fraction, exponent = np.frexp(values[values != 0.0])
    whole = np.abs(fraction * 2.0**24).astype(np.int64)
    units = np.ldexp((whole & -whole).astype(np.float64), exponent - 24)
    return float(units.min(initial=np.inf)) if units.size else 1.0


def _regular_rows(weights: F64, total: F64, visible: Bools, sinks: bool) -> tuple[Bools, Bools]:
    """Masks of the level rows, and of the dominated rows that are not level, [rows]."""
    top, count = weights.max(axis=1), visible.sum(axis=1)
    level = (count & (count - 1) == 0) & (not sinks)
    last = visible.shape[1] - 1 - visible[:, ::-1].argmax(axis=1)
    level &= (weights[np.arange(len(weights)), last] == top) | (count == 0)
    level[level] = (np.where(visible[level], weights[level], top[level, None]) == top[level, None]).all(axis=1)
    return level, (top >= (1.0 - MOST_REST) * total[:, 0]) & ~level


def _no_keys(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    return np.full(mask.shape[:-1], -1, np.int64)
