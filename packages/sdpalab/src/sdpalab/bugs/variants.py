"""Bugs that only the diagnosis tries: neighbours of those of the catalogue, which the self-test does not run again."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from sdpalab.bugs.alibi import SLOPED
from sdpalab.bugs.bug import Bug, Family
from sdpalab.bugs.caps import CAPPED
from sdpalab.bugs.cause import Cause
from sdpalab.bugs.lengths import PADDED
from sdpalab.bugs.masks import ADDITIVE, BOOLEAN
from sdpalab.bugs.scores import LOG2_E
from sdpalab.bugs.sinks import SINK
from sdpalab.bugs.tiled import CAUSAL, PLAIN, TiledAttention, changed
from sdpalab.bugs.windows import WINDOW
from sdpalab.problem import Problem

__all__ = ["VARIANTS"]

HIDDEN_SCORES = (*(-math.log(2.0) * octaves for octaves in (6, 8, 10, 12, 16, 20, 24)), -5.0, -8.0, -10.0, -20.0)
"""Likely values of hidden scores that are not minus infinity."""


def _variant(cause: Cause, detail: str, problem: Problem = PLAIN, **steps: Any) -> Bug:
    """A bug with other steps of :class:`TiledAttention`."""
    return Bug(detail, Family.SOFTMAX, cause, changed(**steps)(), problem)


def _operands(choose: Callable[[Any, Any, Any], tuple[Any, Any, Any]]) -> dict[str, Any]:
    return {"operands": lambda self, q, k, v: choose(q, k, v)}


def _bshd(x: Any) -> Any:
    """Memory of [B, H, S, D] in the order [B, S, H, D]."""
    return x.transpose(1, 2).reshape(x.shape)


def _cap(other: float) -> Callable[..., Any]:
    return lambda self, scores, cap: other * LOG2_E * (scores / (other * LOG2_E)).tanh()


def _slope(factor: float) -> Callable[..., Any]:
    return lambda self, slopes, rows, columns, group: factor * TiledAttention.bias(self, slopes, rows, columns, group)


def _distance(change: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda self, rows, columns: change(rows - columns)


def _mask(change: Callable[[Any], Any]) -> dict[str, Any]:
    return {"mask_tile": lambda self, mask, chosen, group: change(mask)[..., chosen]}


def _sink(change: Callable[[Any], Any]) -> dict[str, Any]:
    def beginning(self: TiledAttention, queries: Any, sinks: Any, group: int) -> tuple[Any, Any]:
        return TiledAttention.beginning(self, queries, change(sinks), group)

    return {"beginning": beginning}


def _joined(factor: float, least: float = -math.inf) -> dict[str, Any]:
    return {"joined": lambda self, scores, mask: scores + factor * LOG2_E * mask.clamp(min=least)}


VARIANTS: tuple[Bug, ...] = (
    *(
        _variant(Cause.MASK, f"hidden scores are {value:.3g}, not minus infinity", problem, masked=value * LOG2_E)
        for problem in (CAUSAL, WINDOW)
        for value in HIDDEN_SCORES
    ),
    _variant(
        Cause.MASK,
        "there is no right side of the window",
        WINDOW,
        outside=lambda self, rows, columns, left, right: TiledAttention.outside(self, rows, columns, left, -1),
    ),
    _variant(
        Cause.MASK,
        "the first key is seen outside the window, too",
        WINDOW,
        outside=lambda self, rows, columns, left, right: (
            TiledAttention.outside(self, rows, columns, left, right) & ~((columns < 1) & (rows > left))
        ),
    ),
    _variant(
        Cause.MASK,
        "one key beyond the length is not hidden",
        PADDED,
        padding=lambda self, columns, lengths, rows: columns > lengths[:, None, None, None],
    ),
    *(
        _variant(Cause.MASK, f"attn_mask is that of the {words}", problem, **_mask(partial_roll))
        for problem in (BOOLEAN, ADDITIVE)
        for words, partial_roll in (
            ("next batch", lambda mask: mask.roll(-1, 0)),
            ("batch before", lambda mask: mask.roll(1, 0)),
            ("head before", lambda mask: mask.roll(1, 1)),
            ("next row", lambda mask: mask.roll(-1, 2)),
            ("key before", lambda mask: mask.roll(1, 3)),
        )
    ),
    *(
        _variant(Cause.MASK, f"attn_mask is {words}", ADDITIVE, **_joined(factor))
        for words, factor in (("added twice", 2.0), ("multiplied by log2(e) once too often", LOG2_E))
    ),
    *(
        _variant(Cause.MASK, f"no number of attn_mask is below {least:.3g}", ADDITIVE, **_joined(1.0, least))
        for least in (-8.0, -20.0, -40.0, -100.0)
    ),
    *(
        _variant(Cause.CAP, f"it is {other:g}", CAPPED, capped=_cap(other))
        for other in (10.0, 15.0, 20.0, 30.0, 50.0, 100.0)
    ),
    _variant(
        Cause.CAP,
        "it is applied twice",
        CAPPED,
        after_masks=lambda self, scores, cap: scores.where(scores.isinf(), cap * (scores / cap).tanh()),
    ),
    _variant(Cause.ALIBI, "it is multiplied by log2(e) once too often", SLOPED, bias=_slope(LOG2_E)),
    _variant(Cause.ALIBI, "it is subtracted twice", SLOPED, bias=_slope(2.0)),
    _variant(Cause.ALIBI, "the distance is one too small", SLOPED, distance=_distance(lambda apart: (apart - 1).abs())),
    _variant(
        Cause.ALIBI,
        "keys before the query have none",
        SLOPED,
        distance=_distance(lambda apart: (-apart).clamp(min=0)),
    ),
    _variant(Cause.SINKS, "they are multiplied by log2(e) once too often", SINK, **_sink(lambda sinks: sinks * LOG2_E)),
    _variant(Cause.SINKS, "they are counted twice", SINK, **_sink(lambda sinks: sinks + math.log(2.0))),
    _variant(
        Cause.HEADS,
        "K and V are those of the next head",
        **_operands(lambda q, k, v: (q, k.roll(-1, 1), v.roll(-1, 1))),
    ),
    _variant(
        Cause.HEADS,
        "K and V are those of the previous head",
        **_operands(lambda q, k, v: (q, k.roll(1, 1), v.roll(1, 1))),
    ),
    _variant(Cause.HEADS, "V is that of the previous head", **_operands(lambda q, k, v: (q, k, v.roll(1, 1)))),
    _variant(Cause.HEADS, "K is that of the next head", **_operands(lambda q, k, v: (q, k.roll(-1, 1), v))),
    _variant(Cause.HEADS, "K is that of the previous head", **_operands(lambda q, k, v: (q, k.roll(1, 1), v))),
    _variant(
        Cause.LAYOUT,
        "Q, K and V lie as [B, S, H, D] and are read as [B, H, S, D]",
        **_operands(lambda q, k, v: (_bshd(q), _bshd(k), _bshd(v))),
    ),
    _variant(Cause.OPERANDS, "K is taken for V", **_operands(lambda q, k, v: (q, k, k))),
    _variant(Cause.OPERANDS, "V is taken for K", **_operands(lambda q, k, v: (q, v, v))),
    *(
        _variant(
            Cause.OPERANDS,
            f"the last {missing} of head_dim are left out of the scores",
            scores=lambda self, q, k, missing=missing: q[..., :-missing] @ k[..., :-missing].mT,
        )
        for missing in (16, 32)
    ),
    _variant(
        Cause.RESCALE,
        "the sum is rescaled twice",
        total=lambda self, total, rescale, weights: total * rescale * rescale + weights.sum(-1, keepdim=True),
    ),
)
"""Variants by the class of the diagnosis; their ids are its details."""
