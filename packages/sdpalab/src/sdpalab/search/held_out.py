"""Held-out shapes: problems of the searched class that a search does not use."""

from __future__ import annotations

from dataclasses import asdict

from sdpalab.problem import Problem
from sdpalab.search.tuned import ProblemClass

__all__ = ["held_out"]


def held_out(problem: Problem) -> tuple[Problem, ...]:
    """Problems of the class of ``problem`` with other sizes: a ragged length, and other numbers of heads and keys.

    ``problem`` is not among them; all are in its :class:`~sdpalab.search.tuned.ProblemClass`, so a configuration tuned
    for one of them would be used for the others.
    """
    wanted = ProblemClass.of(problem)
    shorter_q, shorter_kv = _shorter(problem.seq_q), _shorter(problem.seq_kv)
    fewer = max(1, problem.kv_heads - problem.kv_heads // 4)
    choices = (
        problem.with_(seq_q=shorter_q, seq_kv=shorter_kv),
        problem.with_(heads=fewer * problem.group, kv_heads=fewer),
        problem.with_(seq_q=problem.seq_q, seq_kv=shorter_kv) if not problem.causal else problem,
    )
    others = [each for each in choices if each != problem and ProblemClass.of(each) == wanted]
    return tuple({repr(asdict(each)): each for each in others}.values())


def _shorter(length: int) -> int:
    """An odd length about a quarter shorter: the last tile is ragged whatever its size."""
    return max(1, (length - length // 4) | 1) if length > 4 else length
