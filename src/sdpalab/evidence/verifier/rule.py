"""The judge's rule, written a second time: from the arrays of a case to its errors, limits and status.

It imports nothing from the judge; ``tests/evidence/test_verify_rule.py`` checks that the two agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sdpalab.evidence.verifier.arrays import FLOAT8, FLOAT8_MAX, is_at, rounded
from sdpalab.evidence.verifier.attention import terms_of
from sdpalab.evidence.verifier.facts import LIMITED, ORIGINAL_CONTRACT, UNDECLARED
from sdpalab.evidence.verifier.weights import Operands, RowBlock

__all__ = [
    "Exact",
    "errors_of",
    "fixed_elements",
    "has_rule_for",
    "keeps_original_contract",
    "limits_of",
    "lse_errors_of",
    "lse_of",
    "row_errors",
    "status_of",
]

UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}
LEAST_NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126}
LEAST_SUBNORMAL = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149}
FACTORS = {"rel_l2": 1.5, "rms_row_rel_l2": 1.5, "worst_row_rel_l2": 2.0}
"""A limit is this times the error of the intended numerics; in float32, where sums are in any order, 3 times."""


class Exact:
    """The float64 reference of a case, and what errors are relative to.

    Attributes
    ----------
    values : array of float64 [B, H, Sq, D]
        NaN in rows that are not judged.
    judged : array of bool [B, H, Sq, D], or True if all rows are judged
    largest : float
        The largest magnitude.
    sizes : array of float64 [B, H, Sq]
        What the error of a row is divided by: no row counts as smaller than 1/256 of its head's typical row.
    whole : float
        What the error of all rows is divided by.
    """

    def __init__(self, values: Any, dtype: str) -> None:
        self.values = values
        judged = ~np.isnan(values)
        if not judged.any():
            raise ValueError("no row is judged")
        self.judged: Any = True if judged.all() else judged
        self.largest = float(np.nanmax(np.abs(values)))
        squares = values**2
        norms = np.sqrt(np.sum(squares, axis=-1))
        count = np.count_nonzero(~np.isnan(norms), axis=-1, keepdims=True)
        typical = np.sqrt(np.nansum(norms**2, axis=-1, keepdims=True) / np.maximum(count, 1))
        least = math.sqrt(values.shape[-1]) * LEAST_SUBNORMAL[dtype]
        self.sizes = np.maximum(np.maximum(norms, typical / 256), least)
        self.whole = max(float(np.sqrt(np.nansum(squares))), math.sqrt(values.size) * LEAST_SUBNORMAL[dtype])


def row_errors(out: Any, exact: Exact) -> Any:
    """Relative L2 error of each row [B, H, Sq], NaN where it is not judged."""
    return np.sqrt(np.sum((out - exact.values) ** 2, axis=-1)) / exact.sizes


def errors_of(
    out: Any, exact: Exact, fixed: tuple[Any, Any] | None = None, recorded: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The figures of an errors record: distance of ``out`` from ``exact``, elements that are not finite left out.

    ``fixed``: what :func:`fixed_elements` gives, or None if nothing has to be exact. ``recorded``: figures whose places
    of the largest element and row are taken over, if they are such places.
    """
    finite = np.isfinite(out)
    raw = out - exact.values
    clean = raw if finite.all() else np.where(finite, raw, exact.values - exact.values)
    rows = np.sqrt(np.sum(clean**2, axis=-1)) / exact.sizes
    difference, shares = np.abs(clean), rows
    if exact.judged is not True:
        difference, shares = np.where(exact.judged, difference, 0.0), rows[~np.isnan(rows)]
    figures: dict[str, Any] = {
        "max_abs": float(difference.max()),
        "max_abs_index": [int(n) for n in np.unravel_index(int(difference.argmax()), difference.shape)],
        "rel_l2": float(np.sqrt(np.sum(difference**2))) / exact.whole,
        "rms_row_rel_l2": float(np.sqrt(np.mean(shares**2))),
        "worst_row_rel_l2": float(shares.max()),
        "worst_row": [int(n) for n in np.unravel_index(int(np.nanargmax(rows)), rows.shape)],
        "not_finite": int(np.count_nonzero(exact.judged & ~finite)),
        "exact": int(np.count_nonzero(fixed[1])) if fixed else 0,
        "exact_wrong": int(np.count_nonzero(fixed[1] & (out != fixed[0]))) if fixed else 0,
        "ignored_rows": rows.size - shares.size,
    }
    if recorded is not None:
        # What is not finite is no place of the largest.
        rows = rows if clean is raw else row_errors(out, exact)
        for name, place, values in (("max_abs", "max_abs_index", np.abs(raw)), ("worst_row_rel_l2", "worst_row", rows)):
            if is_at(values, recorded[place], figures[name], exact.largest):
                figures[place] = recorded[place]
    return figures


