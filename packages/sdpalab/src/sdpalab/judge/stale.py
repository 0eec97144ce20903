"""Other inputs with the same fingerprints: they reveal a candidate that returns a stored output instead of computing
it.

They are run in the same memory as the run before (:meth:`sdpalab.judge.sandbox.isolation.CandidateProcesses.run`), and
their output is held against their own right answer. An output that is remembered by address, by object or by problem is
then out of date; so is one that is remembered by a fingerprint, since the usual fingerprints are the same.
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
    """The rows of each head of Q, K, V and a mask in another order: each array's own, the first and the last row in
    place. Of K and V only valid keys change places.

    Sums, norms, extremes and corners stay what they were, and so do the scores but for their places: they are as large
    as the original ones. Where there are fewer than four rows, V is negated instead.

    Parameters
    ----------
    inputs : Inputs
    seed : int
        Of the orders; to be drawn when the candidate is loaded already.

    Returns
    -------
    Inputs
        Of the same shapes and dtype.
    """
    labelled = {name: (array, f"{seed} {name}") for name, array in inputs.arrays.items() if array.ndim == 4}
    arrays = {name: _shuffled(*each) for name, each in labelled.items()}
    if inputs.kv_lengths is not None:
        arrays |= {name: _shuffled_keys(*labelled[name], inputs.kv_lengths) for name in ("k", "v")}
    if min(inputs.q.shape[2], inputs.v.shape[2], *([] if inputs.kv_lengths is None else inputs.kv_lengths)) < 4:
        arrays["v"] = -inputs.v
    # Lengths belong to the problem; slopes and sinks are of other heads.
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
    """K or V whose padding stays in its place."""
    shuffled: npt.NDArray[Any] = array.copy()
    for entry, length in zip(shuffled, lengths, strict=True):
        entry[:, :length] = _shuffled(entry[None, :, :length], label)[0]
    return shuffled
