"""The reference: attention in float64, in blocks of rows. Pure NumPy, independent of any candidate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from sdpalab.inputs.padding import padded_rows
from sdpalab.inputs.visibility import hides_keys, score_bias, visible_keys

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdpalab.scoring import Scoring

__all__ = [
    "Rows",
    "WeightBlock",
    "Weights",
    "attention_float64",
    "attention_with_lse",
    "finite",
    "is_finite",
    "judged_rows",
    "score_blocks",
    "weight_blocks",
    "weight_sums",
]

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]

ROWS, BLOCK = 512, 1 << 20
"""Most rows of a block of scores, and most scores, 8 MiB, if that leaves LEAST_ROWS rows."""
LEAST_ROWS = 32
_EXPONENTS = {np.dtype(np.float16): np.uint16(0x7C00), np.dtype(ml_dtypes.bfloat16): np.uint16(0x7F80)}
"""Bit masks of the exponents of 16-bit types; NumPy's isfinite processes these types one element at a time."""
MOST_WEIGHT_BYTES = 64 << 20
"""Most bytes of weights that :class:`Weights` keeps; the mission shape (1x8x512x64) takes 16 MiB."""


Lengths: TypeAlias = "Sequence[int] | Array | None"
"""Valid keys or queries of each batch entry; None for all."""


