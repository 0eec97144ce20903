"""The rule for the log-sum-exp of a row: its float64 value, and the error bound of float32 arithmetic.

L[i] is the natural logarithm of the sum, over the keys j that row i sees, of exp(scale * q_i k_j), in float32. No step
rounds to 16 bits, so no emulation and no calibrated factor is needed: a row's limit is the sum
of the error bounds of all steps of a correct computation, in any order of additions. With A the largest
|scale| * sum_d |q_id k_jd| over the n keys that the row sees, and D the head dimension:

    D * DOT_ERROR * A                                the dot products
    + SCALE_ERROR * A                                the scale, the exponents of the weights, and back to base e
    + CAP_ERROR * (A + softcap)                      a soft cap, if there is one
    + BIAS_ERROR * (A + M)                           a bias, if there is one: M is the largest that has weight
    + EXP_ERROR + n * SUM_ERROR                      the weights, and their sum
    + LOG_ERROR * (8 + log2 n) + RESULT_ERROR * |L|  the logarithm, and the result

A sink counts as one more key with a weight and no score: L is the logarithm of the softmax denominator. L of a row that
sees neither a key nor a sink must be -inf.

All weights are positive, so their relative errors are absolute errors of L. The judged rows are those of
:func:`sdpalab.inputs.reference.judged_rows`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import key_range, score_bias, visible_keys
from sdpalab.inputs.reference import WeightBlock, finite, judged_rows, score_blocks, weight_blocks
from sdpalab.judge.rule.figures import LseErrors
from sdpalab.judge.rule.numerics import MMA_TERMS, dequantised
from sdpalab.kernels.declarations import Numerics

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdpalab.scoring import Scoring

__all__ = ["log_sum_exp_float64", "measure_lse", "wrongly_infinite"]

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]

DOT_ERROR = 2.0**-23
"""Error of a dot product per term: the loss where a float32 sum, or a tensor core that aligns its terms to the largest,
truncates."""
FLOAT8_DOT_ERROR = 2.0**-13
"""Error of a dot product of 8-bit factors per term: the tensor cores of Ada and Hopper keep 13 fraction bits of the
largest term (Khattak and Mikaitis 2025, "Accurate Models of NVIDIA Tensor Cores"; the DeepSeek-V3 report, 3.3.2)."""
TF32_DOT_ERROR = 2.0**-9
"""Error of a dot product on TF32, relative to the sum of the absolute terms: tensor cores truncate both factors, each
with an error of up to 2**-10."""
TANH_ERROR = 2.0**-11
"""Error of tanh.approx.f32 (PTX ISA, "Floating Point Instructions: tanh"), relative to a capped score."""
HALF_DOT_ERROR = 2.0**-11
"""Error of a float16 accumulator per rounding."""
SCALE_ERROR = 2.0**-20
"""Sixteen roundings: scale, log2(e), their product and its product with the maximum; score - maximum, twice as large,
times that product; and the product with ln(2)."""
CAP_ERROR = 2.0**-20
"""Error of the division, tanh and product of a soft cap, relative to the score, and to the cap where tanh is computed
from exponentials."""
BIAS_ERROR = 2.0**-21
"""Error of an additive mask, ALiBi or a sink per unit of score and bias: four roundings (slope times distance, the
additions, the factor log2(e), and the difference to the maximum) with a margin of two."""
EXP_ERROR = 2.0**-21
"""Two errors of ex2.approx.ftz.f32, each within 2**-22 (PTX ISA, "Floating Point Instructions: ex2"): a weight and its
rescale. Further rescales are in :data:`SUM_ERROR`."""
SUM_ERROR = 2.0**-23
"""Error per key: one half for the addition, one half for its share of the rescale of a tile of 16 keys or more."""
LOG_ERROR = 2.0**-22
"""Error of lg2.approx.ftz.f32: absolute between 1/2 and 2, relative elsewhere (PTX ISA, "Floating Point Instructions:
lg2")."""
LAZY_BITS = 8
"""Largest weight, in log2, of a kernel that rescales lazily; the sum is larger by the same factor."""
RESULT_ERROR = 2.0**-22
"""Four roundings: the sum of maximum and logarithm, ln(2), and their product."""


def log_sum_exp_float64(
    q: Array,
    k: Array,
    v: Array,
    *,
    numerics: Numerics,
    weights: Iterable[WeightBlock] | None = None,
    **scoring: Unpack[Scoring],
) -> tuple[F64, F64]:
    """Log-sum-exp of each row, and the largest error that a kernel may have.

    Parameters
    ----------
    q, k, v, **scoring
        As in :func:`sdpalab.inputs.reference.attention_float64`. V only determines which rows are judged.
    numerics : Numerics
        Declared numerics. The log-sum-exp is that of the inputs after quantisation.
    weights : iterable, optional
        Precomputed result of :func:`sdpalab.inputs.reference.weight_blocks` for these inputs after quantisation.

    Returns
    -------
    reference, limit : ndarray of float64, [B, H, Sq]
        NaN in rows that are not judged. In a row that sees no key the reference is -inf and the limit 0.
    """
    judged = judged_rows(q, k, v, scoring.get("kv_lengths"), scoring.get("q_lengths"))
    head_dim, seq_q, seq_kv = q.shape[3], q.shape[2], k.shape[2]
    q, k = finite(q), finite(k)
    dot_error = head_dim * DOT_ERROR
    if numerics.quantised is not None:
        q, k = dequantised(q, numerics.quantised), dequantised(k, numerics.quantised)
        dot_error = head_dim * FLOAT8_DOT_ERROR
    if numerics.products == "tf32":
        dot_error += TF32_DOT_ERROR
    if numerics.accumulate == "float16":
        dot_error += -(-head_dim // (numerics.accumulate_terms or MMA_TERMS)) * HALF_DOT_ERROR
    reference, largest = np.empty(judged.shape, np.float64), np.empty(judged.shape, np.float64)
    weights = weights or weight_blocks(q, k, **scoring)
    bias, seen = np.zeros(judged.shape), np.ones(judged.shape)
    for each in weights:
        b, h, block = each.place
        most, rows = each.most[:, 0], np.arange(seq_q)[block]
        empty = np.isneginf(most)
        reference[each.place] = np.where(empty, -np.inf, most + np.log(np.where(empty, 1.0, each.total[:, 0])))
        added = score_bias(rows, seq_kv, head=(b, h), **scoring)
        if added is not None:
            bias[each.place] = np.where(each.weights > 0.0, np.abs(added), 0.0).max(axis=1)
        if "attn_mask" in scoring:
            count: npt.NDArray[Any] = visible_keys(rows, seq_kv, head=(b, h), **scoring).sum(axis=1)
        else:
            first, last = key_range(rows, seq_kv, head=(b, h), **scoring)
            count = last - first + 1
        seen[each.place] = np.maximum(count, 1)
    if "sinks" in scoring:
        bias, seen = bias + np.abs(scoring["sinks"].astype(np.float64))[:, None], seen + 1
    cap = scoring.get("softcap", 0.0)
    for place, sizes in score_blocks(np.abs(q), np.abs(k), **_products_alone(scoring)):
        largest[place] = np.maximum(sizes.max(axis=1), 0.0)
    finite_reference = np.where(np.isneginf(reference), 0.0, reference)
    limit = (dot_error + SCALE_ERROR) * largest + EXP_ERROR + SUM_ERROR * seen
    limit += LOG_ERROR * (LAZY_BITS + np.log2(seen)) + RESULT_ERROR * np.abs(finite_reference)
    limit += CAP_ERROR * (largest + cap) if cap else 0.0
    limit += TANH_ERROR * np.minimum(largest, cap) if numerics.tanh == "approx" else 0.0
    limit += np.where(bias > 0.0, BIAS_ERROR * (largest + bias), 0.0)
    limit = np.where(np.isneginf(reference), 0.0, limit)
    return np.where(judged, reference, np.nan), np.where(judged, limit, np.nan)


def _products_alone(scoring: Scoring) -> Scoring:
    """The scoring with the same masks, whose scores are |scale| times the products alone."""
    alone: Scoring = {"scale": abs(scoring["scale"]), "causal": scoring["causal"]}
    if "window_size" in scoring:
        alone["window_size"] = scoring["window_size"]
    if "kv_lengths" in scoring:
        alone["kv_lengths"] = scoring["kv_lengths"]
    if "q_lengths" in scoring:
        alone["q_lengths"] = scoring["q_lengths"]
    if "bottom_right" in scoring:
        alone["bottom_right"] = scoring["bottom_right"]
    if "attn_mask" in scoring:
        mask = scoring["attn_mask"]
        alone["attn_mask"] = mask if mask.dtype == np.uint8 else (~np.isneginf(mask)).astype(np.uint8)
    return alone


def wrongly_infinite(lse: Array, reference: F64) -> npt.NDArray[np.bool_]:
    """Mask of rows [B, H, Sq] whose log-sum-exp is NaN or infinite, or is not -inf where the row sees no key."""
    right = np.where(np.isneginf(reference), lse == reference, np.isfinite(lse))
    return ~right & ~np.isnan(reference)


def measure_lse(lse: Array, reference: F64, limit: F64) -> LseErrors:
    """Distance of ``lse`` [B, H, Sq] from the reference, in units of each row's limit.

    Rows that are not finite are counted, and left out of the other figures. Rows that are not judged are left out of
    all.
    """
    finite_rows = np.isfinite(reference)
    with np.errstate(invalid="ignore"):
        distance = np.abs(lse.astype(np.float64) - reference)
    error = np.where(finite_rows & np.isfinite(lse), distance, 0.0)
    share = np.where(finite_rows, error / np.where(finite_rows, limit, 1.0), -1.0)
    b, h, i = (int(n) for n in np.unravel_index(int(np.argmax(share)), share.shape))
    return LseErrors(
        error=float(error[b, h, i]),
        limit=float(limit[b, h, i]),
        row=(b, h, i),
        not_finite=int(np.count_nonzero(wrongly_infinite(lse, reference))),
    )
