"""Hypotheses with a parameter or a permutation that is fitted to the wrong output."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sdpalab.bugs.cause import Cause
from sdpalab.judge.diagnose.failure import Failure
from sdpalab.judge.diagnose.hypotheses import Hypothesis
from sdpalab.judge.diagnose.workings import Float64Attention
from sdpalab.problem import Problem

__all__ = ["fitted", "moved"]

F64 = npt.NDArray[np.float64]
Rows = npt.NDArray[np.bool_]
Family: TypeAlias = Callable[[F64, float], tuple[F64, F64]]
"""Function from masked scores [..., Skv] and a positive parameter to the weights [..., Skv] and their sum [..., 1]."""


def fitted(failure: Failure, bad: Rows) -> Iterator[Hypothesis]:
    """Hypotheses with a fitted number.

    Parameters
    ----------
    failure : Failure
    bad : ndarray of bool, [B, H, Sq]
        Wrong rows, at least one.
    """
    w = failure.workings
    masked = np.where(w.hidden, -np.inf, w.scores)
    for cause, words, family in _FAMILIES:
        number = _number(family, w, failure.out.astype(np.float64), bad)
        yield Hypothesis(cause, words.format(number, _named(w.problem, number)), w.average(*family(masked, number)))


def moved(failure: Failure, bad: Rows) -> Iterator[Hypothesis]:
    """Hypotheses with a permutation of rows or columns, or with a factor per row."""
    out, right = np.where(failure.judged[..., None], failure.seen, 0.0), failure.right
    rows = _nearest(out, right)
    shifts = np.where(failure.judged, rows - np.arange(rows.shape[-1]), 0)
    yield Hypothesis(Cause.ROWS, _moved(shifts, "row"), np.take_along_axis(right, rows[..., None], axis=2))
    dim = out.shape[-1]
    columns = _nearest(*(array.reshape(1, 1, -1, dim).swapaxes(2, 3) for array in (out, right)))[0, 0]
    yield Hypothesis(Cause.COLUMNS, _moved(columns - np.arange(dim), "column"), right[..., columns])
    yield _multiples(out, right, bad)


def _multiples(out: F64, right: F64, bad: Rows) -> Hypothesis:
    """Hypothesis that each row is a multiple of the right one."""
    factors = (out * right).sum(-1, keepdims=True) / np.maximum(np.square(right).sum(-1, keepdims=True), 1e-300)
    low, high, middle = (float(statistic(factors[bad])) for statistic in (np.min, np.max, np.median))
    if high - low <= 0.01 * abs(middle):
        digits = 3 if abs(middle - 1.0) > 0.005 else 5
        return Hypothesis(Cause.NORMALISATION, f"{middle:.{digits}g} times the right ones", right * middle)
    detail = f"by {low:.3g} to {high:.3g}, {middle:.3g} in the middle"
    return Hypothesis(Cause.NORMALISATION, detail, right * factors)


def _scaled(scores: F64, factor: float) -> tuple[F64, F64]:
    return _exponentials(scores * factor)


def _clamped(scores: F64, level: float) -> tuple[F64, F64]:
    return _exponentials(np.where(np.isinf(scores), scores, np.clip(scores, -level, level)))


def _capped(scores: F64, level: float) -> tuple[F64, F64]:
    return _exponentials(np.where(np.isinf(scores), scores, level * np.tanh(scores / level)))


def _raised(scores: F64, level: float) -> tuple[F64, F64]:
    weights, _ = _exponentials(scores)
    weights = np.maximum(weights, math.exp(-level) * ~np.isinf(scores))
    return weights, weights.sum(axis=-1, keepdims=True)


def _dropped(scores: F64, level: float) -> tuple[F64, F64]:
    weights, _ = _exponentials(scores)
    weights = weights * (weights >= math.exp(-level))
    return weights, weights.sum(axis=-1, keepdims=True)


def _dropped_from_product(scores: F64, level: float) -> tuple[F64, F64]:
    return _dropped(scores, level)[0], _exponentials(scores)[1]


def _exponentials(scores: F64) -> tuple[F64, F64]:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights, weights.sum(axis=-1, keepdims=True)


_FAMILIES: tuple[tuple[Cause, str, Family], ...] = (
    (Cause.SCORES, "{0:.4g} times the right one{1}", _scaled),
    (Cause.EXPONENTIAL, "scores are clamped to +-{0:.3g}", _clamped),
    (Cause.EXPONENTIAL, "scores are capped smoothly at {0:.3g}", _capped),
    (Cause.EXPONENTIAL, "weights are at least exp(-{0:.3g})", _raised),
    (Cause.EXPONENTIAL, "weights below exp(-{0:.3g}) are taken for 0", _dropped),
    (
        Cause.EXPONENTIAL,
        "weights below exp(-{0:.3g}) are missing from the product, not from the sum",
        _dropped_from_product,
    ),
)
"""Bugs with one number as a parameter."""


def _number(family: Family, w: Float64Attention, out: F64, bad: Rows) -> float:
    """The parameter for which a family of bugs is nearest to the output, fitted on 32 rows spread over the bad rows."""
    where = np.argwhere(bad)
    b, h, i = where[:: max(1, len(where) // 32)].T
    hidden = np.broadcast_to(w.hidden, w.scores.shape)[b, h, i]
    scores, values, wanted = np.where(hidden, -np.inf, w.scores[b, h, i]), w.v[b, h], out[b, h, i]

    def distance(octaves: float) -> float:
        weights, total = family(scores, 2.0**octaves)
        output = np.matmul(weights[:, None], values)[:, 0] / np.maximum(total, 1e-300)
        return float(np.linalg.norm(output - wanted))

    best, step = 0.0, 0.5
    tried = np.arange(-8.0, 8.0 + step, step)
    while step > 1e-6:
        best = float(min(tried, key=distance))
        step /= 4.0
        tried = best + step * np.arange(-4, 5)
    return float(2.0**best)


def _named(problem: Problem, factor: float) -> str:
    """Expression of the factor in words, if it is a usual one."""
    usual = {
        "the scale is missing": 1.0 / (problem.scale or 1.0),
        "the scale is there twice": problem.scale,
        "it is not 1/sqrt(head_dim)": 1.0 / math.sqrt(problem.head_dim) / (problem.scale or 1.0),
        "log2(e) is missing": math.log(2.0),
        "log2(e) is there twice": math.log2(math.e),
    }
    close = [
        words for words, value in usual.items() if abs(factor - value) < 1e-3 * abs(value) and abs(value - 1.0) > 0.01
    ]
    return f": {close[0]}" if close else ""


def _nearest(out: F64, right: F64) -> npt.NDArray[np.intp]:
    """Index of the row of ``right`` in the same head that is nearest to each row of ``out`` [B, H, S, D]."""
    squares = np.square(right).sum(-1)
    distance = squares[:, :, None, :] - 2.0 * (out @ right.swapaxes(2, 3))
    nearest: npt.NDArray[np.intp] = distance.argmin(axis=-1)
    return nearest


def _moved(shifts: npt.NDArray[np.integer[Any]], called: str) -> str:
    """Origin of rows or columns in words; ``shifts`` are their displacements."""
    moved = shifts[shifts != 0]
    if not moved.size:
        return "none"
    sizes, counts = np.unique(np.abs(moved), return_counts=True)
    usual = int(sizes[counts.argmax()])
    share = f"{moved.size} of {shifts.size}"
    if counts.max() < 0.8 * moved.size:
        return f"{share} {called}s hold others"
    on = float((moved > 0).mean())  # not all, if rows are shifted cyclically
    way = "further on" if on > 0.9 else "further back" if on < 0.1 else "before or after"
    return f"{share} {called}s hold the {called} {usual} {way}"
