"""The rule: how far an output may be from the float64 reference. Pure NumPy; every number in it is stated here.

All must hold:

1. largest absolute error <= 2 * torch's own in the same precision + half an ulp of the output type at max|reference|
2. relative L2 error <= 1.5 * that of the intended numerics
3. worst row's relative L2 error <= 2 * that of the intended numerics' worst row
4. every element is finite

Rules 2 and 3 never ask for less than their factor times half a unit roundoff u of the output type (2**-11 for float16,
2**-8 for bfloat16). Honest rounding of the output alone costs up to u; where the emulation happens to hit numbers that
the type holds exactly (one key, equal weights over a power of two), its own error is 0, and a kernel that multiplies by
a reciprocal instead of dividing is not wrong.

Relative errors are over ||reference||. A row whose norm is below 2**-8 of the root mean square of its head's row norms
is measured against that floor: where V cancels to near zero, every rounding is large beside what is left. Nothing is
measured against less than sqrt(n) times the type's least subnormal (n elements), below which the type has no numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.judge.verdict import Errors, Limits

__all__ = [
    "INTENDED_FACTOR",
    "LEAST_SUBNORMAL",
    "ROW_FACTOR",
    "ROW_FLOOR",
    "UNIT_ROUNDOFF",
    "YARDSTICK_FACTOR",
    "broken_rules",
    "half_ulp",
    "limits_for",
    "measure",
    "row_errors",
]

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]

YARDSTICK_FACTOR = 2.0
INTENDED_FACTOR = 1.5
ROW_FACTOR = 2.0
ROW_FLOOR = 2.0**-8
UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Largest relative error of rounding to the type."""
LEAST_NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126}
LEAST_SUBNORMAL = {"float16": 2.0**-24, "bfloat16": 2.0**-133}


def half_ulp(value: float, dtype: str) -> float:
    """Half the distance between neighbouring numbers of ``dtype`` at ``|value|``: the largest rounding error there."""
    _, exponent = math.frexp(max(abs(value), LEAST_NORMAL[dtype]))
    return UNIT_ROUNDOFF[dtype] * 2.0 ** (exponent - 1)


def row_errors(out: Array, reference: F64, dtype: str) -> F64:
    """Relative L2 error of each row, [B, H, Sq], with the floors that the module states."""
    norms = np.linalg.norm(reference, axis=-1)
    typical = np.sqrt(np.mean(np.square(norms), axis=-1, keepdims=True))
    least = math.sqrt(reference.shape[-1]) * LEAST_SUBNORMAL[dtype]
    distance = np.linalg.norm(out.astype(np.float64) - reference, axis=-1)
    rows: F64 = distance / np.maximum(np.maximum(norms, ROW_FLOOR * typical), least)
    return rows


def measure(out: Array, reference: F64, dtype: str) -> Errors:
    """Distance of ``out`` [B, H, Sq, D] from ``reference``.

    Elements that are not finite are counted, and left out of the other figures (as if they were right), so that a
    record never holds a NaN; whoever has one has not passed.
    """
    finite = np.isfinite(out)
    clean = np.where(finite, out.astype(np.float64), reference)
    error = np.abs(clean - reference)
    b, h, i, d = (int(n) for n in np.unravel_index(int(np.argmax(error)), error.shape))
    rows = row_errors(clean, reference, dtype)
    row_b, row_h, row_i = (int(n) for n in np.unravel_index(int(np.argmax(rows)), rows.shape))
    least = math.sqrt(reference.size) * LEAST_SUBNORMAL[dtype]
    return Errors(
        max_abs=float(error[b, h, i, d]),
        max_abs_index=(b, h, i, d),
        rel_l2=float(np.linalg.norm(error) / max(float(np.linalg.norm(reference)), least)),
        worst_row_rel_l2=float(rows[row_b, row_h, row_i]),
        worst_row=(row_b, row_h, row_i),
        not_finite=int(out.size - np.count_nonzero(finite)),
    )


def limits_for(reference: F64, yardstick: Array, intended: Sequence[Array], dtype: str) -> Limits:
    """The limits of one case.

    Parameters
    ----------
    reference : ndarray of float64, [B, H, Sq, D]
    yardstick : ndarray, [B, H, Sq, D]
        torch's own output in the same precision (:mod:`sdpalab.judge.yardstick`).
    intended : sequence of ndarray, [B, H, Sq, D]
        Outputs of the declared arithmetic (:func:`sdpalab.judge.numerics.intended_output`): one, or one for each order
        of operations that the declaration leaves open; the largest errors count.
    dtype : {"float16", "bfloat16"}

    Raises
    ------
    ValueError
        If the yardstick or the intended output has an element that is not finite: then there is nothing to measure by.
    """
    torch_error, own = measure(yardstick, reference, dtype), [measure(out, reference, dtype) for out in intended]
    if any(errors.not_finite for errors in (torch_error, *own)):
        raise ValueError("the yardstick or the intended output is not finite on these inputs")
    floor = UNIT_ROUNDOFF[dtype] / 2.0
    rounding = half_ulp(float(np.max(np.abs(reference))), dtype)
    own_rel_l2 = max(errors.rel_l2 for errors in own)
    own_worst_row = max(errors.worst_row_rel_l2 for errors in own)
    return Limits(
        max_abs=YARDSTICK_FACTOR * torch_error.max_abs + rounding,
        rel_l2=INTENDED_FACTOR * max(own_rel_l2, floor),
        worst_row_rel_l2=ROW_FACTOR * max(own_worst_row, floor),
        yardstick_max_abs=torch_error.max_abs,
        intended_rel_l2=own_rel_l2,
        intended_worst_row_rel_l2=own_worst_row,
    )


def broken_rules(errors: Errors, limits: Limits) -> tuple[str, ...]:
    """Which of ``max_abs``, ``rel_l2``, ``worst_row_rel_l2`` and ``not_finite`` are over their limits, if any."""
    over = [
        name for name in ("max_abs", "rel_l2", "worst_row_rel_l2") if not getattr(errors, name) <= getattr(limits, name)
    ]
    return (*over, "not_finite") if errors.not_finite else tuple(over)
