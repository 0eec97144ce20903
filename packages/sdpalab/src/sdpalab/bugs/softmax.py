"""Bugs of the softmax: scale, exponential, maximum, rescale, normalisation; and bugs of the project that preceded this
one."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from sdpalab.bugs.bug import Bug, Family
from sdpalab.bugs.cause import Cause
from sdpalab.bugs.scores import LOG2_E
from sdpalab.bugs.tiled import BF16, CAUSAL, PLAIN, TiledAttention, changed, planted

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BUGS"]

BUGS: list[Bug] = []
_softmax = partial(planted, Family.SOFTMAX, into=BUGS)
_historical = partial(planted, Family.HISTORICAL, into=BUGS)

SCALED = PLAIN.with_(scale=0.3)


# ---- scale ----------------------------------------------------------------------------------------------------------


_softmax("the scores are not scaled", cause=Cause.SCORES)(changed(factor=lambda self, scale, head_dim: LOG2_E))
_softmax("1 / D in place of 1 / sqrt(D)", cause=Cause.SCORES)(
    changed(factor=lambda self, scale, head_dim: scale * scale * LOG2_E)
)
_softmax("a scale that is 1% too large", cause=Cause.SCORES)(
    changed(factor=lambda self, scale, head_dim: 1.01 * TiledAttention.factor(self, scale, head_dim))
)
_softmax("a scale of its own in place of the one given", SCALED, cause=Cause.SCORES)(
    changed(factor=lambda self, scale, head_dim: TiledAttention.factor(self, 1.0 / math.sqrt(head_dim), head_dim))
)


@_softmax("a scale rounded to bfloat16", SCALED, cause=Cause.SCORES)
class _ScaleRounded(TiledAttention):
    def factor(self, scale: float, head_dim: int) -> float:
        import torch

        return float(torch.tensor(super().factor(scale, head_dim), dtype=torch.bfloat16))


_softmax("exponentials to base 2 without log2(e)", cause=Cause.SCORES)(
    changed(factor=lambda self, scale, head_dim: scale)
)
_historical("wrong QK scale: sqrt(2 D) for a head of D", BF16, cause=Cause.SCORES)(
    changed(factor=lambda self, scale, head_dim: TiledAttention.factor(self, scale, head_dim) / math.sqrt(2.0))
)


# ---- rescale --------------------------------------------------------------------------------------------------------


@_softmax("the rescale of O is lost", cause=Cause.RESCALE, words="O is not rescaled")
class _OutputNotRescaled(TiledAttention):
    def output(self, out: Tensor, rescale: Tensor, weights: Tensor, values: Tensor) -> Tensor:
        return out + weights @ values


@_softmax("the rescale of the sum is lost", cause=Cause.RESCALE, words="the sum is not rescaled")
class _TotalNotRescaled(TiledAttention):
    def total(self, total: Tensor, rescale: Tensor, weights: Tensor) -> Tensor:
        return total + weights.sum(-1, keepdim=True)


class _NotRescaled(_OutputNotRescaled, _TotalNotRescaled):
    pass


_softmax("both rescales are lost", cause=Cause.RESCALE, words="neither O nor the sum is rescaled")(_NotRescaled)


_softmax("O is rescaled after this tile's product is added", cause=Cause.RESCALE)(
    changed(output=lambda self, out, rescale, weights, values: (out + weights @ values) * rescale.clamp(min=1e-30))
)
_softmax("the sum is rescaled after this tile's weights are added", cause=Cause.RESCALE)(
    changed(
        total=lambda self, total, rescale, weights: (total + weights.sum(-1, keepdim=True)) * rescale.clamp(min=1e-30)
    )
)
_softmax("O is rescaled twice", cause=Cause.RESCALE)(
    changed(output=lambda self, out, rescale, weights, values: out * rescale * rescale + weights @ values)
)
_softmax("the rescale is skipped where the maximum grows by less than 1", cause=Cause.RESCALE)(
    changed(
        output=lambda self, out, rescale, weights, values: out * rescale.where(rescale < 0.5, 1.0) + weights @ values
    )
)


# ---- running maximum ------------------------------------------------------------------------------------------------


@_softmax("the maximum of the first tile is kept, sums are not rescaled to later ones", cause=Cause.RANGE)
class _FirstMaximum(TiledAttention):
    def maximum(self, maximum: Tensor, scores: Tensor) -> Tensor:
        import torch

        return super().maximum(maximum, scores).where(torch.isinf(maximum), maximum)


_softmax("the maximum starts at 0, and weights below 2**-24 are dropped", cause=Cause.RANGE)(
    changed(maximum=lambda self, maximum, scores: TiledAttention.maximum(self, maximum.clamp(min=0.0), scores))
)


@_softmax("no maximum is subtracted", cause=Cause.RANGE)
class _NoMaximum(TiledAttention):
    def maximum(self, maximum: Tensor, scores: Tensor) -> Tensor:
        import torch

        return torch.zeros_like(maximum)


_softmax("the maximum of the head in place of the row's, in the inputs' type", cause=Cause.RANGE)(
    changed(
        maximum=lambda self, maximum, scores: (
            TiledAttention.maximum(self, maximum, scores).amax(2, keepdim=True).expand_as(maximum) + 12.0
        )
    )
)


@_softmax(
    "the maximum is rounded up to a whole number, and the sum is over the rounded weights",
    equivalent="any number works as the reference of the weights, as long as all of a row have the same: weights and "
    "sum are 2**-d times the true ones, d < 1, and P keeps its 11 bits at any exponent in range",
)
class _WholeMaximum(TiledAttention):
    def maximum(self, maximum: Tensor, scores: Tensor) -> Tensor:
        import torch

        return torch.maximum(maximum, scores.amax(-1, keepdim=True).ceil())

    def total(self, total: Tensor, rescale: Tensor, weights: Tensor) -> Tensor:
        return super().total(total, rescale, self.rounded(weights))


# ---- exponential ----------------------------------------------------------------------------------------------------


@_softmax("exponentials by Schraudolph's bit trick, wrong by up to 6%", cause=Cause.PRECISION)
class _FastExponential(TiledAttention):
    def weights(self, scores: Tensor, maximum: Tensor) -> Tensor:
        import torch

        bits = ((scores - maximum).clamp(min=-126.0) + 127.0) * 2.0**23
        return bits.to(torch.int32).view(torch.float32)


@_softmax(
    "exponentials by a polynomial of degree 3, wrong by up to 1e-4 (Cody-Waite with too few terms)",
    cause=Cause.PRECISION,
)
class _ShortPolynomial(TiledAttention):
    def weights(self, scores: Tensor, maximum: Tensor) -> Tensor:
        x = (scores - maximum).clamp(min=-126.0)
        whole = x.floor()
        f = x - whole
        return (1.0 + f * (0.6951 + f * (0.2276 + f * 0.0773))) * whole.exp2() * 1.0015


_softmax("weights below 2**-8 are taken for 0", cause=Cause.EXPONENTIAL)(
    changed(rounded=lambda self, weights: TiledAttention.rounded(self, weights.where(weights >= 2.0**-8, 0.0)))
)
_softmax("weights of the absolute scores", cause=Cause.EXPONENTIAL, words="scores are taken without their signs")(
    changed(scores=lambda self, q, k: TiledAttention.scores(self, q, k).abs())
)
_softmax("negative scores are taken for 0", cause=Cause.EXPONENTIAL)(
    changed(scores=lambda self, q, k: TiledAttention.scores(self, q, k).relu())
)
_softmax("scores are capped by 30 tanh(s / 30), as some models do", cause=Cause.EXPONENTIAL)(
    changed(scores=lambda self, q, k: 30.0 * (TiledAttention.scores(self, q, k) / 30.0).tanh())
)


# ---- normalisation --------------------------------------------------------------------------------------------------


_softmax("the output is not divided by the sum", cause=Cause.NORMALISATION)(
    changed(finish=lambda self, out, total, maximum, seq_kv: out)
)
_softmax("the output is divided by the number of keys", cause=Cause.NORMALISATION)(
    changed(finish=lambda self, out, total, maximum, seq_kv: out / seq_kv)
)


@_softmax("each tile is normalised by itself, and the tiles are averaged", cause=Cause.RESCALE)
class _TilesAveraged(TiledAttention):
    def output(self, out: Tensor, rescale: Tensor, weights: Tensor, values: Tensor) -> Tensor:
        return out + weights @ values / weights.sum(-1, keepdim=True)

    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        return out / len(self.starts(seq_kv))


@_softmax("the sum lacks the last tile", cause=Cause.NORMALISATION)
class _TotalLacksLast(TiledAttention):
    def total(self, total: Tensor, rescale: Tensor, weights: Tensor) -> Tensor:
        self._last = weights.sum(-1, keepdim=True)
        return super().total(total, rescale, weights)

    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        return out / (total - 0.5 * self._last)


_softmax("a reciprocal by one Newton step too few, wrong by 0.3%", cause=Cause.NORMALISATION)(
    changed(finish=lambda self, out, total, maximum, seq_kv: out / total * 0.997)
)
_softmax("0.001 is added to the sum against a division by zero", CAUSAL, cause=Cause.NORMALISATION)(
    changed(finish=lambda self, out, total, maximum, seq_kv: out / (total + 1e-3))
)
_softmax(
    "1e-7 is added to the sum against a division by zero",
    equivalent="the row's largest weight is 1, so the sum is at least 1, and 1 + 1e-7 is at most one ulp of float32 "
    "away: a thousandth of the rounding of the output",
)(changed(finish=lambda self, out, total, maximum, seq_kv: out / (total + 1e-7)))


# ---- bugs of the preceding project --------------------------------------------------------------------------------


@_historical("exponents clamped to -10..10", cause=Cause.EXPONENTIAL)
class _Clamped(TiledAttention):
    def weights(self, scores: Tensor, maximum: Tensor) -> Tensor:
        return (scores - maximum).clamp(-10.0, 10.0).exp2()


_historical("scores clamped to -20..20 and no maximum", cause=Cause.EXPONENTIAL)(
    changed(_NoMaximum, scores=lambda self, q, k: _NoMaximum.scores(self, q, k).clamp(-20.0, 20.0))
)
_historical("clamped exponents, epsilon in the sum, and zeros for what is not finite", CAUSAL, cause=Cause.EXPONENTIAL)(
    changed(_Clamped, finish=lambda self, out, total, maximum, seq_kv: (out / (total + 1e-6)).nan_to_num(0.0, 0.0, 0.0))
)
