"""The sums of a matrix product's instructions, by the rules of :mod:`sdpalab.sim.tensor_cores`, on NumPy's arrays.

What is said there of the alignment, the rounding and zeros is done here in float64, in which products are exact, and
so are the sums of a block once its terms are cut off.
"""

from __future__ import annotations

import numpy as np

from sdpalab.sim.isa.fragments import matrix_product
from sdpalab.sim.isa.rounding import canonical_nans
from sdpalab.sim.selection import Array
from sdpalab.sim.tensor_cores import EMIN, FAR, SPECIAL_EXPONENT, ZERO_EXPONENT, SumRule

__all__ = ["add_products"]

_LEAST_F32 = -126


def add_products(left: Array, right: Array, before: Array, rule: SumRule, result: str, numerics: str) -> Array:
    """``before`` plus the products of one instruction.

    Parameters
    ----------
    left, right : ndarray of float32 [..., rows, k], [..., columns, k]
        The factors.
    before : ndarray of float32 [..., rows, columns]
        C: numbers of the type of the result.
    rule : SumRule
    result : {"f32", "f16"}
    numerics : {"hardware", "float32"}
        By the rule; or in float32, where only the blocks of an f16 sum, or of one that adds C at the end, are those of
        the rule.

    Returns
    -------
    ndarray of float32 [..., rows, columns]
        Of f16 values if the result is f16. NaN is canonical, and no zero is negative.
    """
    total: Array = np.zeros_like(before) if rule.addend_last else before
    if numerics == "float32" and result == "f32" and not rule.addend_last:
        total = matrix_product(left, right) + total
    else:
        for block in rule.blocks:
            indices = slice(block[0], block[-1] + 1) if block[-1] - block[0] == len(block) - 1 else list(block)
            a, b = left[..., indices], right[..., indices]
            if numerics == "float32":
                total = _rounded(matrix_product(np.ascontiguousarray(a), np.ascontiguousarray(b)) + total, result)
            else:
                total = _block(a, b, total, rule, result)
    if rule.addend_last:
        total = _rounded(total + before, result)
    total = total + np.float32(0)
    canonical_nans(total)
    return total


def _rounded(values: Array, result: str) -> Array:
    """float32 values as numbers of the result's type, to nearest even."""
    return values.astype(np.float16).astype(np.float32) if result == "f16" else values


def _exponents(values: Array, least: int) -> Array:
    """Exponents of float32 values, int32: ``least`` at least, but of zeros and of what is not finite."""
    bits = values.view(np.int32)
    exponents: Array = np.maximum((bits >> 23 & 0xFF) - 127, least)
    exponents[bits & 0x7FFFFFFF == 0] = ZERO_EXPONENT
    exponents[exponents == 128] = SPECIAL_EXPONENT
    return exponents


def _block(left: Array, right: Array, before: Array, rule: SumRule, result: str) -> Array:
    """One block: aligned, cut off, added and rounded once."""
    left, right = np.ascontiguousarray(left), np.ascontiguousarray(right)
    of_left, of_right = _exponents(left, rule.least), _exponents(right, rule.least)
    depth = left.shape[-1]
    greatest = _exponents(before, EMIN[result])
    for k in range(depth):
        np.maximum(greatest, of_left[..., :, None, k] + of_right[..., None, :, k], out=greatest)
    special = greatest > FAR
    greatest[special | (greatest < -FAR)] = 0
    scale = (rule.fraction - greatest + 1023).astype(np.int64) << 52
    scales = scale.view(np.float64)
    total = np.trunc(before * scales)
    for k in range(depth):
        term = np.multiply(left[..., :, None, k], right[..., None, :, k], dtype=np.float64)
        term *= scales
        total += np.trunc(term, out=term)
    total /= scales
    to_f16 = result == "f16"
    rounded: Array = total.astype(np.float16).astype(np.float32) if to_f16 else _toward_zero(total, rule.precision)
    if special.any():
        # Infinities and NaN: their sum in any order; the others cannot change it.
        whole = np.matmul(left.astype(np.float64), right.astype(np.float64).swapaxes(-1, -2)) + before
        rounded[special] = whole[special]
    return rounded


def _toward_zero(values: Array, precision: int) -> Array:
    """float64 values as float32 with ``precision`` bits behind the point, toward zero; beyond the range, infinite."""
    unit = 2.0 ** (_LEAST_F32 - precision)
    cut: Array = (values.view(np.int64) & np.int64(-1 << (52 - precision))).view(np.float64)
    small = np.abs(values) < 2.0**_LEAST_F32
    if small.any():
        cut[small] = np.trunc(values[small] / unit) * unit
    return cut.astype(np.float32)
