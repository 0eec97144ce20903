"""Tolerance of a GPU's output against the simulator's: derived from what the kernel declares and how the GPU adds.

Both run the same PTX on the same inputs, so they differ only where hardware rounds otherwise than the simulator does.
The distance is the relative L2 norm of the outputs' difference. It has four sources, and the tolerance is their sum:

1. *The output's rounding.* Sums that differ in their last bits are rounded to the output's type. Two independent
   roundings to a type of unit roundoff u differ by sqrt(1/6) ulp in the mean square, which is at most 0.82 u of the
   number: u is allowed.
2. *Weights that are rounded to the other neighbour.* The weight p = exp2(x), x = s * log2(e), has a relative error of
   about eps = (2 + max|x|) 2^-23: two ulp of ex2.approx (PTX manual, "ex2"), and the rounding of x. Rounded to a type
   of unit roundoff u_P, whose numbers are 2 u_P p apart, it goes to the other neighbour in a share eps / (2 u_P) of all
   cases, which moves it by 2 u_P p: in the mean square sqrt(2 u_P eps). That of the output is no larger.
3. *Inputs that are quantised to the other neighbour*, likewise: the quotient x / scale has a relative error of 2^-23
   where the two divide differently, for each of Q, K and V, hence sqrt(3) sqrt(2 u 2^-23) with u = 2^-4 for e4m3.
4. *Narrow sums.* Tensor cores add a block of products by aligning them to the largest, keeping F fraction bits of each
   and cutting the rest off. With F >= 23 that is below the output's rounding. On e4m3 operands wgmma of Hopper keeps
   F = 13 in blocks of 32 products, as mma.sync of Ada does in blocks of 16, and so does the sum itself; the simulator
   adds in float32. The effect on an output depends on the inputs, so it is emulated: attention as the kernel
   declares it, once with such sums and once with exact ones. Twice their distance is allowed: the emulation takes the
   weights against the final maximum and not against a running one, and so cuts other bits off.

Sources: public models and words of GPUs (A. Khattak, M. Mikaitis, arXiv 2512.07004 and 2511.10909, and the models that
they publish); for the mma.sync of e4m3 on sm_90, which is two of float16 with wide sums, its SASS.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from sdpalab import Problem
from sdpalab.inputs import Inputs
from sdpalab.kernels.kernel import Numerics

__all__ = ["Sums", "Tolerance", "attention", "exact_product", "narrow_sums", "tolerance", "truncated_product"]

Array = np.ndarray[Any, Any]
Product = Callable[[Array, Array], Array]

UNIT_ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float8_e4m3fn": 2.0**-4}
FLOAT8_MAX = 448.0
LEAST_EXPONENT = -6
"""Exponent of e4m3 with which subnormal numbers are aligned."""
EMULATION_MARGIN = 2.0


@dataclass(frozen=True)
class Sums:
    """How a tensor core adds: ``terms`` products at a time, of which ``bits`` fraction bits are kept."""

    terms: int
    bits: int


@dataclass(frozen=True)
class Tolerance:
    """The four sources, as relative L2 distances; :attr:`total` is what is allowed."""

    output: float
    weights: float
    inputs: float
    sums: float

    @property
    def total(self) -> float:
        """Their sum."""
        return self.output + self.weights + self.inputs + self.sums


def narrow_sums(ptx: Iterable[bytes], arch: str) -> Sums | None:
    """How the products of e4m3 in this PTX are added on ``arch``, if that is in less than float32's 24 bits."""
    text = b"\n".join(ptx)
    if re.search(rb"wgmma\.mma_async\S*\.e4m3", text):
        return Sums(32, 13)
    if arch == "sm_89" and re.search(rb"\bmma\.sync\S*\.e4m3", text):
        return Sums(16, 13)
    return None


def tolerance(problem: Problem, inputs: Inputs, numerics: Numerics, sums: Sums | None) -> Tolerance:
    """The greatest relative L2 distance that the four sources explain, for one kernel on one set of inputs.

    Parameters
    ----------
    problem, inputs
        What is computed; q, k and v finite.
    numerics : Numerics
        What the kernel declares for its configuration.
    sums : Sums, optional
        As :func:`narrow_sums` says; None for wide ones.
    """
    p_type = problem.dtype if numerics.probabilities == "problem" else numerics.probabilities
    longest = [float(np.linalg.norm(each.astype(np.float64), axis=-1).max()) for each in (inputs.q, inputs.k)]
    largest_score = abs(problem.scale) * longest[0] * longest[1]
    eps = (2.0 + largest_score * math.log2(math.e)) * 2.0**-23
    quantised = numerics.quantised
    narrow = 0.0
    if sums is not None and quantised is not None:
        exact = attention(problem, inputs, numerics, exact_product)
        cut = attention(problem, inputs, numerics, lambda left, right: truncated_product(left, right, sums))
        narrow = float(np.linalg.norm(cut - exact) / np.linalg.norm(exact))
    return Tolerance(
        output=UNIT_ROUNDOFF[problem.dtype],
        weights=_other_neighbour(UNIT_ROUNDOFF[p_type], eps),
        inputs=math.sqrt(3) * _other_neighbour(UNIT_ROUNDOFF[quantised.dtype], 2.0**-23) if quantised else 0.0,
        sums=EMULATION_MARGIN * narrow,
    )


