"""Attention in float32 in one fixed order of operations: the intended numerics of a float32 problem.

In 16-bit problems the rounding of Q, K, V and O is the error, and that of float32 sums is negligible
(:mod:`sdpalab.judge.rule.numerics`). In float32 problems the sums are the error. They are computed here as in a plain
kernel, with each product and each addition rounded: the scores along D in ascending order, the sums over the keys in
ascending order. NumPy's own products would add in an order that depends on the machine.

Weights are 2 ** x rounded to 22 significant bits, because ``ex2.approx.ftz.f32`` has an error of 2**-22.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import hides_keys, score_bias, visible_keys

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdpalab.scoring import Scoring

__all__ = ["single_output", "to_bits"]

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

WEIGHT_BITS = 22
ROWS = 512
"""Rows per block."""


def to_bits(values: F64, bits: int) -> F64:
    """``values`` rounded to ``bits`` significant bits, for any exponent."""
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.rint(fraction * 2.0**bits) / 2.0**bits, exponent)


def single_output(
    q: Array,
    k: Array,
    v: Array,
    *,
    rows: npt.NDArray[np.intp] | None,
    before: bool,
    tanh: Callable[[F64], F64],
    **scoring: Unpack[Scoring],
) -> F32:
    """Attention on finite float32 arrays in the order that the module docstring states.

    Parameters
    ----------
    q, k, v, rows, **scoring
        As in :func:`sdpalab.judge.rule.numerics.intended_output`.
    before : bool
        Whether the weights are divided by their sum before the product with V, instead of the result after it.
    tanh : callable
        tanh of the soft cap; its result is rounded to float32.

    Returns
    -------
    ndarray of float32, [B, H, Sq, D], or of the chosen rows only
    """
    wanted = np.arange(q.shape[2]) if rows is None else rows
    out = np.empty((*q.shape[:2], len(wanted), v.shape[3]), np.float32)
    group = q.shape[1] // k.shape[1]
    for b, h in np.ndindex(*q.shape[:2]):
        for start in range(0, len(wanted), ROWS):
            block = wanted[start : start + ROWS]
            scores = _scores(q[b, h, block], k[b, h // group], (b, h), block, tanh, scoring)
            logit = np.float32(scoring["sinks"][h] if "sinks" in scoring else -np.inf)
            out[b, h, start : start + ROWS] = _weighted(scores, v[b, h // group], logit, before)
    return out


def _scores(
    q: F32, k: F32, head: tuple[int, int], rows: npt.NDArray[np.intp], tanh: Callable[[F64], F64], scoring: Scoring
) -> F32:
    """The scores of some rows of a head, [rows, Skv]; -inf where a key is hidden."""
    scores = np.zeros((len(q), len(k)), np.float32)
    for d in range(q.shape[1]):
        scores += q[:, d, None] * k[None, :, d]
    scores *= np.float32(scoring["scale"])
    if cap := np.float32(scoring.get("softcap", 0.0)):
        scores = cap * tanh((scores / cap).astype(np.float64)).astype(np.float32)
    bias = score_bias(rows, len(k), head=head, **scoring)
    if bias is not None:
        scores += bias.astype(np.float32)
    if hides_keys(scoring):
        scores[~visible_keys(rows, len(k), head=head, **scoring)] = -np.inf
    return scores


def _weighted(scores: F32, v: F32, logit: np.float32, before: bool) -> F32:
    """The rows of the output, [rows, D]."""
    most = np.maximum(scores.max(axis=1, keepdims=True), logit)
    most = np.where(np.isneginf(most), np.float32(0.0), most)
    log2e = np.float32(math.log2(math.e))
    weights, sink = (
        to_bits(np.exp2(((each - most) * log2e).astype(np.float64)), WEIGHT_BITS).astype(np.float32)
        for each in (scores, logit)
    )
    total = sink
    for j in range(scores.shape[1]):
        total = total + weights[:, j, None]
    total = np.where(total == 0.0, np.float32(1.0), total)
    if before:
        weights = weights / total
    out = np.zeros((len(scores), v.shape[1]), np.float32)
    for j in range(scores.shape[1]):
        out += weights[:, j, None] * v[j]
    return out if before else out / total
