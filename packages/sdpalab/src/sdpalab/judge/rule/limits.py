"""The rule: the largest allowed distance of an output from the float64 reference. Pure NumPy; every number in it is
stated here.

All must hold:

1. largest absolute error <= 2 * the larger of torch's own in the same precision and the intended numerics' + half an
   ulp of the output type at max|reference|, or for a gradient 2**-22 of its rows' largest magnitude if that is more
2. relative L2 error over all elements, and root mean square of the rows' relative L2 errors, each <= 1.5 * that of the
   intended numerics
3. worst row's relative L2 error <= 2 * (a gradient's: 3 *) that of the intended numerics' worst row
4. every element is finite
5. every exact element has its exact value (:mod:`sdpalab.judge.rule.exact`)

Rule 2 has a second half because the first weighs a row by its norm. Under a causal mask the first rows average few
keys, have small rounding errors, and outweigh all other rows together.

These rules are for 16-bit problems. In float32 the intended numerics are float32 sums in one order
(:mod:`sdpalab.judge.rule.single`), and a correct kernel may add in any other: all four factors are 3, and no limit is
below 3 * u (u = 2**-24), because a reciprocal with an error of 2 ulp is correct.

The limits of rules 2 and 3 are at least their factor times half a unit roundoff u of the output type (2**-11 for
float16, 2**-8 for bfloat16). Rounding of the output alone costs up to u. If the type represents the emulated output
exactly (one key, or equal weights over a power of two), the emulation's error is 0; a kernel that multiplies by a
reciprocal instead of dividing is still correct. A gradient whose partial sums are rounded R times has this least error,
and the half ulp of rule 1, times sqrt((R + 1) / 2): the random walk of the roundings of a growing sum.

Relative errors are over ||reference||. A row whose norm is below 2**-8 of the root mean square of its head's row norms
is measured against that floor: where V cancels to near zero, every rounding error is relatively large. The smallest
denominator is sqrt(n) times the type's least subnormal (n elements).

Rows whose reference is NaN are not judged (:func:`sdpalab.inputs.reference.judged_rows`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.inputs.reference import is_finite
from sdpalab.judge.rule.exact import ExactElements
from sdpalab.judge.rule.figures import LIMITED, Errors, Limits

__all__ = [
    "FACTORS",
    "LEAST_NORMAL",
    "LEAST_SUBNORMAL",
    "ROW_FLOOR",
    "UNIT_ROUNDOFF",
    "factors_of",
    "half_ulp",
    "limits_for",
    "measure",
    "row_errors",
]

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]

_OF_HALVES = {"max_abs": 2.0, "rel_l2": 1.5, "rms_row_rel_l2": 1.5, "worst_row_rel_l2": 2.0}
FACTORS = {"float16": _OF_HALVES, "bfloat16": _OF_HALVES, "float32": dict.fromkeys(_OF_HALVES, 3.0)}
"""Factors of each limit, by dtype: ``max_abs`` multiplies the larger of torch's and the intended numerics' error, the
others the intended numerics' error alone."""
GRADIENT_ROW_FACTOR = 3.0
"""Least factor of the limit of the worst row of a gradient. A row may be a sum of few terms, whose rounding errors
differ from those of the intended numerics by more than in O."""
CANCELLED_SUMS = 2.0**-22
"""Least largest error of a gradient, relative to the magnitude of a row: dP and delta are float32 sums of D terms, and
their difference may be 0. A tensor core truncates the terms of such a sum, in an order that differs from torch's."""
LEAST_ERROR = {"float16": 0.5, "bfloat16": 0.5, "float32": 1.0}
"""Least relative error of the intended numerics that the limits use, in units of the unit roundoff."""
ROW_FLOOR = 2.0**-8
UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}
"""Largest relative error of rounding to the type."""
LEAST_NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126}
LEAST_SUBNORMAL = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149}


def factors_of(dtype: str, gradient: bool | np.bool_) -> dict[str, float]:
    """Factors of the limits of O, or of a gradient."""
    least = GRADIENT_ROW_FACTOR if gradient else 0.0
    return {**FACTORS[dtype], "worst_row_rel_l2": max(FACTORS[dtype]["worst_row_rel_l2"], least)}


def half_ulp(value: float, dtype: str) -> float:
    """Half the distance between neighbouring numbers of ``dtype`` at ``|value|``: the largest rounding error there."""
    _, exponent = math.frexp(max(abs(value), LEAST_NORMAL[dtype]))
    return UNIT_ROUNDOFF[dtype] * 2.0 ** (exponent - 1)


def row_errors(out: Array, reference: F64, dtype: str, magnitude: F64 | float = 0.0) -> F64:
    """Relative L2 error of each row, [B, H, Sq], with the floors stated in the module docstring; NaN where the row is
    not judged.

    Parameters
    ----------
    magnitude : ndarray of float64, [B, H, Sq], optional
        Least norm of each row: that of a gradient (:mod:`sdpalab.judge.rule.gradients`).
    """
    norms = np.maximum(np.linalg.norm(reference, axis=-1), magnitude)
    judged = ~np.isnan(norms)
    squares = np.where(judged, np.square(norms), 0.0).sum(axis=-1, keepdims=True)
    typical = np.sqrt(squares / np.maximum(judged.sum(axis=-1, keepdims=True), 1))
    least = math.sqrt(reference.shape[-1]) * LEAST_SUBNORMAL[dtype]
    distance = np.linalg.norm(out.astype(np.float64) - reference, axis=-1)
    rows: F64 = distance / np.maximum(np.maximum(norms, ROW_FLOOR * typical), least)
    return rows


