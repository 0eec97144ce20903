"""The judge's rule, written a second time: from the arrays of a case to its errors, limits and status.

It imports nothing from the judge; ``tests/evidence/test_verify_rule.py`` checks that the two agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from sdpalab.evidence.verifier.arrays import FLOAT8, FLOAT8_MAX, Problem, is_at, rounded
from sdpalab.evidence.verifier.attention import (
    bias_of,
    dequantised,
    judged_rows,
    quantised_numbers,
    scores_of,
    seen_of,
    terms_of,
    weights_of,
)
from sdpalab.evidence.verifier.facts import LIMITED, ORIGINAL_CONTRACT, UNDECLARED

__all__ = [
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


def row_errors(out: Any, exact: Any, dtype: str) -> Any:
    """Relative L2 error of each row [B, H, Sq], NaN where it is not judged.

    No row counts as smaller than 1/256 of its head's typical row.
    """
    norms = np.sqrt(np.sum(exact**2, axis=-1))
    count = np.count_nonzero(~np.isnan(norms), axis=-1, keepdims=True)
    typical = np.sqrt(np.nansum(norms**2, axis=-1, keepdims=True) / np.maximum(count, 1))
    least = math.sqrt(exact.shape[-1]) * LEAST_SUBNORMAL[dtype]
    return np.sqrt(np.sum((out - exact) ** 2, axis=-1)) / np.maximum(np.maximum(norms, typical / 256), least)


def errors_of(out: Any, exact: Any, dtype: str, fixed: tuple[Any, Any] | None = None) -> dict[str, Any]:
    """The figures of an errors record: distance of ``out`` from ``exact``, elements that are not finite left out.

    ``fixed``: what :func:`fixed_elements` gives, or None if nothing has to be exact.
    """
    judged = ~np.isnan(exact)
    clean = np.where(np.isfinite(out), out, exact)
    difference, rows = np.nan_to_num(np.abs(clean - exact)), row_errors(clean, exact, dtype)
    norm = float(np.sqrt(np.nansum(exact**2)))
    whole = max(norm, math.sqrt(exact.size) * LEAST_SUBNORMAL[dtype])
    return {
        "max_abs": float(difference.max()),
        "max_abs_index": [int(n) for n in np.unravel_index(int(difference.argmax()), difference.shape)],
        "rel_l2": float(np.sqrt(np.sum(difference**2))) / whole,
        "rms_row_rel_l2": float(np.sqrt(np.nanmean(rows**2))),
        "worst_row_rel_l2": float(np.nanmax(rows)),
        "worst_row": [int(n) for n in np.unravel_index(int(np.nanargmax(rows)), rows.shape)],
        "not_finite": int(np.count_nonzero(judged & ~np.isfinite(out))),
        "exact": int(np.count_nonzero(fixed[1])) if fixed else 0,
        "exact_wrong": int(np.count_nonzero(fixed[1] & (out != fixed[0]))) if fixed else 0,
        "ignored_rows": int(np.count_nonzero(np.isnan(rows))),
    }


def limits_of(exact: Any, yardstick: Mapping[str, Any], intended: Mapping[str, Any], dtype: str) -> dict[str, float]:
    """The figures of a limits record, from the errors of torch's output and of the intended numerics."""
    single = dtype == "float32"
    floor = UNIT_ROUNDOFF[dtype] * (1 if single else 0.5)
    exponent = math.frexp(max(float(np.nanmax(np.abs(exact))), LEAST_NORMAL[dtype]))[1]
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
    q: Any,
    k: Any,
    v: Any,
    problem: Problem,
    any_count: bool,
    cap_error: float = 0.0,
    block: int | None = None,
    known: Iterable[Any] | None = None,
) -> tuple[Any, Any]:
    """The elements of the output that the inputs fix bit for bit: their values and where they are, [B, H, Sq, D].

    Three kinds of rows have them. One that sees no key is 0. Where one key outweighs all others together, the row of O
    is that row of V; where all scores are 0 and V are integers, it is their exact mean (of a power of two of keys, a
    sink of 0 among them, unless ``any_count``). Of either, an element is fixed if all that float32 arithmetic may make
    of it rounds to one number; ``cap_error`` is what an approximate tanh adds to each of two scores.

    ``block``: the rows that share a scale, of a kernel that quantises to float8. Fixed is then what float8 holds of V
    without an error; sums of 14 bits are exact, other keys must weigh less than its least number, and a term of a score
    or a sum may lose the 14th bit. ``known``: the weights of Q and K as they are, which are read where none is rounded.
    """
    expected, mask = np.zeros(q.shape, np.float32), np.zeros(q.shape, bool)
    judged, narrow = judged_rows(q, k, v), block is not None
    q, k, v = (np.where(np.isfinite(x), x, np.float32(0)) for x in (q, k, v))
    zero_q, zero_k = (q == 0).all(axis=3), (k == 0).all(axis=3)
    whole_v, sizes, held = v == np.rint(v), np.abs(v).astype(np.float64), np.ones(v.shape, bool)
    if block is not None:
        codes = np.abs(quantised_numbers(v, block)[0]) * 512
        bits = codes.astype(np.int64)
        units = np.where(bits == 0, 1 << 62, bits & -bits).min(axis=(2, 3), keepdims=True)
        held = np.abs(dequantised(v, block) - v) <= 2.0**-22 * np.abs(v)
        whole_v, sizes = held, codes / units
        q, k, known = dequantised(q, block), dequantised(k, block), None
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    terms = problem["head_dim"] + (16 if problem.get("softcap") else 0)
    for place, head, weights, sink in known or weights_of(q, k, problem):
        b, h, rows = place
        values, keys, seen, bias = v[head], k[head], seen_of(place, problem), bias_of(place, problem)
        empty, logit = ~seen.any(axis=1), problem["arrays"]["sinks"][h] if problem.get("sinks") else -np.inf
        # level rows: all scores are 0, the sink's, too
        count = seen.sum(axis=1) + (logit == 0)
        level = zero_q[b, h, rows] | ~(seen & ~zero_k[head]).any(axis=1)
        even = (logit in (0, -np.inf)) & ~(seen & (bias != 0)).any(axis=1)
        level = (level | (problem["scale"] == 0)) & (even | empty) & (any_count | (count & (count - 1) == 0) | empty)
        shown = seen.astype(np.float64)
        whole = (shown @ ~whole_v[head] == 0) & (shown @ sizes[head] <= 2.0 ** (14 if narrow else 24))
        mean = shown @ values / np.maximum(count, 1)[:, None]
        last = problem["seq_kv"] - 1 - seen[:, ::-1].argmax(axis=1)
        largest = np.maximum.accumulate(np.abs(values), axis=0)[last]
        reach = (2.0**-14 * np.abs(mean) + 2.0**-18 * largest + 2.0**-126) * ~empty[:, None]
        # dominated rows
        top, chosen = weights.max(axis=1), values[weights.argmax(axis=1)]
        rest = np.where(top > 0, (weights.sum(axis=1) + sink[:, 0] - top) / np.where(top > 0, top, 1), 1)
        rest = rest + np.maximum(np.count_nonzero(weights, axis=1) - 1, 0) * 2.0**-52  # float64 sums lose less
        score = abs(problem["scale"]) * np.sqrt(np.sum(q[b, h, rows] ** 2, axis=1) * np.sum(keys**2, axis=1).max())
        score = score + np.where(weights > 0, np.abs(bias), 0).max(axis=1)
        rest = rest * 2 * np.exp(np.minimum(2 * (2.0 ** (-13 if narrow else -22) * terms * score + cap_error), 100))
        near = rest[:, None] * (np.abs(values).max(axis=0) + np.abs(chosen)) + 2.0**-126 * (chosen != 0)
        near = near + np.abs(chosen) * (2.0**-14 + 2.0**-23 * score + (2.0**-13 if narrow else 0))[:, None]
        alone = (rest < 2.0 ** (-20 if narrow else -14))[:, None] & held[head][weights.argmax(axis=1)]
        for value, radius, holds in (
            (mean, reach, whole & level[:, None]),
            (chosen, near, alone),
        ):
            low, high = (rounded(value + side * radius, problem["dtype"]) for side in (-1, 1))
            fixed = holds & (low == high) & judged[b, h, rows][:, None]
            expected[b, h, rows] = np.where(fixed, low, expected[b, h, rows])
            mask[b, h, rows] |= fixed
    return expected, mask


