"""The outputs of attention with a certain bug, in float64: one output for each hypothesis of a diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from sdpalab.bugs.cause import Cause
from sdpalab.inputs import visible_keys
from sdpalab.judge.diagnose import masking_bugs, scoring_bugs
from sdpalab.judge.diagnose.workings import F64, TILES, Float64Attention, Outputs

__all__ = ["Hypothesis", "hypotheses", "without_scores"]


@dataclass(frozen=True)
class Hypothesis:
    """A bug, in words, and the output [B, H, Sq, D] that it would give."""

    cause: Cause
    detail: str
    out: F64


def without_scores(w: Float64Attention) -> Iterator[Hypothesis]:
    """Hypotheses that need no scores, cheap for problems of every size."""
    for detail, out in _no_attention(w):
        yield Hypothesis(Cause.NO_ATTENTION, detail, out)


def hypotheses(w: Float64Attention) -> Iterator[Hypothesis]:
    """All other hypotheses, the most specific first."""
    for cause, generate in (
        (Cause.MASK, masking_bugs.masks),
        (Cause.MASK, masking_bugs.empty_rows),
        (Cause.MASK, scoring_bugs.lengths),
        (Cause.MASK, scoring_bugs.given_masks),
        (Cause.CAP, masking_bugs.caps),
        (Cause.ALIBI, scoring_bugs.slopes),
        (Cause.SINKS, scoring_bugs.sinks),
        (Cause.HEADS, _heads),
        (Cause.LAYOUT, _layouts),
        (Cause.OPERANDS, _operands),
        (Cause.RESCALE, _rescales),
        (Cause.PADDING, _padding),
        (Cause.KEYS, _keys),
        (Cause.EXPONENTIAL, _exponentials),
    ):
        for detail, out in generate(w):
            yield Hypothesis(cause, detail, out)


def _no_attention(w: Float64Attention) -> Outputs:
    yield "it is all zeros", np.zeros(w.problem.q_shape)
    yield "each row is the mean of all of V", np.broadcast_to(w.v.mean(axis=2, keepdims=True), w.problem.q_shape)
    yield "each row is the mean of the V that it sees", w.visible_mean
    yield "row i is V[i]", w.v[:, :, np.arange(w.problem.seq_q) % w.problem.seq_kv]
    yield "it is Q", w.q


def _heads(w: Float64Attention) -> Outputs:
    problem = w.problem
    if problem.group > 1:
        yield "query head h reads K/V head h mod Hkv", w.grouped(lambda x: np.tile(x, (1, problem.group, 1, 1)))
    if problem.kv_heads > 1:
        yield (
            "all query heads read K/V head 0",
            w.grouped(lambda x: np.broadcast_to(x[:, :1], (problem.batch, problem.heads, *x.shape[2:]))),
        )
    if problem.batch > 1:
        yield "all batches read K and V of batch 0", w.grouped(lambda x: np.repeat(x[:1], problem.group, axis=1))
    for step, which in ((-1, "next"), (1, "previous")) if problem.heads > 1 else ():
        k, v = np.roll(w.k, step, axis=1), np.roll(w.v, step, axis=1)
        yield f"K and V are those of the {which} head", w.of(w.q, k, v)
        yield f"V is that of the {which} head", w.of(w.q, w.k, v)
        yield f"K is that of the {which} head", w.of(w.q, k, w.v)


def _layouts(w: Float64Attention) -> Outputs:
    if w.problem.heads == 1:
        return

    def misread(x: F64) -> F64:
        read: F64 = x.swapaxes(1, 2).reshape(x.shape)
        return read

    yield "O is written as [B, S, H, D]", misread(w.right)
    yield "Q, K and V lie as [B, S, H, D] and are read as [B, H, S, D]", w.of(misread(w.q), misread(w.k), misread(w.v))


def _operands(w: Float64Attention) -> Outputs:
    yield "K is taken for V, and V for K", w.of(w.q, w.v, w.k)
    yield "K is taken for V", w.of(w.q, w.k, w.k)
    yield "V is taken for K", w.of(w.q, w.v, w.v)
    if w.q.shape == w.k.shape:
        yield "Q is taken for K, and K for Q", w.of(w.k, w.q, w.v)
    for missing in (8, 16, 32):
        if missing < w.problem.head_dim:
            scores = w.scores_of(w.q[..., :-missing], w.k[..., :-missing])
            yield f"the last {missing} of head_dim are left out of the scores", w.output(scores)


def _rescales(w: Float64Attention) -> Outputs:
    """Online softmax over tiles of keys with one of its two rescales changed."""

    def unchanged(factor: F64) -> F64:
        return factor

    def skipped(factor: F64) -> F64:
        return np.where(factor < 0.5, factor, 1.0)

    changes: tuple[tuple[str, Callable[[F64], F64], Callable[[F64], F64]], ...] = (
        ("O is not rescaled", np.ones_like, unchanged),
        ("the sum is not rescaled", unchanged, np.ones_like),
        ("neither O nor the sum is rescaled", np.ones_like, np.ones_like),
        ("O is rescaled twice", np.square, unchanged),
        ("the sum is rescaled twice", unchanged, np.square),
        ("O is not rescaled where the maximum grows little", skipped, unchanged),
    )
    for tile in TILES:
        if tile >= w.problem.seq_kv:
            break
        parts = _parts(w, tile)
        right = _accumulated(parts, unchanged, unchanged, late=False)
        late = _accumulated(parts, unchanged, unchanged, late=True)
        yield f"O is rescaled after a tile's product is added, in tiles of {tile} keys", late[0] / right[1]
        yield f"the sum is rescaled after a tile's weights are added, in tiles of {tile} keys", right[0] / late[1]
        for words, keep_out, keep_total in changes:
            out, total = _accumulated(parts, keep_out, keep_total, late=False)
            yield f"{words}, in tiles of {tile} keys", out / total
        mean = np.mean([product / np.where(added == 0.0, 1.0, added) for _, product, added in parts], axis=0)
        yield f"tiles of {tile} keys are averaged, whatever their weights", mean


_Part = tuple[F64, F64, F64]


def _accumulated(
    parts: list[_Part], keep_out: Callable[[F64], F64], keep_total: Callable[[F64], F64], *, late: bool
) -> tuple[F64, F64]:
    """Unnormalised O and the sum of the weights; ``late``: rescaled after the tile's contribution is added."""
    out, total = np.zeros_like(parts[0][1]), np.zeros_like(parts[0][2])
    for factor, product, added in parts:
        of_out, of_total = keep_out(factor), keep_total(factor)
        out = (out + product) * of_out if late else out * of_out + product
        total = (total + added) * of_total if late else total * of_total + added
    return out, total


