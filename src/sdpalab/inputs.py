"""Seeded inputs by name: each kind is aimed at one way of being wrong.

The same (kind, problem, seed) gives the same bytes everywhere. The bits come from NumPy's Philox bit generator, whose
raw stream is guaranteed never to change, keyed with a digest of what is asked for. NumPy does *not* guarantee the
stream of ``Generator.normal``, so normals are made here, by Box-Muller in float64 (Box and Muller, 1958). Math
libraries may differ in the last bit of a float64 logarithm or cosine; the rounding to 11 or 8 bits hides that but for
about one element in 10**12, and every record carries the digest of its inputs.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from sdpalab.errors import UserError
from sdpalab.problem import Problem

__all__ = ["INPUT_KINDS", "Inputs", "dtype_of", "make_inputs"]

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Inputs:
    """Q [B, H, Sq, D], K and V [B, Hkv, Skv, D]: contiguous arrays of the problem's dtype."""

    q: Array
    k: Array
    v: Array

    def digests(self) -> dict[str, str]:
        """sha256 of each array's bytes, under ``q``, ``k`` and ``v``."""
        return {name: hashlib.sha256(getattr(self, name).tobytes()).hexdigest() for name in ("q", "k", "v")}


class _Source:
    """Independent streams of float64 numbers, one for each name, all fixed by (kind, problem, seed)."""

    def __init__(self, kind: str, problem: Problem, seed: int) -> None:
        self._label = json.dumps([kind, problem.to_dict(), seed], sort_keys=True)
        self.problem = problem

    def uniform(self, name: str, shape: tuple[int, ...]) -> F64:
        """Uniform over (0, 1): the middles of 2**53 equal intervals, so that neither end occurs."""
        digest = hashlib.sha256(f"{name}:{self._label}".encode()).digest()
        stream = np.random.Philox(key=int.from_bytes(digest[:16], "little"))
        raw: npt.NDArray[np.uint64] = stream.random_raw(math.prod(shape)).reshape(shape)
        unit: F64 = ((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        return unit

    def normal(self, name: str, shape: tuple[int, ...]) -> F64:
        """Standard normal."""
        half = (math.prod(shape) + 1) // 2
        pair = self.uniform(name, (2, half))
        radius, angle = np.sqrt(-2.0 * np.log(pair[0])), 2.0 * math.pi * pair[1]
        return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[: math.prod(shape)].reshape(shape)

    def signs(self, name: str, shape: tuple[int, ...]) -> F64:
        """-1 or +1, equally likely."""
        return np.where(self.uniform(name, shape) < 0.5, -1.0, 1.0)

    def normal_qkv(self) -> tuple[F64, F64, F64]:
        """Q, K and V all standard normal."""
        problem = self.problem
        return (
            self.normal("q", problem.q_shape),
            self.normal("k", problem.kv_shape),
            self.normal("v", problem.kv_shape),
        )


def _normal(source: _Source) -> tuple[F64, F64, F64]:
    """Independent standard normals: what everybody tests, and what the mission's twelve cases use."""
    return source.normal_qkv()


def _uniform(source: _Source) -> tuple[F64, F64, F64]:
    """K = 0 and V of small integers: every visible key weighs the same, so a key too many or too few, or a wrong count
    in the denominator, shifts every output."""
    q, k, _ = source.normal_qkv()
    return q, 0.0 * k, np.floor(source.uniform("v", source.problem.kv_shape) * 17.0) - 8.0


def _needle(source: _Source) -> tuple[F64, F64, F64]:
    """One visible key dominates each row so far that the row of O is that row of V: a permuted tile, a swapped row or
    a wrong head cannot hide in an average. Without a mask every key is some row's needle if Sq >= Skv."""
    problem = source.problem
    keys, dim = problem.seq_kv, problem.head_dim
    bits = max(1, (keys - 1).bit_length())
    if bits > dim:
        raise UserError(f"inputs 'needle': {problem.label} needs head_dim >= {bits} to tell {keys} keys apart")
    # Key j is the binary code of j in -1/+1, written as often as it fits: two keys differ in `repeats` places or more.
    repeats = dim // bits
    code = np.where((np.arange(keys)[:, None] >> (np.arange(dim) % bits)) & 1, 1.0, -1.0)
    code[:, repeats * bits :] = 0.0
    # A gap of 64 between the needle's score and the next: exp(-64) is far below any rounding of V.
    if problem.scale == 0.0:
        raise UserError(f"inputs 'needle': {problem.label} has scale 0, which no key can dominate")
    size = 2.0 ** math.ceil(math.log2(64.0 / (2 * repeats * abs(problem.scale))) / 2.0)
    rank = np.argsort(source.uniform("order", (problem.batch, problem.heads, keys)), axis=-1)
    wanted = np.take(rank, np.arange(problem.seq_q) % keys, axis=-1)
    if problem.causal:
        wanted = wanted % (np.minimum(np.arange(problem.seq_q), keys - 1) + 1)
    q = math.copysign(size, problem.scale) * code[wanted]
    k = np.broadcast_to(size * code, problem.kv_shape)
    return q, k, source.normal("v", problem.kv_shape)


def _sloped(source: _Source, rise: float) -> tuple[F64, F64, F64]:
    """Scores that rise by about ``rise`` from each key to the next, the same for every row, plus a little noise."""
    problem = source.problem
    direction = source.signs("direction", (problem.head_dim,))
    step = rise / (problem.head_dim * (problem.scale or 1.0))
    slope = step * (np.arange(problem.seq_kv) - (problem.seq_kv - 1) / 2.0)
    _, noise, v = source.normal_qkv()
    q = np.broadcast_to(direction, problem.q_shape)
    return q, direction * slope[:, None] + 0.25 * noise, v


def _ramp(source: _Source) -> tuple[F64, F64, F64]:
    """Scores rise along the keys, by 1/32 a key, so that the running maximum grows in every tile and every rescale
    counts: the surest probe of one that is lost."""
    return _sloped(source, 1.0 / 32.0)


def _reverse_ramp(source: _Source) -> tuple[F64, F64, F64]:
    """Scores fall along the keys: the first tile holds the maximum, and what later tiles add must be scaled down."""
    return _sloped(source, -1.0 / 32.0)


def _outlier(source: _Source) -> tuple[F64, F64, F64]:
    """One channel of K is 10 higher in every key, as in trained models: large scores that softmax must cancel."""
    q, k, v = source.normal_qkv()
    k[..., int(source.uniform("channel", (1,))[0] * source.problem.head_dim)] += 10.0
    return q, k, v


def _large_logits(source: _Source) -> tuple[F64, F64, F64]:
    """Q times 8: a sharp softmax, where a score held in too few bits, or a clamped exponential, shows."""
    q, k, v = source.normal_qkv()
    return 8.0 * q, k, v


def _equal(source: _Source) -> tuple[F64, F64, F64]:
    """All keys of a head are the same: the scores of a row are equal, and not zero, and O is the mean of visible V."""
    q, k, v = source.normal_qkv()
    return q, np.broadcast_to(k[:, :, :1], k.shape), v


def _tiny(source: _Source) -> tuple[F64, F64, F64]:
    """V near the least normal number of the dtype, and O, in float16, among the subnormals: a flush to zero shows."""
    q, k, v = source.normal_qkv()
    return q, k, v * (2.0**-14 if source.problem.dtype == "float16" else 2.0**-120)


def _huge(source: _Source) -> tuple[F64, F64, F64]:
    """V near the largest numbers of float16, and Q large against a small K: an accumulator or a scaled Q held in
    float16 overflows. (In bfloat16, whose range is float32's, V stays at 2**100: a sum over keys must fit float32.)"""
    q, k, _ = source.normal_qkv()
    top = 65504.0 if source.problem.dtype == "float16" else 2.0**100
    v = top * (2.0 * source.uniform("v", source.problem.kv_shape) - 1.0)
    return 2.0**12 * q, 2.0**-12 * k, v


_MAKERS: dict[str, Callable[[_Source], tuple[F64, F64, F64]]] = {
    "normal": _normal,
    "uniform": _uniform,
    "needle": _needle,
    "ramp": _ramp,
    "reverse_ramp": _reverse_ramp,
    "outlier": _outlier,
    "large_logits": _large_logits,
    "equal": _equal,
    "tiny": _tiny,
    "huge": _huge,
}

INPUT_KINDS: dict[str, str] = {kind: " ".join((maker.__doc__ or "").split()) for kind, maker in _MAKERS.items()}
"""Every kind of inputs, and what it is for."""


def dtype_of(problem: Problem) -> np.dtype[Any]:
    """NumPy dtype of the problem's Q, K, V and O (``ml_dtypes.bfloat16`` for bfloat16)."""
    return np.dtype(np.float16 if problem.dtype == "float16" else ml_dtypes.bfloat16)


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
        If there is no such kind, the seed is negative, or the problem is one that this kind cannot be made for.
    """
    if kind not in _MAKERS:
        raise UserError(f"inputs must be one of {', '.join(_MAKERS)}, not {kind!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UserError(f"seed must be an integer that is not negative, not {seed!r}")
    dtype = dtype_of(problem)
    q, k, v = _MAKERS[kind](_Source(kind, problem, seed))
    return Inputs(*(np.ascontiguousarray(array.astype(dtype)) for array in (q, k, v)))
