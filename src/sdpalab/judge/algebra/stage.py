"""Running the stage: its problems, its inputs, and from outputs to a record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import dtype_of
from sdpalab.judge.algebra.attention import RingComparison, compare, expected_factor
from sdpalab.judge.algebra.outcome import AlgebraCase, AlgebraStatus
from sdpalab.problem import HALF_DTYPES, Problem
from sdpalab.sim.ring import RINGS

__all__ = ["SEED", "algebra_case", "algebra_problems", "drawn"]

Array = npt.NDArray[Any]
LENGTH = 173
"""Of the sequence: prime, three tiles of 64 with the last one ragged, and cheap to simulate."""
SCALE = 0.125
"""A power of 2, so that it does not matter who folds it into log2 e: 1.5 * log2 e is rounded, in one way or another."""
SEED = 0


def algebra_problems(problem: Problem) -> Iterator[Problem]:
    """The small problems for a problem that is judged: its head_dim, dtype, group and window, causal and not. None in
    float32, and none with further arrays: masks, slopes and sinks are no codes."""
    if problem.dtype not in HALF_DTYPES or problem.array_shapes:
        return
    kv_heads = min(problem.kv_heads, 2)
    same = problem.seq_q == problem.seq_kv
    small = problem.with_(
        batch=min(problem.batch, 2),
        heads=kv_heads * problem.group,
        kv_heads=kv_heads,
        seq_q=LENGTH if same else min(problem.seq_q, LENGTH),
        seq_kv=LENGTH if same else min(problem.seq_kv, LENGTH),
        scale=SCALE,
    )
    yield small
    yield small.with_(causal=not small.causal)


def drawn(problem: Problem, seed: int = SEED) -> dict[str, Array]:
    """Random 16-bit numbers, uint16, of which :meth:`sdpalab.sim.ring.Ring.elements` makes the codes of Q, K and V."""
    rng = np.random.default_rng(seed)
    shapes = {"q": problem.q_shape, "k": problem.kv_shape, "v": problem.kv_shape}
    return {name: rng.integers(0, 1 << 16, shape).astype(np.uint16) for name, shape in shapes.items()}


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
    inputs = {tensor: ring.elements(draws) for tensor, draws in drawn(problem, seed).items()}
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
