"""The likely class of a bug, from a wrong output: which hypothesis gives the same output, or what the error looks like.

A hypothesis (:mod:`sdpalab.judge.hypotheses`) explains a case if, in the rows that are wrong, its output is as near to
the candidate's as roundings allow, and several times nearer than the right one is. What explains most of the failed
cases is told. It is a guess for a human who looks for a bug, and decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from sdpalab.inputs import Inputs
from sdpalab.judge.hypotheses import TILES, Cause, Hypothesis, Workings, hypotheses
from sdpalab.judge.reference import judged_rows
from sdpalab.judge.rule import row_errors
from sdpalab.judge.verdict import Errors, Limits
from sdpalab.problem import Problem

__all__ = ["Diagnosis", "Failure", "diagnose", "explanations"]

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]

ENOUGH = 3.0
"""A hypothesis must be this many times nearer to the output than the right one is ..."""
ROUNDING = 3.0
"""... and within this many times the limit of the relative L2 error."""
NOISE = 200.0
"""Noise is at most this many times the limit: P or V in 8 bits is."""
MOST_CASES, MOST_SCORES = 4, 1 << 18
"""How many failed cases are looked at, and how large the problems are that are looked at first."""
FEWEST_ROWS = 3
"""Fewer wrong rows than these fit too much."""
HARMLESS = 10.0
"""No type overflows from exponentials of scores up to this."""

_PATTERNS = (Cause.EDGE, Cause.PLACE, Cause.PRECISION)
"""What is told from the look of the error only, where nothing explains the output."""


@dataclass(frozen=True)
class Failure:
    """A case that is INCORRECT or NOT_FINITE: what was computed, and what came out."""

    problem: Problem
    inputs: Inputs
    out: Array
    errors: Errors
    limits: Limits

    @property
    def severity(self) -> float:
        """How far beyond its limit the error is; beyond 100 times it is all the same."""
        return min(100.0, self.errors.rms_row_rel_l2 / self.limits.rms_row_rel_l2)


@dataclass(frozen=True)
class Diagnosis:
    """A class of bugs, and what in particular."""

    cause: Cause
    detail: str

    def __str__(self) -> str:
        return f"{self.cause.value} ({self.detail})"


def diagnose(failures: Sequence[Failure]) -> Diagnosis | None:
    """What most of the failed cases have in common; None if nothing explains any, or there is none.

    A cause that explains the output beats one that is only told from the error's look; of causes that explain equally
    many cases, the more special one is told.
    """
    found = [explanations(failure) for failure in _chosen(failures)]
    order = list(Cause)
    votes: dict[Cause, list[Diagnosis]] = {}
    for one in found:
        for cause in dict.fromkeys(diagnosis.cause for diagnosis in one):
            votes.setdefault(cause, []).append(next(diagnosis for diagnosis in one if diagnosis.cause is cause))
    strong = {cause: told for cause, told in votes.items() if cause not in _PATTERNS and 2 * len(told) >= len(found)}
    ranked = strong or votes
    if not ranked:
        return None
    cause = max(ranked, key=lambda cause: (len(ranked[cause]), -order.index(cause)))
    details = [diagnosis.detail for one in found for diagnosis in one if diagnosis.cause is cause]
    return Diagnosis(cause, max(details, key=details.count))


def _chosen(failures: Sequence[Failure]) -> list[Failure]:
    """The most wrong ones of the problems that are small, and of these the largest; else the smallest problem."""
    small = [failure for failure in failures if failure.problem.scores <= MOST_SCORES]
    small.sort(key=lambda failure: (failure.severity, failure.problem.scores))
    return small[-MOST_CASES:] or sorted(failures, key=lambda failure: failure.problem.scores)[:1]


def explanations(failure: Failure) -> tuple[Diagnosis, ...]:
    """All that explains one failed case, or fits the look of its error; the special before the general."""
    problem, inputs, out = failure.problem, failure.inputs, failure.out.astype(np.float64)
    asked = judged_rows(inputs.q, inputs.k, inputs.v)
    judged = asked & np.isfinite(out).all(axis=-1)
    workings = Workings(problem, inputs)
    if 2 * np.count_nonzero(judged) <= np.count_nonzero(asked):
        return tuple(_not_finite(workings, failure, asked & ~judged))
    right = workings.right
    bad = judged & (
        row_errors(np.where(judged[..., None], out, right), right, problem.dtype) > failure.limits.worst_row_rel_l2
    )
    if np.count_nonzero(bad) < FEWEST_ROWS:
        bad = judged
    where = "" if bad[judged].all() else _rows(bad)

    def explains(guess: Hypothesis) -> bool:
        rows = judged if guess.cause is Cause.NO_ATTENTION else bad
        error, left = (float(np.linalg.norm((out - made)[rows])) for made in (right, guess.out))
        size = max(float(np.linalg.norm(guess.out[rows])), math.ulp(0.0))
        return left <= error / ENOUGH and left <= ROUNDING * failure.limits.rel_l2 * size

    with np.errstate(all="ignore"):  # what divides by zero explains nothing
        tried = (*hypotheses(workings), *_fitted(workings, out, judged, bad))
        told = [Diagnosis(guess.cause, f"{guess.detail}{where}") for guess in tried if explains(guess)]
    patterns = _patterns(failure, np.where(judged[..., None], out, right), right)
    found = (*told, *_not_finite(workings, failure, asked & ~judged), *patterns)
    order = list(Cause)
    return tuple(sorted(found, key=lambda diagnosis: order.index(diagnosis.cause)))


def _rows(bad: npt.NDArray[np.bool_]) -> str:
    """Which rows are wrong, where not all are."""
    first, last = (int(n) for n in np.flatnonzero(bad.any(axis=(0, 1)))[[0, -1]])
    return f"; in {int(bad.sum())} of {bad.size} rows, with i from {first} to {last}"


def _not_finite(w: Workings, failure: Failure, bad: npt.NDArray[np.bool_]) -> Iterator[Diagnosis]:
    """Whether large scores alone can have made the rows that are not finite: they were written, and all have some."""
    written = (failure.out.view(np.uint16) != 0xFFFF).all(axis=-1)
    if not (bad & written).any():
        return
    largest = np.abs(np.where(w.hidden, 0.0, w.scores)).max(axis=-1)[bad & written]
    if float(largest.min()) > HARMLESS:
        yield Diagnosis(Cause.RANGE, f"NaN or infinity where scores reach {float(largest.min()):.3g} in size")


def _fitted(w: Workings, out: F64, judged: npt.NDArray[np.bool_], bad: npt.NDArray[np.bool_]) -> Iterator[Hypothesis]:
    """Hypotheses with a number or an order in them that is taken from the output, in the rows that are ``bad``."""
    out, right = np.where(judged[..., None], out, 0.0), np.where(judged[..., None], w.right, 0.0)
    masked = np.where(w.hidden, -np.inf, w.scores)
    for cause, words, family in _FAMILIES:
        number = _nearest_of(family, w, out, bad)
        detail = words.format(number, _named(w.problem, number))
        yield Hypothesis(cause, detail, w.average(*family(masked, number)))
    rows = _nearest(out, right)
    shifts = np.where(judged, rows - np.arange(rows.shape[-1]), 0)
    yield Hypothesis(Cause.ROWS, _moved(shifts), np.take_along_axis(w.right, rows[..., None], axis=2))
    by_column = (right.reshape(-1, right.shape[-1]).T, out.reshape(-1, out.shape[-1]).T)
    columns = _nearest(by_column[1][None, None], by_column[0][None, None])[0, 0]
    yield Hypothesis(Cause.COLUMNS, _moved(columns - np.arange(columns.size), "column"), w.right[..., columns])
    scales = (out * right).sum(-1, keepdims=True) / np.maximum(np.square(right).sum(-1, keepdims=True), 1e-300)
    low, high, middle = (float(statistic(scales[bad])) for statistic in (np.min, np.max, np.median))
    alike = high - low <= 0.01 * abs(middle)
    yield Hypothesis(
        Cause.NORMALISATION,
        f"all by {middle:.4g}" if alike else f"by {low:.3g} to {high:.3g}, {middle:.3g} in the middle",
        w.right * (middle if alike else scales),
    )


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


_FAMILIES: tuple[tuple[Cause, str, Callable[[F64, float], tuple[F64, F64]]], ...] = (
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
"""Bugs with a positive number in them: masked scores [..., Skv] and the number give the weights and their sum."""


def _nearest_of(
    family: Callable[[F64, float], tuple[F64, F64]], w: Workings, out: F64, bad: npt.NDArray[np.bool_]
) -> float:
    """The number that brings a family of bugs nearest to the output, from 32 rows spread over those that are bad."""
    where = np.argwhere(bad)
    b, h, i = where[:: max(1, len(where) // 32)].T
    scores, values, wanted = np.where(w.hidden[i], -np.inf, w.scores[b, h, i]), w.v[b, h], out[b, h, i]

    def distance(octaves: float) -> float:
        weights, total = family(scores, 2.0**octaves)
        made = np.matmul(weights[:, None], values)[:, 0] / np.maximum(total, 1e-300)
        return float(np.linalg.norm(made - wanted))

    best, step = 0.0, 0.5
    tried = np.arange(-8.0, 8.0 + step, step)
    while step > 1e-6:
        best = float(min(tried, key=distance))
        step /= 4.0
        tried = best + step * np.arange(-4, 5)
    return float(2.0**best)


def _named(problem: Problem, factor: float) -> str:
    """What the factor is made of, if it is one of the usual ones."""
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
    """For each row of ``out`` [B, H, S, D], which row of the same head of ``right`` is nearest."""
    squares = np.square(right).sum(-1)
    distance = squares[:, :, None, :] - 2.0 * (out @ right.swapaxes(2, 3))
    nearest: npt.NDArray[np.intp] = distance.argmin(axis=-1)
    return nearest


def _moved(shifts: npt.NDArray[np.integer[Any]], called: str = "row") -> str:
    """Where rows or columns come from, in words: ``shifts`` is how far each is moved."""
    moved = shifts[shifts != 0]
    if not moved.size:
        return "none"
    sizes, counts = np.unique(np.abs(moved), return_counts=True)
    usual = int(sizes[counts.argmax()])
    share = f"{moved.size} of {shifts.size}"
    if counts.max() < 0.8 * moved.size:
        return f"{share} {called}s hold others"
    on = float((moved > 0).mean())  # not all, where rows are shifted around
    way = "further on" if on > 0.9 else "further back" if on < 0.1 else "before or after"
    return f"{share} {called}s hold the {called} {usual} {way}"


def _patterns(failure: Failure, out: F64, right: F64) -> Iterator[Diagnosis]:
    """What the error looks like."""
    rows = row_errors(out, right, failure.problem.dtype)
    bad = rows > failure.limits.worst_row_rel_l2
    seq = bad.shape[2]
    wrong = bad.any(axis=(0, 1))
    if wrong.any() and not wrong.all():
        first, last = (int(n) for n in np.flatnonzero(wrong)[[0, -1]])
        tiles = [tile for tile in TILES if tile < seq and first >= seq // tile * tile and seq % tile]
        if last == seq - 1 and (tiles or first == last):
            tile = f", after the last multiple of {tiles[-1]}" if tiles else ""
            yield Diagnosis(Cause.EDGE, f"rows from i={first} on{tile}")
        elif wrong[first : last + 1].all() and last == seq - 1:
            yield Diagnosis(Cause.PLACE, f"all rows from i={first} on")
        else:
            yield Diagnosis(Cause.PLACE, _rows(bad).removeprefix("; "))
    heads = bad.any(axis=2)
    if heads.any() and not heads.all():
        b, h = (int(n) for n in np.argwhere(heads)[0])
        yield Diagnosis(Cause.PLACE, f"{int(heads.sum())} of {heads.size} heads, the first at (b={b}, h={h})")
    over = np.abs(out - right).max(axis=(0, 1, 2)) > failure.limits.max_abs
    if over.any() and not over.all() and not over[:-1].any():
        yield Diagnosis(Cause.EDGE, f"column d={over.size - 1}")
    yield from _noise(failure, out, right, rows)


def _noise(failure: Failure, out: F64, right: F64, rows: F64) -> Iterator[Diagnosis]:
    """Whether the error is spread over all rows and does not go with the output's sign: what roundings do."""
    error = out - right
    size, norm = float(np.linalg.norm(error)), float(np.linalg.norm(right))
    if not size or not norm or size > NOISE * failure.limits.rel_l2 * norm:
        return
    along = abs(float(np.vdot(error, right))) / (size * norm)
    typical = float(np.sqrt(np.mean(np.square(rows))))
    if along < 0.5 and float(np.median(rows)) > 0.25 * typical:
        if failure.problem.dtype == "float16" and (out == out.astype(ml_dtypes.bfloat16).astype(np.float64)).all():
            detail = "every element is a bfloat16 number"
        else:
            detail = f"relative L2 {size / norm:.2g}, {size / norm / failure.limits.rel_l2:.1f} times the limit"
        yield Diagnosis(Cause.PRECISION, detail)
