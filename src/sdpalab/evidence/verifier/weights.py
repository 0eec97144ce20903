"""The inputs of a case and the weights of its keys: derived once for all that reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sdpalab.evidence.verifier.arrays import FLOAT8, FLOAT8_MAX, Problem, padding_of, rounded

__all__ = [
    "Operands",
    "RowBlock",
    "VisibleKeys",
    "bias_of",
    "judged_rows",
    "quantised_numbers",
    "seen_of",
    "weights_of",
]


MOST_WEIGHTS = 64 << 20
"""Bytes of weights that are kept at most: those of the mission shape (1x8x512x64) take 16 MiB."""
ROWS = 1024
"""Rows of one head that are computed at once."""


def judged_rows(q: Any, k: Any, v: Any, padding: Any) -> Any:
    """Rows [B, H, Sq] that are judged: Q of the row, and K and V of its head, padding [B, Skv] apart, are finite."""
    heads = ((np.isfinite(k) & np.isfinite(v)).all(axis=3) | padding[:, None]).all(axis=2)
    return np.isfinite(q).all(axis=3) & np.repeat(heads, q.shape[1] // k.shape[1], axis=1)[:, :, None]


def seen_of(place: Any, problem: Problem) -> Any:
    """Whether each row of a block sees each key [rows, Skv]: causal mask and window are aligned to the top left."""
    b, h, rows = place
    rows, keys = np.arange(rows.start, rows.stop)[:, None], np.arange(problem["seq_kv"])
    left, right = problem.get("window_size") or (-1, -1)
    right = 0 if problem["causal"] else right
    end = problem["kv_lengths"][b] if problem.get("kv_lengths") else problem["seq_kv"]
    seen = (keys < end) & (keys <= (rows + right if right >= 0 else end + 0 * rows))
    seen = seen & (keys >= (rows - left if left >= 0 else 0))
    if problem.get("attn_mask"):
        mask = _mask_of(b, h, problem)[rows[:, 0]]
        seen = seen & (mask != 0 if problem["attn_mask"].startswith("bool") else mask != -np.inf)
    return seen


def bias_of(place: Any, problem: Problem) -> Any:
    """What is added to the scores of a block [rows, Skv]: an additive mask, where it is not -inf, less ALiBi."""
    b, h, rows = place
    rows, keys = np.arange(rows.start, rows.stop)[:, None], np.arange(problem["seq_kv"])
    bias = np.zeros((len(rows), len(keys)))
    if problem.get("alibi_slopes"):
        bias = bias - float(problem["arrays"]["alibi_slopes"][h]) * np.abs(rows - keys)
    if problem.get("attn_mask", "").startswith("float"):
        mask = _mask_of(b, h, problem)[rows[:, 0]].astype(np.float64)
        bias = bias + np.where(mask == -np.inf, 0, mask)
    return bias


def _mask_of(b: int, h: int, problem: Problem) -> Any:
    mask = problem["arrays"]["attn_mask"]
    return mask[b % mask.shape[0], h % mask.shape[1]]


class VisibleKeys:
    """What the rows of a block see.

    Attributes
    ----------
    seen : array of bool [rows, Skv]
    count : array [rows]
        Keys that a row sees.
    hidden : array of float64 [rows, Skv] or None
        0 where a key is seen, -inf where it is not; None if all are.
    bias : array of float64 [rows, Skv] or None
        What is added to the scores; None if nothing is.
    """

    def __init__(self, place: Any, problem: Problem) -> None:
        self.seen = seen_of(place, problem)
        self.count = self.seen.sum(axis=1)
        self.hidden = None if self.seen.all() else np.where(self.seen, 0.0, -np.inf)
        added = problem.get("alibi_slopes") or problem.get("attn_mask", "").startswith("float")
        self.bias = bias_of(place, problem) if added else None


@dataclass
class RowBlock:
    """The weights of up to 1024 rows of one head.

    Attributes
    ----------
    place : (int, int, slice)
        Batch, head and rows of Q.
    head : (int, int)
        Batch and head of K and V.
    view : VisibleKeys
    weights : array of float64 [rows, Skv]
        exp(score - most); all 0 where a row sees no key.
    most : array of float64 [rows, 1]
        The largest of the scores and the sink; 0 if there is none.
    logit : float
        The sink, -inf without one.
    """

    place: Any
    head: tuple[int, int]
    view: VisibleKeys
    weights: Any
    most: Any
    logit: float

    @cached_property
    def sink(self) -> Any:
        """exp(sink - most) [rows, 1]; 0 without a sink."""
        return np.exp(self.logit - self.most)

    @cached_property
    def total(self) -> Any:
        """Sums of the weights and the sink's [rows, 1]."""
        return self.weights.sum(axis=1, keepdims=True) + self.sink

    @cached_property
    def singles(self) -> tuple[Any, Any]:
        """The weights in float32, and what they are divided by [rows, 1]: their sum in float32, 1 where all are 0."""
        weights = self.weights.astype(np.float32)
        total = weights.astype(np.float64).sum(axis=1, keepdims=True) + self.sink.astype(np.float32)
        return weights, divisors(total).astype(np.float32)


def divisors(total: Any) -> Any:
    """``total``, and 1 where it is 0."""
    return np.where(total == 0, 1, total)


