"""Bugs of attention sinks: a wrong logit, or a weight that is lost, repeated or not rescaled."""

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
SINK = PLAIN.with_(seq_q=120, seq_kv=120, sinks=True)
SINK_CAUSAL = SINK.with_(causal=True)
SINK_GROUPED = PLAIN.with_(heads=4, kv_heads=2, seq_q=70, seq_kv=70, sinks=True)
SINK_WINDOW = SINK.with_(seq_q=150, seq_kv=90, window_size=(30, 0))
"""Window in which the last rows see only the sink."""
_sink = partial(planted, Family.SOFTMAX, into=BUGS, cause=Cause.SINKS)


class _Sinks(TiledAttention):
    """Attention with other logits."""

    def other(self, sinks: Tensor, group: int) -> Tensor:
        """Logits that are used instead."""
        return sinks

    def beginning(self, queries: Tensor, sinks: Tensor | None, group: int) -> tuple[Tensor, Tensor]:
        return super().beginning(queries, None if sinks is None else self.other(sinks, group), group)


_sink("the sinks are left out", SINK)(
    changed(beginning=lambda self, queries, sinks, group: TiledAttention.beginning(self, queries, None, group))
)
_sink("the sink is not taken to base 2", SINK)(changed(_Sinks, other=lambda self, sinks, group: sinks * math.log(2.0)))
_sink("the sink is scaled as the scores are", SINK_CAUSAL)(
    changed(_Sinks, other=lambda self, sinks, group: sinks * self.scale)
)
_sink("all heads have the sink of the first", SINK)(
    changed(_Sinks, other=lambda self, sinks, group: sinks[:1].expand(len(sinks)))
)
_sink("the sink is that of the next head", SINK_CAUSAL)(
    changed(_Sinks, other=lambda self, sinks, group: sinks.roll(-1))
)
_sink("the sink is taken by K/V head", SINK_GROUPED)(
    changed(_Sinks, other=lambda self, sinks, group: sinks[: len(sinks) // group].repeat_interleave(group))
)
_sink("the sink has the wrong sign", SINK)(changed(_Sinks, other=lambda self, sinks, group: -sinks))
_sink("every sink is 0", SINK)(changed(_Sinks, other=lambda self, sinks, group: sinks * 0.0))


@_sink("the sink counts for the maximum, and not in the sum", SINK)
class _OnlyMaximum(TiledAttention):
    def beginning(self, queries: Tensor, sinks: Tensor | None, group: int) -> tuple[Tensor, Tensor]:
        maximum, total = super().beginning(queries, sinks, group)
        return maximum, total * 0.0


@_sink("the sink is counted in every tile", SINK)
class _EveryTile(TiledAttention):
    def beginning(self, queries: Tensor, sinks: Tensor | None, group: int) -> tuple[Tensor, Tensor]:
        maximum, total = super().beginning(queries, sinks, group)
        self._sink = maximum.clone()
        return maximum, total * 0.0

    def weights(self, scores: Tensor, maximum: Tensor) -> Tensor:
        self._maximum = maximum
        return super().weights(scores, maximum)

    def total(self, total: Tensor, rescale: Tensor, weights: Tensor) -> Tensor:
        return super().total(total, rescale, weights) + (self._sink - self._maximum).exp2()


class _AtTheEnd(TiledAttention):
    """Adds the sink to the sum at the end, which is also right."""

    def beginning(self, queries: Tensor, sinks: Tensor | None, group: int) -> tuple[Tensor, Tensor]:
        self._sink = None if sinks is None else (sinks * math.log2(math.e))[:, None, None]
        return super().beginning(queries, None, group)

    def sink_weight(self, sink: Tensor, maximum: Tensor) -> Tensor:
        """Weight that is added to the sum."""
        return (sink - maximum.clamp(min=-1e30)).exp2()

    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        if self._sink is None:
            return super().finish(out, total, maximum, seq_kv)
        return out / (total + self.sink_weight(self._sink, maximum))


_sink("the sink's weight is not relative to the largest score", SINK)(
    changed(_AtTheEnd, sink_weight=lambda self, sink, maximum: sink.exp2())
)
_sink("the sink's weight is rounded to a power of two", SINK)(
    changed(_AtTheEnd, sink_weight=lambda self, sink, maximum: (sink - maximum.clamp(min=-1e30)).round().exp2())
)


@_sink("the sink's weight goes to the first key", SINK)
class _ToFirstKey(_AtTheEnd):
    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self._first = v[:, :, :1]
        return q, k, v

    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        weight = self.sink_weight(self._sink, maximum) if self._sink is not None else 0.0
        return (out + weight * self._first) / (total + weight)


_sink("the sink is left out where it is above all scores", SINK)(
    changed(
        _AtTheEnd, sink_weight=lambda self, sink, maximum: _AtTheEnd.sink_weight(self, sink, maximum) * (sink < maximum)
    )
)
_sink("rows that see the sink alone are 0 divided by 0", SINK_WINDOW, cause=Cause.RANGE)(
    changed(_AtTheEnd, sink_weight=lambda self, sink, maximum: (sink - maximum).exp2() * (maximum > -math.inf))
)


@_sink("the output is multiplied by a sigmoid of the wrong sign", SINK)
class _WrongSigmoid(_AtTheEnd):
    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        sink, self._sink = self._sink, None
        done = super().finish(out, total, maximum, seq_kv)
        if sink is None:
            return done
        return done * ((sink - maximum - total.log2()) * math.log(2.0)).sigmoid()


@_sink(
    "the sink joins the sum in the end",
    SINK,
    cause=None,
    equivalent="the same sum in another order: the sink's weight is added after those of all keys",
)
class _Late(_AtTheEnd):
    pass
