"""Small cases that execute the same code as problems too large to be judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sdpalab.judge.cases import CaseSpec, possible, quick_cases
from sdpalab.kernels.equivalent import problem_with_same_code
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.problem import NAMED_PROBLEMS, Problem

__all__ = ["LARGE_PROBLEMS", "SameCodeCases", "cases_with_same_code"]

LARGE_PROBLEMS = (NAMED_PROBLEMS["prefill-4k"], Problem(2, 16, 4096, 128))
"""Timed problems beside the mission shape; a verdict from a GPU also covers their code."""

PROBES = ("needle", "forbidden", "ramp")
"""Inputs for the code of a large problem, beside normal ones: they detect a lost key, a key of another row, and a lost
rescale."""


@dataclass(frozen=True)
class SameCodeCases:
    """``specs`` judge the code of some problems; ``missing`` holds the reasons for the other problems, by their
    labels."""

    specs: tuple[CaseSpec, ...]
    missing: Mapping[str, str]


def cases_with_same_code(
    kernel: Kernel, config: Config | None, problems: Sequence[Problem], *, sms: int | None = None
) -> SameCodeCases:
    """Cases on small problems that execute the code of ``problems``: two with normal inputs, and the probes.

    Parameters
    ----------
    kernel, config
        As for :meth:`~sdpalab.kernels.kernel.Kernel.launch_plan`.
    problems : sequence of Problem
        Problems that the kernel rejects are missing, with the kernel's reason.
    sms : int, optional
        Multiprocessors of the GPU that the plans are for.
    """
    specs: dict[str, CaseSpec] = {}
    missing: dict[str, str] = {}
    for problem in problems:
        reason = kernel.why_not(problem, config)
        if reason is None:
            small = problem_with_same_code(kernel, config, problem, sms=sms)
            reason = small.reason
            if small.problem is not None:
                specs |= {spec.name: spec for spec in _cases(small.problem)}
        if reason:
            missing[problem.label] = reason
    return SameCodeCases(tuple(specs.values()), missing)


def _cases(problem: Problem) -> list[CaseSpec]:
    normal = [spec for spec in quick_cases([problem]) if spec.problem == problem and spec.inputs == "normal"][:2]
    probes = [CaseSpec(f"{problem.label} {kind}", problem, kind) for kind in PROBES if possible(problem, kind)]
    return [*normal, *probes]
