"""The tiled backward pass on torch CPU tensors, a right implementation with one overridable method per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sdpalab.bugs.scores import LOG2_E, Asked, TiledScores

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TiledBackward", "altered"]

Three = tuple["Tensor", "Tensor", "Tensor"]


class TiledBackward(TiledScores):
    """dQ, dK and dV over tiles of keys and of queries (FlashAttention-2, Dao 2023, algorithm 2): float32 sums, P and dS
    in the inputs' dtype; for float64 inputs all are float64.

    ``backward(q, k, v, *, do, o, lse, scale, causal, ...) -> (dq, dk, dv)`` with the judge's arguments. Inside, tensors
    have the type of the sums and one K/V head per query head: q, dq [B, H, Sq, D]; k, dk [B, H, Skv, D]; v, dv [B, H,
    Skv, Dv]; delta and LSE [B, H, Sq, 1], the LSE in units of log2; P, dP and dS of a tile [B, H, rows, keys].
    """

    row_tile = 32
    asked: Asked
    rows: slice
    """The tile of queries."""
    sums: Tensor
    """The log-sum-exps."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        do: Tensor,
        o: Tensor,
        lse: Tensor,
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
    ) -> Three:
        import torch

        self.dtype, self.wide, self.scale = q.dtype, torch.promote_types(q.dtype, torch.float32), scale
        group, seq_q, seq_kv = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
        self.shift = seq_kv - seq_q
        lengths = kv_lengths, q_lengths
        asked = self.asked = self.used(
            Asked(group, seq_q, seq_kv, causal, window_size, softcap, *lengths, bottom_right, attn_mask, alibi_slopes)
        )
        gradient, out = self.gradients(do, o)
        queries, gradient, out, sums = (
            self.valid_rows(each.to(self.wide), asked.q_lengths) for each in (q, gradient, out, lse[..., None])
        )
        keys, values = (self.heads(each.to(self.wide), group) for each in (k, v))
        delta, sums = self.delta(gradient, out, sums), self.log_sum(sums, sinks)
        self.sums = sums
        dq, dk, dv = self.beginning(queries, keys, values)
        for start in self.starts(seq_kv):
            chosen = slice(start, min(start + self.tile, seq_kv))
            columns = torch.arange(chosen.start, chosen.stop)
            k_tile, v_tile = self.tile_of(keys, chosen), self.value_tile(values, chosen)
            if asked.kv_lengths is not None:
                k_tile = self.valid_keys(k_tile, columns, asked.kv_lengths)
                v_tile = self.valid_values(v_tile, columns, asked.kv_lengths)
            for first in self.row_starts(start, seq_q):
                at = slice(first, min(first + self.row_tile, seq_q))
                q_tile, do_tile = self.query_tile(queries, at), self.gradient_tile(gradient, at)
                rows = torch.arange(at.start, at.stop)[:, None]
                raw = self.scores(q_tile, k_tile) * self.factor(scale, q.shape[3])
                cap = asked.softcap * LOG2_E
                scores = self.capped(raw, cap) if asked.softcap else raw
                self.rows = at
                masked = self.masked_scores(scores, rows, columns, chosen, asked)
                p = self.probabilities(masked, self.statistics(sums, at))
                dp = self.value_gradient(do_tile, v_tile)
                ds = self.score_gradient(p, dp, self.statistics(delta, at))
                if asked.softcap:
                    ds = ds * self.slope(scores, masked, cap)
                ds = self.rounded(ds)
                self.add_dq(dq, at, ds @ self.key_operand(k_tile), start)
                self.add_dk(dk, chosen, ds.mT @ q_tile, first)
                self.add_dv(dv, chosen, self.rounded(p).mT @ do_tile, first)
        dq, dk, dv = self.finish(dq, dk, dv, group)
        return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype)

    def mask_tile(self, mask: Tensor, chosen: slice, group: int) -> Tensor:
        """A tile of the mask, [1 or B, 1 or H, rows, tile]."""
        return mask[..., self.rows, chosen]

    # ---- inputs --------------------------------------------------------------------------------------------------

    def used(self, asked: Asked) -> Asked:
        """The arguments that the backward pass uses."""
        return asked

    def gradients(self, do: Tensor, o: Tensor) -> tuple[Tensor, Tensor]:
        """dO and O as they are read from memory."""
        return do, o

    def valid_rows(self, rows: Tensor, lengths: Tensor | None) -> Tensor:
        """A tensor of query rows with 0 beyond the lengths, where the padding may be NaN."""
        if lengths is None:
            return rows
        import torch

        padding = torch.arange(rows.shape[2]) >= lengths[:, None]
        return rows.masked_fill(padding[:, None, :, None], 0.0)

    def delta(self, do: Tensor, o: Tensor, lse: Tensor) -> Tensor:
        """sum(dO * O) of each row."""
        return (do * o).sum(-1, keepdim=True)

    def log_sum(self, lse: Tensor, sinks: Tensor | None) -> Tensor:
        """The LSE in units of log2; 0 in a row without a visible key, where it is -inf."""
        return (lse * LOG2_E).masked_fill(lse.isneginf(), 0.0)

    def beginning(self, q: Tensor, k: Tensor, v: Tensor) -> Three:
        """The sums of dQ, dK and dV before the first tile."""
        return q.new_zeros(q.shape), k.new_zeros(k.shape), v.new_zeros(v.shape)

    # ---- the loops --------------------------------------------------------------------------------------------------

    def row_starts(self, first_key: int, seq_q: int) -> Sequence[int]:
        """First row of each tile of queries that is computed with a tile of keys."""
        return range(0, seq_q, self.row_tile)

    def query_tile(self, q: Tensor, at: slice) -> Tensor:
        """A tile of Q."""
        return q[:, :, at]

    def gradient_tile(self, do: Tensor, at: slice) -> Tensor:
        """A tile of dO."""
        return do[:, :, at]

    def statistics(self, rows: Tensor, at: slice) -> Tensor:
        """LSE or delta of a tile of queries."""
        return rows[:, :, at]

    def key_operand(self, k: Tensor) -> Tensor:
        """K as the operand of dS K."""
        return k

    # ---- the tile ---------------------------------------------------------------------------------------------------

    def probabilities(self, scores: Tensor, log_sum: Tensor) -> Tensor:
        """P = 2 ** (score - LSE), 0 for hidden keys."""
        return (scores - log_sum).exp2()

    def value_gradient(self, do: Tensor, v: Tensor) -> Tensor:
        """dP = dO V^T."""
        return do @ v.mT

    def score_gradient(self, p: Tensor, dp: Tensor, delta: Tensor) -> Tensor:
        """dS = P (dP - delta), without the slope of a soft cap."""
        return p * (dp - delta)

    def slope(self, scores: Tensor, masked: Tensor, cap: float) -> Tensor:
        """The derivative of the soft cap from the capped scores, before and after biases and masks."""
        return 1.0 - (scores / cap).square()

    def add_dq(self, dq: Tensor, at: slice, terms: Tensor, first_key: int) -> None:
        """Add the terms of a tile of keys to a tile of dQ."""
        dq[:, :, at] += terms

    def add_dk(self, dk: Tensor, chosen: slice, terms: Tensor, first_row: int) -> None:
        """Add the terms of a tile of queries to a tile of dK."""
        dk[:, :, chosen] += terms

    def add_dv(self, dv: Tensor, chosen: slice, terms: Tensor, first_row: int) -> None:
        """Add the terms of a tile of queries to a tile of dV."""
        dv[:, :, chosen] += terms

    # ---- the end ----------------------------------------------------------------------------------------------------

    def finish(self, dq: Tensor, dk: Tensor, dv: Tensor, group: int) -> Three:
        """The gradients with their scale, those of K and V per K/V head."""
        return dq * self.scale, self.of_group(dk, group) * self.scale, self.of_group(dv, group)

    def of_group(self, heads: Tensor, group: int) -> Tensor:
        """Sums over the query heads of each K/V head."""
        batch, count, *rest = heads.shape
        return heads.reshape(batch, count // group, group, *rest).sum(2)


def altered(base: type[TiledBackward] = TiledBackward, /, **steps: Any) -> Callable[..., Three]:
    """An instance of a subclass with other steps: functions in place of methods, or class attributes."""
    changed: type[TiledBackward] = type("Altered", (base,), steps)
    return changed()
