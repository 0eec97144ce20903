"""Bugs of the forward pass with the bottom-right alignment and another head dimension of V, and of the merge of splits
of the keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sdpalab.bugs.bug import Bug, Family
from sdpalab.bugs.cause import Cause
from sdpalab.bugs.links import link
from sdpalab.bugs.tiled import PLAIN, TiledAttention, changed, planted
from sdpalab.problem import Problem

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BUGS"]

BUGS: list[Bug] = []


def _bug(about: str, words: str, problem: Problem = PLAIN, source: str = "", **fields: Any) -> Callable[[Any], Any]:
    """Class decorator that adds a bug; ``source`` as :func:`.links.link` takes it."""
    return planted(
        Family.ALIGNMENT,
        f"{about}: {words}",
        problem,
        into=BUGS,
        words=words,
        link=link(source) if source else "",
        **fields,
    )


_alignment, _split = partial(_bug, "alignment"), partial(_bug, "splits", cause=Cause.RESCALE)

DECODE = PLAIN.with_(seq_q=16, seq_kv=150, causal=True, bottom_right=True)
LONG = PLAIN.with_(seq_q=150, seq_kv=90, causal=True, bottom_right=True)
"""The first 60 queries see no key."""
GROUPED = DECODE.with_(heads=6, kv_heads=2)
WINDOW = DECODE.with_(seq_q=60, window_size=(30, 0))
SLOPED = DECODE.with_(alibi_slopes=True, seq_q=60)
CACHE = DECODE.with_(batch=2, heads=1, kv_lengths=(150, 83))
ROWS = PLAIN.with_(batch=2, heads=1, q_lengths=(200, 83), causal=True, bottom_right=True)
NARROW = PLAIN.with_(head_dim_v=32)
CAUSAL = PLAIN.with_(causal=True)


# ---- the alignment --------------------------------------------------------------------------------------------------


def _positions(change: Callable[[Any, Any, Any], Any]) -> type[TiledAttention]:
    return changed(positions=lambda self, rows, asked: change(self, rows, asked))


_alignment(
    "the causal mask is aligned to the first key",
    DECODE,
    cause=Cause.MASK,
    source="FA@9e5e8bc9",
)(_positions(lambda self, rows, asked: rows))
_alignment(
    "queries before the first key see key 0",
    LONG,
    cause=Cause.MASK,
    source="FI#1533",
    harmless=DECODE,
)(_positions(lambda self, rows, asked: TiledAttention.positions(self, rows, asked).clamp(min=0)))
_alignment(
    "the last query sees all keys but one",
    DECODE,
    cause=Cause.MASK,
)(_positions(lambda self, rows, asked: TiledAttention.positions(self, rows, asked) - 1))
_alignment(
    "positions of packed heads are not divided by the group",
    GROUPED,
    cause=Cause.MASK,
    source="FI#1148",
    harmless=PLAIN,
)(_positions(lambda self, rows, asked: rows // asked.group + asked.seq_kv - -(-asked.seq_q // asked.group)))
_alignment(
    "the window is aligned to the first key",
    WINDOW,
    cause=Cause.MASK,
    source="transformers#29623",
    harmless=DECODE,
)(
    changed(
        outside=lambda self, rows, columns, left, right: TiledAttention.outside(
            self, rows - self.shift, columns, left, right
        )
    )
)
_alignment(
    "the distance of ALiBi is aligned to the first key",
    SLOPED,
    cause=Cause.ALIBI,
    source="FA#540",
    harmless=DECODE,
)(changed(distance=lambda self, rows, columns: (rows - self.shift - columns).abs()))
_alignment(
    "all batch entries are aligned to the longest length",
    CACHE,
    cause=Cause.MASK,
    harmless=DECODE,
)(_positions(lambda self, rows, asked: TiledAttention.positions(self, rows, replace(asked, kv_lengths=None))))
_alignment(
    "the lengths of the queries are ignored",
    ROWS,
    cause=Cause.MASK,
    harmless=DECODE,
)(_positions(lambda self, rows, asked: TiledAttention.positions(self, rows, replace(asked, q_lengths=None))))


# ---- another head dimension of V ------------------------------------------------------------------------------------


@_alignment("rows of V are D apart, not Dv", NARROW, cause=Cause.LAYOUT, source="FA#2368", harmless=PLAIN)
class _StrideOfK(TiledAttention):
    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        import torch

        memory = v.flatten(2).repeat(1, 1, -(-k.shape[3] // v.shape[3]))
        at = torch.arange(v.shape[2])[:, None] * k.shape[3] + torch.arange(v.shape[3])
        return q, k, memory[:, :, at]


# ---- splits of the keys ---------------------------------------------------------------------------------------------


class _Split(TiledAttention):
    """Each tile of keys is a split of its own: its output is normalised, and merged by the log-sum-exp."""

    tile = 64

    def output(self, out: Tensor, rescale: Tensor, weights: Tensor, values: Tensor) -> Tensor:
        total = weights.sum(-1, keepdim=True)
        self._parts.append((weights @ values / total.where(total > 0.0, 1.0), self.log_sum(total, self._maximum)))
        return out

    def maximum(self, maximum: Tensor, scores: Tensor) -> Tensor:
        self._maximum = scores.amax(-1, keepdim=True)
        return self._maximum

    def beginning(self, queries: Tensor, sinks: Tensor | None, group: int) -> tuple[Tensor, Tensor]:
        self._parts: list[tuple[Tensor, Tensor]] = []
        return super().beginning(queries, sinks, group)

    def finish(self, out: Tensor, total: Tensor, maximum: Tensor, seq_kv: int) -> Tensor:
        import torch

        parts, sums = (torch.stack(each) for each in zip(*self._parts, strict=True))
        weights = self.merged(sums)
        return (weights * parts).sum(0) / weights.sum(0).where(weights.sum(0) != 0.0, 1.0)

    def log_sum(self, total: Tensor, maximum: Tensor) -> Tensor:
        """Log-sum-exp of a split to base 2, [B, H, Sq, 1]; -inf without a visible key."""
        return total.log2() + maximum

    def merged(self, sums: Tensor) -> Tensor:
        """Weights of the splits, [splits, B, H, Sq, 1]."""
        return (sums - sums.amax(0).clamp(min=-1e30)).exp2()


_split(
    "a row that no split sees has the difference of two infinities",
    LONG,
    source="FA@26d7d92f",
    harmless=PLAIN,
)(changed(_Split, merged=lambda self, sums: (sums - sums.amax(0)).exp2()))
_split("a split without a visible key has a NaN output", CAUSAL, source="XF@63d7f30b", harmless=PLAIN)(
    changed(_Split, log_sum=lambda self, total, maximum: total.log2() + maximum * (total / total))
)
_split("log-sum-exps to base 2 are merged as natural ones", source="vllm#52796")(
    changed(_Split, merged=lambda self, sums: (sums - sums.amax(0).clamp(min=-1e30)).exp())
)
_split("an empty split has a log-sum-exp of 0", CAUSAL, source="FI#4401", harmless=PLAIN)(
    changed(_Split, log_sum=lambda self, total, maximum: (total.log2() + maximum).nan_to_num(neginf=0.0))
)
_split("all weigh the same")(changed(_Split, merged=lambda self, sums: (sums * 0.0).exp2()))
_split("the sums of the weights are left out of the merge")(
    changed(_Split, log_sum=lambda self, total, maximum: maximum)
)
_split("the maxima are left out of the merge")(changed(_Split, log_sum=lambda self, total, maximum: total.log2()))


@_split(
    "the keys left over by a division into splits are lost",
    cause=Cause.KEYS,
    source="XF@3e4a1b4b",
    harmless=PLAIN.with_(seq_q=192, seq_kv=192),
)
class _LosesRest(_Split):
    def starts(self, seq_kv: int) -> range:
        return range(0, max(self.tile, seq_kv // self.tile * self.tile), self.tile)
