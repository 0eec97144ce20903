"""Bugs of the soft cap: left out, at the wrong place, or with the wrong factor."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from sdpalab.bugs.bug import Bug, Family
from sdpalab.bugs.cause import Cause
from sdpalab.bugs.tiled import CAUSAL, PLAIN, TiledAttention, changed, planted

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BUGS"]

BUGS: list[Bug] = []
CAPPED = PLAIN.with_(softcap=30.0)
"""Soft cap as Gemma 2 uses for its logits; that of its attention is 50."""
CAPPED_CAUSAL = CAUSAL.with_(softcap=30.0)
_cap = partial(planted, Family.SOFTMAX, into=BUGS, cause=Cause.CAP)


_cap("the soft cap is left out", CAPPED)(changed(capped=lambda self, scores, cap: scores))


@_cap("the soft cap is applied after the mask", CAPPED_CAUSAL)
class _CapAfterMask(TiledAttention):
    def capped(self, scores: Tensor, cap: float) -> Tensor:
        return scores

    def after_masks(self, scores: Tensor, cap: float) -> Tensor:
        return cap * (scores / cap).tanh() if cap else scores


_cap("the soft cap is applied before the scale", CAPPED)(
    changed(capped=lambda self, scores, cap: TiledAttention.capped(self, scores / self.scale, cap) * self.scale)
)
_cap("the scores are not divided by the soft cap", CAPPED)(
    changed(capped=lambda self, scores, cap: cap * (scores * math.log(2.0)).tanh())
)
_cap("tanh is not multiplied by the soft cap", CAPPED)(
    changed(capped=lambda self, scores, cap: (scores / cap).tanh() * math.log2(math.e))
)
_cap("scores are clipped to the soft cap", CAPPED)(changed(capped=lambda self, scores, cap: scores.clamp(-cap, cap)))
_cap("the soft cap is taken for one to base 2", CAPPED)(
    changed(capped=lambda self, scores, cap: TiledAttention.capped(self, scores, cap * math.log(2.0)))
)
_cap("a soft cap of its own in place of the one given", CAPPED.with_(softcap=20.0))(
    changed(capped=lambda self, scores, cap: TiledAttention.capped(self, scores, 50.0 * math.log2(math.e)))
)
_cap("tanh by x / (1 + |x|)", CAPPED)(changed(capped=lambda self, scores, cap: scores / (1.0 + (scores / cap).abs())))
