"""Output elements that the inputs fix bit for bit, in any order of a correct kernel's arithmetic.

Three kinds of rows have such elements. They are found from the inputs alone:

- *dominated*: one visible key j outweighs the sum of all others by so much that O[i] is V[j];
- *level*: all visible scores are 0, because the row of Q, the visible K or the scale is 0, every bias is 0, and V are
  integers: O[i] is their exact mean, rounded once (a sink of 0 counts as one more key with a V of 0);
- *empty*: the row sees no key, and O[i] is 0.

In the first two kinds every type represents P exactly (1, or 1/n for n a power of two). The result has no rounding
error of P, only errors of float32 arithmetic. The constants below bound these errors with a margin: a reciprocal
instead of a quotient, an approximate exponential, a folded scale and a fused multiply-add, the merge of split keys by
log-sum-exp. An element is exact only if all values within the error bound round to the same number of the output type;
values near a tie are not exact. -0 and 0 are equal.

Two changes apply to a kernel that quantises Q, K and V. The inputs are the values after its declared quantisation. An
element is exact only if e4m3 represents its V exactly; in a level row, all visible V. The tensor cores of Ada and
Hopper keep 13 fraction bits of a sum of e4m3 products. A level row's numbers must therefore fit 13 bits, and a
dominated row may lose one such rounding: all its other weights are 0 in e4m3.

Kernels with 16-bit accumulators have no exact elements: :func:`has_exact_elements`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import may_see_none, score_bias, visible_keys
from sdpalab.inputs.reference import ROWS, Block, WeightBlock, finite, judged_rows, weight_blocks
from sdpalab.judge.rule.log_sum_exp import FLOAT8_DOT_ERROR
from sdpalab.judge.rule.numerics import dequantised, quantised_numbers
from sdpalab.kernels.declarations import Numerics, Quantisation

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdpalab.scoring import Scoring

__all__ = ["ExactElements", "cap_error_of", "exact_elements", "has_exact_elements", "rounded_to"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
F64 = npt.NDArray[np.float64]

MOST_REST = 2.0**-14
"""Largest sum of all other weights beside the dominant one. It is less than half an ulp of 1 in float16, so a P that is
normalised first is still 1. It is also small enough that no threshold of a lazy rescale (8 in log2) skips the rescale
for the dominant key."""
LOST = 2.0**-52
"""Possible loss per key of the sum of other weights, which is the difference of two float64 sums. With V = 0, bfloat16
represents smaller values."""
TERM_ERROR = 2.0**-22
"""Error of a float32 dot product per term, relative to the product of the norms: four roundings."""
CAP_TERMS = 16
"""Dot-product terms that the division, tanh and product of a soft cap count as."""
EXPONENT_ERROR = 2.0**-23
"""Error of a weight per unit of the score. The rounding of maximum * log2(e) or of a log-sum-exp leaves at most half of
it in the exponent."""
EXP_ERROR = 2.0**-14
"""Error of exp(0) before it is rounded to the type of P; the sum of weights has this error, and P does not. torch's
vectorised exp on CPUs is off by 4.8e-5."""
MERGE_ERROR = 2.0**-18
"""Error of float32 sums, reciprocals and merges of partial results, relative to the largest V among them."""
LEAST_NORMAL = 2.0**-126
"""Smallest normal float32 number; float32 arithmetic may flush smaller numbers to zero."""
MOST_INTEGER = 2.0**24
"""Largest integer up to which sums of integers are exact in float32."""
MOST_REST_E4M3 = 2.0**-20
"""MOST_REST for a kernel that quantises: times 448, the largest factor of P, such a weight is at most half of the
smallest number of e4m3."""
MOST_INTEGER_E4M3 = 2.0**14
"""Largest integer up to which sums are exact in an accumulator of 13 fraction bits."""
SUM_ERROR_E4M3 = 2.0**-13
"""Error of such an accumulator when it adds a negligible term to a number."""
SAME = 2.0**-22
"""Relative distance within which a number equals its quantised value; a float32 scale is not exact."""


@dataclass(frozen=True)
class ExactElements:
    """The exact elements of an output and their values.

    Attributes
    ----------
    expected : ndarray of the output's dtype, [B, H, Sq, D]
        Values of the exact elements; 0 elsewhere.
    mask : ndarray of bool, [B, H, Sq, D]
        True at the exact elements.
    key : ndarray of int64, [B, H, Sq]
        The dominant key of a dominated row; -1 for any other.
    """

    expected: Array
    mask: Bools
    key: npt.NDArray[np.int64]

    @property
    def count(self) -> int:
        """Number of exact elements."""
        return int(np.count_nonzero(self.mask))

    def wrong(self, out: Array) -> Bools:
        """Mask of the exact elements at which ``out`` [B, H, Sq, D] differs."""
        differs: Bools = self.mask & (out != self.expected)
        return differs


def has_exact_elements(numerics: Numerics) -> bool:
    """Whether a kernel with this arithmetic must reproduce the exact elements."""
    return numerics.accumulate == "float32"


def cap_error_of(numerics: Numerics, scoring: Scoring) -> float:
    """Largest error of a capped score with an approximate tanh; 0 without a soft cap."""
    return 2.0**-11 * scoring.get("softcap", 0.0) if numerics.tanh == "approx" else 0.0


def exact_elements(
    q: Array,
    k: Array,
    v: Array,
    *,
    any_count: bool = False,
    cap_error: float = 0.0,
    quantised: Quantisation | None = None,
    weights: Iterable[WeightBlock] | None = None,
    **scoring: Unpack[Scoring],
) -> ExactElements:
    """The exact elements of attention on these inputs.

    Parameters
    ----------
    q, k, v, **scoring
        As in :func:`sdpalab.inputs.reference.attention_float64`; the output has the dtype of ``q``.
    any_count : bool
        Whether level rows of any number of keys have exact elements, not only powers of two: true for kernels that
        divide by the sum of the weights at the end, because every weight is then 1.
    cap_error : float
        Error of a capped score beyond that of all kernels (:func:`cap_error_of`).
    quantised : Quantisation, optional
        How the kernel quantises Q, K and V, if it does.
    weights : iterable, optional
        Precomputed result of :func:`sdpalab.inputs.reference.weight_blocks` for these inputs after quantisation.
    """
    shape = q.shape[:3] + v.shape[3:]
    expected, mask, key = np.zeros(shape, q.dtype), np.zeros(shape, bool), np.full(shape[:3], -1, np.int64)
    judged = judged_rows(q, k, v, scoring.get("kv_lengths"), scoring.get("q_lengths"))
    q, k, v = finite(q), finite(k), finite(v)
    level = _level_rows(q, k, v, scoring, any_count, quantised)
    if quantised is not None:
        q, k = dequantised(q, quantised), dequantised(k, quantised)
    weights = weights or weight_blocks(q, k, **scoring)
    dominated = _dominated_rows(q, k, v, scoring, cap_error, quantised, weights)
    for place, values, reach, dominant in chain(level, dominated):
        low, high = rounded_to(values - reach, v.dtype), rounded_to(values + reach, v.dtype)
        fixed = (low == high) & np.isfinite(reach) & judged[place][:, None]
        expected[place] = np.where(fixed, low, expected[place])
        mask[place] |= fixed
        key[place] = np.where(fixed.any(axis=1), dominant, key[place])
    return ExactElements(expected, mask, key)


Rows = tuple[Block, F64, F64, npt.NDArray[np.int64]]
"""A block of rows: indices, values and their float32 error bounds [rows, D] (infinite where the row is not of this
kind), and the dominant key of each row or -1."""


def _summands(head: Array, quantised: Quantisation | None) -> tuple[F64, Bools, float]:
    """V of a head [S, D] as summands: its numbers in units in which sums are exact, a mask of numbers that are no
    integers or have a quantisation error, and the largest exact sum."""
    if quantised is None:
        values = head.astype(np.float64)
        return np.abs(values), values != np.rint(values), MOST_INTEGER
    numbers, _ = quantised_numbers(head[None, None], quantised)
    whole = np.abs(numbers[0, 0] * 2.0**9).astype(np.int64)  # e4m3 has no number between 0 and 2**-9
    unit = int(np.where(whole == 0, np.iinfo(np.int64).max, whole & -whole).min())
    return whole / unit, ~_held(head, quantised), MOST_INTEGER_E4M3


def _held(head: Array, quantised: Quantisation) -> Bools:
    """Mask of the elements of V of a head [S, D] that its quantisation represents exactly."""
    values, numbers = head.astype(np.float64), dequantised(head[None, None], quantised)[0, 0]
    held: Bools = np.abs(numbers - values) <= SAME * np.abs(values)
    return held


def _level_rows(
    q: Array, k: Array, v: Array, scoring: Scoring, any_count: bool, quantised: Quantisation | None
) -> Iterator[Rows]:
    """Level rows, and empty rows, whose mean is 0."""
    batch, heads, seq_q, _ = q.shape
    seq_kv, group = k.shape[2], heads // k.shape[1]
    for b in range(batch):
        for h in range(heads):
            used: Bools = np.any(k[b, h // group], axis=-1)
            none: Bools = np.full(seq_q, scoring["scale"] == 0.0) | ~np.asarray(q[b, h].any(axis=-1))
            if used.all() and not none.any() and not may_see_none(scoring):
                continue
            sink = float(scoring["sinks"][h]) if "sinks" in scoring else -np.inf
            values = v[b, h // group].astype(np.float64)
            sizes, broken, most_sum = _summands(v[b, h // group], quantised)
            for start in range(0, seq_q, ROWS):
                rows = slice(start, min(start + ROWS, seq_q))
                index = np.arange(rows.start, rows.stop)
                visible = visible_keys(index, seq_kv, head=(b, h), **scoring)
                bias = score_bias(index, seq_kv, head=(b, h), **scoring)
                empty: Bools = np.asarray(~visible.any(axis=1))
                even = empty | (sink in (0.0, -np.inf) and (bias is None or ~(visible & (bias != 0.0)).any(axis=1)))
                count = visible.sum(axis=1) + (sink == 0.0)
                level: Bools = np.asarray(even & (any_count | (count & (count - 1) == 0) | empty))
                level &= ~(visible & used).any(axis=1) | none[rows]
                if not level.any():
                    continue
                seen = visible.astype(np.float64)
                whole = (seen @ broken == 0.0) & (seen @ sizes <= most_sum)
                mean = (seen @ values) / np.maximum(count, 1)[:, None]
                largest = np.maximum.accumulate(np.abs(values))[seq_kv - 1 - visible[:, ::-1].argmax(axis=1)]
                reach = (EXP_ERROR * np.abs(mean) + MERGE_ERROR * largest + LEAST_NORMAL) * ~empty[:, None]
                reach = np.where(whole & level[:, None], reach, np.inf)
                yield (b, h, rows), mean, reach, np.full(len(index), -1)


def _dominated_rows(
    q: Array,
    k: Array,
    v: Array,
    scoring: Scoring,
    cap_error: float,
    quantised: Quantisation | None,
    weights: Iterable[WeightBlock],
) -> Iterator[Rows]:
    group, terms = q.shape[1] // k.shape[1], q.shape[3] + (CAP_TERMS if "softcap" in scoring else 0)
    term_error, most_rest, sum_error = TERM_ERROR, MOST_REST, 0.0
    if quantised is not None:
        term_error, most_rest, sum_error = FLOAT8_DOT_ERROR, MOST_REST_E4M3, SUM_ERROR_E4M3
    for each in weights:
        (b, h, rows), p = each.place, each.weights
        key, top = p.argmax(axis=1), p.max(axis=1)
        rest = np.where(top > 0.0, (each.total[:, 0] - top) / np.where(top > 0.0, top, 1.0), 1.0)
        if not (rest < most_rest).any():
            continue
        rest += np.maximum(np.count_nonzero(p, axis=1) - 1, 0) * LOST
        values = v[b, h // group].astype(np.float64)
        norms = np.linalg.norm(k[b, h // group].astype(np.float64), axis=1)
        score = abs(scoring["scale"]) * np.linalg.norm(q[b, h, rows].astype(np.float64), axis=1) * norms.max()
        bias = score_bias(np.arange(q.shape[2])[rows], k.shape[2], head=(b, h), **scoring)
        if bias is not None:
            score = score + np.where(p > 0.0, np.abs(bias), 0.0).max(axis=1)
        # Both scores have the error of their terms; a weight rounded up to the type's smallest number may double.
        rest *= 2.0 * np.exp(np.minimum(2.0 * (term_error * terms * score + cap_error), 100.0))
        chosen = values[key]
        reach = rest[:, None] * (np.abs(values).max(axis=0) + np.abs(chosen)) + LEAST_NORMAL * (chosen != 0.0)
        reach += np.abs(chosen) * (EXP_ERROR + EXPONENT_ERROR * score + sum_error)[:, None]
        fixed = np.broadcast_to((rest < most_rest)[:, None], chosen.shape)
        if quantised is not None:
            fixed = fixed & _held(v[b, h // group], quantised)[key]
        yield (b, h, rows), chosen, np.where(fixed, reach, np.inf), key


def rounded_to(values: F64, dtype: np.dtype[Any]) -> Array:
    """``values`` in ``dtype``, rounded through float32 as a kernel's epilogue does; infinities stay."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded: Array = values.astype(np.float32).astype(dtype)
    return rounded