def weights_of(
    q: Any,
    k: Any,
    problem: Problem,
    product: Callable[[Any, Any], Any] = np.matmul,
    tanh: Callable[[Any], Any] = np.tanh,
) -> Iterator[RowBlock]:
    """The blocks of a problem, from Q and K in float64, all finite."""
    by_batch = problem.get("kv_lengths") or problem.get("attn_mask")
    by_head = problem.get("alibi_slopes") or problem.get("attn_mask")
    known, view = None, None
    for b, h, start in np.ndindex(problem["batch"], problem["heads"], -(-problem["seq_q"] // ROWS)):
        place = (b, h, slice(start * ROWS, min((start + 1) * ROWS, problem["seq_q"])))
        head = (b, h // (problem["heads"] // problem["kv_heads"]))
        key = (by_batch and b, by_head and h, start)
        if view is None or key != known:
            known, view = key, VisibleKeys(place, problem)
        scores = product(q[place], k[head].T)
        scores *= problem["scale"]
        if problem.get("softcap"):
            scores = problem["softcap"] * tanh(scores / problem["softcap"])
        for added in (view.bias, view.hidden):
            if added is not None:
                scores += added
        logit = float(problem["arrays"]["sinks"][h]) if problem.get("sinks") else -np.inf
        most = np.maximum(scores.max(axis=1, keepdims=True), logit)
        most = np.where(most == -np.inf, 0, most)
        scores -= most
        yield RowBlock(place, head, view, np.exp(scores, out=scores), most, logit)


def quantised_numbers(x: Any, rows: int) -> tuple[Any, Any]:
    """The float8 numbers that ``x`` [B, H, S, D] becomes, and their scales [B, H, S, 1]: max|x| / 448 for each ``rows``
    rows (0: for a head)."""
    numbers, scales = np.empty(x.shape, np.float64), np.empty((*x.shape[:3], 1), np.float32)
    for start in range(0, x.shape[2], rows or x.shape[2]):
        part = slice(start, start + (rows or x.shape[2]))
        scale = np.abs(x[:, :, part]).max(axis=(2, 3), keepdims=True) / np.float32(FLOAT8_MAX)
        scales[:, :, part] = np.where(scale > 0, scale, np.float32(1))
        numbers[:, :, part] = rounded(x[:, :, part] / scales[:, :, part], FLOAT8)
    return numbers, scales


class Operands:
    """Q, K and V of a problem, and what is derived from them when it is first asked for.

    Attributes
    ----------
    problem : mapping
        With ``arrays`` where it has further inputs.
    judged : array of bool [B, H, Sq]
        :func:`judged_rows`.
    singles : mapping of str to array
        ``q``, ``k`` and ``v`` in float32, 0 for what is not finite.
    """

    def __init__(self, q: Any, k: Any, v: Any, problem: Problem) -> None:
        self.problem = problem
        self.judged = judged_rows(q, k, v, padding_of(problem))
        self.singles = {name: _finite(x) for name, x in (("q", q), ("k", k), ("v", v))}
        self._float8: dict[tuple[str, int], tuple[Any, Any]] = {}
        self._doubles: dict[tuple[str, int | None], Any] = {}
        self._blocks: dict[int | None, list[RowBlock]] = {}
        self._log_sums: dict[int | None, tuple[Any, ...]] = {}

    def float8(self, name: str, rows: int) -> tuple[Any, Any]:
        """:func:`quantised_numbers` of ``q``, ``k`` or ``v``."""
        if (name, rows) not in self._float8:
            self._float8[name, rows] = quantised_numbers(self.singles[name], rows)
        return self._float8[name, rows]

    def doubles(self, name: str, rows: int | None = None) -> Any:
        """``q``, ``k`` or ``v`` in float64; with ``rows`` what float8 with one scale for so many rows makes of it."""
        if (name, rows) not in self._doubles:
            if rows is None:
                self._doubles[name, rows] = self.singles[name].astype(np.float64)
            else:
                numbers, scales = self.float8(name, rows)
                self._doubles[name, rows] = numbers * scales
        return self._doubles[name, rows]

    def blocks(self, rows: int | None = None) -> Iterable[RowBlock]:
        """The blocks of the weights, in float64, of Q and K as they are or (``rows``) as float8 has them.

        They are kept where they are small.
        """
        if rows not in self._blocks:
            q, k = self.doubles("q", rows), self.doubles("k", rows)
            blocks = weights_of(q, k, self.problem)
            if q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] * 8 > MOST_WEIGHTS:
                return blocks
            self._blocks[rows] = list(blocks)
        return self._blocks[rows]

    def log_sums(self, rows: int | None = None) -> tuple[Any, ...]:
        """Of each row [B, H, Sq]: the log-sum-exp, and what its limit is made of.

        The latter are the largest |scale| sum |q k| of the keys that it sees, the largest |bias| of those with a weight
        plus that of a sink, and how many keys it sees, at least 1, and a sink.
        """
        if rows not in self._log_sums:
            q, k = (np.abs(self.doubles(name, rows)) for name in "qk")
            result = tuple(np.empty(self.judged.shape) for _ in range(4))
            for block in self.blocks(rows):
                place, view, sink = block.place, block.view, bool(self.problem.get("sinks"))
                sizes = q[place] @ k[block.head].T
                if view.hidden is not None:
                    sizes += view.hidden
                with np.errstate(divide="ignore"):
                    reference = (block.most + np.log(block.total))[:, 0]
                size = np.maximum(sizes.max(axis=1), 0) * abs(self.problem["scale"])
                bias = 0.0
                if view.bias is not None:
                    bias = np.where(block.weights > 0, np.abs(view.bias), 0).max(axis=1)
                bias += abs(block.logit) if sink else 0
                for part, values in zip(result, (reference, size, bias, np.maximum(view.count, 1) + sink), strict=True):
                    part[place] = values
            self._log_sums[rows] = result
        return self._log_sums[rows]


def _finite(x: Any) -> Any:
    finite = np.isfinite(x)
    return x if finite.all() else np.where(finite, x, np.float32(0))
