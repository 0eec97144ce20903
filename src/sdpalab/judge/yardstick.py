"""The yardstick: what torch's own scaled_dot_product_attention makes of the same inputs in the same precision.

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

from sdpalab.errors import MachineError
from sdpalab.judge.tensors import from_torch, to_torch

__all__ = ["torch_output"]

Array = npt.NDArray[Any]


def torch_output(q: Array, k: Array, v: Array, *, scale: float, causal: bool) -> Array:
    """torch's CPU flash attention on ``q`` [B, H, Sq, D] and ``k``, ``v`` [B, Hkv, Skv, D], in their own dtype.

    Raises
    ------
    MachineError
        If this torch has no such backend, or it fails.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    group = q.shape[1] // k.shape[1]
    # torch scales after it masks, and -inf times a negative number or 0 is no mask: the same scores from another Q.
    if scale <= 0.0:
        q, scale = (-q, -scale) if scale else (0 * q, 1.0)
    keys, values = (to_torch(array).repeat_interleave(group, dim=1) for array in (k, v))
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = torch.nn.functional.scaled_dot_product_attention(
                to_torch(q), keys, values, is_causal=causal, scale=scale
            )
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise MachineError(f"torch {torch.__version__} has no CPU flash attention to measure by: {first}") from None
    return from_torch(out)
