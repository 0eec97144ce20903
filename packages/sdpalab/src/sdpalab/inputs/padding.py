"""Padding: the keys and queries of a batch entry beyond its lengths, which a kernel must not read, and their values.

All inputs are padded with NaN: a weight of 0 times NaN is NaN, so any product with a padding key is visible in the
output. The float maximum of a GPU drops NaN; :func:`loud_padding` also makes a key visible that enters a maximum only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["loud_padding", "padded_rows", "with_padding"]

Array = npt.NDArray[Any]


def padded_rows(lengths: Sequence[int] | Array | None, batch: int, seq: int) -> npt.NDArray[np.bool_]:
    """Mask of the padding among the keys or queries, [B, S]; all False without lengths."""
    valid = np.full(batch, seq) if lengths is None else np.asarray(lengths)
    padded: npt.NDArray[np.bool_] = np.arange(seq) >= valid[:, None]
    return padded


def with_padding(array: Array, lengths: Sequence[int] | Array | None, fill: float) -> Array:
    """An array [B, H, S] or [B, H, S, D] with ``fill`` in all padding; ``array`` itself if there is no padding."""
    padded = padded_rows(lengths, array.shape[0], array.shape[2])[:, None]
    padded = padded if array.ndim == 3 else padded[..., None]
    return np.where(padded, array.dtype.type(fill), array) if padded.any() else array


def loud_padding(arrays: Mapping[str, Array]) -> Mapping[str, Array]:
    """The inputs with other padding: each row of K is infinite in one column and 0 in the others; V, and Q, dO, O and
    the log-sum-exp of the queries, are infinite.

    The score of such a key is infinite, and not NaN. Arrays without padding are the same objects.
    """
    loud = dict(arrays)
    if "q_lengths" in arrays:
        rows = [name for name in ("q", "do", "o", "lse") if name in arrays]
        loud |= {name: with_padding(arrays[name], arrays["q_lengths"], math.inf) for name in rows}
    if "kv_lengths" not in arrays:
        return loud
    loud["v"] = with_padding(arrays["v"], arrays["kv_lengths"], math.inf)
    k = with_padding(arrays["k"], arrays["kv_lengths"], 0.0)
    if k is not arrays["k"]:
        for b, length in enumerate(arrays["kv_lengths"]):
            keys = np.arange(length, k.shape[2])
            k[b, :, keys, keys % k.shape[3]] = math.inf
    return {**loud, "k": k}
