"""Coverage of a verdict: masks, types, head dimensions and further fields of its cases' problems."""

from __future__ import annotations

from collections.abc import Sequence

from sdpalab.problem import DTYPES, FEATURES, Problem

__all__ = ["coverage_of"]


def coverage_of(problems: Sequence[Problem], lse: bool) -> list[str]:
    """Features of these problems in words: ``not causal``, ``causal``, types, ``D 64 128``, ``GQA``, ``log-sum-exp``
    where it was judged, and names of :data:`sdpalab.problem.FEATURES`."""
    covered = [
        words for causal, words in ((False, "not causal"), (True, "causal")) if causal in {p.causal for p in problems}
    ]
    covered += [dtype for dtype in DTYPES if dtype in {problem.dtype for problem in problems}]
    covered += ["D " + " ".join(map(str, sorted({problem.head_dim for problem in problems})))] if problems else []
    covered += ["GQA"] if any(problem.group > 1 for problem in problems) else []
    covered += ["log-sum-exp"] if lse else []
    return covered + [name for name in FEATURES if any(name in problem.features for problem in problems)]