def limits_of(exact: Exact, yardstick: Mapping[str, Any], intended: Mapping[str, Any], dtype: str) -> dict[str, float]:
    """The figures of a limits record, from the errors of torch's output and of the intended numerics."""
    single = dtype == "float32"
    floor = UNIT_ROUNDOFF[dtype] * (1 if single else 0.5)
    exponent = math.frexp(max(exact.largest, LEAST_NORMAL[dtype]))[1]
    largest = max(yardstick["max_abs"], intended["max_abs"])
    return {
        "max_abs": (3 if single else 2) * largest + UNIT_ROUNDOFF[dtype] * 2.0 ** (exponent - 1),
        **{name: (3 if single else factor) * max(intended[name], floor) for name, factor in FACTORS.items()},
        "yardstick_max_abs": yardstick["max_abs"],
        **{f"intended_{name}": intended[name] for name in LIMITED},
    }


def status_of(errors: Mapping[str, Any], limits: Mapping[str, float], lse: Mapping[str, Any] | None = None) -> str:
    """NOT_FINITE, INCORRECT or PASSED: the status by the numbers alone; ``lse``: those of the log-sum-exp."""
    if errors["not_finite"]:
        return "NOT_FINITE"
    if errors["exact_wrong"] or not all(errors[name] <= limits[name] for name in LIMITED):
        return "INCORRECT"
    if lse is not None and lse["not_finite"]:
        return "NOT_FINITE"
    return "PASSED" if lse is None or lse["error"] <= lse["limit"] else "INCORRECT"


def keeps_original_contract(errors: Mapping[str, Any]) -> bool:
    """Whether the contract of 0.06 and 1e-3 is met; it is not part of the verdict."""
    return not errors["not_finite"] and all(errors[name] <= most for name, most in ORIGINAL_CONTRACT.items())


def has_rule_for(numerics: Mapping[str, Any]) -> bool:
    """Whether there is a rule for these numerics, as a kernel may declare them."""
    p_type, factor, quantised = (numerics[name] for name in ("probabilities", "probability_scale", "quantised"))
    scaled = 0 < factor <= FLOAT8_MAX and float(rounded(factor, FLOAT8)) == factor
    return (
        set(numerics) - {"products", "tanh", "accumulate_terms"} == set(UNDECLARED)
        and numerics.get("products", "problem") in ("problem", "tf32")
        and numerics.get("tanh", "float32") in ("float32", "approx")
        and numerics["accumulate"] in ("float32", "float16")
        and (numerics["accumulate"] == "float16" or numerics.get("accumulate_terms") is None)
        and type(terms_of(numerics)) is int
        and terms_of(numerics) in (4, 8, 16)
        and p_type in ("problem", "float32", "float16", "bfloat16", FLOAT8)
        and (scaled if p_type == FLOAT8 else factor == 1)
        and (quantised is None or (set(quantised) == {"dtype", "rows"} and quantised["dtype"] == FLOAT8))
        and (quantised is None or (type(quantised["rows"]) is int and quantised["rows"] >= 0))
        and numerics["normalise"] in ("after", "before")
    )


