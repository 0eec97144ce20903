"""Bugs of the backward pass: delta, the recomputed P, dS, the soft cap and the scale."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from sdpalab.bugs.backward import TiledBackward, altered
from sdpalab.bugs.bug import WRONG, Bug, Family
from sdpalab.bugs.cause import Cause
from sdpalab.bugs.links import link
from sdpalab.bugs.scores import LOG2_E
from sdpalab.problem import Problem
from sdpalab.status import Status

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BACKWARD", "BUGS", "KEYLESS", "gradient_bug"]

BUGS: list[Bug] = []
BACKWARD = Problem(1, 2, 100, 32, task="backward")
KEYLESS = BACKWARD.with_(seq_q=150, seq_kv=90, causal=True, bottom_right=True)
"""The first 60 queries see no key."""
CAPPED = BACKWARD.with_(softcap=1.5)
CAPPED_CAUSAL = CAPPED.with_(causal=True)
SINK = BACKWARD.with_(sinks=True)


def gradient_bug(
    into: list[Bug],
    cause: Cause,
    id: str,
    problem: Problem = BACKWARD,
    source: str = "",
    *,
    base: type[TiledBackward] = TiledBackward,
    harmless: Problem | None = None,
    statuses: frozenset[Status] = WRONG,
    words: str = "",
    **steps: Any,
) -> None:
    """Add a bug of the backward pass, with other steps of :class:`.backward.TiledBackward`, to a list; ``source`` as
    :func:`.links.link` takes it."""
    edit = altered(base, **steps)
    address = link(source) if source else ""
    into.append(
        Bug(
            f"backward: {id}",
            Family.GRADIENTS,
            cause,
            edit,
            problem,
            harmless,
            statuses,
            words=words or id,
            link=address,
        )
    )


_bug = partial(gradient_bug, BUGS)


# ---- delta ----------------------------------------------------------------------------------------------------------


def _delta(change: Callable[[Any, Any, Any], Any]) -> dict[str, Any]:
    return {"delta": lambda self, do, o, lse: change(do, o, lse)}


_bug(Cause.DELTA, "delta is left out", **_delta(lambda do, o, lse: do[..., :1] * 0.0))
_bug(Cause.DELTA, "delta is added, not subtracted", **_delta(lambda do, o, lse: -(do * o).sum(-1, keepdim=True)))
_bug(
    Cause.DELTA,
    "delta is computed from O before its division by the sum",
    **_delta(lambda do, o, lse: (do * o).sum(-1, keepdim=True) * lse.exp()),
)
_bug(
    Cause.DELTA,
    "delta is that of the next head",
    **_delta(lambda do, o, lse: (do * o).sum(-1, keepdim=True).roll(-1, 1)),
)
_bug(Cause.DELTA, "delta is the sum of O", **_delta(lambda do, o, lse: o.sum(-1, keepdim=True)))
_bug(Cause.DELTA, "delta is the sum of O * O", **_delta(lambda do, o, lse: o.square().sum(-1, keepdim=True)))
_bug(
    Cause.DELTA,
    "delta is computed without the last 8 columns",
    **_delta(lambda do, o, lse: (do * o)[..., :-8].sum(-1, keepdim=True)),
)


class _OfCallBefore(TiledBackward):
    _before: Tensor | None = None

    def delta(self, do: Tensor, o: Tensor, lse: Tensor) -> Tensor:
        now, before = super().delta(do, o, lse), self._before
        self._before = now
        return before if before is not None and before.shape == now.shape else now * 0.0


_bug(
    Cause.DELTA,
    "delta is read before the pass that writes it has ended: it is that of the call before, or 0",
    source="FA#2756",
    base=_OfCallBefore,
    statuses=WRONG | {Status.NONDETERMINISTIC, Status.STALE},
)


# ---- the log-sum-exp ------------------------------------------------------------------------------------------------


def _first_tile(self: TiledBackward, rows: Tensor, at: slice) -> Tensor:
    return rows[:, :, : at.stop - at.start]


_bug(
    Cause.LOG_SUM,
    "the log-sum-exp and delta are those of the first tile of queries",
    source="FA@b3f1b6a5",
    statistics=_first_tile,
)
_bug(
    Cause.LOG_SUM,
    "the log-sum-exp is that of the first tile of queries",
    statistics=lambda self, rows, at: _first_tile(self, rows, at) if rows is self.sums else rows[:, :, at],
)
_bug(
    Cause.LOG_SUM,
    "a log-sum-exp to base e is taken for one to base 2",
    source="gym#200",
    log_sum=lambda self, lse, sinks: lse.masked_fill(lse.isneginf(), 0.0),
)
_bug(
    Cause.LOG_SUM,
    "P is exp(s), not divided by the sum",
    log_sum=lambda self, lse, sinks: lse * 0.0,
)
_bug(
    Cause.LOG_SUM,
    "the log-sum-exp is that of the next head",
    log_sum=lambda self, lse, sinks: TiledBackward.log_sum(self, lse, sinks).roll(-1, 1),
)
_bug(
    Cause.LOG_SUM,
    "the log-sum-exp is rounded to the inputs' type",
    log_sum=lambda self, lse, sinks: TiledBackward.log_sum(self, lse.to(self.dtype).to(self.wide), sinks),
    problem=BACKWARD.with_(dtype="bfloat16"),
)
_bug(
    Cause.LOG_SUM,
    "the sink is taken out of the log-sum-exp",
    SINK,
    log_sum=lambda self, lse, sinks: LOG2_E * (lse.exp() - sinks[:, None, None].exp()).log(),
)
_bug(
    Cause.RANGE,
    "a row without a key has the difference of two infinities in its exponent",
    KEYLESS,
    "PT#41508",
    harmless=BACKWARD,
    log_sum=lambda self, lse, sinks: lse * LOG2_E,
)


class _ZerosPastTheEnd(TiledBackward):
    """P of keys past the last one is exp(0 - LSE), times rows of zeros."""

    def probabilities(self, scores: Tensor, log_sum: Tensor) -> Tensor:
        self._beyond = self.rounded((-log_sum).exp2())
        return super().probabilities(scores, log_sum)

    def add_dq(self, dq: Tensor, at: slice, terms: Tensor, first_key: int) -> None:
        super().add_dq(dq, at, terms, first_key)
        if first_key + self.tile > self.asked.seq_kv:
            super().add_dq(dq, at, self._beyond * 0.0, first_key)


_bug(
    Cause.RANGE,
    "keys past the last one are not hidden: exp(0 - LSE) overflows for a small LSE",
    source="PT#196678",
    harmless=BACKWARD.with_(seq_q=96, seq_kv=96),
    base=_ZerosPastTheEnd,
)


# ---- P and dS -------------------------------------------------------------------------------------------------------

_bug(Cause.SUMS, "dS is not multiplied by P", score_gradient=lambda self, p, dp, delta: dp - delta)
_bug(
    Cause.SUMS,
    "dS lacks dP",
    score_gradient=lambda self, p, dp, delta: -p * delta,
)
_bug(
    Cause.PRECISION,
    "P, dP - delta and their product are in 8 bits",
    source="FA@a5559a0e",
    score_gradient=lambda self, p, dp, delta: _coarse(_coarse(p) * _coarse(dp - delta)),
)
_bug(
    Cause.PRECISION,
    "dP is rounded to 8 bits",
    value_gradient=lambda self, do, v: _coarse(do @ v.mT),
)
_bug(
    Cause.PRECISION,
    "P has 3 bits after its first",
    problem=BACKWARD.with_(dtype="bfloat16"),
    rounded=lambda self, weights: _coarse(weights, bits=4),
)


def _coarse(values: Tensor, bits: int = 8) -> Tensor:
    """Numbers with that many significant bits."""
    fraction, exponent = values.frexp()
    return (fraction * 2.0**bits).round().ldexp(exponent - bits)


# ---- the soft cap ---------------------------------------------------------------------------------------------------


def _slope(change: Callable[[Any, Any, float], Any]) -> dict[str, Any]:
    return {"slope": lambda self, scores, masked, cap: change(scores, masked, cap)}


_bug(Cause.SLOPE, "the derivative of the soft cap is left out", CAPPED, **_slope(lambda scores, masked, cap: 1.0))
_bug(
    Cause.SLOPE,
    "the derivative of the soft cap is 1 - s^2, not 1 - (s / cap)^2",
    CAPPED,
    "FA#2402",
    **_slope(lambda scores, masked, cap: 1.0 - (scores / LOG2_E).square()),
)
_bug(
    Cause.SLOPE,
    "the derivative of the soft cap is 1 - tanh, not 1 - tanh^2",
    CAPPED,
    **_slope(lambda scores, masked, cap: 1.0 - scores / cap),
)
_bug(
    Cause.SLOPE,
    "the derivative of the soft cap is taken from the masked score, which is minus infinity",
    CAPPED_CAUSAL,
    "FA:hopper/mainloop_bwd_sm90_tma_gmma_ws.hpp",
    harmless=CAPPED,
    **_slope(lambda scores, masked, cap: 1.0 - (masked / cap).square()),
)
_bug(
    Cause.SLOPE,
    "the derivative of the soft cap is taken at the score before the cap",
    CAPPED,
    capped=lambda self, scores, cap: _remember(self, scores, cap),
    slope=lambda self, scores, masked, cap: 1.0 - (self.raw / cap).square(),
)
_bug(
    Cause.CAP,
    "there is no soft cap in the backward pass",
    CAPPED,
    "FA#2544",
    capped=lambda self, scores, cap: scores,
    **_slope(lambda scores, masked, cap: 1.0),
)


def _remember(self: Any, scores: Tensor, cap: float) -> Tensor:
    self.raw = scores
    return TiledBackward.capped(self, scores, cap)


# ---- the scale ------------------------------------------------------------------------------------------------------


def _scales(of_q: Callable[[float], float], of_k: Callable[[float], float]) -> dict[str, Any]:
    def finish(self: TiledBackward, dq: Tensor, dk: Tensor, dv: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = TiledBackward.finish(self, dq, dk, dv, group)
        return q * of_q(self.scale), k * of_k(self.scale), v

    return {"finish": finish}


_bug(Cause.FACTOR, "dQ is not scaled", **_scales(lambda scale: 1.0 / scale, lambda scale: 1.0))
_bug(Cause.FACTOR, "dK is not scaled", **_scales(lambda scale: 1.0, lambda scale: 1.0 / scale))
_bug(Cause.FACTOR, "dQ is scaled twice", **_scales(lambda scale: scale, lambda scale: 1.0))
_bug(Cause.FACTOR, "dK is scaled twice", **_scales(lambda scale: 1.0, lambda scale: scale))
_bug(Cause.FACTOR, "dQ and dK are scaled twice", **_scales(lambda scale: scale, lambda scale: scale))
_bug(Cause.FACTOR, "dQ and dK are not scaled", **_scales(lambda scale: 1.0 / scale, lambda scale: 1.0 / scale))
_bug(
    Cause.FACTOR,
    "the scale of dQ and dK has the factor log2(e) of the exponential",
    **_scales(lambda scale: LOG2_E, lambda scale: LOG2_E),
)
_bug(
    Cause.SCORES,
    "P is recomputed from scores without log2(e)",
    factor=lambda self, scale, head_dim: scale,
)
