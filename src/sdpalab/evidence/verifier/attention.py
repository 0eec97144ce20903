"""Attention from raw arrays: in float64, and as a kernel declares its arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from sdpalab.evidence.verifier.arrays import FLOAT8, FLOAT8_MAX, Problem, rounded

__all__ = [
    "KnownWeights",
    "bias_of",
    "dequantised",
    "intended_of",
    "judged_rows",
    "quantised_numbers",
    "reference_of",
    "scores_of",
    "seen_of",
    "sums_of",
    "terms_of",
    "weights_of",
]


MOST_WEIGHTS = 64 << 20
"""Bytes of weights that are kept at most: those of the mission shape (1x8x512x64) take 16 MiB."""


def judged_rows(q: Any, k: Any, v: Any) -> Any:
    """Rows [B, H, Sq] that are judged: Q of the row, and all of K and V of its head, are finite."""
    heads = np.isfinite(k).all(axis=(2, 3)) & np.isfinite(v).all(axis=(2, 3))
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


def scores_of(
    q: Any,
    k: Any,
    problem: Problem,
    product: Callable[[Any, Any], Any] = np.matmul,
    tanh: Callable[[Any], Any] = np.tanh,
) -> Iterator[Any]:
    """(b, h, rows), K/V head, and scores [rows, Skv] in float64, -inf if hidden; what is not finite counts as 0."""
    for b, h, start in np.ndindex(problem["batch"], problem["heads"], -(-problem["seq_q"] // 1024)):
        rows = slice(start * 1024, min((start + 1) * 1024, problem["seq_q"]))
        head = h // (problem["heads"] // problem["kv_heads"])
        left, right = (np.nan_to_num(x.astype(np.float64), posinf=0, neginf=0) for x in (q[b, h, rows], k[b, head]))
        scores = product(left, right.T) * problem["scale"]
        if problem.get("softcap"):
            scores = problem["softcap"] * tanh(scores / problem["softcap"])
        place = (b, h, rows)
        scores = np.where(seen_of(place, problem), scores + bias_of(place, problem), -np.inf)
        yield place, (b, head), scores


def weights_of(
    q: Any,
    k: Any,
    problem: Problem,
    product: Callable[[Any, Any], Any] = np.matmul,
    tanh: Callable[[Any], Any] = np.tanh,
) -> Iterator[Any]:
    """(b, h, rows), K/V head, exp(score - largest) [rows, Skv], and the same of a sink [rows, 1], 0 without one.

    The largest is that of the scores and the sink. All weights are 0 where a row sees no key.
    """
    for place, head, scores in scores_of(q, k, problem, product, tanh):
        sink = float(problem["arrays"]["sinks"][place[1]]) if problem.get("sinks") else -np.inf
        most = np.maximum(scores.max(axis=1, keepdims=True), sink)
        most = np.where(most == -np.inf, 0, most)
        yield place, head, np.exp(scores - most), np.exp(sink - most)


class KnownWeights:
    """What :func:`weights_of` yields for Q and K as they are: derived once for all who read it, if it is small."""

    def __init__(self, q: Any, k: Any, problem: Problem) -> None:
        self.arguments = q, k, problem
        self.blocks: list[Any] | None = None
        self.small = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] * 8 <= MOST_WEIGHTS

    def __iter__(self) -> Iterator[Any]:
        if not self.small:
            return weights_of(*self.arguments)
        if self.blocks is None:
            self.blocks = list(weights_of(*self.arguments))
        return iter(self.blocks)


def sums_of(weights: Any, sink: Any) -> Any:
    """What weights are divided by, [rows, 1]; 1 where all are 0."""
    total = weights.sum(axis=1, keepdims=True) + sink
    return np.where(total == 0, 1, total)


def reference_of(q: Any, k: Any, v: Any, problem: Problem, known: Iterable[Any] | None = None) -> Any:
    """Attention in float64, [B, H, Sq, D]; NaN in rows that are not judged. ``known``: the weights of Q and K."""
    exact, values = np.empty(q.shape, np.float64), np.nan_to_num(v.astype(np.float64), posinf=0, neginf=0)
    for place, head, weights, sink in known or weights_of(q, k, problem):
        exact[place] = weights @ values[head] / sums_of(weights, sink)
    if not np.isfinite(exact).all():
        raise ValueError("the scores are too large for float64")
    return np.where(judged_rows(q, k, v)[..., None], exact, np.nan)


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


def dequantised(x: Any, rows: int) -> Any:
    """What float8 makes of ``x`` [B, H, S, D]: its numbers times their scales."""
    numbers, scales = quantised_numbers(x, rows)
    return numbers * scales


def terms_of(numerics: Mapping[str, Any]) -> Any:
    """Terms that are added to a float16 accumulator before it is rounded; before format 7 they were always 8."""
    terms = numerics.get("accumulate_terms")
    return 8 if terms is None else terms


def half_product(left: Any, right: Any, terms: int) -> Any:
    """left @ right, the sum rounded to float16 after every so many terms."""
    total = np.zeros((left.shape[0], right.shape[1]), np.float16)
    for start in range(0, left.shape[1], terms):
        total = (total + left[:, start : start + terms] @ right[start : start + terms]).astype(np.float16)
    return total.astype(np.float64)


def to_bits(values: Any, bits: int) -> Any:
    """``values`` [...] in float64, rounded to so many significant bits."""
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.rint(fraction * 2.0**bits), exponent - bits)


def approximate_tanh(values: Any) -> Any:
    """tanh with a relative error of up to 2**-11."""
    return to_bits(np.tanh(values), 11)


def single_of(q: Any, k: Any, v: Any, problem: Problem, before: bool, tanh: Callable[[Any], Any]) -> Any:
    """Attention in float32: each product and each addition rounded, along D and over the keys in ascending order;
    weights are 2**x rounded to 22 bits. ``before``: they are divided by their sum before they are multiplied by V."""
    out = np.empty(q.shape, np.float32)
    for b, h, start in np.ndindex(problem["batch"], problem["heads"], -(-problem["seq_q"] // 1024)):
        place = b, h, slice(start * 1024, min((start + 1) * 1024, problem["seq_q"]))
        head = (b, h // (problem["heads"] // problem["kv_heads"]))
        rows, keys, values = q[place], k[head], v[head]
        scores = np.zeros((len(rows), len(keys)), np.float32)
        for d in range(problem["head_dim"]):
            scores = scores + rows[:, d : d + 1] * keys[:, d]
        scores = scores * np.float32(problem["scale"])
        if problem.get("softcap"):
            cap = np.float32(problem["softcap"])
            scores = tanh((scores / cap).astype(np.float64)).astype(np.float32) * cap
        if problem.get("alibi_slopes") or problem.get("attn_mask", "").startswith("float"):
            scores = scores + bias_of(place, problem).astype(np.float32)
        scores = np.where(seen_of(place, problem), scores, np.float32(-np.inf))
        logit = np.float32(problem["arrays"]["sinks"][h] if problem.get("sinks") else -np.inf)
        top = np.maximum(scores.max(axis=1, keepdims=True), logit)
        top = np.where(top == -np.inf, np.float32(0), top)
        exponents = [(x - top) * np.float32(math.log2(math.e)) for x in (scores, logit)]
        weights, total = (to_bits(np.exp2(x.astype(np.float64)), 22).astype(np.float32) for x in exponents)
        for j in range(len(keys)):
            total = total + weights[:, j : j + 1]
        total = np.where(total == 0, np.float32(1), total)
        summed = np.zeros((len(rows), values.shape[1]), np.float32)
        for j in range(len(keys)):
            weight = weights[:, j : j + 1]
            summed = summed + (weight / total if before else weight) * values[j]
        out[place] = summed if before else summed / total
    return out


def intended_of(
    q: Any, k: Any, v: Any, problem: Problem, numerics: Mapping[str, Any], known: Iterable[Any] | None = None
) -> Any:
    """Attention as ``numerics`` declares it: weights rounded to the type of P, sums to float32, the result to its type.

    ``normalise`` is ``before`` (the weights are divided by their sum before they are rounded) or ``after``. ``known``
    are the weights of Q and K (:class:`KnownWeights`), read where scores are taken in float64 from both as they are.
    """
    q, k, v = (np.where(np.isfinite(x), x, np.float32(0)) for x in (q, k, v))
    p_type = problem["dtype"] if numerics["probabilities"] == "problem" else numerics["probabilities"]
    tanh = approximate_tanh if numerics.get("tanh") == "approx" else np.tanh
    tf32 = problem["dtype"] == "float32" and numerics.get("products") == "tf32"
    if numerics["quantised"] is not None:
        q, k, v = (dequantised(x, numerics["quantised"]["rows"]) for x in (q, k, v))
    elif problem["dtype"] == p_type == "float32" and numerics["accumulate"] == "float32" and not tf32:
        return single_of(q, k, v, problem, numerics["normalise"] == "before", tanh)
    if tf32:
        q, k, v = (to_bits(x.astype(np.float64), 11) for x in (q, k, v))
    factor = np.float32(numerics["probability_scale"])
    half, terms = numerics["accumulate"] == "float16", terms_of(numerics)
    product = (lambda left, right: half_product(left, right, terms)) if half else np.matmul
    if half or tf32 or numerics["quantised"] is not None or tanh is approximate_tanh:
        known = None
    out = np.empty(q.shape, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for place, head, weights, sink in known or weights_of(q, k, problem, product, tanh):
            p = weights.astype(np.float32)
            total = sums_of(p.astype(np.float64), sink.astype(np.float32)).astype(np.float32)
            if numerics["normalise"] == "before":
                p, total = p / total, np.ones_like(total)
            weights = rounded(p * factor, p_type).astype(np.float64)
            summed = product(to_bits(weights, 11) if tf32 else weights, v[head].astype(np.float64))
            out[place] = rounded(summed.astype(np.float32) / (total * factor), problem["dtype"])
    return out
