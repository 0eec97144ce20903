"""Visible keys of a row and the bias of its scores: masks, lengths and biases of a problem, per head.

Every mask except an ``attn_mask`` leaves a row one contiguous range of keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdpalab.scoring import Scoring

__all__ = ["Head", "hides_keys", "key_range", "may_see_none", "positions", "score_bias", "visible_keys"]

Ints = npt.NDArray[np.signedinteger[Any]]
F64 = npt.NDArray[np.float64]
Head = tuple[int, int]
"""Indices b and h of a query head."""


def positions(rows: npt.ArrayLike, seq_kv: int, *, head: Head = (0, 0), **scoring: Unpack[Scoring]) -> Ints:
    """Key at which each query row stands: the row itself, or with ``bottom_right`` the one that puts the last valid
    query at the last valid key. It may be negative, or beyond the keys."""
    row = np.asarray(rows)
    if "bottom_right" not in scoring:
        return row
    queries = int(scoring["q_lengths"][head[0]]) if "q_lengths" in scoring else scoring["bottom_right"]
    return row + _valid_keys(seq_kv, head, scoring) - queries


def key_range(
    rows: npt.ArrayLike, seq_kv: int, *, head: Head = (0, 0), **scoring: Unpack[Scoring]
) -> tuple[Ints, Ints]:
    """First and last visible key of each row; the row sees no key where the last is below the first.

    Parameters
    ----------
    rows : array_like of int
        Query rows.
    seq_kv : int
        Number of keys.
    head : (int, int)
        Batch entry and query head.
    **scoring
        Only ``causal``, ``window_size``, the lengths and ``bottom_right`` are used. An ``attn_mask`` may hide any key
        of the range.

    Returns
    -------
    first, last : ndarray of int, of the shape of ``rows``
    """
    row = positions(rows, seq_kv, head=head, **scoring)
    left, right = scoring.get("window_size", (-1, -1))
    if scoring["causal"]:
        right = 0
    keys = _valid_keys(seq_kv, head, scoring)
    first = np.zeros_like(row) if left < 0 else np.maximum(row - left, 0)
    last = np.full_like(row, keys - 1) if right < 0 else np.minimum(row + right, keys - 1)
    return first, last


def visible_keys(
    rows: npt.ArrayLike, seq_kv: int, *, head: Head = (0, 0), **scoring: Unpack[Scoring]
) -> npt.NDArray[np.bool_]:
    """Mask of the keys that each row sees, [rows, Skv]; arguments as :func:`key_range`, with the ``attn_mask``
    applied."""
    first, last = key_range(rows, seq_kv, head=head, **scoring)
    keys = np.arange(seq_kv)
    visible: npt.NDArray[np.bool_] = (keys >= first[:, None]) & (keys <= last[:, None])
    if "attn_mask" in scoring:
        mask = _mask_of(scoring, head)[np.asarray(rows)]
        visible &= (mask != 0) if mask.dtype == np.uint8 else ~np.isneginf(mask)
    return visible


def score_bias(rows: npt.ArrayLike, seq_kv: int, *, head: Head = (0, 0), **scoring: Unpack[Scoring]) -> F64 | None:
    """Bias of the scores, [rows, Skv] in float64: an additive mask and ALiBi; 0 where the mask is -inf, and None if the
    problem has neither."""
    row, bias = np.asarray(rows), np.zeros((np.size(rows), seq_kv))
    additive = "attn_mask" in scoring and scoring["attn_mask"].dtype != np.uint8
    if "alibi_slopes" in scoring:
        distance = positions(row, seq_kv, head=head, **scoring)[:, None] - np.arange(seq_kv)
        bias -= float(scoring["alibi_slopes"][head[1]]) * np.abs(distance)
    if additive:
        mask = _mask_of(scoring, head)[row].astype(np.float64)
        bias += np.where(np.isneginf(mask), 0.0, mask)
    return bias if additive or "alibi_slopes" in scoring else None


def hides_keys(scoring: Scoring) -> bool:
    """Whether any mask or length hides a key from a row."""
    return scoring["causal"] or any(name in scoring for name in ("window_size", "kv_lengths", "attn_mask"))


def may_see_none(scoring: Scoring) -> bool:
    """Whether rows without a visible key are possible."""
    return any(name in scoring for name in ("window_size", "kv_lengths", "attn_mask", "bottom_right"))


def _valid_keys(seq_kv: int, head: Head, scoring: Scoring) -> int:
    return int(scoring["kv_lengths"][head[0]]) if "kv_lengths" in scoring else seq_kv


def _mask_of(scoring: Scoring, head: Head) -> npt.NDArray[Any]:
    """The mask of a head, [Sq, Skv]."""
    mask = scoring["attn_mask"]
    b, h = (index if size > 1 else 0 for index, size in zip(head, mask.shape, strict=False))
    of_head: npt.NDArray[Any] = mask[b, h]
    return of_head
