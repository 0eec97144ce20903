"""The oracle: attention in float64, in blocks of rows. Pure NumPy, and nothing of any candidate in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "Rows",
    "WeightBlock",
    "Weights",
    "attention_float64",
    "finite",
    "judged_rows",
    "score_blocks",
    "weight_blocks",
]

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]

ROWS = 512
"""Rows of a block: at Skv = 4096 one block of scores takes 16 MiB."""
MOST_WEIGHT_BYTES = 64 << 20
"""Weights that :class:`Weights` keeps at most: those of the mission shape (1x8x512x64) take 16 MiB."""


def judged_rows(q: Array, k: Array, v: Array) -> npt.NDArray[np.bool_]:
    """Which rows of the output are judged, [B, H, Sq]: those of which Q, and all of K and V of the head, are finite.

    A NaN or an infinity in Q is its row's own affair. In K or V it is that of the whole head, even of rows that the
    causal mask keeps from seeing it: a kernel that masks within a tile multiplies the key's V by a weight of 0, and
    0 times NaN is NaN (torch's own kernels do so). All other rows have a result, and it is finite.
    """
    fine = np.isfinite(k).all(axis=(2, 3)) & np.isfinite(v).all(axis=(2, 3))
    heads = np.repeat(fine, q.shape[1] // k.shape[1], axis=1)
    judged: npt.NDArray[np.bool_] = np.isfinite(q).all(axis=-1) & heads[:, :, None]
    return judged


def finite(array: Array) -> Array:
    """``array`` with 0 for NaN and infinity: what comes of them is not judged, and must not disturb the rest."""
    return np.where(np.isfinite(array), array, array.dtype.type(0))


Block: TypeAlias = "tuple[int, int, slice]"
"""Where a block of rows lies: b, h, rows."""


WeightBlock: TypeAlias = "tuple[Block, F64, F64]"
"""Where a block lies, its weights [rows, Skv], and the largest score of each row [rows, 1]."""

Rows: TypeAlias = "npt.NDArray[np.intp] | None"
"""Query rows, the same of every head, that alone are computed; None for all."""


def score_blocks(
    q: Array,
    k: Array,
    *,
    scale: float,
    causal: bool,
    product: Callable[[F64, F64], F64] = np.matmul,
    rows: Rows = None,
) -> Iterator[tuple[Block, F64]]:
    """Scores ``s = scale * Q K^T``, head by head and block by block.

    Parameters
    ----------
    q : ndarray, [B, H, Sq, D]
    k : ndarray, [B, Hkv, Skv, D]
        Hkv divides H; query head h reads K/V head ``h // (H // Hkv)``. NaN and infinities count as 0.
    scale : float
        Factor on Q K^T.
    causal : bool
        Row i sees keys 0..i (top-left aligned).
    product : callable
        What multiplies Q [rows, D] and K^T [D, Skv], both float64.
    rows : ndarray of int, optional
        The query rows that are wanted, the same of every head. Default: all.

    Yields
    ------
    (b, h, rows), scores
        Where the block lies among the rows that are wanted, and its scores [rows, Skv] in float64; -inf where the mask
        hides the key. Every row sees at least key 0.
    """
    batch, heads, seq_q, _ = q.shape
    seq_kv = k.shape[2]
    group = heads // k.shape[1]
    wanted = np.arange(seq_q) if rows is None else rows
    q, k = finite(q), finite(k)
    for b in range(batch):
        for h in range(heads):
            k_head = k[b, h // group].astype(np.float64)
            for start in range(0, len(wanted), ROWS):
                block = slice(start, min(start + ROWS, len(wanted)))
                scores = product(q[b, h, wanted[block]].astype(np.float64), k_head.T) * scale
                if causal:
                    scores[np.arange(seq_kv) > wanted[block][:, None]] = -np.inf
                yield (b, h, block), scores


def weight_blocks(
    q: Array,
    k: Array,
    *,
    scale: float,
    causal: bool,
    product: Callable[[F64, F64], F64] = np.matmul,
    rows: Rows = None,
) -> Iterator[WeightBlock]:
    """Softmax weights before normalisation, ``exp(s - max(s))``, as :func:`score_blocks` gives the scores.

    The largest weight of a row is 1; one of a key that the mask hides is 0.

    """
    for place, scores in score_blocks(q, k, scale=scale, causal=causal, product=product, rows=rows):
        most = scores.max(axis=1, keepdims=True)
        scores -= most
        yield place, np.exp(scores, out=scores), most


class Weights:
    """What :func:`weight_blocks` yields, once for all who read it, as long as it takes at most MOST_WEIGHT_BYTES.

    Larger ones are computed at each reading, a block at a time. The arrays must not be changed.
    """

    def __init__(self, q: Array, k: Array, *, scale: float, causal: bool, rows: Rows = None) -> None:
        count = q.shape[2] if rows is None else len(rows)
        self._blocks = partial(weight_blocks, q, k, scale=scale, causal=causal, rows=rows)
        self._memo: list[WeightBlock] | None = None
        self._fits = q.shape[0] * q.shape[1] * count * k.shape[2] * 8 <= MOST_WEIGHT_BYTES

    def __iter__(self) -> Iterator[WeightBlock]:
        if not self._fits:
            return self._blocks()
        if self._memo is None:
            self._memo = list(self._blocks())
        return iter(self._memo)


def attention_float64(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool,
    rows: Rows = None,
    weights: Iterable[WeightBlock] | None = None,
) -> F64:
    """softmax(scale * Q K^T + mask) V in float64: what a candidate's output is compared with.

    Parameters
    ----------
    q, k, v : ndarray, [B, H, Sq, D], [B, Hkv, Skv, D], [B, Hkv, Skv, D]
        Taken as they are: the rounding of the inputs to 16 bits is part of the problem, not an error.
    scale, causal, rows
        As in :func:`score_blocks`.
    weights : iterable, optional
        What :func:`weight_blocks` yields for these arguments, if it was computed before.

    Returns
    -------
    ndarray of float64, [B, H, Sq, D], or of the wanted rows only
        NaN in rows that are not judged (:func:`judged_rows`), finite everywhere else.

    Raises
    ------
    ValueError
        If the scores are too large for float64, which takes a scale above 1e200.
    """
    group = q.shape[1] // k.shape[1]
    values = finite(v).astype(np.float64)
    count = q.shape[2] if rows is None else len(rows)
    out = np.empty((*q.shape[:2], count, v.shape[3]), np.float64)
    for (b, h, block), p, _ in weights or weight_blocks(q, k, scale=scale, causal=causal, rows=rows):
        out[b, h, block] = (p @ values[b, h // group]) / p.sum(axis=1, keepdims=True)
    if not np.isfinite(out).all():
        raise ValueError(f"with scale {scale:g} the scores are too large for float64")
    judged = judged_rows(q, k, v)
    out[~(judged if rows is None else judged[:, :, rows])] = np.nan
    return out
