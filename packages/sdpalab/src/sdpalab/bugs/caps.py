"""Bugs of the soft cap: left out, at the wrong place, or with the wrong factor."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from sdpalab.bugs.bug import Bug, Family
from sdpalab.bugs.cause import Cause
from sdpalab.bugs.tiled import CAUSAL, PLAIN, TiledAttention, planted

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BUGS"]

BUGS: list[Bug] = []
CAPPED = PLAIN.with_(softcap=30.0)
"""Soft cap as Gemma 2 uses for its logits; that of its attention is 50."""
CAPPED_CAUSAL = CAUSAL.with_(softcap=30.0)
_cap = partial(planted, Family.SOFTMAX, into=BUGS, cause=Cause.CAP)


@_cap("the soft cap is left out", CAPPED)
class _NoCap(TiledAttention):
    def capped(self, scores: Tensor, cap: float) -> Tensor:
        return scores


@_cap("the soft cap is applied after the mask", CAPPED_CAUSAL)
class _CapAfterMask(TiledAttention):
    def capped(self, scores: Tensor, cap: float) -> Tensor:
        return scores

    def after_masks(self, scores: Tensor, cap: float) -> Tensor:
        return cap * (scores / cap).tanh() if cap else scores


@_cap("the soft cap is applied before the scale", CAPPED)
class _CapBeforeScale(TiledAttention):
    def capped(self, scores: Tensor, cap: float) -> Tensor:
        return super().capped(scores / self.scale, cap) * self.scale


@_cap("the scores are not divided by the soft cap", CAPPED)
class _NotDivided(TiledAttention):
    def capped(self, scores: Tensor, cap: float) -> Tensor:
        return cap * (scores * math.log(2.0)).tanh()


@_cap("tanh is not multiplied by the soft cap", CAPPED)
class _NotMultiplied(TiledAttention):
    def capped(self, scores: Tensor, cap: float) -> Tensor:
        return (scores / cap).tanh() * math.log2(math.e)


@_cap("scores are clipped to the soft cap", CAPPED)
class _Clipped(TiledAttention):
    def capped(self, scores: Tensor, cap: float) -> Tensor:
        return scores.clamp(-cap, cap)


@_cap("the soft cap is taken for one to base 2", CAPPED)
class _CapBaseTwo(TiledAttention):
    def capped(self, scores: Tensor, cap: float) -> Tensor:
        return super().capped(scores, cap * math.log(2.0))


@_cap("a soft cap of its own in place of the one given", CAPPED.with_(softcap=20.0))
class _OwnCap(TiledAttention):
    def capped(self, scores: Tensor, cap: float) -> Tensor:
        return super().capped(scores, 50.0 * math.log2(math.e))


@_cap("tanh by x / (1 + |x|)", CAPPED)
class _Softsign(TiledAttention):
    def capped(self, scores: Tensor, cap: float) -> Tensor:
        return scores / (1.0 + (scores / cap).abs())
