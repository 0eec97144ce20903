"""The likely class of a bug, from a wrong output: which hypothesis gives the same output, or which pattern the error
has.

A hypothesis (:mod:`.hypotheses`, :mod:`.fitted`) explains a case if, in the rows that are wrong, its output is as near
to the candidate's as roundings allow, and several times nearer than the right one is. The cause that explains most of
the failed cases is reported. It is a hint for debugging and not part of the verdict.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

from sdpalab.judge.diagnose.failure import Failure, place
from sdpalab.judge.diagnose.fitted import fitted, moved
from sdpalab.judge.diagnose.hypotheses import Cause, Hypothesis, hypotheses, without_scores
from sdpalab.judge.diagnose.workings import TILES
from sdpalab.judge.rule.limits import LEAST_SUBNORMAL

__all__ = ["Diagnosis", "diagnose", "explanations", "first_sight"]

ENOUGH = 3.0
"""A hypothesis must be this many times nearer to the output than the right one is ..."""
ROUNDING = 3.0
"""... and within this many times the limit of the relative L2 error."""
NOISE = 200.0
"""Noise is at most this many times the limit: P or V in 8 bits is."""
MOST_CASES, SMALL, MOST_SCORES = 4, 1 << 18, 1 << 22
"""How many failed cases are looked at; the scores of the problems that are looked at first, and of any at all."""
MOST_PAIRS = 1 << 23
"""Pairs of rows of the output, of all heads together, that are compared at most."""
FEWEST_ROWS = 3
"""Fewer wrong rows than these fit too much."""
HARMLESS = 10.0
"""No type overflows from exponentials of scores up to this."""

_PATTERNS = (Cause.EDGE, Cause.PLACE, Cause.PRECISION)
"""Causes that follow from the pattern of the error alone, where no hypothesis explains the output."""


@dataclass(frozen=True)
class Diagnosis:
    """A class of bugs, and the detail."""

    cause: Cause
    detail: str

    def __str__(self) -> str:
        return f"{self.cause.value} ({self.detail})"


def diagnose(failures: Sequence[Failure]) -> Diagnosis | None:
    """What explains half of the failed cases or more; None if nothing does, there is none, or all are too large.

    A cause that explains the output precedes one that follows from the error's pattern; of causes that explain equally
    many cases, the more special one is reported.
    """
    by_failure = [explanations(failure) for failure in _chosen(failures)]
    counts = Counter(cause for one in by_failure for cause in {diagnosis.cause for diagnosis in one})
    often = [cause for cause in Cause if counts[cause] and 2 * counts[cause] >= len(by_failure)]
    ranked = [cause for cause in often if cause not in _PATTERNS] or often
    if not ranked:
        return None
    cause = max(ranked, key=counts.__getitem__)  # the first of the most frequent ones
    details = [diagnosis.detail for one in by_failure for diagnosis in one if diagnosis.cause is cause]
    return Diagnosis(cause, max(details, key=details.count))


def _chosen(failures: Sequence[Failure]) -> list[Failure]:
    """The most wrong ones of the small problems, and of those the largest; without any, the smallest problem."""
    possible = sorted(
        (failure for failure in failures if failure.problem.scores <= MOST_SCORES),
        key=lambda failure: failure.problem.scores,
    )
    small = [failure for failure in possible if failure.problem.scores <= SMALL]
    return sorted(small, key=lambda failure: failure.severity)[-MOST_CASES:] or possible[:1]


def first_sight(failure: Failure) -> Diagnosis | None:
    """The most special explanation of a failed case that needs no scores: cheap enough for every case."""
    return next(iter(explanations(failure, scores=False)), None)


def explanations(failure: Failure, *, scores: bool = True) -> tuple[Diagnosis, ...]:
    """All explanations of one failed case, and patterns that fit its error; the special before the general.

    Without ``scores`` only those hypotheses are tried that take none.
    """
    asked, judged, right, out = failure.asked, failure.judged, failure.right, failure.seen
    not_finite = tuple(_not_finite(failure, asked & ~judged)) if (asked & ~judged).any() and scores else ()
    bad = failure.bad
    if 2 * np.count_nonzero(judged) <= np.count_nonzero(asked) or (not_finite and not bad.any()):
        return not_finite
    few = 0 < np.count_nonzero(bad) < FEWEST_ROWS
    if not bad.any():
        bad = judged
    where = "" if bad[judged].all() else _rows(bad)

    def explains(guess: Hypothesis) -> bool:
        # What has nothing in it to fit, or takes a whole row from elsewhere, does not fit a row by chance.
        if few and guess.cause not in (Cause.NO_ATTENTION, Cause.ROWS):
            return False
        rows = judged if guess.cause is Cause.NO_ATTENTION else bad
        error, left = (float(np.linalg.norm((out - output)[rows])) for output in (right, guess.out))
        least = math.sqrt(out[rows].size) * LEAST_SUBNORMAL[failure.problem.dtype]
        size = max(float(np.linalg.norm(guess.out[rows])), least)
        return left <= error / ENOUGH and left <= ROUNDING * failure.limits.rel_l2 * size

    with np.errstate(all="ignore"):  # what divides by zero explains nothing
        tried = [*without_scores(failure.workings)]
        if scores:
            tried += [*hypotheses(failure.workings), *fitted(failure, bad)]
        if failure.bad.size * failure.problem.seq_q <= MOST_PAIRS:
            tried += moved(failure, bad)
        matches = [Diagnosis(guess.cause, f"{guess.detail}{where}") for guess in tried if explains(guess)]
    diagnoses = (*matches, *not_finite, *_patterns(failure))
    order = list(Cause)
    return tuple(sorted(diagnoses, key=lambda diagnosis: order.index(diagnosis.cause)))


def _rows(bad: npt.NDArray[np.bool_]) -> str:
    """Which rows are wrong, where not all are."""
    first, last = (int(n) for n in np.flatnonzero(bad.any(axis=(0, 1)))[[0, -1]])
    return f"; in {int(bad.sum())} of {bad.size} rows, with i from {first} to {last}"


def _not_finite(failure: Failure, bad: npt.NDArray[np.bool_]) -> Iterator[Diagnosis]:
    """Whether padding or large scores alone can have made the rows that are not finite: they were written, and all have
    some."""
    w, written = failure.workings, ~failure.untouched.any(axis=-1)
    if not (bad & written).any():
        return
    if np.broadcast_to(w.hidden, w.scores.shape)[bad].all():
        why = "they have no maximum, or padding is read" if failure.padding else "they have no maximum"
        yield Diagnosis(Cause.RANGE, f"only rows that see no key are not finite, and must be 0: {why}")
        return
    if failure.padding:
        yield Diagnosis(Cause.PADDING, failure.padding)
    largest = np.abs(np.where(w.hidden, 0.0, w.scores)).max(axis=-1)[bad & written]
    if float(largest.min()) > HARMLESS:
        yield Diagnosis(Cause.RANGE, f"NaN or infinity where scores reach {float(largest.min()):.3g} in size")


def _patterns(failure: Failure) -> Iterator[Diagnosis]:
    """The pattern of the error."""
    bad, seq = failure.bad, failure.problem.seq_q
    wrong = np.asarray(bad.any(axis=(0, 1)))
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
        first_head = place(tuple(int(n) for n in np.argwhere(heads)[0]))
        yield Diagnosis(Cause.PLACE, f"{int(heads.sum())} of {heads.size} heads, the first at {first_head}")
    out, right = failure.seen, failure.right
    over = np.abs(out - right).max(axis=(0, 1, 2)) > failure.limits.max_abs
    if over.any() and not over.all() and not over[:-1].any():
        yield Diagnosis(Cause.EDGE, f"column d={over.size - 1}")
    yield from _noise(failure)


def _noise(failure: Failure) -> Iterator[Diagnosis]:
    """Whether the error is spread over all rows and does not go with the output's sign: what roundings do."""
    out, right, rows = failure.seen, failure.right, failure.rows
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
