"""Bugs of tiles and heads: the right arithmetic on the wrong rows, keys or columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING

from sdpalab.bugs.bug import Bug, Family
from sdpalab.bugs.cause import Cause
from sdpalab.bugs.tiled import GROUPED, PLAIN, TiledAttention, changed, planted

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BUGS"]

BUGS: list[Bug] = []
_tiles = partial(planted, Family.TILES, into=BUGS)


def _rows(out: Tensor, instead: Callable[[int], int]) -> list[int]:
    """Replaces rows of O [B, H, Sq, D] by other rows within each whole group of 16; further rows are unchanged."""
    whole = out.shape[2] // 16 * 16
    return [instead(row) if row < whole else row for row in range(out.shape[2])]


# ---- tiles ----------------------------------------------------------------------------------------------------------


_tiles("the first tile is left out", cause=Cause.KEYS)(
    changed(starts=lambda self, seq_kv: TiledAttention.starts(self, seq_kv)[1:] or [0])
)
_tiles("the last tile is counted twice", cause=Cause.KEYS)(
    changed(starts=lambda self, seq_kv: [*TiledAttention.starts(self, seq_kv), TiledAttention.starts(self, seq_kv)[-1]])
)


@_tiles("the second tile is counted twice, the third never", cause=Cause.KEYS)
class _StaleTile(TiledAttention):
    def starts(self, seq_kv: int) -> Sequence[int]:
        starts = list(super().starts(seq_kv))
        return starts[:2] + starts[1:2] + starts[3:] if len(starts) > 2 else starts


@_tiles(
    "V of the tile before (a stage that was not waited for)",
    cause=Cause.KEYS,
    words="V is that of the tile of {tile} before",
)
class _StaleValues(TiledAttention):
    def value_tile(self, values: Tensor, chosen: slice) -> Tensor:
        length = chosen.stop - chosen.start
        back = max(0, chosen.start - self.tile)
        return values[:, :, back : back + length]


@_tiles(
    "K of the tile before (a stage that was not waited for)",
    cause=Cause.KEYS,
    words="K is that of the tile of {tile} before",
)
class _StaleKeys(TiledAttention):
    def tile_of(self, keys: Tensor, chosen: slice) -> Tensor:
        length = chosen.stop - chosen.start
        back = max(0, chosen.start - self.tile)
        return keys[:, :, back : back + length]


@_tiles("two rows of K change places (a wrong swizzle)", cause=Cause.KEYS)
class _KeyRowsSwapped(TiledAttention):
    def tile_of(self, keys: Tensor, chosen: slice) -> Tensor:
        tile = super().tile_of(keys, chosen).clone()
        if tile.shape[2] > 4:
            tile[:, :, [3, 4]] = tile[:, :, [4, 3]]
        return tile


@_tiles("rows 8 to 15 of V hold rows 0 to 7 (a fragment loaded twice)", cause=Cause.KEYS)
class _ValueRowsTwice(TiledAttention):
    def value_tile(self, values: Tensor, chosen: slice) -> Tensor:
        tile = super().value_tile(values, chosen).clone()
        length = max(0, min(16, tile.shape[2]) - 8)
        tile[:, :, 8 : 8 + length] = tile[:, :, :length]
        return tile


@_tiles(
    "keys and values of a tile are reversed together",
    equivalent="attention does not depend on the order of its keys, and sums of 32 float32 numbers change with their "
    "order by a thousandth of the rounding of the output",
)
class _Reversed(TiledAttention):
    def tile_of(self, keys: Tensor, chosen: slice) -> Tensor:
        return super().tile_of(keys, chosen).flip(2)

    def value_tile(self, values: Tensor, chosen: slice) -> Tensor:
        return super().value_tile(values, chosen).flip(2)


_tiles("the last 8 of head_dim are left out of the scores", cause=Cause.OPERANDS)(
    changed(scores=lambda self, q, k: q[..., :-8] @ k[..., :-8].mT)
)
_tiles("Q starts one row late", cause=Cause.ROWS)(changed(operands=lambda self, q, k, v: (q.roll(-1, 2), k, v)))
_tiles("K and V change places", PLAIN, cause=Cause.OPERANDS, words="K is taken for V, and V for K")(
    changed(operands=lambda self, q, k, v: (q, v, k))
)
_tiles("Q and K change places", PLAIN, cause=Cause.OPERANDS, words="Q is taken for K, and K for Q")(
    changed(operands=lambda self, q, k, v: (k, q, v) if q.shape == k.shape else (q, k, v))
)
_tiles("columns of O change places in pairs (an accumulator's layout misread)", cause=Cause.COLUMNS)(
    changed(
        finish=lambda self, out, total, maximum, seq_kv: (
            (out / total).reshape(*out.shape[:3], -1, 2).flip(-1).reshape(out.shape)
        )
    )
)


@_tiles("rows 8 apart change places (an accumulator's layout misread)", cause=Cause.ROWS)
class _RowHalves(TiledAttention):
    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        rows = _rows(out, lambda row: row ^ 8)
        return (out / total)[:, :, rows]


_tiles("rows 8 to 15 of each 16 are divided by the sums of rows 0 to 7", cause=Cause.NORMALISATION)(
    changed(finish=lambda self, out, total, maximum, seq_kv: out / total[:, :, _rows(out, lambda row: row & ~8)])
)


# ---- heads ----------------------------------------------------------------------------------------------------------


_tiles("query head h reads K/V head h mod Hkv", GROUPED, cause=Cause.HEADS)(
    changed(heads=lambda self, tensor, group: tensor.repeat(1, group, 1, 1))
)
_tiles("all query heads read K/V head 0", GROUPED, cause=Cause.HEADS)(
    changed(heads=lambda self, tensor, group: tensor[:, :1].expand(-1, tensor.shape[1] * group, -1, -1))
)
_tiles("all batches read batch 0", GROUPED, cause=Cause.HEADS)(
    changed(heads=lambda self, tensor, group: TiledAttention.heads(self, tensor[:1].expand_as(tensor), group))
)
_tiles("V of the next head", cause=Cause.HEADS)(changed(operands=lambda self, q, k, v: (q, k, v.roll(-1, 1))))


@_tiles("strides are taken for those of contiguous memory", cause=Cause.LAYOUT)
class _StridesForGranted(TiledAttention):
    @wraps(TiledAttention.__call__)  # with its parameters, for the judge's call
    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **scoring: object) -> Tensor:  # type: ignore[override]
        packed = (each.as_strided(each.shape, each.new_empty(each.shape).stride()) for each in (q, k, v))
        return super().__call__(*packed, **scoring)  # type: ignore[arg-type]


_tiles(
    "O in [B, S, H, D] order in memory that is read as [B, H, S, D]",
    cause=Cause.LAYOUT,
    words="O is written as [B, S, H, D]",
)(changed(finish=lambda self, out, total, maximum, seq_kv: (out / total).transpose(1, 2).reshape(out.shape)))
