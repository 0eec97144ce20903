"""The gradients of attention in the ring, their inputs, and the comparison of a kernel's dQ, dK and dV with them.

With s a score, L a row's log-sum-exp and u the code of log2 e, P = g^(u (scale s - L)) mod p, and the formulas of the
backward pass hold mod p: dP = dO V^T, delta = sum(dO O), dS = P (dP - delta), dV = P^T dO, dQ = scale dS K and dK =
scale dS^T Q. The exponents are mod p - 1. L and O are those of the forward pass in the ring, so delta is also the sum
of P dP. A row whose sum of weights is 0 mod p has no logarithm: its Q is drawn again.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.judge.algebra import attention
from sdpalab.judge.algebra.attention import SEED, RingComparison, expected_factor, seen_keys
from sdpalab.problem import Problem
from warpsan.numerics import LOG2_E, RINGS, Ring

__all__ = ["RING", "compare", "drawn", "sees_keys"]

Array = npt.NDArray[Any]
RING = RINGS["ring-251"]
"""Ring of the inputs of gradients; kernels with 8-bit types run in another one, and have no stage."""
_ROWS_TRIED = 24


def drawn(problem: Problem, seed: int = SEED) -> dict[str, Array]:
    """Inputs of a problem, as :func:`sdpalab.judge.algebra.attention.drawn`; those of a backward problem with dO, and
    with O and the log-sum-exp, whose numbers are codes of RING."""
    draws = attention.drawn(problem, seed)
    if not problem.backward:
        return draws
    rng = np.random.default_rng((seed, 1))
    codes = {name: RING.elements(draws[name]) for name in "qkv"}
    seen = seen_keys(problem)
    while True:
        weights = attention.weights(RING, attention.scores(RING, problem, codes), seen, expected_factor(RING, problem))
        sums = weights.sum(axis=3) % RING.prime
        if (sums != 0).all():
            break
        draws["q"][sums == 0] = rng.integers(0, 1 << 16, (int((sums == 0).sum()), problem.head_dim)).astype(np.uint16)
        codes["q"] = RING.elements(draws["q"])
    values = np.repeat(codes["v"] % RING.prime, problem.group, axis=1)
    out = _product(weights, values, RING.prime) * RING.inverses[0].astype(np.int64)[sums][..., None] % RING.prime
    log_sum = RING.logarithms.astype(np.int64)[sums] * pow(_log2_e(RING), -1, RING.order) % RING.order
    others = rng.integers(0, RING.order, out.shape), rng.integers(0, RING.prime, log_sum.shape)
    draws["do"] = rng.integers(0, 1 << 16, problem.o_shape).astype(np.uint16)
    draws["o"] = _code(out, others[0]).astype(np.uint16)
    draws["lse"] = _code(others[1], log_sum).astype(np.uint16)
    return draws


def sees_keys(problem: Problem) -> bool:
    """Whether every row sees a key; the log-sum-exp of another row has no code."""
    return bool(seen_keys(problem).any(axis=3).all())


def compare(ring: Ring, problem: Problem, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> RingComparison:
    """Compare the outputs of a problem with those in the ring; as :func:`sdpalab.judge.algebra.attention.compare`, also
    for gradients.

    Parameters
    ----------
    inputs : mapping of str to ndarray
        Codes of all inputs but lengths.
    outputs : mapping of str to ndarray
        Words of the outputs by name, and of ``lse`` if a kernel of the forward pass writes it.
    """
    if not problem.backward:
        return attention.compare(ring, problem, dict(inputs), outputs["o"], outputs.get("lse"))
    codes = {name: ring.decoded(outputs[name]) for name in problem.outputs}
    expected = _log2_e(ring)
    unit, unequal = expected, _unequal(problem, codes, _gradients(ring, problem, inputs, expected), ring)
    if any(each.any() for each in unequal.values()):
        tried = slice(max(0, problem.seq_q - _ROWS_TRIED), None)
        rows = {"dq": (codes["dq"][0][:, :, tried], codes["dq"][1][:, :, tried])}
        for other in (each for each in range(ring.order) if gcd(each, ring.order) == 1):
            if _unequal(problem, rows, _gradients(ring, problem, inputs, other, tried), ring)["dq"].any():
                continue
            again = _unequal(problem, codes, _gradients(ring, problem, inputs, other), ring)
            if not any(each.any() for each in again.values()):
                unit, unequal = other, again
                break
    wrong = next((name for name, each in unequal.items() if each.any()), "")
    place = np.argwhere(unequal[wrong])[0] if wrong else ()
    factor = unit * ring.constant(problem.scale) % ring.order
    return RingComparison(
        factor,
        sum(each.size for each in unequal.values()),
        sum(int(each.sum()) for each in unequal.values()),
        tuple(int(each) for each in place) if wrong else None,  # type: ignore[arg-type]
        0,
        None,
        wrong,
    )


def _gradients(
    ring: Ring, problem: Problem, inputs: Mapping[str, Array], unit: int, rows: slice = slice(None)
) -> dict[str, Array]:
    """dQ mod p of these rows of each head; for all rows also dK and dV."""
    p, scale, group = ring.prime, ring.constant(problem.scale), problem.group
    q, do, out = (inputs[name][:, :, rows] for name in ("q", "do", "o"))
    keys, values = (np.repeat(inputs[name], group, axis=1) for name in ("k", "v"))
    scores = _product(q % ring.order, (keys % ring.order).swapaxes(2, 3), ring.order)
    exponents = unit * (scale * scores - inputs["lse"][:, :, rows, None]) % ring.order
    weights = ring.powers.astype(np.int64)[exponents] % p * seen_keys(problem)[:, :, rows]
    product = _product(do % p, (values % p).swapaxes(2, 3), p)
    delta = (do % p * (out % p)).sum(axis=3, keepdims=True)
    ds = weights * ((product - delta) % p) % p
    dq = scale * _product(ds, keys % p, p) % p
    if rows != slice(None):
        return {"dq": dq}
    dk, dv = scale * _product(ds.swapaxes(2, 3), q % p, p), _product(weights.swapaxes(2, 3), do % p, p)
    shape = (problem.batch, problem.kv_heads, group)
    return {
        "dq": dq,
        **{name: each.reshape(*shape, *each.shape[2:]).sum(2) % p for name, each in (("dk", dk), ("dv", dv))},
    }


def _unequal(
    problem: Problem, codes: Mapping[str, tuple[Array, Array]], right: Mapping[str, Array], ring: Ring
) -> dict[str, Array]:
    """Masks of the elements of each gradient that differ; rows of dK and dV beyond a length are not compared."""
    masks = {name: (own % ring.prime != right[name]) | ~known for name, (own, known) in codes.items()}
    for b, length in enumerate(problem.kv_lengths or ()):
        for name in masks.keys() & {"dk", "dv"}:
            masks[name][b, :, length:] = False
    return masks


def _product(left: Array, right: Array, modulus: int) -> Array:
    """Matrix product of residues below 2**8, exact in float64, mod ``modulus``."""
    product: Array = np.matmul(left.astype(np.float64), right.astype(np.float64)).astype(np.int64) % modulus
    return product


def _log2_e(ring: Ring) -> int:
    return ring.constant(float(LOG2_E)) % ring.order


def _code(by_prime: Array, by_order: Array) -> Array:
    """Codes of RING with these residues mod p and mod p - 1."""
    p, order = RING.prime, RING.order
    codes: Array = (by_prime * order * pow(order, -1, p) + by_order * p * pow(p, -1, order)) % RING.modulus
    return codes
