"""One problem in float64, with every part of attention replaceable, for the hypotheses of a diagnosis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import Inputs, key_range, visible_keys
from sdpalab.inputs.reference import finite
from sdpalab.problem import Problem

__all__ = ["F64", "HIDDEN_SCORES", "TILES", "Array", "Float64Attention", "Mask", "Outputs"]

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Outputs = Iterator[tuple[str, F64]]
"""Bugs in words, and their outputs."""

TILES = (8, 16, 32, 64, 128)
"""Sizes of key tiles that are tried."""

HIDDEN_SCORES = (0.0, *(-math.log(2.0) * octaves for octaves in (6, 8, 10, 12, 16, 20, 24)), -5.0, -8.0, -10.0, -20.0)
"""Likely values of hidden scores that are not minus infinity."""


class Float64Attention:
    """One problem in float64, from which the hypotheses are computed.

    Attributes
    ----------
    problem : Problem
    q : ndarray of float64, [B, H, Sq, D]
    k, v : ndarray of float64, [B, H, Skv, D]
        K and V of each query head.
    scores : ndarray of float64, [B, H, Sq, Skv]
        Scores after scale, cap and bias, before masks.
    by_place : ndarray of bool, [Sq, Skv]
        Keys that the causal mask and a window hide.
    beyond : ndarray of bool, [B, H, Sq, Skv] or broadcast to that
        Keys that lengths and an ``attn_mask`` hide.
    hidden : ndarray of bool, [B, H, Sq, Skv] or broadcast to that
        Keys hidden by any of these.
    bias : ndarray of float64, [B, H, Sq, Skv] or broadcast to that
        Bias of the scores by ALiBi and an additive mask.
    sinks : ndarray of float64, [H, 1, 1]
        -inf where the problem has none.
    right : ndarray of float64, [B, H, Sq, D]
        The right output.
    """

    def __init__(self, problem: Problem, inputs: Inputs, right: F64) -> None:
        self.problem, self.right = problem, right
        self.q, *self._kv = (finite(array).astype(np.float64) for array in (inputs.q, inputs.k, inputs.v))
        self.k, self.v = (np.repeat(array, problem.group, axis=1) for array in self._kv)
        self.rows, self.columns = np.arange(problem.seq_q)[:, None], np.arange(problem.seq_kv)
        self.inputs, places = inputs, problem.with_(kv_lengths=None).scoring
        self.by_place = ~visible_keys(self.rows[:, 0], problem.seq_kv, **places)
        self.beyond = self.hidden_by(inputs.kv_lengths, inputs.attn_mask)
        self.hidden = self.by_place | self.beyond
        self.bias = self.mask_values(inputs.attn_mask) - self.slope(inputs.alibi_slopes)
        self.sinks = np.full((1, 1, 1), -np.inf) if inputs.sinks is None else _by_head(inputs.sinks)

    @cached_property
    def scores(self) -> F64:
        """Scores, computed on first use because they are large for long sequences."""
        return self.scores_of(self.q, self.k)

    @cached_property
    def sink_weight(self) -> F64:
        """The weight of the sink beside the right weights; 0 without one."""
        if self.inputs.sinks is None:
            return np.zeros((1, 1, 1, 1))
        weights, total = self.weights_and_total()
        sink: F64 = total - weights.sum(axis=-1, keepdims=True)
        return sink

    @cached_property
    def visible_mean(self) -> F64:
        """Mean of the V that each row sees, the output for equal scores, [B, H, Sq, D]."""
        if self.beyond.size > 1:
            shown = ~self.hidden
            means: F64 = (shown.astype(np.float64) @ self.v) / np.maximum(shown.sum(axis=-1, keepdims=True), 1)
            return means
        first, last = key_range(self.rows[:, 0], self.problem.seq_kv, **self.problem.scoring)
        end = np.maximum(last + 1, 0)
        start = np.minimum(first, end)
        sums = np.concatenate((np.zeros_like(self.v[:, :, :1]), np.cumsum(self.v, axis=2)), axis=2)
        seen: F64 = (sums[:, :, end] - sums[:, :, start]) / np.maximum(end - start, 1)[:, None]
        return seen

    def hidden_by(self, lengths: Array | None, mask: Array | None) -> Mask:
        """Mask of the keys that these hide, [B or 1, H or 1, Sq or 1, Skv or 1]."""
        hidden = np.zeros((1, 1, 1, 1), np.bool_)
        if lengths is not None:
            hidden = hidden | (self.columns >= lengths[:, None, None, None])
        if mask is not None:
            hidden = hidden | ((mask == 0) if mask.dtype == np.uint8 else np.isneginf(mask.astype(np.float64)))
        return hidden

    def mask_values(self, mask: Array | None) -> F64:
        """Values that a mask adds to the scores, 0 where it hides; [B or 1, H or 1, Sq or 1, Skv or 1]."""
        if mask is None or mask.dtype == np.uint8:
            return np.zeros((1, 1, 1, 1))
        values = mask.astype(np.float64)
        return np.where(np.isneginf(values), 0.0, values)

    def slope(self, slopes: Array | None, distance: Array | None = None) -> F64:
        """Values that ALiBi subtracts from the scores; ``distance`` [Sq, Skv] is |i - j| by default."""
        if slopes is None:
            return np.zeros((1, 1, 1, 1))
        subtracted: F64 = _by_head(slopes) * (np.abs(self.rows - self.columns) if distance is None else distance)
        return subtracted

    def scores_of(self, q: F64, k: F64, bias: F64 | None = None) -> F64:
        """Scaled scores, capped if the problem has a soft cap, and biased."""
        scores: F64 = q @ k.swapaxes(2, 3) * self.problem.scale
        cap = self.problem.softcap
        return (cap * np.tanh(scores / cap) if cap else scores) + (self.bias if bias is None else bias)

    def biased(self, bias: F64) -> F64:
        """Attention with another bias."""
        return self.output(self.scores_of(self.q, self.k, bias))

    def weights(self, scores: F64 | None = None, hidden: Mask | None = None, sinks: F64 | None = None) -> F64:
        """exp(s - max(s)) of each row; 0 for hidden keys, and in rows that see no key. A sink counts for max(s)."""
        return self.weights_and_total(scores, hidden, sinks)[0]

    def weights_and_total(
        self,
        scores: F64 | None = None,
        hidden: Mask | None = None,
        sinks: F64 | None = None,
        beyond: Mask | None = None,
    ) -> tuple[F64, F64]:
        """The weights and their denominators, with some parts replaced."""
        covered = (self.by_place if hidden is None else hidden) | (self.beyond if beyond is None else beyond)
        masked = np.where(covered, -np.inf, self.scores if scores is None else scores)
        logits = self.sinks if sinks is None else sinks
        top = np.maximum(masked.max(axis=-1, keepdims=True), logits)
        top = np.where(np.isinf(top), 0.0, top)
        weights: F64 = np.exp(masked - top)
        return weights, weights.sum(axis=-1, keepdims=True) + np.exp(logits - top)

    def output(
        self,
        scores: F64 | None = None,
        hidden: Mask | None = None,
        v: F64 | None = None,
        *,
        beyond: Mask | None = None,
        sinks: F64 | None = None,
    ) -> F64:
        """Attention with some parts replaced; ``hidden`` replaces :attr:`by_place`."""
        return self.average(*self.weights_and_total(scores, hidden, sinks, beyond), v=v)

    def average(self, weights: F64, total: F64 | None = None, v: F64 | None = None) -> F64:
        """The mean of V under the weights, their product divided by ``total``: by default their sum and the sink's
        right weight."""
        if total is None:
            total = weights.sum(axis=-1, keepdims=True) + self.sink_weight
        mean: F64 = weights @ (self.v if v is None else v) / np.where(total == 0.0, 1.0, total)
        return mean

    def of(self, q: Array, k: Array, v: Array) -> F64:
        """Attention on other operands, per query head."""
        return self.output(self.scores_of(q, k), None, v)

    def grouped(self, choose: Callable[[F64], F64]) -> F64:
        """Attention whose query heads use the result of ``choose`` for K and V [B, Hkv, Skv, D]."""
        k, v = (choose(array) for array in self._kv)
        return self.of(self.q, k, v)


def _by_head(array: Array) -> F64:
    """One number per head, [H, 1, 1]."""
    return array.astype(np.float64)[:, None, None]
