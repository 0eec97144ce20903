"""The arithmetic that a kernel declares, emulated: how large an error is honest.

A bound taken from a library's output would depend on that library's choices: torch's ``math`` path on a CPU, for one,
computes in float32 and is better than any kernel that rounds P, while the older one held scores in the 16-bit type and
hid a bfloat16 accumulator. The bound is therefore taken from what the kernel itself says it does.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from sdpalab.errors import UserError
from sdpalab.judge.reference import weight_blocks
from sdpalab.kernels.kernel import Numerics

__all__ = ["check_numerics", "intended_output"]

Array = npt.NDArray[Any]

_TYPES: dict[str, type] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def check_numerics(numerics: Numerics) -> None:
    """Raise UserError if the declared arithmetic is one that is not emulated here."""
    if numerics.accumulate != "float32":
        raise UserError(f"numerics: accumulate must be float32, not {numerics.accumulate!r}")
    if numerics.probabilities != "problem" and numerics.probabilities not in _TYPES:
        known = ", ".join(("problem", *_TYPES))
        raise UserError(f"numerics: probabilities must be one of {known}, not {numerics.probabilities!r}")


def intended_output(
    q: Array, k: Array, v: Array, *, scale: float, causal: bool, numerics: Numerics, normalise_first: bool = False
) -> Array:
    """Attention with the roundings that ``numerics`` declares, and no others.

    The weights exp(s - max(s)) are rounded to float32, their sum is taken; they are rounded to the type of P and
    multiplied by V; the products' sum and the quotient are rounded to float32, and the result to the type of Q. The
    sums themselves run in float64: the order in which a kernel adds in float32 shifts its result a thousand times less
    than the roundings to 16 bits, and an emulation free of order is one that anybody can repeat.

    Parameters
    ----------
    q, k, v, scale, causal
        As in :func:`sdpalab.judge.reference.attention_float64`; the dtype of ``q`` is the problem's.
    numerics : Numerics
        ``accumulate`` must be float32; ``probabilities`` is ``problem`` (the dtype of ``q``) or a type's name.
    normalise_first : bool
        Divide the weights by their sum before they are rounded, as code does that calls a softmax, instead of dividing
        the product by it, as flash attention does. With equal weights the former rounds all of them the same way, which
        no average takes out.

    Returns
    -------
    ndarray of the dtype of ``q``, [B, H, Sq, D]

    Raises
    ------
    UserError
        As :func:`check_numerics`.
    """
    check_numerics(numerics)
    p_type = q.dtype if numerics.probabilities == "problem" else np.dtype(_TYPES[numerics.probabilities])
    group = q.shape[1] // k.shape[1]
    out = np.empty(q.shape[:3] + v.shape[3:], q.dtype)
    for (b, h, rows), weights in weight_blocks(q, k, scale=scale, causal=causal):
        p = weights.astype(np.float32)
        total = p.sum(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
        if normalise_first:
            p, total = p / total, np.ones_like(total)
        product = p.astype(p_type).astype(np.float64) @ v[b, h // group].astype(np.float64)
        out[b, h, rows] = (product.astype(np.float32) / total).astype(q.dtype)
    return out
