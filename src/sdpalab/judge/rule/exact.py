"""Elements of the output that the inputs fix bit for bit, whatever the order of a correct kernel's arithmetic.

Three kinds of rows have them, found from the inputs alone:

- *dominated*: one visible key outweighs all others together so far that O[i] is V[j];
- *level*: all visible scores are 0, because the row of Q, the visible K or the scale is, and so is every bias, and V
  are integers: O[i] is their exact mean, rounded once (a sink of 0 counts as one key more, with a V of 0);
- *empty*: the row sees no key, and O[i] is 0.

In the first two, P is a number that every type holds (1, or 1/n for n a power of two), so that no rounding of P is left
in the result, only that of float32 arithmetic, whose error bounds are stated below with a margin: a reciprocal instead
of a quotient, an approximate exponential, a folded scale and a fused multiply-add, the merge of split keys by
log-sum-exp.
An element is exact only if everything within that reach of its value rounds to the same number of the output's type;
where the value lies near a tie, it is not. -0 and 0 are equal.

Of a kernel that declares accumulators of 16 bits, or that it quantises Q, K and V, none of this can be required:
:func:`has_exact_elements`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import may_see_none, score_bias, visible_keys
from sdpalab.judge.rule.reference import ROWS, Block, WeightBlock, finite, judged_rows, weight_blocks
from sdpalab.kernels.kernel import Numerics

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdpalab.scoring import Scoring

__all__ = ["ExactElements", "cap_error_of", "exact_elements", "has_exact_elements"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
F64 = npt.NDArray[np.float64]

MOST_REST = 2.0**-14
"""Most that all other weights may be together beside the dominant one. Less than half an ulp of 1 in float16, so that a
P normalised first is still 1; and so far below that no threshold for a lazy rescale (8 in log2) skips that of the
dominant key."""
TERM_ERROR = 2.0**-22
"""Of a float32 dot product, for each of its terms, relative to the product of the norms: four roundings' worth."""
CAP_TERMS = 16
"""The division, tanh and product of a soft cap count as so many terms of a dot product."""
EXPONENT_ERROR = 2.0**-23
"""Of a weight, for each unit of the score: what the rounding of maximum * log2(e), or of a log-sum-exp, leaves in the
exponent is at most half of that."""
EXP_ERROR = 2.0**-14
"""Of exp(0) before it is rounded to the type of P: the sum of weights has it, and P has not. torch's vectorised one on
CPUs is off by 4.8e-5."""
MERGE_ERROR = 2.0**-18
"""Of float32 sums, reciprocals, and merges of partial results, relative to the largest V among them."""
LEAST_NORMAL = 2.0**-126
"""What is smaller, float32 arithmetic may flush to zero."""
MOST_INTEGER = 2.0**24
"""Sums of integers up to this are exact in float32."""


