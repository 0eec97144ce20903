"""Padding: the keys of a batch entry beyond its length, which a kernel must not read, and their values.

All inputs are padded with NaN: a weight of 0 times NaN is NaN, so any product with a padding key is visible in the
output. The float maximum of a GPU drops NaN; :func:`loud_padding` also makes a key visible that enters a maximum only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["loud_padding", "padded_keys", "with_padding"]

Array = npt.NDArray[Any]


def padded_keys(lengths: Sequence[int] | Array | None, batch: int, seq_kv: int) -> npt.NDArray[np.bool_]:
    """Mask of the padding keys, [B, Skv]; all False without lengths."""
    valid = np.full(batch, seq_kv) if lengths is None else np.asarray(lengths)
    padded: npt.NDArray[np.bool_] = np.arange(seq_kv) >= valid[:, None]
    return padded


def with_padding(array: Array, lengths: Sequence[int] | Array | None, fill: float) -> Array:
    """K or V [B, Hkv, Skv, D] with ``fill`` in all padding; ``array`` itself if there is no padding."""
    padded = padded_keys(lengths, array.shape[0], array.shape[2])[:, None, :, None]
    return np.where(padded, array.dtype.type(fill), array) if padded.any() else array


def loud_padding(arrays: Mapping[str, Array], lengths: Sequence[int] | None) -> Mapping[str, Array]:
    """The inputs with other padding: V is infinite; each row of K is infinite in one column and 0 in the others.

    The score of such a key is infinite, and not NaN. Returns ``arrays`` itself if there is no padding.
    """
    k, v = arrays["k"], arrays["v"]
    if not padded_keys(lengths, k.shape[0], k.shape[2]).any():
        return arrays
    loud = with_padding(k, lengths, 0.0)
    for b, length in enumerate(lengths or ()):
        keys = np.arange(length, k.shape[2])
        loud[b, :, keys, keys % k.shape[3]] = math.inf
    return {**arrays, "k": loud, "v": with_padding(v, lengths, math.inf)}