def _other_neighbour(roundoff: float, eps: float) -> float:
    """Root mean square of what changes where a relative error ``eps`` comes before a rounding."""
    return math.sqrt(2.0 * roundoff * eps)


def exact_product(left: Array, right: Array) -> Array:
    """``left @ right`` in float64."""
    return left @ right


def truncated_product(left: Array, right: Array, sums: Sums) -> Array:
    """``left @ right`` of numbers of e4m3 as a tensor core with narrow sums computes it.

    Parameters
    ----------
    left, right : ndarray of float64, [M, K] and [K, N]
    sums : Sums

    Returns
    -------
    ndarray of float64, [M, N]
    """
    total = np.zeros((left.shape[0], right.shape[1]))
    for start in range(0, left.shape[1], sums.terms):
        a, b = left[:, start : start + sums.terms, None], right[None, start : start + sums.terms, :]
        products = a * b
        exponents = np.where(products != 0.0, _exponent(a) + _exponent(b), -(1 << 20)).max(axis=1)
        exponents = np.maximum(exponents, np.where(total != 0.0, np.frexp(total)[1] - 1, -(1 << 20)))
        unit = np.ldexp(1.0, np.maximum(exponents, -1000) - sums.bits)
        terms = np.trunc(products / unit[:, None, :]).sum(axis=1) + np.trunc(total / unit)
        total = _cut(terms * unit, sums.bits)
    return total


def _exponent(numbers: Array) -> Array:
    return np.maximum(np.frexp(numbers)[1] - 1, LEAST_EXPONENT)


def _cut(numbers: Array, bits: int) -> Array:
    """Numbers with ``bits`` fraction bits, rounded toward zero."""
    fractions, exponents = np.frexp(numbers)
    return np.ldexp(np.trunc(np.ldexp(fractions, bits + 1)), exponents - bits - 1)


def attention(problem: Problem, inputs: Inputs, numerics: Numerics, product: Product) -> Array:
    """Attention on quantised inputs with this product of numbers of e4m3; the rest in float64, not rounded at the end.

    Returns
    -------
    ndarray of float64, [B, H, Sq, D]
    """
    quantised = numerics.quantised
    assert quantised is not None, "only of what is quantised the products are emulated"
    (q, q_scales), (k, k_scales), (v, v_scales) = (_quantise(each, quantised.rows) for each in inputs.arrays.values())
    narrow = numerics.probabilities == "float8_e4m3fn"
    rows = quantised.rows or problem.seq_kv
    out = np.zeros(problem.q_shape)
    future = np.arange(problem.seq_kv)[None, :] > np.arange(problem.seq_q)[:, None]
    for b in range(problem.batch):
        for h in range(problem.heads):
            kv = h // problem.group
            scores = product(q[b, h], k[b, kv].T) * q_scales[b, h] * k_scales[b, kv].T * problem.scale
            if problem.causal:
                scores = np.where(future, -np.inf, scores)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            p = weights * numerics.probability_scale
            if narrow:
                p = p.astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
            for start in range(0, problem.seq_kv, rows):
                keys = slice(start, start + rows)
                second = product if narrow else exact_product  # weights of 16 bits are multiplied in 16 bits
                out[b, h] += second(p[:, keys], v[b, kv, keys]) * v_scales[b, kv, start]
            out[b, h] /= weights.sum(axis=1, keepdims=True) * numerics.probability_scale
    return out


def _quantise(array: Array, rows: int) -> tuple[Array, Array]:
    """Numbers of e4m3, [B, H, S, D], and the scale of each row, [B, H, S, 1]: as Quantisation describes it."""
    single, rows = array.astype(np.float32), rows or array.shape[2]
    numbers, scales = np.empty(array.shape), np.empty((*array.shape[:3], 1))
    for start in range(0, array.shape[2], rows):
        block = single[:, :, start : start + rows]
        scale = np.abs(block).max(axis=(2, 3), keepdims=True) / np.float32(FLOAT8_MAX)
        scale = np.where(scale > 0, scale, np.float32(1))
        clipped = np.clip(block / scale, -FLOAT8_MAX, FLOAT8_MAX)
        numbers[:, :, start : start + rows] = clipped.astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
        scales[:, :, start : start + rows] = scale
    return numbers, scales
