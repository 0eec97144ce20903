"""Attention in NumPy over tiles of keys, in many orders and with many roundings; none of it is the judge's own."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from sdpalab.inputs import Inputs, dtype_of
from sdpalab.problem import Problem

Array = npt.NDArray[Any]
F32 = np.float32
FLOAT8 = ml_dtypes.float8_e4m3fn
LOG2E = F32(math.log2(math.e))


@dataclass
class Tiles:
    """Scores of one tile of keys after the other, in float32."""

    problem: Problem
    inputs: Inputs
    size: int = 64
    factor: float = 1.0

    def __post_init__(self) -> None:
        self.q = self.inputs.q.astype(F32)
        self.k, self.v = (np.repeat(x.astype(F32), self.problem.group, axis=1) for x in (self.inputs.k, self.inputs.v))
        self.starts = list(range(0, self.problem.seq_kv, self.size))

    def scores(self, start: int) -> Array:
        """scale * factor * Q K^T of the tile, -inf where hidden, [B, H, Sq, keys]."""
        s = self.q @ self.k[:, :, start : start + self.size].swapaxes(-1, -2)
        s = s * F32(self.problem.scale * self.factor)
        if self.problem.causal:
            s = np.where(np.arange(start, start + s.shape[-1]) > np.arange(s.shape[2])[:, None], F32(-np.inf), s)
        return s

    def values(self, start: int) -> Array:
        """V of the tile."""
        return self.v[:, :, start : start + self.size]

    def nothing(self) -> tuple[Array, Array, Array]:
        """Running maximum, sum and output before the first tile."""
        m = np.full((*self.problem.q_shape[:3], 1), -np.inf, F32)
        return m, np.zeros_like(m), np.zeros(self.problem.q_shape, F32)


def _finite_max(m: Array) -> Array:
    """0 for rows that have seen no key yet: exp(-inf - -inf) is NaN, exp(-inf - 0) is 0."""
    return np.where(np.isinf(m), F32(0), m)


@dataclass(frozen=True)
class Rounding:
    """Rounding of an online softmax. The defaults are those of a tensor-core kernel; all others are worse.

    A type of None is the problem's. The accumulator of O is rounded after every so many keys (0: every tile).
    """

    p_type: Any = None
    p_scale: float = 1.0
    score_type: Any = F32
    sum_type: Any = F32
    accumulator: Any = F32
    accumulate_every: int = 0
    chop_p: bool = False
    chop_output: bool = False

    def of(self, dtype: Any) -> Rounding:
        """With the problem's dtype for None."""
        names = ("p_type", "score_type", "sum_type", "accumulator")
        return replace(self, **{name: getattr(self, name) or dtype for name in names})


def online(
    problem: Problem,
    inputs: Inputs,
    *,
    tile: int = 64,
    reverse: bool = False,
    base: int = 2,
    reciprocal: bool = False,
    lazy: float = 0.0,
    rounding: Rounding = Rounding(),
) -> Array:
    """Flash attention (Dao et al., 2022): online softmax, the sum divided out at the end.

    ``lazy``: the maximum is only replaced by one that is larger by that much (in units of the exponent), as
    FlashAttention-4 does.
    """
    dtype = dtype_of(problem.dtype)
    rounding = rounding.of(dtype)
    tiles = Tiles(problem, inputs, tile, float(LOG2E) if base == 2 else 1.0)
    power = np.exp2 if base == 2 else np.exp
    m, total, out = tiles.nothing()
    for start in tiles.starts[:: -1 if reverse else 1]:
        s = tiles.scores(start).astype(rounding.score_type).astype(F32)
        top = np.maximum(m, s.max(-1, keepdims=True))
        new = np.where(top > m + F32(lazy), top, m)
        p = power(s - _finite_max(new))
        factor = power(m - _finite_max(new))
        total = (total * factor + p.sum(-1, keepdims=True)).astype(rounding.sum_type).astype(F32)
        p = p * F32(rounding.p_scale)
        p = (chopped(p, dtype) if rounding.chop_p else p.astype(rounding.p_type)).astype(F32)
        out = _added(out * factor, p, tiles.values(start), rounding)
        m = new
    total = total * F32(rounding.p_scale)
    out = out * (F32(1) / total) if reciprocal else out / total
    return chopped(out, dtype) if rounding.chop_output else out.astype(dtype)


