"""Other inputs with the same fingerprints: they reveal a candidate that returns a stored output instead of computing
it.

They are run in the same memory as the previous run (:meth:`sdpalab.judge.sandbox.isolation.CandidateProcesses.run`),
and their output is compared with their own reference. An output stored by address, by object or by problem is then
wrong; so is an output stored by a fingerprint, because the usual fingerprints are the same.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import Inputs

__all__ = ["other_inputs"]


def other_inputs(inputs: Inputs, seed: int) -> Inputs:
    """Permute the rows of each head of Q, K, V, dO and a mask, each array in its own order; the first and the last row
    stay in place. Only valid rows are permuted. O and the log-sum-exp stay those of the original inputs.

    Sums, norms, extremes and corners are unchanged, and the scores have the original size. With fewer than four rows V
    is negated instead.

    Parameters
    ----------
    inputs : Inputs
    seed : int
        Seed of the permutations; draw it after the candidate is loaded.

    Returns
    -------
    Inputs
        Inputs of the same shapes and dtype.
    """
    lengths: dict[str, npt.NDArray[Any] | None] = {
        "q": inputs.q_lengths,
        "do": inputs.q_lengths,
        "k": inputs.kv_lengths,
        "v": inputs.kv_lengths,
    }
    arrays: dict[str, npt.NDArray[Any]] = {
        name: _shuffled_valid(inputs.arrays[name], f"{seed} {name}", lengths.get(name))
        for name in ("q", "k", "v", "do", "attn_mask")
        if name in inputs.arrays
    }
    valid = [length for each in lengths.values() if each is not None for length in each]
    if min(inputs.q.shape[2], inputs.v.shape[2], *valid) < 4:
        arrays["v"] = -inputs.v
    # Lengths belong to the problem; slopes and sinks belong to heads.
    arrays |= {
        name: array[::-1].copy()
        for name, array in (("alibi_slopes", inputs.alibi_slopes), ("sinks", inputs.sinks))
        if array is not None
    }
    return replace(inputs, **arrays)


def _shuffled(array: npt.NDArray[np.generic], label: str) -> npt.NDArray[np.generic]:
    rows = array.shape[2]
    key = int.from_bytes(hashlib.sha256(label.encode()).digest()[:16], "little")
    order = 1 + np.argsort(np.random.Philox(key=key).random_raw(max(0, rows - 2)), kind="stable")
    return np.ascontiguousarray(array[:, :, [0, *order, rows - 1]] if rows > 1 else array)


def _shuffled_valid(array: npt.NDArray[Any], label: str, lengths: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    """Permute the valid rows; padding stays in place."""
    if lengths is None:
        return _shuffled(array, label)
    shuffled: npt.NDArray[Any] = array.copy()
    for entry, length in zip(shuffled, lengths, strict=True):
        entry[:, :length] = _shuffled(entry[None, :, :length], label)[0]
    return shuffled
