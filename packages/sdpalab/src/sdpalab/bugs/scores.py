"""Scores of a tile on torch CPU tensors: the steps that :class:`.tiled.TiledAttention` and
:class:`.backward.TiledBackward` share, each overridable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["FAR", "LOG2_E", "Asked", "TiledScores"]

LOG2_E = math.log2(math.e)
FAR = 1 << 30
"""Window side without a bound."""


@dataclass(frozen=True)
class Asked:
    """The judge's arguments that change the scores, with the group and the sizes of the problem."""

    group: int
    seq_q: int
    seq_kv: int
    causal: bool
    window_size: tuple[int, int]
    softcap: float
    kv_lengths: Tensor | None
    q_lengths: Tensor | None
    bottom_right: bool
    attn_mask: Tensor | None
    alibi_slopes: Tensor | None


class TiledScores:
    """Steps from Q and K to the masked scores of a tile, in units of log2.

    Tensors have the type of the sums: q [B, H, Sq, D], or a tile of rows of it; k [B, H, tile, D]; scores [B, H, Sq,
    tile]; rows [Sq, 1], or [B, 1, Sq, 1] where the position of a row depends on lengths; columns [tile].
    """

    tile = 32
    dtype: torch.dtype
    wide: torch.dtype
    """Type of the sums."""
    scale: float
    shift: int
    """Keys minus queries: the distance between the alignments top left and bottom right."""

    def masked_scores(self, scores: Tensor, rows: Tensor, columns: Tensor, chosen: slice, asked: Asked) -> Tensor:
        """The capped scores of a tile with biases and masks."""
        rows = self.positions(rows, asked)
        if self.causal(asked.causal):
            scores = scores.masked_fill(self.hidden(rows, columns, asked.seq_q, asked.seq_kv), self.masked)
        if asked.window_size != (-1, -1):
            scores = scores.masked_fill(self.outside(rows, columns, *asked.window_size), self.masked)
        if asked.alibi_slopes is not None:
            scores = scores - self.bias(asked.alibi_slopes, rows, columns, asked.group) * LOG2_E
        if asked.attn_mask is not None:
            scores = self.joined(scores, self.mask_tile(asked.attn_mask, chosen, asked.group))
        if asked.kv_lengths is not None:
            scores = scores.masked_fill(self.padding(columns, asked.kv_lengths, rows), self.masked)
        return self.after_masks(scores, asked.softcap * LOG2_E)

    # ---- inputs --------------------------------------------------------------------------------------------------

    def heads(self, tensor: Tensor, group: int) -> Tensor:
        """K or V of each query head: head h reads h // group."""
        return tensor.repeat_interleave(group, dim=1)

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

    def capped(self, scores: Tensor, cap: float) -> Tensor:
        """The scores under a soft cap; both in units of log2."""
        return cap * (scores / cap).tanh()

    # ---- the masks --------------------------------------------------------------------------------------------------

    masked = -math.inf

    def positions(self, rows: Tensor, asked: Asked) -> Tensor:
        """Key at which each row stands."""
        if not asked.bottom_right:
            return rows
        keys, queries = asked.kv_lengths, asked.q_lengths
        ahead = (asked.seq_kv if keys is None else keys) - (asked.seq_q if queries is None else queries)
        return rows + (ahead if isinstance(ahead, int) else ahead[:, None, None, None])

    def causal(self, asked: bool) -> bool:
        """Whether the causal mask applies."""
        return asked

    def hidden(self, rows: Tensor, columns: Tensor, seq_q: int, seq_kv: int) -> Tensor:
        """Mask of the keys [Sq, tile] that the causal mask hides."""
        return columns > rows

    def outside(self, rows: Tensor, columns: Tensor, left: int, right: int) -> Tensor:
        """Mask of the keys [Sq, tile] outside the window; a side of -1 has no bound."""
        return (columns > rows + (FAR if right < 0 else right)) | (columns < rows - (FAR if left < 0 else left))

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

    def after_masks(self, scores: Tensor, cap: float) -> Tensor:
        """The scores that the softmax uses."""
        return scores

    # ---- the products -----------------------------------------------------------------------------------------------

    def rounded(self, weights: Tensor) -> Tensor:
        """P, or dS, as the operand of a product."""
        return weights.to(self.dtype).to(self.wide)
