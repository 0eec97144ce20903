"""Runs the algebraic stage: its problems, its inputs, and the record of its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import dtype_of
from sdpalab.judge.algebra.attention import SEED, RingComparison, expected_factor
from sdpalab.judge.algebra.gradients import RING, compare, drawn, sees_keys
from sdpalab.judge.algebra.outcome import AlgebraCase, AlgebraStatus
from sdpalab.problem import HALF_DTYPES, Problem
from warpsan.numerics import RINGS

__all__ = ["SCALE", "SEED", "algebra_case", "algebra_problems", "drawn", "has_codes", "reordered"]

Array = npt.NDArray[Any]
LENGTH = 173
"""Sequence length: prime, three tiles of 64 with a ragged last one, and cheap to simulate."""
SCALE = 0.125
"""Scale of the problems: a power of 2, so the order of folding it into log2 e does not matter; 1.5 * log2 e would be
rounded."""
SHORTER = 0.4
"""Length of the second batch entry as a share of the keys, where a problem has lengths."""


def algebra_problems(problem: Problem) -> Iterator[Problem]:
    """Small problems for a judged problem: its head_dim, dtype, group, window and lengths, with and without the causal
    mask. Empty where the ring does not apply (:func:`has_codes`)."""
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
    """Whether a problem has a form in the ring: dense, 16-bit elements, no soft cap, no arrays other than lengths.

    The tanh of a soft cap has no meaning in a ring, even if a kernel computes it from exponentials: a capped score is
    an exponent with a residue mod p - 1, which is 1 for every exponential. Masks, slopes and sinks are not codes. For
    gradients every row must see a key: its log-sum-exp is a code.
    """
    plain = problem.layout_form.dense and problem.dtype in HALF_DTYPES and not problem.softcap
    given = {"do", "o", "lse"} if problem.backward else set()
    return plain and set(problem.array_shapes) <= {"kv_lengths", *given} and (not given or sees_keys(problem))


def reordered(problem: Problem) -> bool:
    """Whether a problem is run with the second order of the codes (:attr:`warpsan.numerics.ring.Ring.spacing`): true
    under a causal mask. One of the two small problems then exceeds a threshold, and the other does not."""
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
        Reply of the process: ``ring``, ``not_algebraic`` and ``ptx_sha256``, or a ``status`` with its ``reason``.
    outputs : mapping of str to ndarray
        The outputs of the task, and ``lse`` if a kernel of the forward pass writes it.
    keep : callable
        Stores an array and returns the sha256 of its bytes.
    seed : int
    config : str
        Knobs of the run that differ from the judged ones.
    """
    name = f"{problem.label} in the ring"
    if reply.get("status") is not None:
        return AlgebraCase(name, problem, seed, AlgebraStatus.NOT_RUN, str(reply["reason"]), config=config)
    if reply.get("not_algebraic"):
        refusal = str(reply["not_algebraic"])
        return AlgebraCase(name, problem, seed, AlgebraStatus.NOT_ALGEBRAIC, refusal, config=config)
    ring = RINGS[str(reply["ring"])]
    draws = drawn(problem, seed)
    if problem.backward and ring.prime != RING.prime:
        refusal = "gradients of a kernel with 8-bit types have no inputs in their ring"
        return AlgebraCase(name, problem, seed, AlgebraStatus.NOT_RUN, refusal, config=config)
    inputs = {tensor: ring.elements(each) for tensor, each in draws.items() if each.dtype == np.uint16}
    comparison = compare(ring, problem, inputs, outputs)
    unequal = bool(comparison.unequal or comparison.lse_unequal)
    types = {tensor: "float32" if tensor == "lse" else problem.dtype for tensor in inputs}
    arrays = {tensor: ring.encoded(codes, dtype_of(types[tensor])) for tensor, codes in inputs.items()}
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
    """The unequal outputs, in a sentence."""
    if comparison.first is not None:
        b, h, i, d = comparison.first
        called = "O" if comparison.output == "o" else f"the gradients, {comparison.output} among them,"
        return (
            f"in exact arithmetic {comparison.unequal} of {comparison.compared} elements of {called} are not those of "
            f"attention, the first at batch {b}, head {h}, row {i}, column {d}: the data flow is wrong, whatever the "
            "tolerance"
        )
    return (
        f"in exact arithmetic O is that of attention, and the log-sum-exp of {comparison.lse_unequal} rows is not the "
        "logarithm of their sum of weights"
    )