def chopped(x: Array, dtype: Any) -> Array:
    """float32 ``x`` rounded towards zero in ``dtype``."""
    near = x.astype(dtype)
    below = np.nextafter(near, near.dtype.type(0))
    return np.where(np.abs(near.astype(F32)) > np.abs(x), below, near)


def _added(out: Array, p: Array, v: Array, rounding: Rounding) -> Array:
    """``out + p @ v``, the sum rounded to the accumulator's type after every few keys."""
    step = rounding.accumulate_every or p.shape[-1]
    for start in range(0, p.shape[-1], step):
        part = slice(start, start + step)
        with np.errstate(over="ignore"):
            out = (out + p[..., part] @ v[:, :, part]).astype(rounding.accumulator).astype(F32)
    return out


def two_pass(problem: Problem, inputs: Inputs, *, tile: int = 32, first: bool = False) -> Array:
    """Maximum and sum of all tiles, then the products; ``first``: P is normalised before it is rounded."""
    tiles = Tiles(problem, inputs, tile)
    m, total, out = tiles.nothing()
    for start in tiles.starts:
        m = np.maximum(m, tiles.scores(start).max(-1, keepdims=True))
    for start in tiles.starts:
        total = total + np.exp(tiles.scores(start) - m).sum(-1, keepdims=True)
    for start in tiles.starts:
        p = np.exp(tiles.scores(start) - m)
        p = (p / total if first else p).astype(inputs.q.dtype).astype(F32)
        out = out + p @ tiles.values(start)
    return (out if first else out / total).astype(inputs.q.dtype)


def fused_exponent(problem: Problem, inputs: Inputs, *, tile: int = 64) -> Array:
    """exp2 of one fused multiply-add, s * c - m * c with c = scale * log2(e), as kernels compile it."""
    tiles = Tiles(problem.with_(scale=1.0), inputs, tile)
    c = F32(problem.scale) * LOG2E
    m, total, out = tiles.nothing()
    for start in tiles.starts:
        s = tiles.scores(start) * (F32(-1) if c < 0 else F32(1))
        new = np.maximum(m, s.max(-1, keepdims=True))
        offset = (_finite_max(new) * abs(c)).astype(np.float64)
        with np.errstate(invalid="ignore"):
            exponent = np.where(np.isinf(s), -np.inf, s.astype(np.float64) * float(abs(c)) - offset)
            factor = np.exp2(np.where(np.isinf(m), F32(-np.inf), m * abs(c) - offset.astype(F32)))
        p = np.exp2(exponent.astype(F32))
        total = total * factor + p.sum(-1, keepdims=True)
        out = out * factor + p.astype(inputs.q.dtype).astype(F32) @ tiles.values(start)
        m = new
    return (out * (F32(1) / total)).astype(inputs.q.dtype)


def key_by_key(problem: Problem, inputs: Inputs) -> Array:
    """One key at a time, with running averages in place of sums (Rabe and Staats, 2021); P is not rounded."""
    tiles = Tiles(problem, inputs, 1)
    m, total, mean = tiles.nothing()
    for start in tiles.starts:
        s = tiles.scores(start)
        new = np.maximum(m, s)
        weight = np.exp(s - _finite_max(new))
        total = total * np.exp(m - _finite_max(new)) + weight
        share = weight / np.where(total > 0, total, F32(1))
        mean = mean + share * (tiles.values(start) - mean)
        m = new
    return mean.astype(inputs.q.dtype)


