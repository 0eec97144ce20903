"""The log-sum-exp of each row, how far float32 may be from it, and how far one is; written a second time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sdpalab.evidence.verifier.arrays import Problem, is_at
from sdpalab.evidence.verifier.attention import dequantised, judged_rows, scores_of

__all__ = ["lse_errors_of", "lse_of"]


def lse_of(q: Any, k: Any, v: Any, problem: Problem, numerics: Mapping[str, Any]) -> tuple[Any, Any]:
    """The log-sum-exp of each row [B, H, Sq] in float64, and how far float32 arithmetic may be from it.

    The latter is the sum of what each step may be off by. ``size`` is the largest |scale| sum |q k| over the ``seen``
    keys: D truncated additions of a dot product and 16 roundings of it; two approximate exponentials; an addition and a
    share of a rescale for each key; an approximate logarithm of up to 256 weights a key; four roundings of the result.
    """
    judged = judged_rows(q, k, v)
    q, k = (np.where(np.isfinite(x), x, np.float32(0)) for x in (q, k))
    if numerics["quantised"] is not None:
        q, k = (dequantised(x, numerics["quantised"]["rows"]) for x in (q, k))
    terms = problem["head_dim"]
    dot = terms * (2.0**-23 if numerics["quantised"] is None else 2.0**-13)
    dot += -(-terms // 16) * 2.0**-11 if numerics["accumulate"] == "float16" else 0.0
    reference, size = np.empty(judged.shape), np.empty(judged.shape)
    for place, _, scores in scores_of(q, k, problem):
        most = scores.max(axis=1)
        reference[place] = most + np.log(np.exp(scores - most[:, None]).sum(axis=1))
    for place, _, sizes in scores_of(np.abs(q), np.abs(k), {**problem, "scale": abs(problem["scale"])}):
        size[place] = sizes.max(axis=1)
    seen = np.full(problem["seq_q"], problem["seq_kv"])
    if problem["causal"]:
        seen = np.minimum(np.arange(1, problem["seq_q"] + 1), seen)
    limit = (dot + 2.0**-20) * size + 2.0**-21 + 2.0**-23 * seen
    limit = limit + 2.0**-22 * (8 + np.log2(seen) + np.abs(reference))
    return np.where(judged, reference, np.nan), np.where(judged, limit, np.nan)


def lse_errors_of(lse: Any, reference: Any, limit: Any, row: list[int] | None = None) -> dict[str, Any]:
    """The figures of a record of the log-sum-exp, at the row that uses most of its limit.

    ``row``: one that is said to be it; it is, if none uses more than that.
    """
    judged, finite = ~np.isnan(reference), np.isfinite(lse)
    error = np.where(judged & finite, np.abs(lse.astype(np.float64) - reference), 0.0)
    share = np.where(judged, error / limit, -1.0)
    worst = [int(n) for n in np.unravel_index(int(share.argmax()), share.shape)]
    if row is not None and is_at(share, row, float(share.max()), 2.0**23):
        worst = row
    at = tuple(worst)
    not_finite = int(np.count_nonzero(judged & ~finite))
    return {"error": float(error[at]), "limit": float(limit[at]), "row": worst, "not_finite": not_finite}
