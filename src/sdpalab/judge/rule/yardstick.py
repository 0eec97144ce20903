"""The yardstick: the output of torch's scaled_dot_product_attention on the same inputs in the same precision.

Which of torch's CPU backends? Measured with torch 2.13 on standard normal inputs, S from 63 to 4096, the relative L2
error in float16 (bfloat16) is
- ``flash``: 2.4e-4 to 2.9e-4 (1.8e-3 to 2.3e-3), within 2% of the intended numerics everywhere, because it does what
  the GPU kernels do: float32 accumulators, P rounded to the 16-bit type;
- ``math``: 2.0e-4 (1.6e-3): it converts to float32 first, so that only the rounding of the output is left, and no
  kernel that feeds P to 16-bit tensor cores can be as good.
Hence ``flash``. (Eager attention, which holds the scores in the 16-bit type, errs two to three times as much.)
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from sdpalab.judge.rule.reference import Rows
from sdpalab.judge.witness import Backend, witness_output

__all__ = ["torch_output"]

Array = npt.NDArray[Any]


def torch_output(q: Array, k: Array, v: Array, *, scale: float, causal: bool, rows: Rows = None) -> Array:
    """torch's CPU flash attention on ``q`` [B, H, Sq, D] and ``k``, ``v`` [B, Hkv, Skv, D], in their own dtype.

    With ``rows`` only those query rows of every head are computed.

    Raises
    ------
    MachineError
        If this torch has no such backend, or it fails: there is nothing to measure by.
    """
    return witness_output(q, k, v, scale=scale, causal=causal, backend=Backend.FLASH, rows=rows)
