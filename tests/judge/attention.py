"""Attention in NumPy, right and wrong: independent of the judge's own, on arrays of float16 or bfloat16."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from sdpalab.inputs import Inputs
from sdpalab.problem import Problem

Array = npt.NDArray[Any]


def online(problem: Problem, inputs: Inputs, *, tile: int = 64, bug: str = "", order: int = 1) -> Array:
    """Online softmax over tiles of keys, in float32, with P in the problem's dtype; ``bug`` plants one error."""
    dtype = inputs.q.dtype
    q = inputs.q.astype(np.float32)
    k, v = (np.repeat(array.astype(np.float32), problem.group, axis=1) for array in (inputs.k, inputs.v))
    factor = np.float32(problem.scale * math.log2(math.e) * (1.02 if bug == "scale" else 1.0))
    rows = np.arange(problem.seq_q)[:, None] + (1 if bug == "mask" else 0)
    m = np.full((*problem.q_shape[:3], 1), -np.inf, np.float32)
    total, out = np.zeros_like(m), np.zeros(problem.q_shape, np.float32)
    starts = list(range(0, problem.seq_kv, tile))[::order]
    for start in starts[:-1] if bug == "last tile" else starts:
        keys = slice(start, start + tile)
        s = q @ k[:, :, keys].swapaxes(-1, -2) * factor
        if problem.causal:
            s = np.where(np.arange(start, start + s.shape[-1]) > rows, np.float32(-np.inf), s)
        new = np.maximum(m, s.max(axis=-1, keepdims=True))
        safe = np.where(np.isinf(new), np.float32(0), new)
        p = np.exp2(np.maximum(s - safe, np.float32(-2.0)) if bug == "clamp" else s - safe)
        rescale = np.exp2(m - safe)
        total = total * (1 if bug == "rescale l" else rescale) + p.sum(axis=-1, keepdims=True)
        p_type = ml_dtypes.float8_e4m3fn if bug == "fp8 P" else dtype
        product = p.astype(p_type).astype(np.float32) @ v[:, :, keys]
        out = out * (1 if bug == "rescale O" else rescale) + product
        if bug == "accumulator":
            out = out.astype(dtype).astype(np.float32)
        m = new
    if bug == "padding":
        total = total + np.exp2(-m) * (-problem.seq_kv % tile)
    result = (out / total).astype(dtype)
    if bug == "rows":
        result[:, :, [0, 1]] = result[:, :, [1, 0]]
    if bug == "heads":
        result = np.roll(result, 1, axis=1)
    if bug == "last row":
        result[:, :, -1] = 0
    return result


def mean_v(problem: Problem, inputs: Inputs) -> Array:
    """Mean of all of V, whatever the mask."""
    v = np.repeat(inputs.v.astype(np.float32), problem.group, axis=1)
    return np.broadcast_to(v.mean(axis=2, keepdims=True), problem.q_shape).astype(inputs.v.dtype)


def plain_v(problem: Problem, inputs: Inputs) -> Array:
    """Row i of V, again from the start where V has fewer rows."""
    v = np.repeat(inputs.v, problem.group, axis=1)
    return v[:, :, np.arange(problem.seq_q) % problem.seq_kv]