def fixed_elements(
    inputs: Operands, any_count: bool, cap_error: float = 0.0, block: int | None = None
) -> tuple[Any, Any]:
    """The elements of the output that the inputs fix bit for bit: their values and where they are, [B, H, Sq, D].

    Three kinds of rows have them. One that sees no key is 0. Where one key outweighs all others together, the row of O
    is that row of V; where all scores are 0 and V are integers, it is their exact mean (of a power of two of keys, a
    sink of 0 among them, unless ``any_count``). Of either, an element is fixed if all that float32 arithmetic may make
    of it rounds to one number; ``cap_error`` is what an approximate tanh adds to each of two scores.

    ``block``: the rows that share a scale, of a kernel that quantises to float8. Fixed is then what float8 holds of V
    without an error; sums of 14 bits are exact, other keys must weigh less than its least number, and a term of a score
    or a sum may lose the 14th bit.
    """
    expected = np.zeros(inputs.singles["q"].shape, np.float32)
    mask = np.zeros(expected.shape, bool)
    rule = FixedRows(inputs, any_count, cap_error, block)
    for each in inputs.blocks(block):
        for rows, middle, radius, holds in (rule.level(each), rule.dominated(each)):
            low, high = (rounded(middle + side * radius, inputs.problem["dtype"]) for side in (-1, 1))
            fixed = holds & (low == high) & inputs.judged[each.place][rows][:, None]
            expected[each.place][rows] = np.where(fixed, low, expected[each.place][rows])
            mask[each.place][rows] |= fixed
    return expected, mask


@dataclass(frozen=True)
class FixedRows:
    """The rows of a block that may have fixed elements; the fields are the parameters of :func:`fixed_elements`.

    ``level`` and ``dominated`` give the numbers of the rows [n], what float32 arithmetic makes of them and by how much
    it may be off [n, D], and which of their elements [n, D] are fixed if that rounds to one number.
    """

    inputs: Operands
    any_count: bool
    cap_error: float
    block: int | None

    @property
    def narrow(self) -> bool:
        return self.block is not None

    @cached_property
    def of_v(self) -> tuple[Any, Any, Any]:
        """Which elements of V are whole numbers of a unit, how large they are in it, and which float8 holds."""
        v = self.inputs.singles["v"]
        if self.block is None:
            return v == np.rint(v), np.abs(v).astype(np.float64), np.ones(v.shape, bool)
        codes = np.abs(self.inputs.float8("v", self.block)[0]) * 512
        bits = codes.astype(np.int64)
        units = np.where(bits == 0, 1 << 62, bits & -bits).min(axis=(2, 3), keepdims=True)
        held = np.abs(self.inputs.doubles("v", self.block) - v) <= 2.0**-22 * np.abs(v)
        return held, codes / units, held

    def level(self, each: RowBlock) -> tuple[Any, Any, Any, Any]:
        """Rows whose scores, the sink's too, are all 0, or that see no key."""
        problem, view, logit, singles = self.inputs.problem, each.view, each.logit, self.inputs.singles
        zero_q, zero_k = (singles["q"][each.place] == 0).all(axis=1), (singles["k"][each.head] == 0).all(axis=1)
        empty, count = view.count == 0, view.count + (logit == 0)
        level = zero_q | ~(view.seen & ~zero_k).any(axis=1) | (problem["scale"] == 0)
        even: Any = logit in (0, -np.inf)
        if view.bias is not None:
            even = even & ~(view.seen & (view.bias != 0)).any(axis=1)
        rows = np.flatnonzero(level & (even | empty) & (self.any_count | (count & (count - 1) == 0) | empty))
        if not rows.size:
            return rows, 0, 0, False
        values, (whole_v, sizes, _) = self.inputs.doubles("v")[each.head], self.of_v
        seen, count, empty = view.seen[rows], count[rows], empty[rows]
        shown = seen.astype(np.float64)
        whole = (shown @ ~whole_v[each.head] == 0) & (shown @ sizes[each.head] <= 2.0 ** (14 if self.narrow else 24))
        mean = shown @ values / np.maximum(count, 1)[:, None]
        last = problem["seq_kv"] - 1 - seen[:, ::-1].argmax(axis=1)
        largest = np.maximum.accumulate(np.abs(values), axis=0)[last]
        reach = (2.0**-14 * np.abs(mean) + 2.0**-18 * largest + 2.0**-126) * ~empty[:, None]
        return rows, mean, reach, whole

    def dominated(self, each: RowBlock) -> tuple[Any, Any, Any, Any]:
        """Rows in which one key outweighs all others together."""
        problem, least = self.inputs.problem, 2.0 ** (-20 if self.narrow else -14)
        top = each.weights.max(axis=1)
        rest = np.where(top > 0, (each.total[:, 0] - top) / np.where(top > 0, top, 1), 1)
        rows = np.flatnonzero(rest < least)  # it only becomes larger
        if not rows.size:
            return rows, 0, 0, False
        weights, rest, values = each.weights[rows], rest[rows], self.inputs.doubles("v")[each.head]
        q, k = self.inputs.doubles("q", self.block)[each.place][rows], self.inputs.doubles("k", self.block)[each.head]
        first = weights.argmax(axis=1)
        chosen = values[first]
        rest = rest + np.maximum(np.count_nonzero(weights, axis=1) - 1, 0) * 2.0**-52  # float64 sums lose less
        score = abs(problem["scale"]) * np.sqrt(np.sum(q**2, axis=1) * np.sum(k**2, axis=1).max())
        if each.view.bias is not None:
            score = score + np.where(weights > 0, np.abs(each.view.bias[rows]), 0).max(axis=1)
        terms = problem["head_dim"] + (16 if problem.get("softcap") else 0)
        rest = (
            rest
            * 2
            * np.exp(np.minimum(2 * (2.0 ** (-13 if self.narrow else -22) * terms * score + self.cap_error), 100))
        )
        near = rest[:, None] * (np.abs(values).max(axis=0) + np.abs(chosen)) + 2.0**-126 * (chosen != 0)
        near = near + np.abs(chosen) * (2.0**-14 + 2.0**-23 * score + (2.0**-13 if self.narrow else 0))[:, None]
        return rows, chosen, near, (rest < least)[:, None] & self.of_v[2][each.head][first]


