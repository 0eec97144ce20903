"""The judge finds each planted bug where it shows, and nothing where it cannot."""

from __future__ import annotations

import pytest
from broken import BrokenKernel, broken_kernels

from sdpalab.judge.cases import CaseSpec
from sdpalab.judge.session import judge_candidate
from sdpalab.judge.verdict import Status
from sdpalab.kernels.registry import KERNELS

BROKEN = broken_kernels()


def test_every_kernel_has_every_bug() -> None:
    bugs = {"lost rescale", "wrong scale", "off-by-one mask", "dropped last tile", "clamped exponential"}
    assert {broken.name for broken in BROKEN} == {f"{kernel} {bug}" for kernel in KERNELS for bug in bugs}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_the_bug_is_found(broken: BrokenKernel) -> None:
    specs = [CaseSpec("shows", broken.problem), CaseSpec("cannot show", broken.harmless)]
    verdict = judge_candidate(broken.kernel, specs, workers=1)
    shows, cannot_show = verdict.cases
    assert shows.status is broken.status, shows.reason
    assert broken.reason in shows.reason
    assert cannot_show.status is Status.PASSED, cannot_show.reason
    assert verdict.status is broken.status


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_shipped_kernels_pass_where_the_broken_fail(kernel: str) -> None:
    problems = {broken.problem for broken in BROKEN}
    verdict = judge_candidate(kernel, [CaseSpec(problem.label, problem) for problem in problems], workers=1)
    assert verdict.status is Status.PASSED, verdict.reason
