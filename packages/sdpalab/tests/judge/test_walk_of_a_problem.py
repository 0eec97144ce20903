"""A problem on its way from the command line to the record of its verdict: few functions take it, and the page names
them."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from types import FrameType

import pytest

from sdpalab.cli import main
from sdpalab.problem import Problem

ROOT = Path(__file__).resolve().parents[4]
PACKAGE = ROOT / "packages" / "sdpalab" / "src" / "sdpalab"
MOST = 15


class Takers:
    """Functions of the lab that get a problem as an argument, in order; not those of :class:`Problem` itself."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.names: list[str] = []

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        path = Path(code.co_filename)
        if event != "call" or not path.is_relative_to(PACKAGE) or path.name == "problem.py":
            return
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        values = (frame.f_locals.get(name) for name in arguments)
        if any(type(value) is Problem and value == self._problem for value in values):
            name = f"{path.relative_to(PACKAGE)}: {code.co_qualname}"
            self.names += [name] if name not in self.names else []


@pytest.mark.slow
@pytest.mark.usefixtures("capsys")
def test_a_problem_passes_through_the_functions_of_the_page_and_at_most_fifteen() -> None:
    problem = Problem(1, 2, 200, 64)  # so long that the probes are of another
    takers = Takers(problem)
    threading.setprofile(takers)
    sys.setprofile(takers)
    try:
        code = main(["judge", "scalar", "--shape", problem.label.replace("x", ",")])
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert code == 0
    section = (
        (ROOT / "packages" / "sdpalab" / "docs" / "architecture.md")
        .read_text()
        .partition("## The way of a problem\n")[2]
    )
    listed = re.findall(r"^\d+\. `([^`]+)`", section.partition("\n## ")[0], re.M)
    assert takers.names == listed
    assert len(listed) <= MOST
