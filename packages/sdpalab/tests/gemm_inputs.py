"""Matrices for a product, of which the exact result is known."""

from __future__ import annotations

import numpy as np

from sdpalab.inputs import dtype_of
from sdpalab.kernels.plan import Gemm

__all__ = ["arrays_for"]


def arrays_for(gemm: Gemm, operands: str = "float16", out: str = "float32") -> dict[str, np.ndarray]:
    """Small integers for A and B, so that every sum is exact, and NaN for C and all padding."""
    draw = np.random.default_rng(0)
    arrays = {}
    for name, (rows, columns, pitch) in gemm.matrices.items():
        array = np.full((gemm.batch, rows, pitch), np.nan, dtype_of(operands if name != "c" else out))
        if name != "c":
            array[..., :columns] = draw.integers(-4, 5, (gemm.batch, rows, columns))
        arrays[name] = array
    return arrays
