"""Bugs of masks, tiles, heads and edges: the right arithmetic on the wrong rows, keys or columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from sdpalab.bugs.mutant import CAUSAL, CROSS, GROUPED, PLAIN, Bug, Mutant, planted
from sdpalab.bugs.tiled import TiledAttention

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_mask = partial(planted, Bug.MASK, into=MUTANTS)
_tiles = partial(planted, Bug.TILES, into=MUTANTS)
_boundary = partial(planted, Bug.BOUNDARY, into=MUTANTS)
_historical = partial(planted, Bug.HISTORICAL, into=MUTANTS)


def _rows(out: Tensor, instead: Callable[[int], int]) -> list[int]:
    """For each row of O [B, H, Sq, D] in a whole group of 16, which takes its place; the others keep theirs."""
    whole = out.shape[2] // 16 * 16
    return [instead(row) if row < whole else row for row in range(out.shape[2])]


# ---- masks ----------------------------------------------------------------------------------------------------------


@_mask("query i sees key i + 1", CAUSAL)
class _OneTooMany(TiledAttention):
    def hidden(self, rows: Tensor, columns: Tensor, seq_q: int, seq_kv: int) -> Tensor:
        return columns > rows + 1


@_mask("query i does not see key i", CAUSAL)
class _OneTooFew(TiledAttention):
    def hidden(self, rows: Tensor, columns: Tensor, seq_q: int, seq_kv: int) -> Tensor:
        return columns > (rows - 1).clamp(min=0)


@_mask("aligned to the bottom right", CROSS)
class _BottomRight(TiledAttention):
    def hidden(self, rows: Tensor, columns: Tensor, seq_q: int, seq_kv: int) -> Tensor:
        return columns > rows + seq_kv - seq_q


@_mask("no mask", CAUSAL)
class _NoMask(TiledAttention):
    def causal(self, asked: bool) -> bool:
        return False


@_mask("always a mask", PLAIN)
class _AlwaysMask(TiledAttention):
    def causal(self, asked: bool) -> bool:
        return True


@_mask("the mask is upside down", CAUSAL)
class _UpsideDown(TiledAttention):
    def hidden(self, rows: Tensor, columns: Tensor, seq_q: int, seq_kv: int) -> Tensor:
        return columns < rows


@_mask("whole tiles are masked, the diagonal ones not at all", CAUSAL)
class _WholeTiles(TiledAttention):
    def hidden(self, rows: Tensor, columns: Tensor, seq_q: int, seq_kv: int) -> Tensor:
        return columns // self.tile > rows // self.tile


@_mask("the diagonal tiles are left out below the first", CAUSAL)
class _NoDiagonal(TiledAttention):
    def hidden(self, rows: Tensor, columns: Tensor, seq_q: int, seq_kv: int) -> Tensor:
        return (columns > rows) | ((columns // self.tile == rows // self.tile) & (rows >= self.tile))


@_mask("of two diagonal tiles of keys only the last is masked", CAUSAL)
class _LastTileOnly(TiledAttention):
    def hidden(self, rows: Tensor, columns: Tensor, seq_q: int, seq_kv: int) -> Tensor:
        return (columns > rows) & (columns // self.tile % 2 == 1)


@_mask("columns are counted from the tile's start", CAUSAL)
class _TileColumns(TiledAttention):
    def hidden(self, rows: Tensor, columns: Tensor, seq_q: int, seq_kv: int) -> Tensor:
        return columns - columns[0] > rows


@_mask("hidden scores are 0", CAUSAL)
class _HiddenZero(TiledAttention):
    masked = 0.0


@_mask("hidden scores are -8, not minus infinity", CAUSAL)
class _HiddenSoft(TiledAttention):
    masked = -8.0


@_mask("the mask is off by one from row 128 on", CAUSAL)
class _LateOff(TiledAttention):
    def hidden(self, rows: Tensor, columns: Tensor, seq_q: int, seq_kv: int) -> Tensor:
        return columns > rows + (rows >= 128)


@_mask("a sliding window of 150 keys", CAUSAL)
class _Window(TiledAttention):
    def hidden(self, rows: Tensor, columns: Tensor, seq_q: int, seq_kv: int) -> Tensor:
        return (columns > rows) | (columns < rows - 150)


# ---- tiles ----------------------------------------------------------------------------------------------------------


@_tiles("the first tile is left out")
class _NoFirst(TiledAttention):
    def starts(self, seq_kv: int) -> Sequence[int]:
        return super().starts(seq_kv)[1:] or [0]


@_tiles("the last tile is counted twice")
class _LastTwice(TiledAttention):
    def starts(self, seq_kv: int) -> Sequence[int]:
        return [*super().starts(seq_kv), super().starts(seq_kv)[-1]]


@_tiles("the second tile is counted twice, the third never")
class _StaleTile(TiledAttention):
    def starts(self, seq_kv: int) -> Sequence[int]:
        starts = list(super().starts(seq_kv))
        return starts[:2] + starts[1:2] + starts[3:] if len(starts) > 2 else starts


@_tiles("V of the tile before (a stage that was not waited for)")
class _StaleValues(TiledAttention):
    def value_tile(self, values: Tensor, chosen: slice) -> Tensor:
        length = chosen.stop - chosen.start
        back = max(0, chosen.start - self.tile)
        return values[:, :, back : back + length]


@_tiles("K of the tile before (a stage that was not waited for)")
class _StaleKeys(TiledAttention):
    def tile_of(self, keys: Tensor, chosen: slice) -> Tensor:
        length = chosen.stop - chosen.start
        back = max(0, chosen.start - self.tile)
        return keys[:, :, back : back + length]


@_tiles("two rows of K change places (a wrong swizzle)")
class _KeyRowsSwapped(TiledAttention):
    def tile_of(self, keys: Tensor, chosen: slice) -> Tensor:
        tile = super().tile_of(keys, chosen).clone()
        if tile.shape[2] > 4:
            tile[:, :, [3, 4]] = tile[:, :, [4, 3]]
        return tile


@_tiles("rows 8 to 15 of V hold rows 0 to 7 (a fragment loaded twice)")
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


@_tiles("the last 8 of head_dim are left out of the scores")
class _ShortDot(TiledAttention):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q[..., :-8] @ k[..., :-8].mT


@_tiles("Q starts one row late")
class _LateQueries(TiledAttention):
    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q.roll(-1, 2), k, v


@_tiles("K and V change places", PLAIN)
class _KeysAsValues(TiledAttention):
    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, v, k


@_tiles("Q and K change places", PLAIN)
class _KeysAsQueries(TiledAttention):
    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return (k, q, v) if q.shape == k.shape else (q, k, v)


@_tiles("columns of O change places in pairs (an accumulator's layout misread)")
class _ColumnPairs(TiledAttention):
    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        return (out / total).reshape(*out.shape[:3], -1, 2).flip(-1).reshape(out.shape)


@_tiles("rows 8 apart change places (an accumulator's layout misread)")
class _RowHalves(TiledAttention):
    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        rows = _rows(out, lambda row: row ^ 8)
        return (out / total)[:, :, rows]


@_tiles("rows 8 to 15 of each 16 are divided by the sums of rows 0 to 7")
class _OthersTotal(TiledAttention):
    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        return out / total[:, :, _rows(out, lambda row: row & ~8)]


# ---- heads ----------------------------------------------------------------------------------------------------------


@_tiles("query head h reads K/V head h mod Hkv", GROUPED)
class _HeadsModulo(TiledAttention):
    def heads(self, tensor: Tensor, group: int) -> Tensor:
        return tensor.repeat(1, group, 1, 1)


@_tiles("all query heads read K/V head 0", GROUPED)
class _HeadZero(TiledAttention):
    def heads(self, tensor: Tensor, group: int) -> Tensor:
        return tensor[:, :1].expand(-1, tensor.shape[1] * group, -1, -1)


@_tiles("all batches read batch 0", GROUPED)
class _BatchZero(TiledAttention):
    def heads(self, tensor: Tensor, group: int) -> Tensor:
        return super().heads(tensor[:1].expand_as(tensor), group)


@_tiles("V of the next head")
class _NextHeadsValues(TiledAttention):
    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, k, v.roll(-1, 1)


@_tiles("O in [B, S, H, D] order in memory that is read as [B, H, S, D]")
class _WrongOrder(TiledAttention):
    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        return (out / total).transpose(1, 2).reshape(out.shape)


# ---- edges ----------------------------------------------------------------------------------------------------------


@_boundary("the keys after the last whole tile are left out")
class _WholeTilesOnly(TiledAttention):
    def starts(self, seq_kv: int) -> Sequence[int]:
        return range(0, max(self.tile, seq_kv // self.tile * self.tile), self.tile)


@_boundary("the last key is left out")
class _NoLastKey(TiledAttention):
    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return (q, k[:, :, :-1], v[:, :, :-1]) if k.shape[2] > 1 else (q, k, v)


@_boundary("keys after the last multiple of 8 are left out")
class _MultipleOfEight(TiledAttention):
    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        last = max(8, k.shape[2] // 8 * 8)
        return q, k[:, :, :last], v[:, :, :last]


class _Padded(TiledAttention):
    """Keys of zeros up to a whole tile, which no mask hides."""

    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        from torch.nn.functional import pad

        missing = -k.shape[2] % self.tile
        return q, pad(k, (0, 0, 0, missing)), pad(v, (0, 0, 0, missing))


_boundary("zeros up to the end of the tile count as keys", PLAIN)(_Padded)
_boundary("zeros up to the end of the tile count as keys, under a mask", CROSS.with_(seq_q=150, seq_kv=90))(_Padded)


@_boundary("the keys after the last belong to the next head")
class _IntoNextHead(_Padded):
    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        _, keys, values = super().operands(q, k, v)
        length = keys.shape[2] - k.shape[2]
        if length and length <= k.shape[2]:
            keys[:, :, -length:] = k.roll(-1, 1)[:, :, :length]
            values[:, :, -length:] = v.roll(-1, 1)[:, :, :length]
        return q, keys, values


@_boundary("the last row is not written")
class _NoLastRow(TiledAttention):
    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        done = out / total
        done[:, :, -1] = 0.0
        return done


@_boundary("rows after the last whole tile are those of the tile before")
class _TailRowsStale(TiledAttention):
    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        done = out / total
        whole = done.shape[2] // self.tile * self.tile
        tail = done.shape[2] - whole
        if whole and tail:
            done[:, :, whole:] = done[:, :, whole - self.tile : whole - self.tile + tail].clone()
        return done


@_boundary("the last column is that before it")
class _LastColumn(TiledAttention):
    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        done = out / total
        done[..., -1] = done[..., -2]
        return done


@_boundary("a single row is taken for no row")
class _SingleRow(TiledAttention):
    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        return out / total * (out.shape[2] > 1)


@_boundary("one row in the middle is wrong by 2%")
class _OneRow(TiledAttention):
    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        done = out / total
        done[:, :1, done.shape[2] // 2] *= 1.02
        return done


@_boundary("one element is wrong by 0.01")
class _OneElement(TiledAttention):
    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        done = out / total
        done[0, 0, done.shape[2] // 2, 5] += 0.01
        return done


@_historical("a stale build: the kernel of yesterday's flags, without a mask", CAUSAL)
class _StaleBuild(_NoMask):
    pass


@_historical("a stale build: the kernel for float16 run on bfloat16", PLAIN.with_(dtype="bfloat16"))
class _StaleDtype(TiledAttention):
    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        import torch

        q, k, v = (x.to(torch.bfloat16).view(torch.float16).float().nan_to_num() for x in (q, k, v))
        return q, k, v
