"""Attention from raw arrays: in float64, and as a kernel declares its arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from sdpalab.evidence.verifier.arrays import FLOAT8, FLOAT8_MAX, Problem, rounded

__all__ = ["dequantised", "intended_of", "judged_rows", "reference_of", "scores_of", "seen_of", "weights_of"]


def judged_rows(q: Any, k: Any, v: Any) -> Any:
    """Rows [B, H, Sq] that are judged: Q of the row, and all of K and V of its head, are finite."""
    heads = np.isfinite(k).all(axis=(2, 3)) & np.isfinite(v).all(axis=(2, 3))
    return np.isfinite(q).all(axis=3) & np.repeat(heads, q.shape[1] // k.shape[1], axis=1)[:, :, None]


def seen_of(rows: Any, problem: Problem) -> tuple[Any, Any]:
    """The first key that each row sees, and the one after the last: top-left aligned; both are the same if it sees
    none."""
    left, right = problem.get("window_size") or (-1, -1)
    right = 0 if problem["causal"] else right
    end = np.full(len(rows), problem["seq_kv"]) if right < 0 else np.minimum(rows + right + 1, problem["seq_kv"])
    first = np.zeros_like(end) if left < 0 else np.minimum(np.maximum(rows - left, 0), end)
    return first, end


def scores_of(q: Any, k: Any, problem: Problem, product: Callable[[Any, Any], Any] = np.matmul) -> Iterator[Any]:
    """(b, h, rows), K/V head, and scores [rows, Skv] in float64, -inf if hidden; what is not finite counts as 0."""
    for b, h, start in np.ndindex(problem["batch"], problem["heads"], -(-problem["seq_q"] // 1024)):
        rows = slice(start * 1024, min((start + 1) * 1024, problem["seq_q"]))
        head = h // (problem["heads"] // problem["kv_heads"])
        left, right = (np.nan_to_num(x.astype(np.float64), posinf=0, neginf=0) for x in (q[b, h, rows], k[b, head]))
        scores = product(left, right.T) * problem["scale"]
        if problem.get("softcap"):
            scores = problem["softcap"] * np.tanh(scores / problem["softcap"])
        first, end = seen_of(np.arange(rows.start, rows.stop), problem)
        keys = np.arange(problem["seq_kv"])
        scores = np.where((keys >= first[:, None]) & (keys < end[:, None]), scores, -np.inf)
        yield (b, h, rows), (b, head), scores


def weights_of(q: Any, k: Any, problem: Problem, product: Callable[[Any, Any], Any] = np.matmul) -> Iterator[Any]:
    """(b, h, rows), K/V head, and exp(score - largest score) [rows, Skv]; all 0 where a row sees no key."""
    for place, head, scores in scores_of(q, k, problem, product):
        most = scores.max(axis=1, keepdims=True)
        yield place, head, np.exp(scores - np.where(most == -np.inf, 0, most))


def reference_of(q: Any, k: Any, v: Any, problem: Problem) -> Any:
    """Attention in float64, [B, H, Sq, D]; NaN in rows that are not judged."""
    exact, values = np.empty(q.shape, np.float64), np.nan_to_num(v.astype(np.float64), posinf=0, neginf=0)
    for place, head, weights in weights_of(q, k, problem):
        total = weights.sum(axis=1, keepdims=True)
        exact[place] = weights @ values[head] / np.where(total == 0, 1, total)
    if not np.isfinite(exact).all():
        raise ValueError("the scores are too large for float64")
    return np.where(judged_rows(q, k, v)[..., None], exact, np.nan)


def dequantised(x: Any, rows: int) -> Any:
    """What float8 makes of ``x`` [B, H, S, D] with a scale of max|x| / 448 for each ``rows`` rows (0: for a head)."""
    out = np.empty(x.shape, np.float64)
    for start in range(0, x.shape[2], rows or x.shape[2]):
        part = slice(start, start + (rows or x.shape[2]))
        scale = np.abs(x[:, :, part]).max(axis=(2, 3), keepdims=True) / np.float32(FLOAT8_MAX)
        scale = np.where(scale > 0, scale, np.float32(1))
        out[:, :, part] = rounded(x[:, :, part] / scale, FLOAT8).astype(np.float64) * scale
    return out


def half_product(left: Any, right: Any) -> Any:
    """left @ right, the sum rounded to float16 after every 8 terms."""
    total = np.zeros((left.shape[0], right.shape[1]), np.float16)
    for start in range(0, left.shape[1], 8):
        total = (total + left[:, start : start + 8] @ right[start : start + 8]).astype(np.float16)
    return total.astype(np.float64)


def intended_of(q: Any, k: Any, v: Any, problem: Problem, numerics: Mapping[str, Any]) -> Any:
    """Attention as ``numerics`` declares it: weights rounded to the type of P, sums to float32, the result to 16 bits.

    ``normalise`` is ``before`` (the weights are divided by their sum before they are rounded) or ``after``.
    """
    q, k, v = (np.where(np.isfinite(x), x, np.float32(0)) for x in (q, k, v))
    if numerics["quantised"] is not None:
        q, k, v = (dequantised(x, numerics["quantised"]["rows"]) for x in (q, k, v))
    p_type = problem["dtype"] if numerics["probabilities"] == "problem" else numerics["probabilities"]
    factor = np.float32(numerics["probability_scale"])
    product = half_product if numerics["accumulate"] == "float16" else np.matmul
    out = np.empty(q.shape, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for place, head, weights in weights_of(q, k, problem, product):
            p = weights.astype(np.float32)
            total = p.astype(np.float64).sum(axis=1, keepdims=True).astype(np.float32)
            total = np.where(total == 0, np.float32(1), total)
            if numerics["normalise"] == "before":
                p, total = p / total, np.ones_like(total)
            summed = product(rounded(p * factor, p_type).astype(np.float64), v[head].astype(np.float64))
            out[place] = rounded(summed.astype(np.float32) / (total * factor), problem["dtype"])
    return out