@dataclass(frozen=True)
class ExactElements:
    """Which elements of an output are fixed, and to what.

    Attributes
    ----------
    expected : ndarray of the output's dtype, [B, H, Sq, D]
        Their values; 0 elsewhere.
    mask : ndarray of bool, [B, H, Sq, D]
        Where they are.
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
        """Where ``out`` [B, H, Sq, D] is not the number it must be."""
        differs: Bools = self.mask & (out != self.expected)
        return differs


def has_exact_elements(numerics: Numerics) -> bool:
    """Whether a kernel of that arithmetic must hold the exact elements."""
    return numerics.accumulate == "float32" and numerics.quantised is None


def cap_error_of(numerics: Numerics, scoring: Scoring) -> float:
    """How far an approximate tanh puts a capped score off at most; 0 without one."""
    return 2.0**-11 * scoring.get("softcap", 0.0) if numerics.tanh == "approx" else 0.0


def exact_elements(
    q: Array,
    k: Array,
    v: Array,
    *,
    any_count: bool = False,
    cap_error: float = 0.0,
    weights: Iterable[WeightBlock] | None = None,
    **scoring: Unpack[Scoring],
) -> ExactElements:
    """The exact elements of attention on these inputs.

    Parameters
    ----------
    q, k, v, **scoring
        As in :func:`sdpalab.judge.rule.reference.attention_float64`; the output has the dtype of ``q``.
    any_count : bool
        Whether level rows of any number of keys have exact elements, not only powers of two: true of kernels that
        divide by the sum of the weights at the end, since then every weight is 1.
    cap_error : float
        How far a capped score may be off beside what all kernels are: by :func:`cap_error_of`.
    weights : iterable, optional
        What :func:`sdpalab.judge.rule.reference.weight_blocks` yields for these inputs, if it was computed before.
    """
    shape = q.shape[:3] + v.shape[3:]
    expected, mask, key = np.zeros(shape, q.dtype), np.zeros(shape, bool), np.full(shape[:3], -1, np.int64)
    judged = judged_rows(q, k, v)
    q, k, v = finite(q), finite(k), finite(v)
    weights = weights or weight_blocks(q, k, **scoring)
    kinds = (_level_rows(q, k, v, scoring, any_count), _dominated_rows(q, k, v, scoring, cap_error, weights))
    for place, values, reach, dominant in chain.from_iterable(kinds):
        low, high = _rounded(values - reach, q.dtype), _rounded(values + reach, q.dtype)
        fixed = (low == high) & np.isfinite(reach) & judged[place][:, None]
        expected[place] = np.where(fixed, low, expected[place])
        mask[place] |= fixed
        key[place] = np.where(fixed.any(axis=1), dominant, key[place])
    return ExactElements(expected, mask, key)


Rows = tuple[Block, F64, F64, npt.NDArray[np.int64]]
"""A block of rows: where, the values and how far float32 arithmetic may be from them [rows, D] (infinite where the row
is not of this kind), and the dominant key of each row or -1."""


def _level_rows(q: Array, k: Array, v: Array, scoring: Scoring, any_count: bool) -> Iterator[Rows]:
    """Level rows, and empty ones, whose mean is 0."""
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
            broken = values != np.rint(values)
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
                whole = (seen @ broken == 0.0) & (seen @ np.abs(values) <= MOST_INTEGER)
                mean = (seen @ values) / np.maximum(count, 1)[:, None]
                largest = np.maximum.accumulate(np.abs(values))[seq_kv - 1 - visible[:, ::-1].argmax(axis=1)]
                reach = (EXP_ERROR * np.abs(mean) + MERGE_ERROR * largest + LEAST_NORMAL) * ~empty[:, None]
                reach = np.where(whole & level[:, None], reach, np.inf)
                yield (b, h, rows), mean, reach, np.full(len(index), -1)


def _dominated_rows(
    q: Array, k: Array, v: Array, scoring: Scoring, cap_error: float, weights: Iterable[WeightBlock]
) -> Iterator[Rows]:
    group, terms = q.shape[1] // k.shape[1], q.shape[3] + (CAP_TERMS if "softcap" in scoring else 0)
    for each in weights:
        (b, h, rows), p = each.place, each.weights
        key, top = p.argmax(axis=1), p.max(axis=1)
        rest = np.where(top > 0.0, (each.total[:, 0] - top) / np.where(top > 0.0, top, 1.0), 1.0)
        if not (rest < MOST_REST).any():
            continue
        values = v[b, h // group].astype(np.float64)
        norms = np.linalg.norm(k[b, h // group].astype(np.float64), axis=1)
        score = abs(scoring["scale"]) * np.linalg.norm(q[b, h, rows].astype(np.float64), axis=1) * norms.max()
        bias = score_bias(np.arange(q.shape[2])[rows], k.shape[2], head=(b, h), **scoring)
        if bias is not None:
            score = score + np.where(p > 0.0, np.abs(bias), 0.0).max(axis=1)
        # Of two scores, each is off by its terms; a weight rounded up to the type's least number may double.
        rest *= 2.0 * np.exp(np.minimum(2.0 * (TERM_ERROR * terms * score + cap_error), 100.0))
        chosen = values[key]
        reach = rest[:, None] * (np.abs(values).max(axis=0) + np.abs(chosen)) + LEAST_NORMAL * (chosen != 0.0)
        reach += np.abs(chosen) * (EXP_ERROR + EXPONENT_ERROR * score)[:, None]
        yield (b, h, rows), chosen, np.where((rest < MOST_REST)[:, None], reach, np.inf), key


def _rounded(values: F64, dtype: np.dtype[Any]) -> Array:
    """Through float32, as a kernel's epilogue does; infinities stay."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded: Array = values.astype(np.float32).astype(dtype)
    return rounded
