"""Attention in the ring, and the comparison of a kernel's outputs with it."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.inputs.visibility import visible_keys
from sdpalab.problem import Problem
from warpsan.numerics import LOG2_E, Ring

__all__ = [
    "SEED",
    "RingComparison",
    "compare",
    "drawn",
    "expected_factor",
    "scores",
    "seen_keys",
    "weights",
]

Array = npt.NDArray[Any]
SEED = 0
"""Default seed of the codes of Q, K and V."""
_ROWS_TRIED = 24
"""Rows of a head on which every factor is tried before all rows are compared: at least 192 elements."""


@dataclass(frozen=True)
class RingComparison:
    """Comparison of a kernel's outputs with attention in the ring.

    Attributes
    ----------
    factor : int
        scale * log2 e mod p - 1 by which the scores were multiplied: the expected factor, or the factor for which all
        outputs are equal.
    compared, unequal : int
        Number of elements of O, and number of those that differ mod p.
    first : tuple of int, optional
        The first element (b, h, i, d) that differs.
    left_out : int
        Rows whose sum of weights is 0 mod p, which has no inverse.
    lse_unequal : int, optional
        Rows whose log-sum-exp differs mod p - 1; None where there is none.
    """

    factor: int
    compared: int
    unequal: int
    first: tuple[int, int, int, int] | None
    left_out: int
    lse_unequal: int | None
    output: str = "o"
    """Name of the output with the first element that differs."""


@dataclass(frozen=True)
class _Attention:
    """O mod p [B, H, Sq, D], and sums of weights mod p [B, H, Sq]."""

    out: Array
    sums: Array


def expected_factor(ring: Ring, problem: Problem) -> int:
    """scale * log2 e mod p - 1, for any order of folding: with a scale that is a power of 2 the order does not
    matter."""
    return ring.constant(float(np.float32(problem.scale) * LOG2_E)) % ring.order


def drawn(problem: Problem, seed: int = SEED) -> dict[str, Array]:
    """Random 16-bit numbers, uint16, from which :meth:`warpsan.numerics.ring.Ring.elements` makes the codes of Q, K and
    V; and the problem's lengths, int32, if any."""
    rng = np.random.default_rng(seed)
    shapes = {"q": problem.q_shape, "k": problem.kv_shape, "v": problem.v_shape}
    draws: dict[str, Array] = {
        name: rng.integers(0, 1 << 16, shape).astype(np.uint16) for name, shape in shapes.items()
    }
    return draws if problem.kv_lengths is None else {**draws, "kv_lengths": np.array(problem.kv_lengths, np.int32)}


def compare(ring: Ring, problem: Problem, inputs: dict[str, Array], out: Array, lse: Array | None) -> RingComparison:
    """Compare outputs with attention in the ring.

    If they are not equal with the expected factor, every other unit mod p - 1 is tried: a host may fold more than the
    scale into one constant, which is an arbitrary number in the ring.

    Parameters
    ----------
    ring : Ring
    problem : Problem
    inputs : dict of ndarray
        Codes of ``q``, ``k`` and ``v``.
    out, lse : ndarray
        Words that the kernel wrote, of the problem's dtype and float32.
    """
    codes, known = ring.decoded(out)
    seen = seen_keys(problem)
    products = scores(ring, problem, inputs)
    values = np.repeat(inputs["v"] % ring.prime, problem.group, axis=1)

    def wrong(factor: int, rows: slice = slice(None)) -> tuple[Array, Array]:
        """Masks of the elements that differ and of the rows that are left out."""
        attention = _attention(ring, products[:, :, rows], values, seen[:, :, rows], factor)
        left_out = (attention.sums == 0) & seen[:, :, rows].any(axis=3)
        differs = (codes[:, :, rows] % ring.prime != attention.out) | ~known[:, :, rows]
        return differs & ~left_out[..., None], left_out

    factor = expected_factor(ring, problem)
    unequal, left_out = wrong(factor)
    if unequal.any():
        tried = slice(max(0, problem.seq_q - _ROWS_TRIED), None)  # last rows: they see most keys under a mask
        units = (each for each in range(ring.order) if gcd(each, ring.order) == 1)
        other = next((each for each in units if not wrong(each, tried)[0].any()), None)
        if other is not None and not wrong(other)[0].any():
            factor, (unequal, left_out) = other, wrong(other)
    places = np.argwhere(unequal)
    sums = _attention(ring, products, values, seen, factor).sums
    return RingComparison(
        factor,
        int(unequal.size - left_out.sum() * problem.dim_v),
        len(places),
        tuple(int(each) for each in places[0]) if len(places) else None,  # type: ignore[arg-type]
        int(left_out.sum()),
        None if lse is None else _lse_unequal(ring, lse, sums, known_unit=factor == expected_factor(ring, problem)),
    )


def seen_keys(problem: Problem) -> Array:
    """Mask of the keys that each row sees, [B, 1, Sq, Skv]: all heads of a batch entry have the same mask."""
    rows = np.arange(problem.seq_q)
    entries = [visible_keys(rows, problem.seq_kv, head=(b, 0), **problem.scoring) for b in range(problem.batch)]
    seen: Array = np.stack(entries)[:, None]
    return seen


def scores(ring: Ring, problem: Problem, inputs: dict[str, Array]) -> Array:
    """Q K^T mod p - 1, [B, H, Sq, Skv]."""
    keys = np.repeat(inputs["k"] % ring.order, problem.group, axis=1)
    product: Array = np.matmul(inputs["q"] % ring.order, keys.swapaxes(2, 3)) % ring.order
    return product


def weights(ring: Ring, products: Array, seen: Array, factor: int) -> Array:
    """g^(factor * score) mod p, 0 for hidden keys, [B, H, rows, Skv]."""
    powers: Array = (ring.powers.astype(np.int64) % ring.prime)[products * factor % ring.order] * seen
    return powers


def _attention(ring: Ring, products: Array, values: Array, seen: Array, factor: int) -> _Attention:
    """O = sum of g^(factor * score) V over the visible keys, divided by the sum of g^(factor * score)."""
    weight = weights(ring, products, seen, factor)
    sums = weight.sum(axis=3) % ring.prime
    inverses = ring.inverses[0].astype(np.int64)[sums] % ring.prime
    out = np.matmul(weight, values) % ring.prime * inverses[..., None] % ring.prime
    return _Attention(out, sums)


def _lse_unequal(ring: Ring, lse: Array, sums: Array, *, known_unit: bool) -> int:
    """Rows whose log-sum-exp is not the logarithm of their sum.

    In base e it is that logarithm over log2 e. With another factor of the scores every unit is tried.
    """
    codes, known = ring.decoded(lse)
    judged = sums != 0
    logarithms = ring.logarithms.astype(np.int64)[sums]

    def wrong(unit: int) -> int:
        return int((judged & (~known | (codes * unit % ring.order != logarithms))).sum())

    units = (each for each in range(ring.order) if gcd(each, ring.order) == 1)
    least = wrong(ring.constant(float(LOG2_E)))
    return 0 if not known_unit and any(wrong(unit) == 0 for unit in units) else least
