"""Numbers that e4m3 represents exactly after quantisation, for any rows that share a scale, and numbers of a cache.

A kernel that quantises uses the scale max|x| / 448 over rows that it declares. 448 is 14 * 2**5 and 7 * 2**6, and e4m3
has four significant bits. Integers of at most 14 (7) therefore become e4m3 numbers without an error if each row of the
tensor has a 14 (7), also after multiplication by a factor that a head's rows share or by a power of 2.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from sdpalab.inputs.source import F64, Source

__all__ = ["E4M3_KINDS", "cached", "integers", "stepped", "two_bits"]

E4M3_KINDS = ("uniform_e4m3", "needle_e4m3", "normal_e4m3")
"""Kinds of inputs for kernels that quantise, defined in :mod:`sdpalab.inputs.kinds`."""

SIGNIFICAND_BITS = {"float16": 11, "bfloat16": 8, "float32": 11}
"""Significant bits of the numbers made here; float32 has more."""
STEP_ROWS = 64
_E4M3_MAX = 448.0


def integers(source: Source, name: str, shape: tuple[int, ...], largest: int) -> F64:
    """Integers of magnitude at most ``largest`` (7 or 14), which occurs in each row of ``shape`` [B, H, S, D], times a
    factor per head."""
    numbers: F64 = np.floor(source.uniform(name, shape) * (2 * largest + 1)) - largest
    np.put_along_axis(numbers, _column(source, name, shape), float(largest), axis=-1)
    numbers *= _factor(source, name, shape, largest.bit_length())
    return numbers


def two_bits(source: Source, name: str, shape: tuple[int, ...]) -> F64:
    """Plus or minus 1, 1/2 or 1/4, with a 1 in each row of ``shape`` [B, H, S, D], times a factor per head that uses
    all bits of the dtype; the scale of such numbers needs all of these bits."""
    halvings = np.floor(3.0 * source.uniform(name, shape))
    np.put_along_axis(halvings, _column(source, name, shape), 0.0, axis=-1)
    return _factor(source, name, shape, 0) * source.signs(f"{name} sign", shape) * 2.0**-halvings


def stepped(values: F64) -> F64:
    """``values`` [B, H, S, D] with each block of 64 rows multiplied by 1, 1/2 or 1/4, different from the block before,
    so that scales differ."""
    step = np.arange(values.shape[2]) // STEP_ROWS % 3
    return values * 2.0 ** -step[:, None].astype(np.float64)


def cached(array: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
    """``array`` [B, Hkv, S, D] rounded to numbers of e4m3 times a scale for each head, and the scales, float32 [Hkv].

    A scale is at least max|x| / 448 and at least 2^-9. It has four significant bits less than the array's dtype, in
    which the products are therefore exact.
    """
    dtype = array.dtype
    numbers = array.astype(np.float64)
    largest = np.max(np.abs(numbers), axis=(0, 2, 3), where=np.isfinite(numbers), initial=0.0)
    fraction, exponent = np.frexp(np.maximum(largest / _E4M3_MAX, 2.0**-9))
    steps = 2.0 ** (SIGNIFICAND_BITS[dtype.name] - 4)
    scales = np.ldexp(np.ceil(fraction * steps) / steps, exponent)
    codes = (numbers / scales[:, None, None]).astype(ml_dtypes.float8_e4m3fn)
    with np.errstate(over="ignore"):
        beyond = ~np.isfinite((codes.astype(np.float64) * scales[:, None, None]).astype(dtype)) & np.isfinite(numbers)
    codes.view(np.uint8)[beyond] -= 1  # the next smaller number
    products = (codes.astype(np.float64) * scales[:, None, None]).astype(dtype)
    return np.ascontiguousarray(products), scales.astype(np.float32)


def _column(source: Source, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Column of the largest number of each row."""
    return np.floor(source.uniform(f"{name} column", (*shape[:-1], 1)) * shape[-1]).astype(np.int64)


def _factor(source: Source, name: str, shape: tuple[int, ...], width: int) -> F64:
    """A factor from 1 to 2 per head, whose product with integers of ``width`` bits is exact in the dtype."""
    parts = 2.0 ** (SIGNIFICAND_BITS[source.problem.dtype] - width - 1)
    return 1.0 + np.floor(source.uniform(f"{name} factor", (*shape[:2], 1, 1)) * parts) / parts