@dataclass(frozen=True)
class Part:
    """Result over some keys: log-sum-exp [B, H, Sq, 1] and the normalised output [B, H, Sq, D], both float32."""

    lse: Array
    out: Array

    @classmethod
    def of(cls, tiles: Tiles, starts: list[int]) -> Part:
        """Over the tiles that begin at ``starts``."""
        m, total, out = tiles.nothing()
        for start in starts:
            s = tiles.scores(start)
            new = np.maximum(m, s.max(-1, keepdims=True))
            p = np.exp(s - _finite_max(new))
            factor = np.exp(m - _finite_max(new))
            total = total * factor + p.sum(-1, keepdims=True)
            out = out * factor + p.astype(tiles.inputs.q.dtype).astype(F32) @ tiles.values(start)
            m = new
        with np.errstate(divide="ignore"):
            return cls(m + np.log(total), out / np.where(total > 0, total, F32(1)))

    def __add__(self, other: Part) -> Part:
        with np.errstate(invalid="ignore"):  # a head of NaN
            lse = np.logaddexp(self.lse, other.lse)
        left, right = (np.exp(part.lse - _finite_max(lse)) for part in (self, other))
        return Part(lse, left * self.out + right * other.out)


def split_kv(problem: Problem, inputs: Inputs, *, splits: int, tile: int = 16) -> Array:
    """Keys in ``splits`` parts, each normalised, merged all at once by their log-sum-exp (flash decoding)."""
    tiles = Tiles(problem, inputs, tile)
    share = -(-len(tiles.starts) // splits)
    parts = [Part.of(tiles, tiles.starts[at : at + share]) for at in range(0, len(tiles.starts), share)]
    top = np.maximum.reduce([part.lse for part in parts])
    weights = [np.exp(part.lse - top) for part in parts]
    out = sum(weight * part.out for weight, part in zip(weights, parts, strict=True))
    return np.asarray(out / sum(weights)).astype(inputs.q.dtype)


def tree(problem: Problem, inputs: Inputs, *, tile: int = 32) -> Array:
    """Tiles merged two by two, as a reduction over a cluster does it."""
    tiles = Tiles(problem, inputs, tile)
    parts = [Part.of(tiles, [start]) for start in tiles.starts]
    while len(parts) > 1:
        parts = [left + right for left, right in zip(parts[::2], parts[1::2], strict=False)] + (
            parts[-1:] if len(parts) % 2 else []
        )
    return parts[0].out.astype(inputs.q.dtype)


def quantised(x: Array, rows: int) -> Array:
    """float8 and back, with a scale of max|x| / 448 for each ``rows`` rows (0: a head), in float32."""
    parts = np.split(x.astype(F32), range(rows, x.shape[2], rows), axis=2) if rows else [x.astype(F32)]
    out = []
    for part in parts:
        scale = np.abs(part).max(axis=(2, 3), keepdims=True) / F32(448)
        scale[scale == 0] = 1
        out.append((part / scale).astype(FLOAT8).astype(F32) * scale)
    return np.concatenate(out, axis=2)


def online_float8(
    problem: Problem, inputs: Inputs, *, rows: int, rounding: Rounding = Rounding(p_type=FLOAT8, p_scale=256.0)
) -> Array:
    """Q, K and V in float8, P in float8 times 256 (or as ``rounding`` says), online."""
    arrays = (quantised(x, rows) for x in (inputs.q, inputs.k, inputs.v))
    return online(problem, Inputs(*arrays), rounding=rounding)


def rounded_query(problem: Problem, inputs: Inputs) -> Array:
    """Q times scale * log2(e), rounded to 16 bits before the product."""
    factor = problem.scale * float(LOG2E)
    q = (inputs.q.astype(F32) * F32(factor)).astype(inputs.q.dtype)
    return online(problem.with_(scale=1.0 / float(LOG2E)), replace(inputs, q=q))
