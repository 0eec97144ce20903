"""The judge in tests: ``assert_attention(kernel, problem)``, and the pytest fixture ``attention_judge``.

    from sdpalab import Problem
    from sdpalab.testing import assert_attention

    def test_my_attention():
        assert_attention(my_attention, Problem(1, 8, 512, 64, causal=True))

pytest finds the plugin of an installed package automatically; otherwise use ``pytest -p sdpalab.testing``. The fixture
is the same function with level and device from the command line (``--sdpalab-level``, ``--sdpalab-device``) or from the
ini-file (``sdpalab_level``, ``sdpalab_device``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pytest

from sdpalab.errors import MachineError
from sdpalab.problem import Problem

if TYPE_CHECKING:
    from sdpalab.judge.diagnose.summary import FailureSummary
    from sdpalab.judge.sandbox.candidate import Candidate
    from sdpalab.judge.verdict import Verdict

__all__ = ["assert_attention", "attention_judge", "pytest_addoption"]

MOST_REASONS = 5
"""Number of failed cases shown with reasons; the others are listed by name."""
OPTIONS = {
    "level": ("quick", "how much assert_attention judges: quick or full"),
    "device": ("auto", "what attention is judged on: auto, sim, cpu or gpu"),
}


def assert_attention(
    kernel: Candidate,
    problem: Problem | Iterable[Problem] | None = None,
    *,
    level: str = "quick",
    device: str = "auto",
    seed: int = 0,
    claims: bool = True,
) -> Verdict:
    """Fail unless the kernel passes the judge.

    Parameters
    ----------
    kernel, level, device, seed, claims
        As in :func:`sdpalab.judge.judge`.
    problem : Problem or iterable of Problem, optional
        Problems to judge. Default: the twelve cases.

    Returns
    -------
    Verdict
        A verdict with status PASSED.

    Raises
    ------
    AssertionError
        If the verdict is not PASSED: with the reasons of failed cases, the worst row, a map of the error, and the
        likely bug.
    UserError, MachineError
        As in :func:`sdpalab.judge.judge`; MachineError also if a failure of the machine is the only failure.
    """
    __tracebackhide__ = True
    from sdpalab.judge.cases import cases_for
    from sdpalab.judge.diagnose.summary import FailedArrays, summarise
    from sdpalab.judge.session import judge_candidate
    from sdpalab.judge.verdict import Status

    problems = [problem] if isinstance(problem, Problem) else problem
    arrays = FailedArrays()
    verdict = judge_candidate(
        kernel,
        cases_for(level, problems, seed=seed, claims=claims),
        device=device,
        level=level,
        seed=seed,
        store=arrays,
        coverage=True,
        progress=arrays.forget_if_passed,
    )
    if verdict.status is Status.INFRA_ERROR:
        raise MachineError(verdict.reason)
    if not verdict.passed:
        raise AssertionError(_failure_message(verdict, summarise(verdict, arrays.of, kernel)))
    return verdict


def _failure_message(verdict: Verdict, summary: FailureSummary) -> str:
    """The message of a failed assertion."""
    failed = [case for case in verdict.cases if not case.passed]
    passed = len(verdict.cases) - len(failed)
    lines = [
        f"{verdict.status.value}: {verdict.kernel} is not attention: {passed} of {len(verdict.cases)} cases passed "
        f"on {verdict.device}",
        *(f"{case.name}: {case.status.value}: {case.reason}" for case in failed[:MOST_REASONS]),
        *([] if failed else [verdict.reason]),
    ]
    if len(failed) > MOST_REASONS:
        lines.append(f"and {len(failed) - MOST_REASONS} more: {', '.join(case.name for case in failed[MOST_REASONS:])}")
    return "\n".join([*lines, *summary.lines()])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options and the ini-values."""
    group = parser.getgroup("sdpalab", "attention kernels that are judged")
    for name, (default, words) in OPTIONS.items():
        group.addoption(f"--sdpalab-{name}", default=None, metavar=name.upper(), help=words)
        parser.addini(f"sdpalab_{name}", words, default=default)


@pytest.fixture
def attention_judge(pytestconfig: pytest.Config) -> Callable[..., Verdict]:
    """:func:`assert_attention` with the level and the device of pytest's options."""
    chosen = {
        name: pytestconfig.getoption(f"sdpalab_{name}") or pytestconfig.getini(f"sdpalab_{name}") for name in OPTIONS
    }

    def judged(kernel: Candidate, problem: Problem | Iterable[Problem] | None = None, **arguments: Any) -> Verdict:
        __tracebackhide__ = True
        return assert_attention(kernel, problem, **(chosen | arguments))

    return judged
