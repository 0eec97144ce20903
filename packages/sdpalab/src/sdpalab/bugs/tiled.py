"""Tiled attention on torch CPU tensors, a right implementation with one overridable method per step.

A planted bug is a subclass with one wrong step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sdpalab.bugs.bug import WRONG, Bug, Family
from sdpalab.bugs.cause import Cause
from sdpalab.bugs.scores import LOG2_E, Asked, TiledScores
from sdpalab.problem import Problem
from sdpalab.status import Status

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "BF16",
    "CAUSAL",
    "CROSS",
    "GROUPED",
    "GROUPED_CAUSAL",
    "PLAIN",
    "TiledAttention",
    "changed",
    "planted",
]

PLAIN = Problem(1, 2, 200, 64)
CAUSAL = PLAIN.with_(causal=True)
CROSS = Problem(1, 2, 90, 64, seq_kv=150, causal=True)
GROUPED = Problem(2, 4, 100, 64, kv_heads=2)
GROUPED_CAUSAL = GROUPED.with_(causal=True)
BF16 = PLAIN.with_(dtype="bfloat16")


def planted(
    family: Family,
    id: str,
    problem: Problem = PLAIN,
    *,
    into: list[Bug],
    cause: Cause | None = None,
    statuses: frozenset[Status] = WRONG,
    equivalent: str = "",
    harmless: Problem | None = None,
    claims: bool = False,
    words: str = "",
    link: str = "",
) -> Callable[[type[Any]], type[Any]]:
    """Class decorator that adds an instance of the class, as the candidate of a bug, to a list."""

    def plant(implementation: type[Any]) -> type[Any]:
        edit = implementation()
        into.append(Bug(id, family, cause, edit, problem, harmless, statuses, equivalent, claims, words, link))
        return implementation

    return plant


class TiledAttention(TiledScores):
    """Online softmax over tiles of keys (FlashAttention-2, Dao 2023): float32 sums, P in the inputs' dtype; for float64
    inputs both are float64.

    ``attention(q, k, v, *, scale, causal, window_size=..., ...) -> out`` on [B, H, Sq, D], [B, Hkv, Skv, D] and [B,
    Hkv, Skv, Dv], with the judge's arguments, the fields that most problems lack, and any number of K/V heads. Inside,
    tensors have the type of the sums (:class:`.scores.TiledScores`); maximum and total [B, H, Sq, 1]; the unnormalised
    output [B, H, Sq, Dv].
    """

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        causal: bool,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        kv_lengths: Tensor | None = None,
        q_lengths: Tensor | None = None,
        bottom_right: bool = False,
        head_dim_v: int = 0,
        attn_mask: Tensor | None = None,
        alibi_slopes: Tensor | None = None,
        sinks: Tensor | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        import torch

        self.dtype, self.wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
        self.scale, self.shift = scale, k.shape[2] - q.shape[2]
        group = q.shape[1] // k.shape[1]
        queries, keys, values = self.operands(*self.widened(q, k, v, group))
        seq_q, seq_kv = queries.shape[2], keys.shape[2]
        asked = Asked(
            group,
            seq_q,
            seq_kv,
            causal,
            window_size,
            softcap,
            kv_lengths,
            q_lengths,
            bottom_right,
            attn_mask,
            alibi_slopes,
        )
        factor = self.factor(scale, q.shape[3])
        rows = torch.arange(seq_q)[:, None]
        maximum, total = self.beginning(queries, sinks, group)
        out = queries.new_zeros(*queries.shape[:3], values.shape[3])
        for start in self.starts(seq_kv):
            chosen = slice(start, min(start + self.tile, seq_kv))
            columns = torch.arange(chosen.start, chosen.stop)
            key_tile, value_tile = self.tile_of(keys, chosen), self.value_tile(values, chosen)
            if kv_lengths is not None:
                key_tile = self.valid_keys(key_tile, columns, kv_lengths)
                value_tile = self.valid_values(value_tile, columns, kv_lengths)
            scores = self.scores(queries, key_tile) * factor
            if softcap:
                scores = self.capped(scores, softcap * LOG2_E)
            scores = self.masked_scores(scores, rows, columns, chosen, asked)
            previous, maximum = maximum, self.maximum(maximum, scores)
            weights = self.weights(scores, maximum)
            rescale = self.weights(previous, maximum)
            total = self.total(total, rescale, weights)
            out = self.output(out, rescale, self.rounded(weights), value_tile)
        return self.finish(out, total, maximum, seq_kv).to(q.dtype)

    def widened(self, q: Tensor, k: Tensor, v: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
        """Q, and K and V of each query head, in the type of the sums."""
        return q.to(self.wide), self.heads(k.to(self.wide), group), self.heads(v.to(self.wide), group)

    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Operands of the products."""
        return q, k, v

    def beginning(self, queries: Tensor, sinks: Tensor | None, group: int) -> tuple[Tensor, Tensor]:
        """Maximum and total before the first tile; a sink is the first score, in units of log2."""
        shape = (*queries.shape[:3], 1)
        if sinks is None:
            return queries.new_full(shape, -math.inf), queries.new_zeros(shape)
        return (sinks * LOG2_E)[:, None, None].expand(shape), queries.new_ones(shape)

    def maximum(self, maximum: Tensor, scores: Tensor) -> Tensor:
        """The running maximum including this tile."""
        import torch

        return torch.maximum(maximum, scores.amax(-1, keepdim=True))

    def weights(self, scores: Tensor, maximum: Tensor) -> Tensor:
        """2 ** (score - maximum); with the previous maximum, the factor of the previous sums."""
        return (scores - maximum.clamp(min=-1e30)).exp2()  # 0 in a row without a visible key so far

    def total(self, total: Tensor, rescale: Tensor, weights: Tensor) -> Tensor:
        """Running sum of the weights."""
        return total * rescale + weights.sum(-1, keepdim=True)

    def output(self, out: Tensor, rescale: Tensor, weights: Tensor, values: Tensor) -> Tensor:
        """Running unnormalised output."""
        return out * rescale + weights @ values

    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        """The output, still in float32."""
        return out / total.where(maximum > -math.inf, 1.0)  # 0 in a row without a visible key


def changed(base: type[TiledAttention] = TiledAttention, /, **steps: Any) -> type[TiledAttention]:
    """Subclass with other steps: functions in place of methods, or class attributes."""
    return type("Changed", (base,), steps)
