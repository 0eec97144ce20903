"""Seeded inputs by name: the same (kind, problem, seed) gives the same bytes everywhere."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.errors import UserError
from sdpalab.inputs.arrays import extra_arrays
from sdpalab.inputs.eight_bit import E4M3_KINDS, cached
from sdpalab.inputs.kinds import INPUT_KINDS, MAKERS
from sdpalab.inputs.padding import loud_padding, padded_rows, with_padding
from sdpalab.inputs.reference import attention_with_lse
from sdpalab.inputs.source import Source, dtype_of
from sdpalab.inputs.visibility import hides_keys, key_range, may_see_none, positions, score_bias, visible_keys
from sdpalab.problem import Problem

__all__ = [
    "E4M3_KINDS",
    "INPUT_KINDS",
    "TIMED_KINDS",
    "Inputs",
    "dtype_of",
    "hides_keys",
    "key_range",
    "loud_padding",
    "make_inputs",
    "may_see_none",
    "padded_rows",
    "positions",
    "score_bias",
    "visible_keys",
    "with_forward",
    "with_padding",
]

Array = npt.NDArray[Any]

TIMED_KINDS = ("normal", "ramp", "negative")
"""Inputs on which kernels are timed and modelled: normal inputs, and two kinds on which every tile leaves the fast path
of a kernel that branches on scores (each tile has a new maximum; no weight is in range before the first rescale)."""


@dataclass(frozen=True)
class Inputs:
    """Q [B, H, Sq, D], K [B, Hkv, Skv, D] and V [B, Hkv, Skv, Dv]: contiguous arrays of the problem's dtype; and the
    arrays of :attr:`sdpalab.problem.Problem.array_shapes`, None where the problem lacks them."""

    q: Array
    k: Array
    v: Array
    kv_lengths: Array | None = None
    attn_mask: Array | None = None
    alibi_slopes: Array | None = None
    sinks: Array | None = None
    q_lengths: Array | None = None
    do: Array | None = None
    o: Array | None = None
    lse: Array | None = None
    k_scale: Array | None = None
    v_scale: Array | None = None

    @property
    def arrays(self) -> dict[str, Array]:
        """All arrays of the problem, by name."""
        return {name: array for name, array in vars(self).items() if array is not None}

    @property
    def qkv(self) -> tuple[Array, Array, Array]:
        """Q, K and V."""
        return self.q, self.k, self.v

    def padded(self, fill: float) -> Inputs:
        """The same inputs with ``fill`` in the padding of queries and keys (:mod:`sdpalab.inputs.padding`)."""
        k, v = (with_padding(array, self.kv_lengths, fill) for array in (self.k, self.v))
        rows = {name: array for name, array in self.arrays.items() if name in ("q", "do", "o", "lse")}
        padded = {name: with_padding(array, self.q_lengths, fill) for name, array in rows.items()}
        return replace(self, k=k, v=v, **padded)

    def digests(self) -> dict[str, str]:
        """sha256 of each array's bytes, by name."""
        return {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in self.arrays.items()}


def make_inputs(problem: Problem, kind: str = "normal", seed: int = 0) -> Inputs:
    """Make Q, K, V and the further arrays of ``problem``: the same bytes for the same arguments, on every platform.

    O and the log-sum-exp of a backward problem (:func:`with_forward`) may differ in the last bit.

    All rows beyond a length are NaN. K and V of a cache in e4m3 are products of its numbers and scales, exact in the
    problem's dtype. With pages, batch entries 1, 3, ... of normal inputs begin with the keys and
    values of the entry before them: half of the pages that both fill.

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
        If the kind is unknown, the seed is negative, or the kind does not exist for the problem.
    """
    if kind not in MAKERS:
        raise UserError(f"inputs must be one of {', '.join(MAKERS)}, not {kind!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UserError(f"seed must be an integer that is not negative, not {seed!r}")
    dtype, source = dtype_of(problem.dtype), Source(kind, problem, seed)
    extra = extra_arrays(kind, source)
    source.scoring = {**source.scoring, **extra}  # type: ignore[typeddict-item]
    q, k, v = (np.ascontiguousarray(array.astype(dtype)) for array in MAKERS[kind](source))
    if problem.paged and kind == "normal":
        _share_prefixes(problem, k, v)
    if problem.e4m3_cache:
        (k, extra["k_scale"]), (v, extra["v_scale"]) = cached(k), cached(v)
    inputs = Inputs(q, k, v, **extra).padded(math.nan)
    return with_forward(problem, inputs) if problem.backward else inputs


def _share_prefixes(problem: Problem, k: Array, v: Array) -> None:
    lengths, size = problem.kv_lengths or (), problem.paged
    for entry in range(1, problem.batch, 2):
        shared = min(lengths[entry - 1 : entry + 1]) // size // 2 * size
        for array in (k, v):
            array[entry, :, :shared] = array[entry - 1, :, :shared]


def with_forward(problem: Problem, inputs: Inputs) -> Inputs:
    """The inputs of a backward problem with O and the log-sum-exp of the forward pass: float64 results, rounded once.

    Rows with a NaN or an infinity in their inputs hold 0, and padding holds NaN.
    """
    clean, scoring = inputs.padded(0.0), problem.scoring_with(inputs.arrays)
    out, lse = attention_with_lse(*clean.qkv, **scoring)
    with np.errstate(over="ignore"):
        rounded = {"o": np.nan_to_num(out).astype(inputs.q.dtype), "lse": lse.astype(np.float32)}
    return replace(inputs, **rounded).padded(math.nan)
