"""Bugs of ALiBi: wrong slope, distance or unit."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from sdpalab.bugs.bug import Bug, Family
from sdpalab.bugs.cause import Cause
from sdpalab.bugs.tiled import PLAIN, TiledAttention, changed, planted

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BUGS"]

BUGS: list[Bug] = []
SLOPED = PLAIN.with_(seq_q=120, seq_kv=120, alibi_slopes=True)
SLOPED_CAUSAL = SLOPED.with_(causal=True)
SLOPED_GROUPED = PLAIN.with_(heads=4, kv_heads=2, seq_q=70, seq_kv=70, alibi_slopes=True)
SLOPED_CROSS = SLOPED.with_(seq_q=70, seq_kv=120)
SLOPED_CAPPED = SLOPED.with_(softcap=5.0)
_alibi = partial(planted, Family.SOFTMAX, into=BUGS, cause=Cause.ALIBI)


class _Slopes(TiledAttention):
    """Attention with other slopes."""

    def other(self, slopes: Tensor, group: int) -> Tensor:
        """Slopes that are used instead."""
        return slopes

    def bias(self, slopes: Tensor, rows: Tensor, columns: Tensor, group: int) -> Tensor:
        return super().bias(self.other(slopes, group), rows, columns, group)


_alibi("ALiBi is left out", SLOPED)(changed(_Slopes, other=lambda self, slopes, group: slopes * 0.0))
_alibi("ALiBi is added", SLOPED)(changed(_Slopes, other=lambda self, slopes, group: -slopes))
_alibi("ALiBi is not taken to base 2", SLOPED_CAUSAL)(
    changed(_Slopes, other=lambda self, slopes, group: slopes * math.log(2.0))
)
_alibi("ALiBi is scaled as the scores are", SLOPED)(
    changed(_Slopes, other=lambda self, slopes, group: slopes * self.scale)
)
_alibi("all heads have the slope of the first", SLOPED)(
    changed(_Slopes, other=lambda self, slopes, group: slopes[:1].expand(len(slopes)))
)
_alibi("the slope is that of the next head", SLOPED_CAUSAL)(
    changed(_Slopes, other=lambda self, slopes, group: slopes.roll(-1))
)
_alibi("the slope is taken by K/V head", SLOPED_GROUPED)(
    changed(_Slopes, other=lambda self, slopes, group: slopes[: len(slopes) // group].repeat_interleave(group))
)


@_alibi("slopes of its own in place of those given", SLOPED)
class _OwnSlopes(_Slopes):
    def other(self, slopes: Tensor, group: int) -> Tensor:
        import torch

        return 2.0 ** (-8.0 * torch.arange(1, len(slopes) + 1) / len(slopes))


@_alibi("slopes are rounded to 8 bits", SLOPED)
class _SlopeRounded(_Slopes):
    def other(self, slopes: Tensor, group: int) -> Tensor:
        import torch

        return slopes.to(torch.float8_e4m3fn).float()


@_alibi("ALiBi's distance has a sign", SLOPED)
class _Signed(TiledAttention):
    def distance(self, rows: Tensor, columns: Tensor) -> Tensor:
        return rows - columns


_alibi("ALiBi counts only keys before the query", SLOPED)(
    changed(distance=lambda self, rows, columns: (rows - columns).clamp(min=0))
)
_alibi("ALiBi's distance is off by one", SLOPED)(
    changed(distance=lambda self, rows, columns: (rows - columns + 1).abs())
)
_alibi("ALiBi's distance is aligned to the bottom right", SLOPED_CROSS)(
    changed(distance=lambda self, rows, columns: (rows + self.shift - columns).abs())
)
_alibi("ALiBi's columns are counted from the start of their tile", SLOPED_CAUSAL)(
    changed(distance=lambda self, rows, columns: (rows - columns % self.tile).abs())
)
_alibi("ALiBi's rows are counted from the start of their tile", SLOPED)(
    changed(distance=lambda self, rows, columns: (rows % self.tile - columns).abs())
)
_alibi("ALiBi's distance is squared", SLOPED)(changed(distance=lambda self, rows, columns: (rows - columns).square()))


@_alibi("ALiBi is under the soft cap", SLOPED_CAPPED)
class _Capped(TiledAttention):
    def capped(self, scores: Tensor, cap: float) -> Tensor:
        return scores

    def after_masks(self, scores: Tensor, cap: float) -> Tensor:
        return super().capped(scores, cap) if cap else scores


@_alibi(
    "ALiBi's signed distance, under a causal mask",
    SLOPED_CAUSAL,
    cause=None,
    equivalent="no row sees a key after its own, and only there would the sign of the distance count",
)
class _SignedCausal(_Signed):
    pass