def lse_of(q: Any, k: Any, v: Any, problem: Problem, numerics: Mapping[str, Any]) -> tuple[Any, Any]:
    """The log-sum-exp of each row [B, H, Sq] in float64, and how far float32 arithmetic may be from it.

    The latter is the sum of what each step may be off by. ``size`` is the largest |scale| sum |q k| over the ``seen``
    keys: D truncated additions of a dot product and 16 roundings of it; two approximate exponentials; an addition and a
    share of a rescale for each key; an approximate logarithm of up to 256 weights a key; four roundings of the result;
    sixteen of score and cap for a soft cap; and eight of score and bias. A row that sees neither a key nor a sink has
    -inf, and a limit of 0.
    """
    judged = judged_rows(q, k, v)
    q, k = (np.where(np.isfinite(x), x, np.float32(0)) for x in (q, k))
    if numerics["quantised"] is not None:
        q, k = (dequantised(x, numerics["quantised"]["rows"]) for x in (q, k))
    terms = problem["head_dim"]
    dot = terms * (2.0**-23 if numerics["quantised"] is None else 2.0**-13)
    dot += -(-terms // terms_of(numerics)) * 2.0**-11 if numerics["accumulate"] == "float16" else 0.0
    dot += 2.0**-9 if numerics.get("products") == "tf32" else 0.0
    reference, size, bias, seen = (np.empty(judged.shape) for _ in range(4))
    for place, head, scores in scores_of(q, k, problem):
        logit = float(problem["arrays"]["sinks"][place[1]]) if problem.get("sinks") else -np.inf
        most, visible = np.maximum(scores.max(axis=1), logit), seen_of(place, problem)
        lifted = np.where(most == -np.inf, 0, most)
        weights = np.exp(scores - lifted[:, None])
        with np.errstate(divide="ignore"):
            reference[place] = lifted + np.log(weights.sum(axis=1) + np.exp(logit - lifted))
        bias[place] = np.where(weights > 0, np.abs(bias_of(place, problem)), 0).max(axis=1)
        bias[place] += abs(logit) if problem.get("sinks") else 0
        seen[place] = np.maximum(visible.sum(axis=1), 1) + bool(problem.get("sinks"))
        sizes = np.abs(q[place]).astype(np.float64) @ np.abs(k[head]).astype(np.float64).T * abs(problem["scale"])
        size[place] = np.where(visible, sizes, 0).max(axis=1)
    cap = problem.get("softcap") or 0.0
    limit = (dot + 2.0**-20) * size + 2.0**-21 + 2.0**-23 * seen
    limit = limit + 2.0**-22 * (8 + np.log2(seen) + np.where(reference == -np.inf, 0, np.abs(reference)))
    limit = limit + np.where(bias > 0, 2.0**-21 * (size + bias), 0)
    limit = limit + (2.0**-11 * np.minimum(size, cap) if numerics.get("tanh") == "approx" else 0)
    limit = np.where(reference == -np.inf, 0, limit + (2.0**-20 * (size + cap) if cap else 0))
    return np.where(judged, reference, np.nan), np.where(judged, limit, np.nan)


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
