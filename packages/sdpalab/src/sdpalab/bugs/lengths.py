"""Bugs of key padding: lengths that are ignored, off, of another batch entry, or counted in tiles; padding that is
read."""

from __future__ import annotations

from functools import partial, wraps
from typing import TYPE_CHECKING

from sdpalab.bugs.bug import Bug, Family
from sdpalab.bugs.cause import Cause
from sdpalab.bugs.tiled import PLAIN, TiledAttention, changed, planted

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BUGS"]

BUGS: list[Bug] = []
PADDED = PLAIN.with_(batch=2, heads=1, seq_q=120, seq_kv=150, kv_lengths=(150, 83))
PADDED_CAUSAL = PLAIN.with_(batch=2, heads=1, seq_q=150, seq_kv=150, kv_lengths=(150, 83), causal=True)
_padding = partial(planted, Family.MASK, into=BUGS, cause=Cause.MASK)
_read = partial(planted, Family.MASK, problem=PADDED, harmless=PLAIN, into=BUGS, cause=Cause.PADDING)
"""NaN of the padding in the output."""


class _Other(TiledAttention):
    """Attention with other lengths."""

    def other(self, lengths: Tensor) -> Tensor:
        """Lengths that are used instead."""
        return lengths

    def padding(self, columns: Tensor, lengths: Tensor, rows: Tensor) -> Tensor:
        return super().padding(columns, self.other(lengths), rows)

    def valid_keys(self, tile: Tensor, columns: Tensor, lengths: Tensor) -> Tensor:
        return super().valid_keys(tile, columns, self.other(lengths))

    def valid_values(self, tile: Tensor, columns: Tensor, lengths: Tensor) -> Tensor:
        return super().valid_values(tile, columns, self.other(lengths))


_read("the lengths of the keys are ignored")(changed(_Other, other=lambda self, lengths: lengths | 1 << 30))
_read("one key of the padding is seen")(changed(_Other, other=lambda self, lengths: lengths + 1))
_padding("the last valid key is taken for padding", PADDED)(
    changed(_Other, other=lambda self, lengths: (lengths - 1).clamp(min=0))
)
_padding("all batch entries have the length of the first", PADDED)(
    changed(_Other, other=lambda self, lengths: lengths[:1].expand(len(lengths)))
)
_read("the length is that of the next batch entry")(changed(_Other, other=lambda self, lengths: lengths.roll(-1)))
_read("all batch entries have the largest length")(
    changed(_Other, other=lambda self, lengths: lengths.max().expand(len(lengths)))
)
_read("padding in the last tile that has a valid key is seen")(
    changed(_Other, other=lambda self, lengths: -(-lengths // self.tile) * self.tile)
)
_padding("the last tile that has padding is left out", PADDED)(
    changed(_Other, other=lambda self, lengths: lengths // self.tile * self.tile)
)


@_padding("the padding is taken to be before the keys", PADDED)
class _PaddedBefore(TiledAttention):
    @wraps(TiledAttention.__call__)  # with its parameters, for the judge's call
    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **scoring: object) -> Tensor:  # type: ignore[override]
        self._keys = k.shape[2]
        return super().__call__(q, k, v, **scoring)  # type: ignore[arg-type]

    def padding(self, columns: Tensor, lengths: Tensor, rows: Tensor) -> Tensor:
        return columns < (self._keys - lengths)[:, None, None, None]


@_padding("scores of padding are 0, not minus infinity", PADDED)
class _PaddingZero(TiledAttention):
    def padding(self, columns: Tensor, lengths: Tensor, rows: Tensor) -> Tensor:
        self._padding = super().padding(columns, lengths, rows)
        return self._padding & False

    def after_masks(self, scores: Tensor, cap: float) -> Tensor:
        return scores.masked_fill(self._padding, 0.0)


@_padding("padding is left out of the product, and counts in the sum", PADDED)
class _PaddingInSum(TiledAttention):
    def padding(self, columns: Tensor, lengths: Tensor, rows: Tensor) -> Tensor:
        self._padding = super().padding(columns, lengths, rows)
        return self._padding & False

    def rounded(self, weights: Tensor) -> Tensor:
        return super().rounded(weights).masked_fill(self._padding, 0.0)


_padding("rows beyond the length of the keys are taken for padding, too", PADDED_CAUSAL)(
    changed(
        padding=lambda self, columns, lengths, rows: (
            TiledAttention.padding(self, columns, lengths, rows) | (rows >= lengths[:, None, None, None])
        )
    )
)


@_padding("the causal mask is aligned to the last valid key", PADDED_CAUSAL)
class _AlignedToLength(TiledAttention):
    def padding(self, columns: Tensor, lengths: Tensor, rows: Tensor) -> Tensor:
        shift = len(rows) - lengths[:, None, None, None]
        return super().padding(columns, lengths, rows) | (columns > rows - shift)


_padding("a batch entry without keys is 0 divided by 0", PADDED, cause=Cause.RANGE)(
    changed(finish=lambda self, out, total, maximum, seq_kv: out / total)
)


@_padding("a batch entry without keys is the mean of V", PADDED, cause=Cause.RANGE)
class _EmptyEntryMean(TiledAttention):
    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self._mean = v.mean(dim=2, keepdim=True)
        return q, k, v

    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        return super().finish(out, total, maximum, seq_kv).where(total != 0.0, self._mean)


_padding("a length of 0 is taken for no padding", PADDED, cause=Cause.RANGE)(
    changed(_Other, other=lambda self, lengths: lengths.masked_fill(lengths == 0, 1 << 30))
)


# ---- padding that is read and hidden --------------------------------------------------------------------------------


_read("V of the padding is not cleared, and meets weights of 0")(
    changed(valid_values=lambda self, tile, columns, lengths: tile)
)


@_read("the maximum is taken before the padding is masked")
class _PaddingInMaximum(TiledAttention):
    def valid_keys(self, tile: Tensor, columns: Tensor, lengths: Tensor) -> Tensor:
        return tile

    _padding: Tensor | None

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        self._scores, self._padding = super().scores(q, k), None
        return self._scores

    def padding(self, columns: Tensor, lengths: Tensor, rows: Tensor) -> Tensor:
        self._padding = padding = super().padding(columns, lengths, rows)
        return padding

    def maximum(self, maximum: Tensor, scores: Tensor) -> Tensor:
        return super().maximum(maximum, scores if self._padding is None else scores.where(~self._padding, self._scores))


@_read("padding counts in the scale of a block of V")
class _PaddingInScale(TiledAttention):
    def value_tile(self, values: Tensor, chosen: slice) -> Tensor:
        tile = super().value_tile(values, chosen)
        scale = tile.abs().amax((-2, -1), keepdim=True).clamp(min=1e-30)
        return tile / scale * scale