def judged_rows(
    q: Array, k: Array, v: Array, kv_lengths: Lengths = None, q_lengths: Lengths = None
) -> npt.NDArray[np.bool_]:
    """Mask of the judged output rows, [B, H, Sq]: valid rows with a finite Q and finite keys in the whole head.

    A NaN or an infinity in Q affects its row only. In K or V it affects the whole head, including rows from which the
    causal mask hides it: a kernel that masks within a tile multiplies the key's V by a weight of 0, and 0 times NaN is
    NaN (torch's own kernels do so). Keys beyond a length are ignored: no row may depend on their content. All other
    rows have a finite result.
    """
    padded = padded_rows(kv_lengths, k.shape[0], k.shape[2])[:, None]
    fine = (is_finite(k).all(axis=3) & is_finite(v).all(axis=3) | padded).all(axis=2)
    heads = np.repeat(fine, q.shape[1] // k.shape[1], axis=1)
    valid = ~padded_rows(q_lengths, q.shape[0], q.shape[2])[:, None]
    judged: npt.NDArray[np.bool_] = is_finite(q).all(axis=-1) & heads[:, :, None] & valid
    return judged


def finite(array: Array) -> Array:
    """``array`` with 0 in place of NaN and infinity; rows that depend on these are not judged.

    Returns ``array`` itself if all of it is finite; do not modify the result.
    """
    fine = is_finite(array)
    return array if fine.all() else np.where(fine, array, array.dtype.type(0))


def is_finite(array: Array) -> npt.NDArray[np.bool_]:
    """Mask of elements that are neither NaN nor infinite: not all exponent bits are 1."""
    exponent = _EXPONENTS.get(array.dtype)
    if exponent is None:
        return np.asarray(np.isfinite(array))
    return np.asarray(array.view(np.uint16) & exponent != exponent)


Block: TypeAlias = "tuple[int, int, slice]"
"""Position of a block of rows: b, h, rows."""


class WeightBlock(NamedTuple):
    """A block of softmax weights before normalisation.

    Attributes
    ----------
    place : (int, int, slice)
        Position of the block.
    weights : ndarray of float64, [rows, Skv]
    most : ndarray of float64, [rows, 1]
        The score with weight 1: the largest of the row, or the sink's logit if that is larger; -inf in a row that sees
        neither.
    sink : ndarray of float64, [rows, 1]
        The weight of the sink; 0 without one.
    """

    place: Block
    weights: F64
    most: F64
    sink: F64

    @property
    def total(self) -> F64:
        """Sum of the weights of each row and its sink [rows, 1]."""
        total: F64 = self.weights.sum(axis=1, keepdims=True) + self.sink
        return total


Rows: TypeAlias = "npt.NDArray[np.intp] | None"
"""Query rows to compute, the same in every head; None for all."""


def score_blocks(
    q: Array,
    k: Array,
    *,
    product: Callable[[F64, F64], F64] = np.matmul,
    tanh: Callable[[F64], F64] = np.tanh,
    rows: Rows = None,
    **scoring: Unpack[Scoring],
) -> Iterator[tuple[Block, F64]]:
    """Scores, capped, biased and masked (:mod:`sdpalab.scoring`), head by head and block by block.

    Parameters
    ----------
    q : ndarray, [B, H, Sq, D]
    k : ndarray, [B, Hkv, Skv, D]
        Hkv divides H; query head h reads K/V head ``h // (H // Hkv)``. NaN and infinities count as 0.
    product : callable
        Matrix product of Q [rows, D] and K^T [D, Skv], both float64.
    tanh : callable
        tanh of the soft cap.
    rows : ndarray of int, optional
        Query rows to compute, the same in every head. Default: all.
    **scoring
        ``scale``, ``causal`` and the further score arguments of the problem (:meth:`sdpalab.inputs.Inputs.scoring`).

    Yields
    ------
    (b, h, rows), scores
        Position of the block among the computed rows, and its scores [rows, Skv] in float64; -inf where the mask hides
        the key. A row may see no key, for example if its window lies beyond the last key.
    """
    batch, heads, seq_q, _ = q.shape
    seq_kv = k.shape[2]
    group = heads // k.shape[1]
    wanted = np.arange(seq_q) if rows is None else rows
    q, k = finite(q), finite(k)
    masked, cap = hides_keys(scoring), scoring.get("softcap", 0.0)
    most = min(ROWS, max(LEAST_ROWS, BLOCK // seq_kv))
    for b in range(batch):
        for h in range(heads):
            k_head = k[b, h // group].astype(np.float64)
            for start in range(0, len(wanted), most):
                block = slice(start, min(start + most, len(wanted)))
                scores = product(q[b, h, wanted[block]].astype(np.float64), k_head.T) * scoring["scale"]
                if cap:
                    scores = cap * tanh(scores / cap)
                bias = score_bias(wanted[block], seq_kv, head=(b, h), **scoring)
                if bias is not None:
                    scores += bias
                if masked:
                    visible = visible_keys(wanted[block], seq_kv, head=(b, h), **scoring)
                    scores[~visible] = -np.inf
                yield (b, h, block), scores


def weight_blocks(
    q: Array,
    k: Array,
    *,
    product: Callable[[F64, F64], F64] = np.matmul,
    tanh: Callable[[F64], F64] = np.tanh,
    rows: Rows = None,
    **scoring: Unpack[Scoring],
) -> Iterator[WeightBlock]:
    """Softmax weights before normalisation, ``exp(s - max(s))``, of the scores of :func:`score_blocks`.

    The largest weight of a row, or its sink's, is 1; the weight of a hidden key is 0. A row that sees neither a key nor
    a sink has a largest score of -inf, and weights of 0.
    """
    for place, scores in score_blocks(q, k, product=product, tanh=tanh, rows=rows, **scoring):
        most, logit = scores.max(axis=1, keepdims=True), -np.inf
        if "sinks" in scoring:
            logit = float(scoring["sinks"][place[1]])
            most = np.maximum(most, logit)
        top = np.where(np.isneginf(most), 0.0, most)
        scores -= top
        yield WeightBlock(place, np.exp(scores, out=scores), most, np.exp(logit - top))


def weight_sums(total: F64) -> F64:
    """Softmax denominators: ``total``, but 1 for a row whose weights are all 0, so that quotients are 0."""
    return np.where(total == 0.0, 1.0, total)


class Weights:
    """Cached result of :func:`weight_blocks`, if it takes at most MOST_WEIGHT_BYTES.

    Larger results are recomputed at each iteration, block by block. The arrays must not be modified.
    """

    def __init__(self, q: Array, k: Array, *, rows: Rows = None, **scoring: Unpack[Scoring]) -> None:
        count = q.shape[2] if rows is None else len(rows)
        self._blocks = partial(weight_blocks, q, k, rows=rows, **scoring)
        self._memo: list[WeightBlock] | None = None
        self._fits = q.shape[0] * q.shape[1] * count * k.shape[2] * 8 <= MOST_WEIGHT_BYTES

    def __iter__(self) -> Iterator[WeightBlock]:
        if not self._fits:
            return self._blocks()
        if self._memo is None:
            self._memo = list(self._blocks())
        return iter(self._memo)


def attention_with_lse(q: Array, k: Array, v: Array, **scoring: Unpack[Scoring]) -> tuple[F64, F64]:
    """Attention and its log-sum-exp in float64, [B, H, Sq, Dv] and [B, H, Sq]; arguments as :func:`attention_float64`.

    The log-sum-exp is -inf in a row that sees neither a key nor a sink.
    """
    lse = np.empty(q.shape[:3])

    def weights() -> Iterator[WeightBlock]:
        for each in weight_blocks(q, k, **scoring):
            empty = np.isneginf(each.most)
            lse[each.place] = np.where(empty, -np.inf, each.most + np.log(np.where(empty, 1.0, each.total)))[:, 0]
            yield each

    return attention_float64(q, k, v, weights=weights(), **scoring), lse


def attention_float64(
    q: Array,
    k: Array,
    v: Array,
    *,
    rows: Rows = None,
    weights: Iterable[WeightBlock] | None = None,
    **scoring: Unpack[Scoring],
) -> F64:
    """Attention in float64, the reference of a candidate's output.

    Rows that see no key are 0.

    Parameters
    ----------
    q, k, v : ndarray, [B, H, Sq, D], [B, Hkv, Skv, D], [B, Hkv, Skv, Dv]
        Used unchanged: the rounding of the inputs to 16 bits is part of the problem, not an error.
    weights : iterable, optional
        Precomputed result of :func:`weight_blocks` for these arguments.
    rows, **scoring
        As in :func:`score_blocks`.

    Returns
    -------
    ndarray of float64, [B, H, Sq, Dv], or of the chosen rows only
        NaN in rows that are not judged (:func:`judged_rows`), finite everywhere else, for any content of the padding.

    Raises
    ------
    ValueError
        If the scores are too large for float64, which takes a scale above 1e200.
    """
    group = q.shape[1] // k.shape[1]
    values = finite(v).astype(np.float64)
    count = q.shape[2] if rows is None else len(rows)
    out = np.empty((*q.shape[:2], count, v.shape[3]), np.float64)
    for each in weights or weight_blocks(q, k, rows=rows, **scoring):
        b, h, block = each.place
        out[b, h, block] = (each.weights @ values[b, h // group]) / weight_sums(each.total)
    if not np.isfinite(out).all():
        raise ValueError(f"with scale {scoring['scale']:g} the scores are too large for float64")
    judged = judged_rows(q, k, v, scoring.get("kv_lengths"), scoring.get("q_lengths"))
    out[~(judged if rows is None else judged[:, :, rows])] = np.nan
    return out
