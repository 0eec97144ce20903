"""A problem passes through few functions from the command line to the record of its verdict."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType

import pytest

from sdpalab.cli import main
from sdpalab.problem import Problem

ROOT = Path(__file__).resolve().parents[4]
PACKAGE = ROOT / "packages" / "sdpalab" / "src" / "sdpalab"
FUNCTIONS = (
    "judge/small_cases.py: normal_case",
    "judge/cases.py: _small_cases",
    "judge/small_cases.py: small_version",
    "judge/claims.py: claim_cases",
    "judge/algebra/stage.py: algebra_problems",
    "inputs/__init__.py: make_inputs",
    "judge/sandbox/isolation.py: CandidateProcesses.run",
    "packing.py: Packing.__init__",
    "kernels/plan.py: problem_buffers",
    "judge/rule/evaluate.py: evaluate",
    "judge/rule/references.py: references_of",
    "judge/rule/references.py: References.__init__",
    "judge/rule/evaluate.py: judge_output",
    "judge/agreement.py: agreement",
    "record.py: _problem",
)
"""The functions that take the problem, in the order of their calls."""


class Takers:
    """Functions of the lab that get a problem as an argument, in order; not those of :class:`Problem` itself, nor those
    that derive further problems from it after its record (:mod:`sdpalab.judge.reaching`)."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.names: list[str] = []

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        path = Path(code.co_filename)
        if event != "call" or not path.is_relative_to(PACKAGE) or path.name in ("problem.py", "reaching.py"):
            return
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        values = (frame.f_locals.get(name) for name in arguments)
        if any(type(value) is Problem and value == self._problem for value in values):
            name = f"{path.relative_to(PACKAGE)}: {code.co_qualname}"
            self.names += [name] if name not in self.names else []


@pytest.mark.slow
@pytest.mark.usefixtures("capsys")
def test_a_problem_passes_through_fifteen_functions() -> None:
    problem = Problem(1, 2, 203, 64)  # so long that the probes are of another, and no planted bug is on it
    takers = Takers(problem)
    threading.setprofile(takers)
    sys.setprofile(takers)
    try:
        code = main(["judge", "scalar", "--shape", problem.label.replace("x", ",")])
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert code == 0
    assert "\n".join(takers.names) == "\n".join(FUNCTIONS)
