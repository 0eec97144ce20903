"""Seeded inputs by name: the same (kind, problem, seed) gives the same bytes everywhere."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from sdpalab.errors import UserError
from sdpalab.inputs.kinds import INPUT_KINDS, MAKERS
from sdpalab.inputs.source import Source
from sdpalab.inputs.visibility import key_range, visible_keys
from sdpalab.problem import Problem

__all__ = ["INPUT_KINDS", "Inputs", "dtype_of", "key_range", "make_inputs", "visible_keys"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Inputs:
    """Q [B, H, Sq, D], K and V [B, Hkv, Skv, D]: contiguous arrays of the problem's dtype."""

    q: Array
    k: Array
    v: Array

    def digests(self) -> dict[str, str]:
        """sha256 of each array's bytes, under ``q``, ``k`` and ``v``."""
        return {name: hashlib.sha256(getattr(self, name).tobytes()).hexdigest() for name in ("q", "k", "v")}


def dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy dtype of that name, from ml_dtypes what NumPy lacks; raises UserError if there is no such type."""
    try:
        return np.dtype(getattr(ml_dtypes, name, name))
    except TypeError:
        raise UserError(f"dtype {name!r} is neither a NumPy nor an ml_dtypes type") from None


def make_inputs(problem: Problem, kind: str = "normal", seed: int = 0) -> Inputs:
    """Q, K and V for ``problem``: the same bytes for the same arguments, on every platform.

    Parameters
    ----------
    problem : Problem
        Gives the shapes and the dtype.
    kind : str
        One of :data:`INPUT_KINDS`.
    seed : int
        Not negative.

    Raises
    ------
    UserError
        If there is no such kind, the seed is negative, or this kind does not exist for the problem.
    """
    if kind not in MAKERS:
        raise UserError(f"inputs must be one of {', '.join(MAKERS)}, not {kind!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UserError(f"seed must be an integer that is not negative, not {seed!r}")
    dtype = dtype_of(problem.dtype)
    q, k, v = MAKERS[kind](Source(kind, problem, seed))
    return Inputs(*(np.ascontiguousarray(array.astype(dtype)) for array in (q, k, v)))
