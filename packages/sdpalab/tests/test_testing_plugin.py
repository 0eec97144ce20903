"""The judge in a test-writer's hands: the assertion, what it says, and the plugin's fixture and options."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from sdpalab import Problem
from sdpalab.errors import MachineError, UserError
from sdpalab.judge import session  # here, as torch: an inner session forgets what was first imported in it
from sdpalab.judge.cases import CaseSpec
from sdpalab.judge.verdict import Case, Status, Verdict
from sdpalab.testing import assert_attention

pytest_plugins = ("pytester",)

PROBLEM = Problem(1, 2, 70, 32)


def right(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=causal)


def late(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    return right(q, k, v, scale=scale, causal=causal).roll(1, 2)


def raises(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
    raise ValueError("tiles do not divide")


def few_cases(level: str, problems: Any, *, seed: int, claims: bool) -> tuple[CaseSpec, ...]:
    """In place of :func:`sdpalab.judge.cases.cases_for`: the request shows in the names."""
    asked = "twelve" if problems is None else ", ".join(problem.label for problem in problems)
    problem = PROBLEM if problems is None else next(iter(problems))
    return tuple(CaseSpec(f"{level} {asked} {kind}", problem, kind, seed) for kind in ("normal", "needle"))


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cases in place of some thirty, in one process."""
    monkeypatch.setattr("sdpalab.judge.cases.cases_for", few_cases)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})


def test_what_is_right_passes_and_the_verdict_comes_back(quickly: None) -> None:
    verdict = assert_attention(right, PROBLEM, seed=5)
    assert verdict.passed
    assert [(case.name, case.seed) for case in verdict.cases] == [
        (f"quick {PROBLEM.label} normal", 5),
        (f"quick {PROBLEM.label} needle", 5),
    ]


def test_several_problems_or_none(quickly: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def judged(kernel: Any, specs: tuple[CaseSpec, ...], **_: Any) -> Verdict:
        asked.append(specs[0].name)
        case = Case("one", PROBLEM, "normal", 0, Status.TIMED_OUT, "no answer")
        return Verdict("right", "", "cpu", "quick", 0, (case,))

    monkeypatch.setattr(session, "judge_candidate", judged)
    other = PROBLEM.with_(causal=True)
    for problems in ([PROBLEM, other], None):
        with pytest.raises(AssertionError, match="TIMED_OUT: right is not attention: 0 of 1 cases passed on cpu"):
            assert_attention(right, problems)
    assert asked == [f"quick {PROBLEM.label}, {other.label} normal", "quick twelve normal"]


def test_a_failure_has_reasons_worst_row_map_and_likely_bug(quickly: None) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_attention(late, PROBLEM)
    text = str(caught.value)
    assert text.startswith("INCORRECT: late is not attention: 0 of 2 cases passed on cpu")
    assert re.search(r"normal: INCORRECT: max error .* worst row \(b=0, h=\d, i=\d+\)", text)
    assert re.search(r"needle: INCORRECT: .* elements that must be exact are not", text)
    assert re.search(r"error of quick \S+ normal, head \(b=0, h=\d\), blocks of 6 rows and 1 columns", text)
    assert len(re.findall(r"^i=\d+ +\|[ .:=+*#%@-]{32}\|$", text, re.MULTILINE)) == 12
    assert "likely: rows of the output hold other rows (140 of 140 rows hold the row 1 further back)" in text


@pytest.mark.slow
def test_what_has_no_output_has_no_map(quickly: None) -> None:
    with pytest.raises(AssertionError, match="CRASHED: the candidate raised ValueError: tiles do not divide") as caught:
        assert_attention(raises, PROBLEM)
    assert "|" not in str(caught.value)
    assert "likely" not in str(caught.value)


def test_what_cannot_be_asked_is_no_failed_assertion(quickly: None) -> None:
    with pytest.raises(UserError, match="no_such_kernel"):
        assert_attention("no_such_kernel", PROBLEM)


def test_a_machine_that_fails_is_no_failed_assertion(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("one", PROBLEM, "normal", 0, Status.INFRA_ERROR, "no space left")
    verdict = Verdict("right", "", "cpu", "quick", 0, (case,))
    monkeypatch.setattr(session, "judge_candidate", lambda *_, **__: verdict)
    with pytest.raises(MachineError, match="no space left"):
        assert_attention(right, PROBLEM)


INNER = """
import sdpalab.testing

def test_it(attention_judge, monkeypatch):
    asked = {}
    monkeypatch.setattr(sdpalab.testing, "assert_attention", lambda kernel, problem, **given: asked.update(given))
    attention_judge(None, None, seed=3)
    assert asked == {"level": "LEVEL", "device": "DEVICE", "seed": 3}
    attention_judge(None, None, level="quick")
    assert asked["level"] == "quick"
"""


@pytest.mark.parametrize(
    ("arguments", "ini", "level", "device"),
    [
        ((), "", "quick", "auto"),
        (("--sdpalab-level=full", "--sdpalab-device", "cpu"), "", "full", "cpu"),
        ((), "sdpalab_level = full\nsdpalab_device = sim\n", "full", "sim"),
        (("--sdpalab-level=quick",), "sdpalab_level = full\n", "quick", "auto"),
    ],
)
def test_the_fixture_takes_level_and_device_from_the_command_line_or_the_ini_file(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    ini: str,
    level: str,
    device: str,
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # an installed package would register it once more
    pytester.makeini(f"[pytest]\n{ini}")
    pytester.makepyfile(INNER.replace("LEVEL", level).replace("DEVICE", device))
    pytester.runpytest_inprocess("-p", "sdpalab.testing", *arguments).assert_outcomes(passed=1)


@pytest.mark.slow
def test_the_failure_points_to_the_users_own_line(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, quickly: None
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(
        "from sdpalab import Problem\n"
        "def zeros(q, k, v, *, scale, causal):\n"
        "    return 0 * q\n"
        "def test_zeros(attention_judge):\n"
        "    attention_judge(zeros, Problem(1, 1, 20, 32))\n"
    )
    result = pytester.runpytest_inprocess("-p", "sdpalab.testing")
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert re.search(r"^>\s+attention_judge\(zeros", text, re.MULTILINE)
    assert "E       likely: the scores have no effect (it is all zeros)" in text
    assert "judge_candidate" not in text


def test_the_package_announces_the_plugin_to_pytest(root: Path) -> None:
    text = (root / "packages/sdpalab/pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nsdpalab = "sdpalab.testing"\n' in text


@pytest.mark.slow
def test_the_example_passes(
    pytester: pytest.Pytester, root: Path, monkeypatch: pytest.MonkeyPatch, quickly: None
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for name in ("my_callable.py", "test_my_attention.py"):
        shutil.copy(root / "examples" / name, pytester.path)
    pytester.runpytest_inprocess("-p", "sdpalab.testing").assert_outcomes(passed=2)
