"""Bugs with lower precision than declared, and outputs that are not attention."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any

from sdpalab.bugs.bug import Bug, Family
from sdpalab.bugs.cause import Cause
from sdpalab.bugs.tiled import BF16, CAUSAL, PLAIN, TiledAttention, planted
from sdpalab.problem import Problem
from sdpalab.status import Status

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["BUGS", "WithoutScores"]

BUGS: list[Bug] = []
_precision = partial(planted, Family.PRECISION, into=BUGS, cause=Cause.PRECISION)
_historical = partial(planted, Family.HISTORICAL, into=BUGS)

LONG = Problem(1, 2, 512, 64)


def _through(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype).float()


@_precision("scores in float16")
@_precision("scores in bfloat16", BF16)
class _Scores(TiledAttention):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return _through(super().scores(q, k), self.dtype)


@_precision("O accumulates in float16", LONG)
@_precision("O accumulates in bfloat16", LONG.with_(dtype="bfloat16"))
@_precision("O accumulates in float16, under a mask", LONG.with_(causal=True))
class _Output(TiledAttention):
    def output(self, out: Tensor, rescale: Tensor, weights: Tensor, values: Tensor) -> Tensor:
        return _through(super().output(out, rescale, weights, values), self.dtype)


@_precision("the sum of the weights accumulates in float16", LONG)
@_precision("the sum of the weights accumulates in bfloat16", LONG.with_(dtype="bfloat16"))
class _Total(TiledAttention):
    tile = 8

    def total(self, total: Tensor, rescale: Tensor, weights: Tensor) -> Tensor:
        return _through(super().total(total, rescale, weights), self.dtype)


@_precision("P in float8 e4m3")
@_precision("P in float8 e4m3, in bfloat16", BF16)
class _Weights8(TiledAttention):
    def rounded(self, weights: Tensor) -> Tensor:
        import torch

        return _through(weights, torch.float8_e4m3fn)


@_precision("P in bfloat16 where the problem is float16")
class _WeightsBf16(TiledAttention):
    def rounded(self, weights: Tensor) -> Tensor:
        import torch

        return _through(weights, torch.bfloat16)


@_precision("exponentials in float16")
@_precision("exponentials in bfloat16", BF16)
class _Exponentials(TiledAttention):
    def weights(self, scores: Tensor, maximum: Tensor) -> Tensor:
        return _through(_through(scores - maximum, self.dtype).exp2(), self.dtype)


@_precision("Q in float8 e4m3")
@_precision("Q in float8 e4m3, in bfloat16", BF16)
class _Queries8(TiledAttention):
    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        import torch

        return _through(q, torch.float8_e4m3fn), k, v


@_precision("V in float8 e4m3")
class _Values8(TiledAttention):
    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        import torch

        return q, k, _through(v, torch.float8_e4m3fn)


@_precision("V in bfloat16 where the problem is float16")
class _ValuesBf16(TiledAttention):
    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        import torch

        return q, k, _through(v, torch.bfloat16)


@_precision("Q is scaled before the product, in the inputs' type", PLAIN.with_(scale=0.3))
class _ScaledQueries(TiledAttention):
    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, **_: Any) -> Tensor:
        return super().__call__((q * scale).to(q.dtype), k, v, scale=1.0, causal=causal)


@_precision("the output passes through bfloat16")
class _OutputBf16(TiledAttention):
    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        import torch

        return _through(super().finish(out, total, maximum, seq_kv), torch.bfloat16)


@_precision("the output is cut off, not rounded, to two bits less")
class _Truncated(TiledAttention):
    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        import torch

        done = super().finish(out, total, maximum, seq_kv)
        return (done.view(torch.int32) & -(1 << 15)).view(torch.float32)


@_historical("float8 e4m3 with one scale a head", LONG, cause=Cause.PRECISION)
@_historical("float8 e4m3 with one scale a head, in bfloat16", LONG.with_(dtype="bfloat16"), cause=Cause.PRECISION)
class _HeadScale(TiledAttention):
    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self._quantised(q), self._quantised(k), self._quantised(v)

    @staticmethod
    def _quantised(tensor: Tensor) -> Tensor:
        import torch

        scale = tensor.abs().amax((2, 3), keepdim=True).clamp(min=1e-12) / 448.0
        return _through(tensor / scale, torch.float8_e4m3fn) * scale


@_historical(
    "float8 e4m3 with one scale a head, and sums of P beyond its range: NaN at S = 512", LONG, cause=Cause.RANGE
)
class _HeadScaleOverflow(_HeadScale):
    def total(self, total: Tensor, rescale: Tensor, weights: Tensor) -> Tensor:
        import torch

        return _through(4.0 * super().total(total / 4.0, rescale, weights), torch.float8_e4m3fn)


# ---- no attention at all --------------------------------------------------------------------------------------------


class WithoutScores(ABC):
    """Base of outputs that do not depend on the scores."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, **_: Any) -> Tensor:
        group = q.shape[1] // k.shape[1]
        of_v = [column % q.shape[3] for column in range(v.shape[3])]
        return self.degenerate(q[..., of_v], v.repeat_interleave(group, 1))

    @abstractmethod
    def degenerate(self, q: Tensor, v: Tensor) -> Tensor:
        """The output, computed from v [B, H, Skv, Dv] and the first Dv columns of q, which repeat, [B, H, Sq, Dv]."""


_degenerate = partial(planted, Family.DEGENERATE, into=BUGS, cause=Cause.NO_ATTENTION)


@_degenerate("zeros", words="it is all zeros")
@_degenerate("zeros, under a mask", CAUSAL, words="it is all zeros")
class _Zeros(WithoutScores):
    def degenerate(self, q: Tensor, v: Tensor) -> Tensor:
        return q * 0


@_degenerate("the mean of V", words="each row is the mean of all of V")
@_degenerate(
    "the mean of V on a long sequence",
    PLAIN.with_(seq_q=4096, seq_kv=4096, heads=1),
    words="each row is the mean of all of V",
)
class _Mean(WithoutScores):
    def degenerate(self, q: Tensor, v: Tensor) -> Tensor:
        import torch

        return (
            v.to(torch.promote_types(v.dtype, torch.float32))
            .mean(2, keepdim=True)
            .expand_as(q)
            .to(q.dtype)
            .contiguous()
        )


@_degenerate("V", words="row i is V[i]")
class _Values(WithoutScores):
    def degenerate(self, q: Tensor, v: Tensor) -> Tensor:
        return v[:, :, [i % v.shape[2] for i in range(q.shape[2])]]


@_degenerate("Q", words="it is Q")
class _Queries(WithoutScores):
    def degenerate(self, q: Tensor, v: Tensor) -> Tensor:
        return q.clone()


@planted(
    Family.DEGENERATE,
    "the output of the call before",
    statuses=frozenset({Status.INCORRECT, Status.NONDETERMINISTIC}),
    into=BUGS,
)
class _Previous(TiledAttention):
    """Returns the output of the previous call."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, ...], Tensor] = {}

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, **_: Any) -> Tensor:
        out = super().__call__(q, k, v, scale=scale, causal=causal)
        shape = tuple(out.shape)
        out, self._last[shape] = self._last.get(shape, out), out
        return out
