"""Running the stage: its problems, its inputs, and from outputs to a record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy.typing as npt

from sdpalab.inputs import dtype_of
from sdpalab.judge.algebra.attention import SEED, RingComparison, compare, drawn, expected_factor
from sdpalab.judge.algebra.outcome import AlgebraCase, AlgebraStatus
from sdpalab.problem import HALF_DTYPES, Problem
from warpsan.numerics import RINGS

__all__ = ["SCALE", "SEED", "algebra_case", "algebra_problems", "drawn", "has_codes", "reordered"]

Array = npt.NDArray[Any]
LENGTH = 173
"""Of the sequence: prime, three tiles of 64 with the last one ragged, and cheap to simulate."""
SCALE = 0.125
"""A power of 2, so that it does not matter who folds it into log2 e: 1.5 * log2 e is rounded, in one way or another."""
SHORTER = 0.4
"""Share of the keys that the second batch entry has, where a problem has lengths."""


def algebra_problems(problem: Problem) -> Iterator[Problem]:
    """The small problems for a problem that is judged: its head_dim, dtype, group, window and lengths, causal and not.
    None where that cannot be asked (:func:`has_codes`)."""
    kv_heads = min(problem.kv_heads, 2)
    same = problem.seq_q == problem.seq_kv
    keys = LENGTH if same else min(problem.seq_kv, LENGTH)
    small = problem.with_(
        batch=min(problem.batch, 2) if problem.kv_lengths is None else 2,
        heads=kv_heads * problem.group,
        kv_heads=kv_heads,
        seq_q=LENGTH if same else min(problem.seq_q, LENGTH),
        seq_kv=keys,
        scale=SCALE,
        kv_lengths=None if problem.kv_lengths is None else (keys, int(SHORTER * keys)),
    )
    if has_codes(small):
        yield small
        yield small.with_(causal=not small.causal)


def has_codes(problem: Problem) -> bool:
    """Whether a problem can be asked in a ring: its elements have 16 bits, and it has neither a soft cap nor arrays
    other than lengths.

    The tanh of a soft cap has no meaning in a ring, even where a kernel makes it of exponentials: a capped score is an
    exponent, of which the residue mod p - 1 counts, and that is 1 for every exponential. Masks, slopes and sinks are no
    codes.
    """
    return problem.dtype in HALF_DTYPES and not problem.softcap and set(problem.array_shapes) <= {"kv_lengths"}


def reordered(problem: Problem) -> bool:
    """Whether a problem is run with the second order of the codes (:attr:`warpsan.numerics.ring.Ring.spacing`): under a
    causal mask. So of the two small problems one sees a threshold exceeded, and the other does not."""
    return problem.causal


def algebra_case(
    problem: Problem,
    reply: Mapping[str, Any],
    outputs: Mapping[str, Array],
    keep: Callable[[Array], str],
    seed: int = SEED,
    config: str = "",
) -> AlgebraCase:
    """The record of a run.

    Parameters
    ----------
    problem : Problem
    reply : mapping
        Of the process that ran it: ``ring``, ``not_algebraic`` and ``ptx_sha256``, or a ``status`` with its ``reason``.
    outputs : mapping of str to ndarray
        ``o``, and ``lse`` of a kernel that writes it.
    keep : callable
        Keeps an array and gives the sha256 of its bytes.
    seed : int
    config : str
        Knobs that it ran with in place of those that were judged.
    """
    name = f"{problem.label} in the ring"
    if reply.get("status") is not None:
        return AlgebraCase(name, problem, seed, AlgebraStatus.NOT_RUN, str(reply["reason"]), config=config)
    if reply.get("not_algebraic"):
        refusal = str(reply["not_algebraic"])
        return AlgebraCase(name, problem, seed, AlgebraStatus.NOT_ALGEBRAIC, refusal, config=config)
    ring = RINGS[str(reply["ring"])]
    draws = drawn(problem, seed)
    inputs = {tensor: ring.elements(draws[tensor]) for tensor in ("q", "k", "v")}
    comparison = compare(ring, problem, inputs, outputs["o"], outputs.get("lse"))
    unequal = bool(comparison.unequal or comparison.lse_unequal)
    dtype = dtype_of(problem.dtype)
    arrays = {tensor: ring.encoded(codes, dtype) for tensor, codes in inputs.items()}
    return AlgebraCase(
        name,
        problem,
        seed,
        AlgebraStatus.UNEQUAL if unequal else AlgebraStatus.EQUAL,
        _reason(comparison) if unequal else "",
        ring.prime,
        comparison.factor,
        expected_factor(ring, problem),
        comparison.compared,
        comparison.unequal,
        comparison.left_out,
        comparison.lse_unequal,
        {tensor: keep(array) for tensor, array in {**arrays, **outputs}.items()},
        tuple(reply["ptx_sha256"]),
        str(reply.get("lse_refusal", "")),
        config,
    )


def _reason(comparison: RingComparison) -> str:
    """What is unequal, in a sentence."""
    if comparison.first is not None:
        b, h, i, d = comparison.first
        return (
            f"in exact arithmetic {comparison.unequal} of {comparison.compared} elements of O are not those of "
            f"attention, the first at batch {b}, head {h}, row {i}, column {d}: the data flow is wrong, whatever the "
            "tolerance"
        )
    return (
        f"in exact arithmetic O is that of attention, and the log-sum-exp of {comparison.lse_unequal} rows is not the "
        "logarithm of their sum of weights"
    )
