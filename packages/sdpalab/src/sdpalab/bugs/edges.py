"""Bugs of masks and edges: keys that a row must not see, and the last rows, keys and columns."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sdpalab.bugs.bug import Bug, Family
from sdpalab.bugs.cause import Cause
from sdpalab.bugs.tiled import CAUSAL, CROSS, PLAIN, TiledAttention, changed, planted

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BUGS"]

BUGS: list[Bug] = []
_mask = partial(planted, Family.MASK, into=BUGS, cause=Cause.MASK)
_boundary = partial(planted, Family.BOUNDARY, into=BUGS)
_historical = partial(planted, Family.HISTORICAL, into=BUGS)


# ---- masks ----------------------------------------------------------------------------------------------------------


_mask("query i sees key i + 1", CAUSAL)(changed(hidden=lambda self, rows, columns, seq_q, seq_kv: columns > rows + 1))
_mask("query i does not see key i", CAUSAL)(
    changed(hidden=lambda self, rows, columns, seq_q, seq_kv: columns > (rows - 1).clamp(min=0))
)
_mask("aligned to the bottom right", CROSS)(
    changed(hidden=lambda self, rows, columns, seq_q, seq_kv: columns > rows + seq_kv - seq_q)
)


@_mask("no mask", CAUSAL)
class _NoMask(TiledAttention):
    def causal(self, asked: bool) -> bool:
        return False


_mask("always a mask", PLAIN)(changed(causal=lambda self, asked: True))
_mask("the mask is upside down", CAUSAL)(changed(hidden=lambda self, rows, columns, seq_q, seq_kv: columns < rows))
_mask("whole tiles are masked, the diagonal ones not at all", CAUSAL)(
    changed(hidden=lambda self, rows, columns, seq_q, seq_kv: columns // self.tile > rows // self.tile)
)
_mask("the diagonal tiles are left out below the first", CAUSAL)(
    changed(
        hidden=lambda self, rows, columns, seq_q, seq_kv: (
            (columns > rows) | ((columns // self.tile == rows // self.tile) & (rows >= self.tile))
        )
    )
)
_mask("of two diagonal tiles of keys only the last is masked", CAUSAL)(
    changed(hidden=lambda self, rows, columns, seq_q, seq_kv: (columns > rows) & (columns // self.tile % 2 == 1))
)
_mask("columns are counted from the tile's start", CAUSAL)(
    changed(hidden=lambda self, rows, columns, seq_q, seq_kv: columns - columns[0] > rows)
)


@_mask("hidden scores are 0", CAUSAL)
class _HiddenZero(TiledAttention):
    masked = 0.0


@_mask("hidden scores are -8, not minus infinity", CAUSAL)
class _HiddenSoft(TiledAttention):
    masked = -8.0


_mask("the mask is off by one from row 128 on", CAUSAL)(
    changed(hidden=lambda self, rows, columns, seq_q, seq_kv: columns > rows + (rows >= 128))
)
_mask("a sliding window of 150 keys", CAUSAL)(
    changed(hidden=lambda self, rows, columns, seq_q, seq_kv: (columns > rows) | (columns < rows - 150))
)


# ---- edges ----------------------------------------------------------------------------------------------------------


_boundary("the keys after the last whole tile are left out", cause=Cause.KEYS)(
    changed(starts=lambda self, seq_kv: range(0, max(self.tile, seq_kv // self.tile * self.tile), self.tile))
)
_boundary("the last key is left out", cause=Cause.KEYS, words="the last one is left out")(
    changed(operands=lambda self, q, k, v: (q, k[:, :, :-1], v[:, :, :-1]) if k.shape[2] > 1 else (q, k, v))
)


@_boundary("keys after the last multiple of 8 are left out", cause=Cause.KEYS)
class _MultipleOfEight(TiledAttention):
    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        last = max(8, k.shape[2] // 8 * 8)
        return q, k[:, :, :last], v[:, :, :last]


_ZEROS = "{missing} rows of zeros, up to a multiple of {tile}"


class _Padded(TiledAttention):
    """Keys of zeros up to a whole tile, without a mask."""

    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        from torch.nn.functional import pad

        missing = -k.shape[2] % self.tile
        return q, pad(k, (0, 0, 0, missing)), pad(v, (0, 0, 0, missing))

    def mask_tile(self, mask: Tensor, chosen: slice, group: int) -> Tensor:
        from torch.nn.functional import pad

        return pad(super().mask_tile(mask, chosen, group), (0, max(0, chosen.stop - mask.shape[-1])))


_boundary("zeros up to the end of the tile count as keys", PLAIN, cause=Cause.PADDING, words=_ZEROS)(_Padded)
_boundary(
    "zeros up to the end of the tile count as keys, under a mask",
    CROSS.with_(seq_q=150, seq_kv=90),
    cause=Cause.PADDING,
    words=_ZEROS,
)(_Padded)


@_boundary(
    "the keys after the last belong to the next head",
    cause=Cause.PADDING,
    words="{missing} rows of the next head, up to a multiple of {tile}",
)
class _IntoNextHead(_Padded):
    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        _, keys, values = super().operands(q, k, v)
        length = keys.shape[2] - k.shape[2]
        if length and length <= k.shape[2]:
            keys[:, :, -length:] = k.roll(-1, 1)[:, :, :length]
            values[:, :, -length:] = v.roll(-1, 1)[:, :, :length]
        return q, keys, values


@_boundary("the last row is not written", cause=Cause.EDGE)
class _NoLastRow(TiledAttention):
    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        done = out / total
        done[:, :, -1] = 0.0
        return done


@_boundary("rows after the last whole tile are those of the tile before", cause=Cause.ROWS)
class _TailRowsStale(TiledAttention):
    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        done = out / total
        whole = done.shape[2] // self.tile * self.tile
        tail = done.shape[2] - whole
        if whole and tail:
            done[:, :, whole:] = done[:, :, whole - self.tile : whole - self.tile + tail].clone()
        return done


@_boundary("the last column is that before it", cause=Cause.COLUMNS)
class _LastColumn(TiledAttention):
    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        done = out / total
        done[..., -1] = done[..., -2]
        return done


_boundary("a single row is taken for no row", cause=Cause.NO_ATTENTION)(
    changed(finish=lambda self, out, total, maximum, seq_kv: out / total * (out.shape[2] > 1))
)


@_boundary("one row in the middle is wrong by 2%", cause=Cause.PLACE)
class _OneRow(TiledAttention):
    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        done = out / total
        done[:, :1, done.shape[2] // 2] *= 1.02
        return done


@_boundary("one element is wrong by 0.01", cause=Cause.PLACE)
class _OneElement(TiledAttention):
    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        done = out / total
        done[0, 0, done.shape[2] // 2, 5] += 0.01
        return done


@_historical("a stale build: the kernel of yesterday's flags, without a mask", CAUSAL, cause=Cause.MASK)
class _StaleBuild(_NoMask):
    pass


@_historical("a stale build: the kernel for float16 run on bfloat16", PLAIN.with_(dtype="bfloat16"))
class _StaleDtype(TiledAttention):
    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        import torch

        q, k, v = (x.to(torch.bfloat16).view(torch.float16).float().nan_to_num() for x in (q, k, v))
        return q, k, v
