"""The reason of a failed case: the worst index and the worst row in a sentence, and the likely cause if it is clear."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from sdpalab.judge.diagnose.diagnosis import first_sight
from sdpalab.judge.diagnose.failure import Failure, place
from sdpalab.judge.rule.exact import ExactElements
from sdpalab.judge.rule.limits import FACTORS, factors_of
from sdpalab.judge.rule.log_sum_exp import wrongly_infinite
from sdpalab.judge.verdict import Errors, Limited, LseErrors

__all__ = ["incorrect_reason", "lse_reason", "not_finite_reason"]

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]


def incorrect_reason(failure: Failure, broken: tuple[str, ...], exact: ExactElements | None) -> str:
    """The exceeded limits and their factors, the worst places, the first wrong exact element, and a hint."""
    errors, limits, factors = failure.errors, failure.limited, factors_of(failure.problem.dtype, failure.output != "o")
    at = place(errors.max_abs_index)
    parts = [f"max error {errors.max_abs:.3g} at {at} is within its limit"]
    if "max_abs" in broken:
        parts = [
            f"max error {errors.max_abs:.3g} at {at} is {_times(limits['max_abs'], 'the limit')} {_largest(failure)}"
        ]
    for name, called in (("rel_l2", "relative L2"), ("rms_row_rel_l2", "RMS of the rows' relative L2")):
        if name in broken:
            over = _times(limits[name], "the limit")
            parts.append(f"{called} {limits[name].error:.3g} is {over} ({factors[name]:g}x the intended numerics')")
    row = f"worst row {place(errors.worst_row)} has relative L2 {errors.worst_row_rel_l2:.3g}"
    if "worst_row_rel_l2" in broken:
        over = _times(limits["worst_row_rel_l2"], "the limit")
        row += f", {over} ({factors['worst_row_rel_l2']:g}x the intended numerics' worst row)"
    parts.append(row)
    if exact is not None and errors.exact_wrong:
        parts.append(_inexact(failure.out, exact, errors))
    hint = first_sight(failure) if failure.output == "o" else ""
    return "; ".join([*parts, *([f"hint: {hint}"] if hint else [])])


def not_finite_reason(failure: Failure) -> str:
    """Number of elements that are not finite, the first of them, and the number that were never written."""
    out, errors = failure.out, failure.errors
    bad = ~np.isfinite(out) & failure.asked[..., None]
    first = tuple(int(n) for n in np.argwhere(bad)[0])
    untouched = int(np.count_nonzero(failure.untouched & bad))
    judged = out.size - errors.ignored_rows * out.shape[-1]
    reason = f"{errors.not_finite} of {judged} elements are not finite, the first at {place(first)}: {out[first]}"
    if untouched:
        reason += f"; {untouched} still hold the poison that the output was filled with, so they were never written"
    if failure.padding:
        reason += f"; {failure.padding}"
    row = f"worst row among the rest {place(errors.worst_row)} has relative L2 {errors.worst_row_rel_l2:.3g}"
    return f"{reason}; {row}"


def lse_reason(lse: Array, reference: F64, limit: F64, errors: LseErrors) -> str:
    """Errors of a log-sum-exp: its worst row, the number of wrong rows, and a hint; empty if it is right."""
    if errors.within_limit:
        return ""
    bad = wrongly_infinite(lse, reference)
    if errors.not_finite and np.isneginf(reference[bad]).all():
        first = tuple(int(n) for n in np.argwhere(bad)[0])
        which = f"{errors.not_finite} rows that see no key"
        return f"the log-sum-exp of {which} is not -inf, the first at {place(first)}: {lse[first]}"
    if errors.not_finite:
        first = tuple(int(n) for n in np.argwhere(bad)[0])
        never = int(np.count_nonzero((lse.view(np.uint32) == 0xFFFFFFFF) & bad))
        written = f" ({never} rows still hold the poison, so they were never written)" if never else ""
        which = f"the first at {place(first)}: {lse[first]}{written}"
        return f"the log-sum-exp of {errors.not_finite} rows is not finite, {which}"
    reference = np.where(np.isneginf(reference), np.nan, reference)
    over = np.abs(lse - reference) > limit
    text = (
        f"the log-sum-exp of the worst row {place(errors.row)} is {lse[errors.row]:.7g} instead of "
        f"{reference[errors.row]:.7g}, off by {_times(Limited(errors.error, errors.limit), 'its limit')}; "
        f"{int(over.sum())} of {int((~np.isnan(reference)).sum())} rows are wrong"
    )
    for hint, other in (
        ("it is the logarithm to base 2", reference / np.log(2.0)),
        ("it is rounded to float16", reference.astype(np.float16)),
        ("it is rounded to bfloat16", reference.astype(ml_dtypes.bfloat16)),
    ):
        if not (np.abs(lse - other.astype(np.float64)) > limit).any():
            return f"{text}; hint: {hint}"
    return text


def _largest(failure: Failure) -> str:
    """Terms of the limit on the largest error."""
    limits = failure.limits
    measure = max(limits.yardstick_max_abs, limits.intended_max_abs)
    whose = "torch's own" if measure == limits.yardstick_max_abs else "the intended numerics'"
    factor = FACTORS[failure.problem.dtype]["max_abs"]
    further = "half an ulp" if failure.output == "o" else "the rounding of sums"
    return f"({factor:g}x {whose} {measure:.3g} plus {further} {limits.max_abs - factor * measure:.3g})"


def _times(limited: Limited, called: str) -> str:
    """The error as a multiple of its limit, and the limit."""
    return f"{limited.share:.3g}x {called} {limited.limit:.3g}"


def _inexact(out: Array, exact: ExactElements, errors: Errors) -> str:
    """The first wrong exact element, and the number of further ones."""
    b, h, i, d = (int(n) for n in np.argwhere(exact.wrong(out))[0])
    key = int(exact.key[b, h, i])
    why = (
        "the mean of the V that it sees, all weights being equal"
        if key < 0
        else f"V of key j={key}, which outweighs all"
    )
    return (
        f"{errors.exact_wrong} of {errors.exact} elements that must be exact are not, the first at "
        f"{place((b, h, i, d))}: {out[b, h, i, d]} instead of {exact.expected[b, h, i, d]} ({why})"
    )