def lse_of(inputs: Operands, numerics: Mapping[str, Any]) -> tuple[Any, Any]:
    """The log-sum-exp of each row [B, H, Sq] in float64, and how far float32 arithmetic may be from it.

    The latter is the sum of what each step may be off by. ``size`` is the largest |scale| sum |q k| over the ``seen``
    keys: D truncated additions of a dot product and 16 roundings of it; two approximate exponentials; an addition and a
    share of a rescale for each key; an approximate logarithm of up to 256 weights a key; four roundings of the result;
    sixteen of score and cap for a soft cap; and eight of score and bias. A row that sees neither a key nor a sink has
    -inf, and a limit of 0.
    """
    problem, quantised = inputs.problem, numerics["quantised"]
    rows = None if quantised is None else quantised["rows"]
    terms = problem["head_dim"]
    dot = terms * (2.0**-23 if quantised is None else 2.0**-13)
    dot += -(-terms // terms_of(numerics)) * 2.0**-11 if numerics["accumulate"] == "float16" else 0.0
    dot += 2.0**-9 if numerics.get("products") == "tf32" else 0.0
    reference, size, bias, seen = inputs.log_sums(rows)
    cap = problem.get("softcap") or 0.0
    limit = (dot + 2.0**-20) * size + 2.0**-21 + 2.0**-23 * seen
    limit = limit + 2.0**-22 * (8 + np.log2(seen) + np.where(reference == -np.inf, 0, np.abs(reference)))
    limit = limit + np.where(bias > 0, 2.0**-21 * (size + bias), 0)
    limit = limit + (2.0**-11 * np.minimum(size, cap) if numerics.get("tanh") == "approx" else 0)
    limit = np.where(reference == -np.inf, 0, limit + (2.0**-20 * (size + cap) if cap else 0))
    return np.where(inputs.judged, reference, np.nan), np.where(inputs.judged, limit, np.nan)


def lse_errors_of(lse: Any, reference: Any, limit: Any, row: list[int] | None = None) -> dict[str, Any]:
    """The figures of a record of the log-sum-exp, at the row that uses most of its limit.

    ``row``: one that is said to be it; it is, if none uses more than that.
    """
    empty = reference == -np.inf
    judged, finite = np.isfinite(reference), np.isfinite(lse)
    with np.errstate(invalid="ignore"):
        error = np.where(judged & finite, np.abs(lse.astype(np.float64) - reference), 0.0)
    share = np.where(judged, error / np.where(judged, limit, 1), -1.0)
    worst = [int(n) for n in np.unravel_index(int(share.argmax()), share.shape)]
    if row is not None and is_at(share, row, float(share.max()), 2.0**23):
        worst = row
    at = tuple(worst)
    not_finite = int(np.count_nonzero(np.where(empty, lse != reference, judged & ~finite)))
    return {"error": float(error[at]), "limit": float(limit[at]), "row": worst, "not_finite": not_finite}