def _parts(w: Float64Attention, tile: int) -> list[_Part]:
    """Terms of each tile of keys: the factor of the previous sums, its weights times V, and the sum of its weights."""
    top = np.full((*w.problem.q_shape[:3], 1), -np.inf)
    parts = []
    for start in range(0, w.problem.seq_kv, tile):
        keys = slice(start, start + tile)
        scores = np.where(w.hidden[..., keys], -np.inf, w.scores[..., keys])
        before, top = top, np.maximum(top, scores.max(axis=-1, keepdims=True))
        seen = np.where(np.isneginf(top), 0.0, top)  # a row may see no key in its first tiles
        weights = np.exp(scores - seen)
        parts.append((np.exp(before - seen), weights @ w.v[:, :, keys], weights.sum(axis=-1, keepdims=True)))
    return parts


def _padding(w: Float64Attention) -> Outputs:
    seq = w.problem.seq_kv
    if w.beyond.size > 1 or w.bias.size > 1:  # these rows have no keys in the tile
        return
    seen: set[int] = set()
    for tile in TILES:
        missing = -seq % tile
        if missing and missing not in seen and missing < seq:
            seen.add(missing)
            hidden = ~visible_keys(w.rows[:, 0], seq + missing, **w.problem.scoring)
            for words, k, v in (
                ("zeros", 0.0 * w.k[:, :, :missing], 0.0 * w.v[:, :, :missing]),
                *([_of_the_next_head(w, missing)] if w.problem.heads > 1 else []),
            ):
                scores = np.concatenate((w.scores, w.scores_of(w.q, k)), axis=-1)
                values = np.concatenate((w.v, v), axis=2)
                yield f"{missing} rows of {words}, up to a multiple of {tile}", w.output(scores, hidden, values)


def _of_the_next_head(w: Float64Attention, missing: int) -> tuple[str, F64, F64]:
    k, v = (np.roll(array, -1, axis=1)[:, :, :missing] for array in (w.k, w.v))
    return "the next head", k, v


def _keys(w: Float64Attention) -> Outputs:
    seq, columns, weights = w.problem.seq_kv, w.columns, w.weights()
    if seq > 1:
        yield "the last one is left out", w.average(weights * (columns < seq - 1))
    for tile in TILES:
        if tile >= seq:
            break
        whole, last = seq // tile * tile, (seq - 1) // tile
        if whole < seq:
            yield f"those after the last multiple of {tile} are left out", w.average(weights * (columns < whole))
        else:
            yield f"the last tile of {tile} is left out", w.average(weights * (columns // tile < last))
        yield f"the first tile of {tile} is left out", w.average(weights * (columns >= tile))
        yield f"the last tile of {tile} is counted twice", w.average(weights * (1 + (columns // tile == last)))
        if last > 1:
            factors = 1 + (columns // tile == 1) - 1 * (columns // tile == 2)
            yield f"the second tile of {tile} is counted in place of the third", w.average(weights * factors)
        stale = np.maximum(columns - tile, columns % tile)
        yield f"V is that of the tile of {tile} before", w.average(weights, v=w.v[:, :, stale])
        yield f"K is that of the tile of {tile} before", w.of(w.q, w.k[:, :, stale], w.v)


def _exponentials(w: Float64Attention) -> Outputs:
    yield "scores are taken without their signs", w.output(np.abs(w.scores))
    yield "negative scores are taken for 0", w.output(np.maximum(w.scores, 0.0))
