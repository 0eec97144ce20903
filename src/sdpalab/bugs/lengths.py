"""Bugs of key padding: lengths that are ignored, off, of another batch entry, or counted in tiles."""

from __future__ import annotations

from functools import partial, wraps
from typing import TYPE_CHECKING

from sdpalab.bugs.bug import Bug, Family
from sdpalab.bugs.tiled import PLAIN, TiledAttention, planted
from sdpalab.judge.diagnose.hypotheses import Cause

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BUGS"]

BUGS: list[Bug] = []
PADDED = PLAIN.with_(batch=2, heads=1, seq_q=120, seq_kv=150, kv_lengths=(150, 83))
PADDED_CAUSAL = PLAIN.with_(batch=2, heads=1, seq_q=150, seq_kv=150, kv_lengths=(150, 83), causal=True)
_padding = partial(planted, Family.MASK, into=BUGS, cause=Cause.MASK)


class _Other(TiledAttention):
    """With other lengths."""

    def other(self, lengths: Tensor) -> Tensor:
        """What is taken for the lengths."""
        return lengths

    def padding(self, columns: Tensor, lengths: Tensor, rows: Tensor) -> Tensor:
        return super().padding(columns, self.other(lengths), rows)


@_padding("the lengths of the keys are ignored", PADDED)
class _Ignored(TiledAttention):
    def padding(self, columns: Tensor, lengths: Tensor, rows: Tensor) -> Tensor:
        return super().padding(columns, lengths, rows) & False


@_padding("one key of the padding is seen", PADDED)
class _OneMore(_Other):
    def other(self, lengths: Tensor) -> Tensor:
        return lengths + 1


@_padding("the last valid key is taken for padding", PADDED)
class _OneFewer(_Other):
    def other(self, lengths: Tensor) -> Tensor:
        return (lengths - 1).clamp(min=0)


@_padding("all batch entries have the length of the first", PADDED)
class _OfTheFirst(_Other):
    def other(self, lengths: Tensor) -> Tensor:
        return lengths[:1].expand(len(lengths))


@_padding("the length is that of the next batch entry", PADDED)
class _OfTheNext(_Other):
    def other(self, lengths: Tensor) -> Tensor:
        return lengths.roll(-1)


@_padding("all batch entries have the largest length", PADDED)
class _Largest(_Other):
    def other(self, lengths: Tensor) -> Tensor:
        return lengths.max().expand(len(lengths))


@_padding("padding in the last tile that has a valid key is seen", PADDED)
class _PaddingInWholeTiles(_Other):
    def other(self, lengths: Tensor) -> Tensor:
        return -(-lengths // self.tile) * self.tile


@_padding("the last tile that has padding is left out", PADDED)
class _WithoutLastTile(_Other):
    def other(self, lengths: Tensor) -> Tensor:
        return lengths // self.tile * self.tile


@_padding("the padding is taken to be before the keys", PADDED)
class _PaddedBefore(TiledAttention):
    @wraps(TiledAttention.__call__)  # with its parameters, by which the judge calls it
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


@_padding("rows beyond the length of the keys are taken for padding, too", PADDED_CAUSAL)
class _RowsToo(TiledAttention):
    def padding(self, columns: Tensor, lengths: Tensor, rows: Tensor) -> Tensor:
        return super().padding(columns, lengths, rows) | (rows >= lengths[:, None, None, None])


@_padding("the causal mask is aligned to the last valid key", PADDED_CAUSAL)
class _AlignedToLength(TiledAttention):
    def padding(self, columns: Tensor, lengths: Tensor, rows: Tensor) -> Tensor:
        shift = len(rows) - lengths[:, None, None, None]
        return super().padding(columns, lengths, rows) | (columns > rows - shift)


@_padding("a batch entry without keys is 0 divided by 0", PADDED, cause=Cause.RANGE)
class _EmptyEntryNan(TiledAttention):
    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        return out / total


@_padding("a batch entry without keys is the mean of V", PADDED)
class _EmptyEntryMean(TiledAttention):
    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self._mean = v.mean(dim=2, keepdim=True)
        return q, k, v

    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        return super().finish(out, total, maximum, seq_kv).where(total != 0.0, self._mean)


@_padding("a length of 0 is taken for no padding", PADDED)
class _ZeroIsAll(_Other):
    def other(self, lengths: Tensor) -> Tensor:
        return lengths.masked_fill(lengths == 0, 1 << 30)
