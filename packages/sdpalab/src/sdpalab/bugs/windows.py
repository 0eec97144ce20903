"""Bugs of sliding windows: a side that is off, swapped, or counted from another position."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sdpalab.bugs.bug import Bug, Family
from sdpalab.bugs.cause import Cause
from sdpalab.bugs.scores import FAR
from sdpalab.bugs.tiled import CAUSAL, PLAIN, TiledAttention, changed, planted

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BUGS"]

BUGS: list[Bug] = []
WINDOW = PLAIN.with_(window_size=(50, 21))
CAUSAL_WINDOW = CAUSAL.with_(window_size=(50, -1))
CROSS_WINDOW = PLAIN.with_(seq_q=90, seq_kv=150, window_size=(50, 21))
TALL_WINDOW = PLAIN.with_(seq_q=150, seq_kv=40, window_size=(50, 21))
"""Window in which the last rows see no key."""
_window = partial(planted, Family.MASK, into=BUGS, cause=Cause.MASK)


_window("the window's left side is one key too wide", WINDOW)(
    changed(
        outside=lambda self, rows, columns, left, right: TiledAttention.outside(self, rows, columns, left + 1, right)
    )
)
_window("the window's left side is one key too narrow", CAUSAL_WINDOW)(
    changed(
        outside=lambda self, rows, columns, left, right: TiledAttention.outside(
            self, rows, columns, max(left - 1, 0), right
        )
    )
)
_window("the window's right side is one key too wide", WINDOW)(
    changed(
        outside=lambda self, rows, columns, left, right: TiledAttention.outside(self, rows, columns, left, right + 1)
    )
)
_window("the window's right side is one key too narrow", WINDOW)(
    changed(
        outside=lambda self, rows, columns, left, right: TiledAttention.outside(
            self, rows, columns, left, max(right - 1, 0)
        )
    )
)
_window("the window's sides are swapped", WINDOW)(
    changed(outside=lambda self, rows, columns, left, right: TiledAttention.outside(self, rows, columns, right, left))
)
_window("the window has no left side", CAUSAL_WINDOW)(
    changed(outside=lambda self, rows, columns, left, right: TiledAttention.outside(self, rows, columns, -1, right))
)
_window("there is no window", WINDOW)(
    changed(outside=lambda self, rows, columns, left, right: TiledAttention.outside(self, rows, columns, -1, -1))
)
_window("the window is aligned to the bottom right", CROSS_WINDOW)(
    changed(
        outside=lambda self, rows, columns, left, right: TiledAttention.outside(
            self, rows + self.shift, columns, left, right
        )
    )
)
_window("no bound (-1) on a side is taken for a side of -1", CAUSAL_WINDOW.with_(causal=False, window_size=(50, -1)))(
    changed(
        outside=lambda self, rows, columns, left, right: (
            (columns > rows + max(right, 0)) | (columns < rows - (FAR if left < 0 else left))
        )
    )
)


@_window("tiles at the window's edges are not masked", WINDOW)
class _WholeWindowTiles(TiledAttention):
    def outside(self, rows: Tensor, columns: Tensor, left: int, right: int) -> Tensor:
        tile = columns // self.tile
        return (tile > (rows + right) // self.tile) | (tile < (rows - left) // self.tile)


_window("the window is that of the first row of each tile of rows", WINDOW)(
    changed(
        outside=lambda self, rows, columns, left, right: TiledAttention.outside(
            self, rows // self.tile * self.tile, columns, left, right
        )
    )
)


@_window("the tile with the window's left edge is left out", WINDOW)
class _FirstTileLeftOut(TiledAttention):
    def outside(self, rows: Tensor, columns: Tensor, left: int, right: int) -> Tensor:
        first = (rows - left).clamp(min=0) // self.tile
        crossed = (columns // self.tile == first) & (rows - left > 0) & (first < rows // self.tile)
        return super().outside(rows, columns, left, right) | crossed


@_window("rows that see no key are the mean of V", TALL_WINDOW)
class _EmptyMean(TiledAttention):
    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self._mean = v.mean(dim=2, keepdim=True)
        return q, k, v

    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        done = super().finish(out, total, maximum, seq_kv)
        return done.where(total != 0.0, self._mean)


_window("rows that see no key are 0 divided by 0", TALL_WINDOW, cause=Cause.RANGE)(
    changed(finish=lambda self, out, total, maximum, seq_kv: out / total)
)
_window("the first four keys are seen outside the window, too", WINDOW)(
    changed(
        outside=lambda self, rows, columns, left, right: (
            TiledAttention.outside(self, rows, columns, left, right) & ~((columns < 4) & (rows > left))
        )
    )
)
