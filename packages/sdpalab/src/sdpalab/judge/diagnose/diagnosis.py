"""The likely class of a bug, found from a wrong output by hypotheses that give the same output and by error patterns.

A hypothesis (:mod:`.hypotheses`, :mod:`.fitted`) explains a case if its output in the wrong rows equals the candidate's
within rounding errors, and is several times nearer than the right output. The diagnosis reports the cause that explains
most of the failed cases. It is a debugging hint and not part of the verdict.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import numpy.typing as npt

from sdpalab.bugs.cause import Cause
from sdpalab.judge.diagnose.failure import Failure, place
from sdpalab.judge.diagnose.fitted import fitted, moved
from sdpalab.judge.diagnose.gradients import LOOK, GradientFailure, explained
from sdpalab.judge.diagnose.hypotheses import Hypothesis, hypotheses, without_scores
from sdpalab.judge.diagnose.workings import TILES
from sdpalab.judge.rule.limits import LEAST_SUBNORMAL

__all__ = [
    "Diagnosis",
    "diagnose",
    "explanations",
    "first_sight",
    "gradient_explanations",
    "gradient_hint",
    "ranked_diagnoses",
]

ENOUGH = 3.0
"""Factor by which a hypothesis must be nearer to the output than the right output is."""
ROUNDING = 3.0
"""Largest distance of a hypothesis from the output, in units of the relative L2 limit."""
NOISE = 200.0
"""Largest relative L2 error of noise, in units of the limit; P or V in 8 bits reaches it."""
MOST_CASES, SMALL, MOST_SCORES = 4, 1 << 18, 1 << 22
"""Most failed cases that are diagnosed; most scores of the problems diagnosed first, and of any diagnosed problem."""
HINT_SCORES = 1 << 17
"""Most scores of a backward problem whose reason has a hint: its hypotheses take a second."""
MOST_PAIRS = 1 << 23
"""Most pairs of output rows that are compared, over all heads."""
FEWEST_ROWS = 3
"""Fewest wrong rows of a fit; fewer rows fit too many hypotheses."""
HARMLESS = 10.0
"""Largest score whose exponential overflows in no type."""

_PATTERNS = (Cause.EDGE, Cause.PLACE, Cause.PRECISION)
"""Causes that follow from the error pattern alone, where no hypothesis explains the output."""


@dataclass(frozen=True)
class Diagnosis:
    """A class of bugs, the detail, and for gradients the names of the wrong ones."""

    cause: Cause
    detail: str
    outputs: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.cause.value} ({self.detail})"
        if not self.outputs:
            return text
        look = f"; look at {LOOK[self.cause]}" if self.cause in LOOK else ""
        return f"{' and '.join(self.outputs)}: {text}{look}"


def diagnose(failures: Sequence[Failure | GradientFailure]) -> Diagnosis | None:
    """The first of :func:`ranked_diagnoses`, if there is one."""
    return next(iter(ranked_diagnoses(failures)), None)


def ranked_diagnoses(failures: Sequence[Failure | GradientFailure]) -> tuple[Diagnosis, ...]:
    """The causes that explain at least half of the failed cases, the likeliest first; none if all cases are too large.

    Causes that explain the output exclude causes from the error pattern; among causes with equal counts the most
    specific is the first.
    """
    by_failure = [
        gradient_explanations(failure) if isinstance(failure, GradientFailure) else explanations(failure)
        for failure in _chosen(failures)
    ]
    counts = Counter(cause for one in by_failure for cause in {diagnosis.cause for diagnosis in one})
    often = [cause for cause in Cause if counts[cause] and 2 * counts[cause] >= len(by_failure)]
    ranked = [cause for cause in often if cause not in _PATTERNS] or often
    diagnoses = []
    for cause in sorted(ranked, key=counts.__getitem__, reverse=True):
        diagnosed = [diagnosis for one in by_failure for diagnosis in one if diagnosis.cause is cause]
        details = [diagnosis.detail for diagnosis in diagnosed]
        diagnoses.append(max(diagnosed, key=lambda diagnosis: details.count(diagnosis.detail)))
    return tuple(diagnoses)


def _chosen(failures: Sequence[Failure | GradientFailure]) -> list[Failure | GradientFailure]:
    """The small problems with the largest errors, preferring larger problems among equal errors; without small
    problems, the smallest problem."""
    possible = sorted(
        (failure for failure in failures if failure.problem.scores <= _most_scores(failure)),
        key=lambda failure: failure.problem.scores,
    )
    small = [failure for failure in possible if failure.problem.scores <= SMALL]
    return sorted(small, key=lambda failure: failure.severity)[-MOST_CASES:] or possible[:1]


def _most_scores(failure: Failure | GradientFailure) -> int:
    return SMALL if isinstance(failure, GradientFailure) else MOST_SCORES


def gradient_explanations(failure: GradientFailure) -> tuple[Diagnosis, ...]:
    """All explanations of one case with wrong gradients, and patterns that fit the error of the worst gradient, the
    most specific first."""
    wrong = failure.wrong
    if not wrong:
        return ()
    diagnosed = [Diagnosis(cause, detail, wrong) for cause, detail in explained(failure)]
    worst = max(wrong, key=lambda name: failure.parts[name].severity)
    patterns = [replace(each, outputs=(worst,)) for each in _patterns(failure.parts[worst])]
    diagnosed += [each for each in patterns if each.cause is Cause.PRECISION] or patterns
    order = list(Cause)
    return tuple(sorted(diagnosed, key=lambda diagnosis: order.index(diagnosis.cause)))


def gradient_hint(failure: GradientFailure) -> str:
    """The first explanation of a small case in a sentence; empty without one."""
    diagnosed = gradient_explanations(failure) if failure.problem.scores <= HINT_SCORES else ()
    return f"hint: {diagnosed[0]}" if diagnosed else ""


def first_sight(failure: Failure) -> Diagnosis | None:
    """The most specific explanation of a failed case that needs no scores, cheap enough for every case."""
    return next(iter(explanations(failure, scores=False)), None)


def explanations(failure: Failure, *, scores: bool = True) -> tuple[Diagnosis, ...]:
    """All explanations of one failed case, and patterns that fit its error, the most specific first.

    Without ``scores`` only hypotheses without scores are tried.
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
        # Hypotheses without fitted parameters, or with whole rows moved, do not fit a row by chance.
        if few and guess.cause not in (Cause.NO_ATTENTION, Cause.ROWS):
            return False
        rows = judged if guess.cause is Cause.NO_ATTENTION else bad
        error, left = (float(np.linalg.norm((out - output)[rows])) for output in (right, guess.out))
        least = math.sqrt(out[rows].size) * LEAST_SUBNORMAL[failure.problem.dtype]
        size = max(float(np.linalg.norm(guess.out[rows])), least)
        return left <= error / ENOUGH and left <= ROUNDING * failure.limits.rel_l2 * size

    with np.errstate(all="ignore"):  # a hypothesis that divides by zero explains nothing
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
    """The wrong rows in words, if not all rows are wrong."""
    first, last = (int(n) for n in np.flatnonzero(bad.any(axis=(0, 1)))[[0, -1]])
    return f"; in {int(bad.sum())} of {bad.size} rows, with i from {first} to {last}"


def _not_finite(failure: Failure, bad: npt.NDArray[np.bool_]) -> Iterator[Diagnosis]:
    """Whether padding or large scores alone can explain the rows that are not finite: they were written, and all have
    padding or large scores."""
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
    bad, seq = failure.bad, failure.bad.shape[2]
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
    """Whether the error is spread over all rows and uncorrelated with the output's sign, as rounding errors are."""
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
