"""Tiled attention on torch CPU tensors, a right implementation with one overridable method per step.

A planted bug is a subclass with one wrong step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sdpalab.bugs.bug import WRONG, Bug, Family
from sdpalab.bugs.cause import Cause
from sdpalab.problem import Problem
from sdpalab.status import Status

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = [
    "BF16",
    "CAUSAL",
    "CROSS",
    "GROUPED",
    "GROUPED_CAUSAL",
    "LOG2_E",
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
LOG2_E = math.log2(math.e)
FAR = 1 << 30
"""Window side without a bound."""


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
) -> Callable[[type[Any]], type[Any]]:
    """Class decorator that adds an instance of the class, as the candidate of a bug, to a list."""

    def plant(implementation: type[Any]) -> type[Any]:
        into.append(Bug(id, family, cause, implementation(), problem, harmless, statuses, equivalent, claims, words))
        return implementation

    return plant


class TiledAttention:
    """Online softmax over tiles of keys (FlashAttention-2, Dao 2023): float32 sums, P in the inputs' dtype; for float64
    inputs both are float64.

    ``attention(q, k, v, *, scale, causal, window_size=..., ...) -> out`` on [B, H, Sq, D] and [B, Hkv, Skv, D], with
    the judge's arguments, the fields that most problems lack, and any number of K/V heads. Inside, tensors have the
    type of the sums: q [B, H, Sq, D]; k, v [B, H, Skv, D]; scores and weights of one tile [B, H, Sq, tile]; maximum and
    total [B, H, Sq, 1]; the unnormalised output [B, H, Sq, D].
    """

    tile = 32
    dtype: torch.dtype
    wide: torch.dtype
    """Type of the sums."""
    scale: float
    shift: int
    """Keys minus queries: the distance between the alignments top left and bottom right."""

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
        factor = self.factor(scale, q.shape[3])
        rows = torch.arange(seq_q)[:, None]
        maximum, total = self.beginning(queries, sinks, group)
        out = torch.zeros_like(queries)
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
            if self.causal(causal):
                scores = scores.masked_fill(self.hidden(rows, columns, seq_q, seq_kv), self.masked)
            if window_size != (-1, -1):
                scores = scores.masked_fill(self.outside(rows, columns, *window_size), self.masked)
            if alibi_slopes is not None:
                scores = scores - self.bias(alibi_slopes, rows, columns, group) * LOG2_E
            if attn_mask is not None:
                scores = self.joined(scores, self.mask_tile(attn_mask, chosen, group))
            if kv_lengths is not None:
                scores = scores.masked_fill(self.padding(columns, kv_lengths, rows), self.masked)
            scores = self.after_masks(scores, softcap * LOG2_E)
            previous, maximum = maximum, self.maximum(maximum, scores)
            weights = self.weights(scores, maximum)
            rescale = self.weights(previous, maximum)
            total = self.total(total, rescale, weights)
            out = self.output(out, rescale, self.rounded(weights), value_tile)
        return self.finish(out, total, maximum, seq_kv).to(q.dtype)

    # ---- inputs --------------------------------------------------------------------------------------------------

    def heads(self, tensor: Tensor, group: int) -> Tensor:
        """K or V of each query head: head h reads h // group."""
        return tensor.repeat_interleave(group, dim=1)

    def widened(self, q: Tensor, k: Tensor, v: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
        """Q, and K and V of each query head, in the type of the sums."""
        return q.to(self.wide), self.heads(k.to(self.wide), group), self.heads(v.to(self.wide), group)

    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Operands of the products."""
        return q, k, v

    def factor(self, scale: float, head_dim: int) -> float:
        """Factor on the scores, for exponentials to base 2."""
        return scale * LOG2_E

    # ---- the loop ---------------------------------------------------------------------------------------------------

    def starts(self, seq_kv: int) -> Sequence[int]:
        """First key of each tile."""
        return range(0, seq_kv, self.tile)

    def tile_of(self, keys: Tensor, chosen: slice) -> Tensor:
        """A tile of K."""
        return keys[:, :, chosen]

    def value_tile(self, values: Tensor, chosen: slice) -> Tensor:
        """A tile of V."""
        return values[:, :, chosen]

    def valid_keys(self, tile: Tensor, columns: Tensor, lengths: Tensor) -> Tensor:
        """A tile of K with 0 beyond the lengths, where the padding may be NaN."""
        return tile.masked_fill((columns >= lengths[:, None])[:, None, :, None], 0.0)

    def valid_values(self, tile: Tensor, columns: Tensor, lengths: Tensor) -> Tensor:
        """A tile of V with 0 beyond the lengths."""
        return tile.masked_fill((columns >= lengths[:, None])[:, None, :, None], 0.0)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Q K^T of a tile."""
        return q @ k.mT

    masked = -math.inf

    def causal(self, asked: bool) -> bool:
        """Whether the causal mask applies."""
        return asked

    def hidden(self, rows: Tensor, columns: Tensor, seq_q: int, seq_kv: int) -> Tensor:
        """Mask of the keys [Sq, tile] that the causal mask hides."""
        return columns > rows

    def outside(self, rows: Tensor, columns: Tensor, left: int, right: int) -> Tensor:
        """Mask of the keys [Sq, tile] outside the window; a side of -1 has no bound."""
        return (columns > rows + (FAR if right < 0 else right)) | (columns < rows - (FAR if left < 0 else left))

    def capped(self, scores: Tensor, cap: float) -> Tensor:
        """The scores under a soft cap; both in units of log2."""
        return cap * (scores / cap).tanh()

    def bias(self, slopes: Tensor, rows: Tensor, columns: Tensor, group: int) -> Tensor:
        """Values that ALiBi subtracts, [H, Sq, tile]."""
        return slopes[:, None, None] * self.distance(rows, columns)

    def distance(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Distance of queries and keys, [Sq, tile]."""
        return (rows - columns).abs()

    def mask_tile(self, mask: Tensor, chosen: slice, group: int) -> Tensor:
        """A tile of the mask, [1 or B, 1 or H, Sq, tile]."""
        return mask[..., chosen]

    def joined(self, scores: Tensor, mask: Tensor) -> Tensor:
        """The scores, in units of log2, with a tile of the mask."""
        import torch

        if mask.dtype == torch.bool:
            return scores.masked_fill(~mask, self.masked)
        return scores + mask.to(self.wide) * LOG2_E

    def padding(self, columns: Tensor, lengths: Tensor, rows: Tensor) -> Tensor:
        """Mask of the keys [B, 1, 1, tile] beyond the length of their batch entry."""
        return columns >= lengths[:, None, None, None]

    def beginning(self, queries: Tensor, sinks: Tensor | None, group: int) -> tuple[Tensor, Tensor]:
        """Maximum and total before the first tile; a sink is the first score, in units of log2."""
        shape = (*queries.shape[:3], 1)
        if sinks is None:
            return queries.new_full(shape, -math.inf), queries.new_zeros(shape)
        return (sinks * LOG2_E)[:, None, None].expand(shape), queries.new_ones(shape)

    def after_masks(self, scores: Tensor, cap: float) -> Tensor:
        """The scores that the softmax uses."""
        return scores

    # ---- the softmax ------------------------------------------------------------------------------------------------

    def maximum(self, maximum: Tensor, scores: Tensor) -> Tensor:
        """The running maximum including this tile."""
        import torch

        return torch.maximum(maximum, scores.amax(-1, keepdim=True))

    def weights(self, scores: Tensor, maximum: Tensor) -> Tensor:
        """2 ** (score - maximum); with the previous maximum, the factor of the previous sums."""
        return (scores - maximum.clamp(min=-1e30)).exp2()  # 0 in a row without a visible key so far

    def rounded(self, weights: Tensor) -> Tensor:
        """P as the operand of the second product."""
        return weights.to(self.dtype).to(self.wide)

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
