"""Bugs of gradients in Triton: edits of the kernel that ``sdpalab new triton --task backward`` writes are rejected."""

from __future__ import annotations

from pathlib import Path
from string import Template

import pytest

import sdpalab
from sdpalab.bugs import replace_once
from sdpalab.bugs.cause import Cause
from sdpalab.judge.cases import cases_for
from sdpalab.judge.session import judge_candidate
from sdpalab.judge.verdict import Status
from sdpalab.problem import Problem

TEMPLATE = Path(sdpalab.__file__).parent / "commands" / "templates" / "triton_backward" / "kernel.py.tmpl"
PLAIN = Problem(1, 2, 70, 32, task="backward")
GROUPED = Problem(1, 4, 40, 32, kv_heads=2, task="backward")
EDITS = {
    "the query heads of a group": (
        ("range(0, group):  # the", "range(group - 1, group):  # the"),
        GROUPED,
        Cause.GROUP,
    ),
    "query i does not see key i in dK and dV": (
        ("rows[None, :] >= keys[:, None]", "rows[None, :] > keys[:, None]"),
        PLAIN.with_(causal=True),
        Cause.MASK,
    ),
    "dK is not scaled": (("(dk * scale)", "dk"), PLAIN, Cause.FACTOR),
    "delta is left out of dQ": (("- delta[:, None])", ")"), PLAIN, Cause.DELTA),
    "P is computed to base 2": (
        ("p = tl.where(visible, tl.exp(tl.dot(q,", "p = tl.where(visible, tl.exp2(tl.dot(q,"),
        PLAIN,
        None,
    ),
}
"""An edit, the problem that shows it, and its diagnosis; None where no hypothesis has it."""


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", EDITS)
def test_an_edit_of_the_template_is_rejected_and_named(name: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    edit, problem, cause = EDITS[name]
    text = Template(TEMPLATE.read_text()).substitute(name="mine", NAME="MINE")
    (tmp_path / "mine.py").write_text(replace_once(text, edit, where="the template"))
    verdict = judge_candidate(str(tmp_path / "mine.py"), cases_for("quick", [problem]), until_failure=True)
    assert verdict.status is Status.INCORRECT, verdict.reason
    assert cause is None or cause.value in verdict.reason
