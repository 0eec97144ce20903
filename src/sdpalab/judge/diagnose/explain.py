"""What a failed case says: the worst index and the worst row in a sentence, and a likely cause where one is plain."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from sdpalab.judge.exact import ExactElements
from sdpalab.judge.rule import INTENDED_FACTOR, RMS_ROW_FACTOR, ROW_FACTOR, YARDSTICK_FACTOR, row_errors
from sdpalab.judge.verdict import Errors, Limits, LseErrors
from sdpalab.problem import Problem

__all__ = ["incorrect_reason", "lse_reason", "not_finite_reason"]

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]


def incorrect_reason(
    problem: Problem,
    out: Array,
    v: Array,
    reference: F64,
    errors: Errors,
    limits: Limits,
    broken: tuple[str, ...],
    exact: ExactElements | None,
) -> str:
    """Which limits are exceeded and by how much, where it is worst, which element is not exact, and a hint."""
    parts = [_largest(errors, limits, "max_abs" in broken)]
    for name, called, factor in (
        ("rel_l2", "relative L2", INTENDED_FACTOR),
        ("rms_row_rel_l2", "RMS of the rows' relative L2", RMS_ROW_FACTOR),
    ):
        if name in broken:
            value, limit = getattr(errors, name), getattr(limits, name)
            parts.append(
                f"{called} {value:.3g} is {_times(value, limit)} the limit {limit:.3g} "
                f"({factor:g}x the intended numerics')"
            )
    row = f"worst row {_place(errors.worst_row)} has relative L2 {errors.worst_row_rel_l2:.3g}"
    if "worst_row_rel_l2" in broken:
        over = _times(errors.worst_row_rel_l2, limits.worst_row_rel_l2)
        row += f", {over} the limit {limits.worst_row_rel_l2:.3g} ({ROW_FACTOR:g}x the intended numerics' worst row)"
    parts.append(row)
    if exact is not None and errors.exact_wrong:
        parts.append(_inexact(out, exact, errors))
    # Rows that are not judged say nothing: as zeros in both they agree.
    judged = ~np.isnan(reference)
    seen, right = np.where(judged, out.astype(np.float64), 0.0), np.where(judged, reference, 0.0)
    hint = _hint(problem, seen, np.where(np.isfinite(v), v, v.dtype.type(0)), right, errors, limits)
    return "; ".join([*parts, *([hint] if hint else [])])


def not_finite_reason(out: Array, reference: F64, errors: Errors) -> str:
    """How many elements are not finite, where the first is, and how many were never written."""
    bad = ~np.isfinite(out) & ~np.isnan(reference)
    first = tuple(int(n) for n in np.argwhere(bad)[0])
    untouched = int(np.count_nonzero((out.view(np.uint16) == 0xFFFF) & bad))
    judged = out.size - errors.ignored_rows * out.shape[-1]
    reason = f"{errors.not_finite} of {judged} elements are not finite, the first at {_place(first)}: {out[first]}"
    if untouched:
        reason += f"; {untouched} still hold the poison that the output was filled with, so they were never written"
    row = f"worst row among the rest {_place(errors.worst_row)} has relative L2 {errors.worst_row_rel_l2:.3g}"
    return f"{reason}; {row}"


def lse_reason(lse: Array, reference: F64, limit: F64, errors: LseErrors) -> str:
    """What is wrong with a log-sum-exp: its worst row, how many are wrong, and a hint; empty if nothing is."""
    if errors.kept:
        return ""
    bad = ~np.isfinite(lse) & ~np.isnan(reference)
    if errors.not_finite:
        first = tuple(int(n) for n in np.argwhere(bad)[0])
        never = int(np.count_nonzero((lse.view(np.uint32) == 0xFFFFFFFF) & bad))
        written = f" ({never} rows still hold the poison, so they were never written)" if never else ""
        which = f"the first at {_place(first)}: {lse[first]}{written}"
        return f"the log-sum-exp of {errors.not_finite} rows is not finite, {which}"
    over = np.abs(lse - reference) > limit
    text = (
        f"the log-sum-exp of the worst row {_place(errors.row)} is {lse[errors.row]:.7g} instead of "
        f"{reference[errors.row]:.7g}, off by {_times(errors.error, errors.limit)} its limit {errors.limit:.3g}; "
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


def _largest(errors: Errors, limits: Limits, broken: bool) -> str:
    if not broken:
        return f"max error {errors.max_abs:.3g} at {_place(errors.max_abs_index)} is within its limit"
    measure = max(limits.yardstick_max_abs, limits.intended_max_abs)
    whose = "torch's own" if measure == limits.yardstick_max_abs else "the intended numerics'"
    return (
        f"max error {errors.max_abs:.3g} at {_place(errors.max_abs_index)} is {_times(errors.max_abs, limits.max_abs)} "
        f"the limit {limits.max_abs:.3g} ({YARDSTICK_FACTOR:g}x {whose} {measure:.3g} plus half an ulp "
        f"{limits.max_abs - YARDSTICK_FACTOR * measure:.3g})"
    )


def _inexact(out: Array, exact: ExactElements, errors: Errors) -> str:
    """The first element that had to be a certain number and is not, and how many more there are."""
    b, h, i, d = (int(n) for n in np.argwhere(exact.wrong(out))[0])
    key = int(exact.key[b, h, i])
    why = (
        "the mean of the V that it sees, all weights being equal"
        if key < 0
        else f"V of key j={key}, which outweighs all"
    )
    return (
        f"{errors.exact_wrong} of {errors.exact} elements that must be exact are not, the first at "
        f"{_place((b, h, i, d))}: {out[b, h, i, d]} instead of {exact.expected[b, h, i, d]} ({why})"
    )


def _place(index: tuple[int, ...]) -> str:
    return "(" + ", ".join(f"{axis}={n}" for axis, n in zip("bhid", index, strict=False)) + ")"


def _times(value: float, limit: float) -> str:
    return f"{value / limit:.3g}x" if limit > 0.0 else "over"


def _hint(problem: Problem, out: F64, v: Array, reference: F64, errors: Errors, limits: Limits) -> str:
    """A likely cause, from cheap comparisons that each hold within the very limits that the output failed."""
    if not out.any():
        return "hint: the output is all zeros"
    if _close(out, _visible_mean(problem, v), limits):
        return "hint: each row is the plain mean of the V that it sees, so the scores have no effect"
    factor = float(np.vdot(out, reference) / max(float(np.vdot(reference, reference)), 1e-300))
    if factor != 0.0 and abs(factor - 1.0) > limits.rel_l2 and _close(out / factor, reference, limits):
        digits = 3 if abs(factor - 1.0) > 0.005 else 5
        return f"hint: the output is {factor:.{digits}g} times the right one, so the normalisation is wrong"
    b, h, i = errors.worst_row
    distance = np.linalg.norm(reference - out[b, h, i], axis=-1)
    place = tuple(int(n) for n in np.unravel_index(int(np.argmin(distance)), distance.shape))
    norm = float(np.linalg.norm(reference[place]))
    if place != errors.worst_row and distance[place] <= limits.worst_row_rel_l2 * norm:
        return f"hint: that row holds what belongs into row {_place(place)}"
    return _where(row_errors(out, reference, problem.dtype) > limits.worst_row_rel_l2)


def _where(bad: npt.NDArray[np.bool_]) -> str:
    """Which rows [B, H, Sq] are bad, if they form a pattern."""
    count, wrong = int(bad.sum()), bad.reshape(-1, bad.shape[2]).any(axis=0)
    if not count or bad.all():
        return ""
    heads = bad.any(axis=2)
    if heads.sum() < heads.size and count == int(heads.sum()) * bad.shape[2]:
        example = _place(tuple(int(n) for n in np.argwhere(heads)[0]))
        return f"hint: all rows are wrong in {int(heads.sum())} of {heads.size} heads, such as {example}"
    first, last = (int(n) for n in np.flatnonzero(wrong)[[0, -1]])
    if first > 0 and last == wrong.size - 1:
        return f"hint: rows below i={first} are right, {count} of {bad.size} rows are wrong"
    return f"hint: {count} of {bad.size} rows are wrong, all with i from {first} to {last}"


def _visible_mean(problem: Problem, v: Array) -> F64:
    """Mean of the V that each row sees: what attention gives if all scores are equal, [B, H, Sq, D]."""
    v64 = np.repeat(v.astype(np.float64), problem.group, axis=1)
    if not problem.causal:
        return np.broadcast_to(v64.mean(axis=2, keepdims=True), problem.q_shape)
    seen = np.minimum(np.arange(problem.seq_q), problem.seq_kv - 1)
    means = np.cumsum(v64, axis=2) / np.arange(1, problem.seq_kv + 1)[:, None]
    picked: F64 = means[:, :, seen]
    return picked


def _close(out: F64, other: F64, limits: Limits) -> bool:
    return bool(np.linalg.norm(out - other) <= limits.worst_row_rel_l2 * np.linalg.norm(other))
