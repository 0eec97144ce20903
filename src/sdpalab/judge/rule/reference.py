"""The oracle: attention in float64, in blocks of rows. Pure NumPy, and nothing of any candidate in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import visible_keys

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdpalab.problem import Scoring

__all__ = [
    "Rows",
    "WeightBlock",
    "Weights",
    "attention_float64",
    "finite",
    "judged_rows",
    "score_blocks",
    "weight_blocks",
    "weight_sums",
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
    product: Callable[[F64, F64], F64] = np.matmul,
    rows: Rows = None,
    **scoring: Unpack[Scoring],
) -> Iterator[tuple[Block, F64]]:
    """Scores ``s = scale * Q K^T``, capped and masked, head by head and block by block.

    Parameters
    ----------
    q : ndarray, [B, H, Sq, D]
    k : ndarray, [B, Hkv, Skv, D]
        Hkv divides H; query head h reads K/V head ``h // (H // Hkv)``. NaN and infinities count as 0.
    product : callable
        What multiplies Q [rows, D] and K^T [D, Skv], both float64.
    rows : ndarray of int, optional
        The query rows that are wanted, the same of every head. Default: all.
    **scoring
        ``scale``, ``causal`` and what else the problem has (:attr:`sdpalab.problem.Problem.scoring`).

    Yields
    ------
    (b, h, rows), scores
        Where the block lies among the rows that are wanted, and its scores [rows, Skv] in float64; -inf where the mask
        hides the key. Where a window lies beyond the last key, a row sees none.
    """
    batch, heads, seq_q, _ = q.shape
    seq_kv = k.shape[2]
    group = heads // k.shape[1]
    wanted = np.arange(seq_q) if rows is None else rows
    q, k = finite(q), finite(k)
    masked, cap = scoring["causal"] or "window_size" in scoring, scoring.get("softcap", 0.0)
    for b in range(batch):
        for h in range(heads):
            k_head = k[b, h // group].astype(np.float64)
            for start in range(0, len(wanted), ROWS):
                block = slice(start, min(start + ROWS, len(wanted)))
                scores = product(q[b, h, wanted[block]].astype(np.float64), k_head.T) * scoring["scale"]
                if cap:
                    scores = cap * np.tanh(scores / cap)
                if masked:
                    visible = visible_keys(wanted[block], seq_kv, **scoring)
                    scores[~visible] = -np.inf
                yield (b, h, block), scores


def weight_blocks(
    q: Array,
    k: Array,
    *,
    product: Callable[[F64, F64], F64] = np.matmul,
    rows: Rows = None,
    **scoring: Unpack[Scoring],
) -> Iterator[WeightBlock]:
    """Softmax weights before normalisation, ``exp(s - max(s))``, as :func:`score_blocks` gives the scores.

    The largest weight of a row is 1; one of a key that the mask hides is 0. A row that sees no key has a largest score
    of -inf, and weights of 0.
    """
    for place, scores in score_blocks(q, k, product=product, rows=rows, **scoring):
        most = scores.max(axis=1, keepdims=True)
        scores -= np.where(np.isneginf(most), 0.0, most)
        yield place, np.exp(scores, out=scores), most


def weight_sums(weights: F64) -> F64:
    """The sum of each row's weights [rows, 1]; 1 for a row that sees no key, whose quotients are then 0."""
    total: F64 = weights.sum(axis=1, keepdims=True)
    return np.where(total == 0.0, 1.0, total)


class Weights:
    """What :func:`weight_blocks` yields, once for all who read it, as long as it takes at most MOST_WEIGHT_BYTES.

    Larger ones are computed at each reading, a block at a time. The arrays must not be changed.
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


def attention_float64(
    q: Array,
    k: Array,
    v: Array,
    *,
    rows: Rows = None,
    weights: Iterable[WeightBlock] | None = None,
    **scoring: Unpack[Scoring],
) -> F64:
    """softmax(scale * Q K^T + mask) V in float64: what a candidate's output is compared with.

    A row that sees no key is 0.

    Parameters
    ----------
    q, k, v : ndarray, [B, H, Sq, D], [B, Hkv, Skv, D], [B, Hkv, Skv, D]
        Taken as they are: the rounding of the inputs to 16 bits is part of the problem, not an error.
    weights : iterable, optional
        What :func:`weight_blocks` yields for these arguments, if it was computed before.
    rows, **scoring
        As in :func:`score_blocks`.

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
    for (b, h, block), p, _ in weights or weight_blocks(q, k, rows=rows, **scoring):
        out[b, h, block] = (p @ values[b, h // group]) / weight_sums(p)
    if not np.isfinite(out).all():
        raise ValueError(f"with scale {scoring['scale']:g} the scores are too large for float64")
    judged = judged_rows(q, k, v)
    out[~(judged if rows is None else judged[:, :, rows])] = np.nan
    return out
