"""One problem in float64, for the hypotheses of a diagnosis."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import Inputs, key_range, score_bias, visible_keys
from sdpalab.inputs.reference import finite
from sdpalab.judge.parameters import arguments
from sdpalab.judge.tensors import extra_tensor
from sdpalab.packing import Packing
from sdpalab.problem import Problem

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["F64", "TILES", "Float64Attention"]

F64 = npt.NDArray[np.float64]

TILES = (8, 16, 32, 64, 128)
"""Sizes of key tiles that are tried."""


class Float64Attention:
    """One problem in float64, from which the hypotheses are computed.

    Attributes
    ----------
    problem : Problem
    inputs : Inputs
    q : ndarray of float64, [B, H, Sq, D]
    v : ndarray of float64, [B, H, Skv, D]
        V of each query head.
    """

    def __init__(self, problem: Problem, inputs: Inputs) -> None:
        self.problem, self.inputs = problem, inputs
        self.q, self._k, self._v = (finite(array).astype(np.float64) for array in inputs.qkv)
        self.v = self._v.repeat(problem.group, axis=1)

    @cached_property
    def hidden(self) -> npt.NDArray[np.bool_]:
        """Keys that no row sees, [B, H, Sq, Skv]."""
        return ~self._by_head(visible_keys)

    @cached_property
    def scores(self) -> F64:
        """Scores after scale, cap and bias, before masks, [B, H, Sq, Skv]."""
        scores: F64 = self.q @ self._k.repeat(self.problem.group, axis=1).swapaxes(2, 3) * self.problem.scale
        cap = self.problem.softcap
        scores = cap * np.tanh(scores / cap) if cap else scores
        mask = self.inputs.attn_mask
        biased = self.inputs.alibi_slopes is not None or (mask is not None and mask.dtype != np.uint8)
        return scores + self._by_head(score_bias) if biased else scores

    @cached_property
    def sink_weight(self) -> F64:
        """The weight of the sink beside the largest weight of 1, [B, H, Sq, 1]; 0 without one."""
        if self.inputs.sinks is None:
            return np.zeros((1, 1, 1, 1))
        top = np.where(self.hidden, -np.inf, self.scores).max(axis=-1, keepdims=True)
        weight: F64 = np.exp(self.inputs.sinks.astype(np.float64)[:, None, None] - np.where(np.isneginf(top), 0.0, top))
        return weight

    @cached_property
    def visible_mean(self) -> F64:
        """Mean of the V that each row sees, the output for equal scores, [B, H, Sq, D]."""
        if self.inputs.kv_lengths is not None or self.inputs.attn_mask is not None:
            shown = ~self.hidden
            means: F64 = (shown.astype(np.float64) @ self.v) / np.maximum(shown.sum(axis=-1, keepdims=True), 1)
            return means
        first, last = key_range(np.arange(self.problem.seq_q), self.problem.seq_kv, **self.problem.scoring)
        end = np.maximum(last + 1, 0)
        start = np.minimum(first, end)
        sums = np.concatenate((np.zeros_like(self.v[:, :, :1]), np.cumsum(self.v, axis=2)), axis=2)
        seen: F64 = (sums[:, :, end] - sums[:, :, start]) / np.maximum(end - start, 1)[:, None]
        return seen

    def average(self, weights: F64, total: F64) -> F64:
        """The mean of V under the weights: their product divided by ``total`` and the sink's weight."""
        total = total + self.sink_weight
        mean: F64 = weights @ self.v / np.where(total == 0.0, 1.0, total)
        return mean

    def run_on_buffers(self, attention: Callable[..., Any]) -> F64:
        """The output of an implementation for the problem's layout in float64, [B, H, Sq, D]."""
        import torch

        arrays = {
            name: each if each.dtype == np.int32 else each.astype(np.float64)
            for name, each in self.inputs.arrays.items()
        }
        packing = Packing(self.problem)
        buffers = packing.pack(arrays)
        tensors = {name: torch.from_numpy(finite(array)) for name, array in buffers.items()}
        q, k, v = (tensors.pop(name) for name in "qkv")
        with torch.no_grad():
            out = attention(q, k, v, **arguments(attention, self.problem, tensors)).numpy()
        return packing.unpack({"o": out})["o"]

    def run(self, attention: Callable[..., Any], most: int = sys.maxsize) -> F64:
        """The output of an implementation of :mod:`sdpalab.bugs` in float64, [B, H, Sq, D], on the first ``most``
        queries and keys."""
        import torch

        q, k, v, extra = self._tensors
        q, k, v = (each[:, :, :most] for each in (q, k, v))
        extra = {name: _first(name, each, most) for name, each in extra.items()}
        with torch.no_grad():
            out: F64 = attention(q, k, v, **arguments(attention, self.problem, extra)).to(torch.float64).numpy()
        return out

    @cached_property
    def _tensors(self) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        import torch

        extra = {name: extra_tensor(self.inputs.arrays[name].copy()) for name in self.problem.array_shapes}
        extra = {name: each.double() if each.is_floating_point() else each for name, each in extra.items()}
        q, k, v = (torch.from_numpy(array) for array in (self.q, self._k, self._v))
        return q, k, v, extra

    def _by_head(self, part: Callable[..., Any]) -> npt.NDArray[Any]:
        """A function of :mod:`sdpalab.inputs` over all heads, [B, H, Sq, Skv]."""
        problem, rows = self.problem, np.arange(self.problem.seq_q)
        scoring = problem.scoring_with(self.inputs.arrays)
        heads = np.ndindex(problem.batch, problem.heads)
        parts = [part(rows, problem.seq_kv, head=head, **scoring) for head in heads]
        return np.reshape(parts, (*problem.q_shape[:3], problem.seq_kv))


def _first(name: str, extra: Tensor, most: int) -> Tensor:
    """An array of the problem for its first queries and keys."""
    if name == "attn_mask":
        return extra[..., :most, :most]
    return extra.clamp(max=most) if name in ("kv_lengths", "q_lengths") and most < sys.maxsize else extra