def measure(
    out: Array, reference: F64, dtype: str, exact: ExactElements | None = None, magnitude: F64 | float = 0.0
) -> Errors:
    """Distance of ``out`` [B, H, Sq, D] from ``reference``, and from the ``exact`` elements if any are given;
    ``magnitude`` as for :func:`row_errors`.

    Elements that are not finite are counted, and left out of the other figures, so a record never holds a NaN; an
    output with such an element fails. Rows that are not judged are left out of all figures.

    Raises
    ------
    ValueError
        If no row is judged.
    """
    judged = ~np.isnan(reference[..., 0])
    if not judged.any():
        raise ValueError("no row is judged: each has an input that is not finite")
    finite = is_finite(out) | ~judged[..., None]
    clean = np.where(finite & judged[..., None], out.astype(np.float64), reference)
    error = np.nan_to_num(np.abs(clean - reference))
    rows = row_errors(clean, reference, dtype, magnitude)
    b, h, i, d = (int(n) for n in np.unravel_index(int(np.argmax(error)), error.shape))
    row_b, row_h, row_i = (int(n) for n in np.unravel_index(int(np.nanargmax(rows)), rows.shape))
    least = math.sqrt(reference.size) * LEAST_SUBNORMAL[dtype]
    sizes = np.where(judged, np.maximum(np.nan_to_num(np.linalg.norm(reference, axis=-1)), magnitude), 0.0)
    norm = float(np.linalg.norm(sizes))
    return Errors(
        max_abs=float(error[b, h, i, d]),
        max_abs_index=(b, h, i, d),
        rel_l2=float(np.linalg.norm(error)) / max(norm, least),
        rms_row_rel_l2=float(np.sqrt(np.mean(np.square(rows[judged])))),
        worst_row_rel_l2=float(rows[row_b, row_h, row_i]),
        worst_row=(row_b, row_h, row_i),
        not_finite=int(finite.size - np.count_nonzero(finite)),
        exact=exact.count if exact else 0,
        exact_wrong=int(np.count_nonzero(exact.wrong(out))) if exact else 0,
        ignored_rows=int(judged.size - np.count_nonzero(judged)),
    )


def limits_for(
    reference: F64,
    yardstick: Array,
    intended: Sequence[Array],
    dtype: str,
    magnitude: F64 | float = 0.0,
    roundings: int = 1,
) -> Limits:
    """The limits of one case.

    Parameters
    ----------
    reference : ndarray of float64, [B, H, Sq, D]
    yardstick : ndarray, [B, H, Sq, D]
        torch's own output in the same precision (:mod:`sdpalab.judge.rule.yardstick`).
    intended : sequence of ndarray, [B, H, Sq, D]
        Outputs of the declared arithmetic (:func:`sdpalab.judge.rule.numerics.intended_output`): one, or one for each
        order of operations that the declaration leaves open; the largest errors count.
    dtype : {"float16", "bfloat16", "float32"}
    magnitude : ndarray of float64, optional
        As for :func:`row_errors`.
    roundings : int
        Roundings to the type in the sum that gives an element.

    Raises
    ------
    ValueError
        If the yardstick has an element that is not finite in a judged row, or no row is judged. (Intended numerics may
        overflow, for example a float16 accumulator. Their finite elements still give the limits; a candidate that
        overflows there fails.)
    """
    torch_error = measure(yardstick, reference, dtype, magnitude=magnitude)
    own = [measure(out, reference, dtype, magnitude=magnitude) for out in intended]
    if torch_error.not_finite:
        raise ValueError("the yardstick is not finite on these inputs")
    worst = {name: max(getattr(errors, name) for errors in own) for name in LIMITED}
    walk, factors = math.sqrt((roundings + 1) / 2), factors_of(dtype, np.any(magnitude))
    floor = walk * UNIT_ROUNDOFF[dtype] * LEAST_ERROR[dtype]
    largest = float(np.max(np.where(np.isnan(reference[..., 0]), 0.0, magnitude)))
    rounding = max(walk * half_ulp(float(np.nanmax(np.abs(reference))), dtype), CANCELLED_SUMS * largest)
    return Limits(
        max_abs=factors["max_abs"] * max(torch_error.max_abs, worst["max_abs"]) + rounding,
        rel_l2=factors["rel_l2"] * max(worst["rel_l2"], floor),
        rms_row_rel_l2=factors["rms_row_rel_l2"] * max(worst["rms_row_rel_l2"], floor),
        worst_row_rel_l2=factors["worst_row_rel_l2"] * max(worst["worst_row_rel_l2"], floor),
        yardstick_max_abs=torch_error.max_abs,
        intended_max_abs=worst["max_abs"],
        intended_rel_l2=worst["rel_l2"],
        intended_rms_row_rel_l2=worst["rms_row_rel_l2"],
        intended_worst_row_rel_l2=worst["worst_row_rel_l2"],
    )
