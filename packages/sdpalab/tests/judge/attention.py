"""Attention in NumPy, independent of the judge's own, and two outputs that are none; float16 or bfloat16."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import Inputs
from sdpalab.judge.sandbox.callables import CallableRunner
from sdpalab.judge.strides import Strides
from sdpalab.packing import Packing
from sdpalab.problem import Problem

Array = npt.NDArray[Any]


def online(problem: Problem, inputs: Inputs, *, tile: int = 64, order: int = 1) -> Array:
    """Online softmax over tiles of keys, in float32, with P in the problem's dtype; ``order`` -1 is backwards."""
    dtype = inputs.q.dtype
    q = inputs.q.astype(np.float32)
    k, v = (np.repeat(array.astype(np.float32), problem.group, axis=1) for array in (inputs.k, inputs.v))
    factor = np.float32(problem.scale * math.log2(math.e))
    rows = np.arange(problem.seq_q)[:, None]
    m = np.full((*problem.q_shape[:3], 1), -np.inf, np.float32)
    total, out = np.zeros_like(m), np.zeros(problem.q_shape, np.float32)
    for start in range(0, problem.seq_kv, tile)[::order]:
        keys = slice(start, start + tile)
        s = q @ k[:, :, keys].swapaxes(-1, -2) * factor
        if problem.causal:
            s = np.where(np.arange(start, start + s.shape[-1]) > rows, np.float32(-np.inf), s)
        new = np.maximum(m, s.max(axis=-1, keepdims=True))
        safe = np.where(np.isinf(new), np.float32(0), new)
        p = np.exp2(s - safe)
        rescale = np.exp2(m - safe)
        total = total * rescale + p.sum(axis=-1, keepdims=True)
        out = out * rescale + p.astype(dtype).astype(np.float32) @ v[:, :, keys]
        m = new
    return (out / total).astype(dtype)


def mean_v(problem: Problem, inputs: Inputs) -> Array:
    """Mean of all of V, whatever the mask."""
    v = np.repeat(inputs.v.astype(np.float32), problem.group, axis=1)
    return np.broadcast_to(v.mean(axis=2, keepdims=True), problem.q_shape).astype(inputs.v.dtype)


def plain_v(problem: Problem, inputs: Inputs) -> Array:
    """Row i of V, again from the start where V has fewer rows."""
    v = np.repeat(inputs.v, problem.group, axis=1)
    return v[:, :, np.arange(problem.seq_q) % problem.seq_kv]


def output_of(
    function: Callable[..., Any], problem: Problem, inputs: Inputs, strides: Strides = Strides.CONTIGUOUS
) -> Array:
    """The output of a function on torch tensors, called in this process on copies, with the judge's arguments."""
    return outputs_of(function, problem, inputs, strides)["o"]


def outputs_of(
    function: Callable[..., Any], problem: Problem, inputs: Inputs, strides: Strides = Strides.CONTIGUOUS
) -> dict[str, Array]:
    """All outputs by name, as :func:`output_of`; raises :class:`sdpalab.judge.sandbox.callables.BadOutput`."""
    packing = Packing(problem)
    outputs, _ = CallableRunner(function).run(problem, packing.pack(inputs.arrays), 0xFF, False, strides)
    return packing.unpack(outputs)
