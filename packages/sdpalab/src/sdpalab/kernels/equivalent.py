"""Small problems that run the same code as a large one, for judging code of problems too large to judge.

A plan is data: its modules, with their macros, are the only input of the build. Two plans whose launches have equal
modules therefore run the same PTX, and differ only in grids, arguments and buffer sizes. A kernel may choose other
code for a large problem (more stages, another schedule), so the small problem has to be searched for. The search costs
a few hundred plans and compiles nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.kernels.plan import LaunchPlan, Source
from sdpalab.problem import MISSION, Problem

__all__ = ["LEAST_LENGTH", "MOST_FLOPS", "Equivalent", "modules_of", "problem_with_same_code"]

MOST_FLOPS = 8 * MISSION.flops
"""Largest number of operations of a small problem; the simulator runs it in seconds."""

LEAST_LENGTH = 128
"""Least number of queries and keys of a small problem, if the large one has as many: the largest tile of a kernel."""

_TILES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
"""Lengths to try, in units of :data:`LEAST_LENGTH`; the remainder of the large problem's length is added."""

_HEADS = (1, 2, 3, 4, 6, *range(8, 257, 8), 320, 384, 448, 512)
"""Numbers of K/V heads to try, with batch 1; the query heads per K/V head stay those of the large problem."""


@dataclass(frozen=True)
class Equivalent:
    """The small problem with the code of a large one; None with a ``reason`` if there is none."""

    problem: Problem | None
    reason: str = ""


def modules_of(plan: LaunchPlan) -> tuple[Source, ...]:
    """Inputs of the build: the module of each launch, in order."""
    return tuple(step.module for step in plan.launches if step.module is not None)


def problem_with_same_code(
    kernel: Kernel, config: Config | None, problem: Problem, *, sms: int | None = None
) -> Equivalent:
    """The cheapest problem with the same code as ``problem``, possibly ``problem`` itself.

    It has the same head_dim, dtype, mask, scale, and query heads for each head of K and V; lengths that are at most as
    long, with the same remainder; at least :data:`LEAST_LENGTH` queries and keys if the large problem has as many; and
    at most :data:`MOST_FLOPS`. It may have more heads: short sequences need more heads to fill the GPU. For a large
    problem with Sq = Skv, a small one with Sq < Skv is the last resort.

    Parameters
    ----------
    kernel, config, problem
        As :meth:`~sdpalab.kernels.kernel.Kernel.launch_plan` takes them.
    sms : int, optional
        SMs of the GPU that the plans are for: schedules depend on it.

    Raises
    ------
    UnsupportedProblem
        If the kernel rejects ``problem``.
    """
    wanted = modules_of(kernel.launch_plan(problem, config, sms=sms))
    for small in _smaller(problem):
        if kernel.why_not(small, config) is None and modules_of(kernel.launch_plan(small, config, sms=sms)) == wanted:
            return Equivalent(small)
    return Equivalent(
        None,
        f"no problem of at most {MOST_FLOPS / 1e9:.1f} GFLOP that was tried runs the code that {kernel.name} has for "
        f"{problem.label}",
    )


def _smaller(problem: Problem) -> list[Problem]:
    """Candidates in place of ``problem``, itself included if small: nearest in shape first, then the cheapest."""
    problems = {problem} if problem.flops <= MOST_FLOPS else set()
    for kv_heads, seq_q, seq_kv in product(_HEADS, _lengths(problem.seq_q), _lengths(problem.seq_kv)):
        if problem.seq_q == problem.seq_kv and seq_q > seq_kv:
            continue
        small = problem.with_(batch=1, heads=kv_heads * problem.group, kv_heads=kv_heads, seq_q=seq_q, seq_kv=seq_kv)
        if small.flops <= MOST_FLOPS:
            problems.add(small)
    square = problem.seq_q == problem.seq_kv
    return sorted(problems, key=lambda each: (square and each.seq_q != each.seq_kv, each.flops, each.least_bytes))


def _lengths(length: int) -> tuple[int, ...]:
    """Lengths up to ``length`` with the same remainder by :data:`LEAST_LENGTH`, none below it if ``length`` is not."""
    if length <= LEAST_LENGTH:
        return (length,)
    lengths = (tiles * LEAST_LENGTH + length % LEAST_LENGTH for tiles in _TILES)
    return tuple(each for each in lengths if each <= length)
