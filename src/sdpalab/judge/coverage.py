"""What a verdict covers: of masks, types, head dimensions and further fields of a problem, what its cases had."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sdpalab.problem import DTYPES, EXTRAS

if TYPE_CHECKING:
    from sdpalab.judge.verdict import Case

__all__ = ["coverage_of"]


def coverage_of(cases: Sequence[Case]) -> list[str]:
    """What the cases have, in words: ``not causal``, ``causal``, types, ``D 64 128``, ``GQA``, ``log-sum-exp``, and the
    names of :data:`sdpalab.problem.EXTRAS`."""
    problems = [case.problem for case in cases]
    covered = [
        words for causal, words in ((False, "not causal"), (True, "causal")) if causal in {p.causal for p in problems}
    ]
    covered += [dtype for dtype in DTYPES if dtype in {problem.dtype for problem in problems}]
    covered += ["D " + " ".join(map(str, sorted({problem.head_dim for problem in problems})))] if problems else []
    covered += ["GQA"] if any(problem.group > 1 for problem in problems) else []
    covered += ["log-sum-exp"] if any("lse" in case.digests for case in cases) else []
    return covered + [name for name in EXTRAS if any(name in problem.extras for problem in problems)]
