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
    """Permute the rows of each head of Q, K, V and a mask, each array in its own order; the first and the last row stay
    in place. Only valid keys of K and V are permuted.

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
    labelled = {name: (array, f"{seed} {name}") for name, array in inputs.arrays.items() if array.ndim == 4}
    arrays = {name: _shuffled(*each) for name, each in labelled.items()}
    if inputs.kv_lengths is not None:
        arrays |= {name: _shuffled_keys(*labelled[name], inputs.kv_lengths) for name in ("k", "v")}
    if min(inputs.q.shape[2], inputs.v.shape[2], *([] if inputs.kv_lengths is None else inputs.kv_lengths)) < 4:
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


def _shuffled_keys(array: npt.NDArray[Any], label: str, lengths: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Permute the valid keys of K or V; padding stays in place."""
    shuffled: npt.NDArray[Any] = array.copy()
    for entry, length in zip(shuffled, lengths, strict=True):
        entry[:, :length] = _shuffled(entry[None, :, :length], label)[0]
    return shuffled
