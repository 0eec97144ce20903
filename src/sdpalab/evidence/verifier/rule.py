"""The judge's rule, written a second time: errors, limits and status from the outputs.

Nothing of it is imported from the judge: that the two agree (``tests/evidence/test_verify_rule.py``) is the point.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sdpalab.evidence.verifier.arrays import FLOAT8, FLOAT8_MAX, rounded
from sdpalab.evidence.verifier.facts import LIMITED, ORIGINAL_CONTRACT, UNDECLARED

__all__ = ["errors_of", "keeps_original_contract", "knows_numerics", "limits_of", "row_errors", "status_of"]

UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
LEAST_NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126}
LEAST_SUBNORMAL = {"float16": 2.0**-24, "bfloat16": 2.0**-133}
FACTORS = {"rel_l2": 1.5, "rms_row_rel_l2": 1.5, "worst_row_rel_l2": 2.0}
"""A limit is this times the error of the intended numerics."""


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
    floor = UNIT_ROUNDOFF[dtype] / 2
    exponent = math.frexp(max(float(np.nanmax(np.abs(exact))), LEAST_NORMAL[dtype]))[1]
    largest = max(yardstick["max_abs"], intended["max_abs"])
    return {
        "max_abs": 2 * largest + UNIT_ROUNDOFF[dtype] * 2.0 ** (exponent - 1),
        **{name: factor * max(intended[name], floor) for name, factor in FACTORS.items()},
        "yardstick_max_abs": yardstick["max_abs"],
        **{f"intended_{name}": intended[name] for name in LIMITED},
    }


def status_of(errors: Mapping[str, Any], limits: Mapping[str, float], lse: Mapping[str, Any] | None = None) -> str:
    """NOT_FINITE, INCORRECT or PASSED: what the numbers alone say; ``lse``: those of the log-sum-exp."""
    if errors["not_finite"]:
        return "NOT_FINITE"
    if errors["exact_wrong"] or not all(errors[name] <= limits[name] for name in LIMITED):
        return "INCORRECT"
    if lse is not None and lse["not_finite"]:
        return "NOT_FINITE"
    return "PASSED" if lse is None or lse["error"] <= lse["limit"] else "INCORRECT"


def keeps_original_contract(errors: Mapping[str, Any]) -> bool:
    """What the contract of 0.06 and 1e-3 says; it decides nothing."""
    return not errors["not_finite"] and all(errors[name] <= most for name, most in ORIGINAL_CONTRACT.items())


def knows_numerics(numerics: Mapping[str, Any]) -> bool:
    """Whether there is a rule for these numerics, as a kernel may declare them."""
    p_type, factor, quantised = (numerics[name] for name in ("probabilities", "probability_scale", "quantised"))
    scaled = 0 < factor <= FLOAT8_MAX and float(rounded(factor, FLOAT8)) == factor
    return (
        set(numerics) == set(UNDECLARED)
        and numerics["accumulate"] in ("float32", "float16")
        and p_type in ("problem", "float32", "float16", "bfloat16", FLOAT8)
        and (scaled if p_type == FLOAT8 else factor == 1)
        and (quantised is None or (set(quantised) == {"dtype", "rows"} and quantised["dtype"] == FLOAT8))
        and (quantised is None or (type(quantised["rows"]) is int and quantised["rows"] >= 0))
        and numerics["normalise"] in ("after", "before")
    )
