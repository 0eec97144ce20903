"""The judge finds each planted bug where it shows, and nothing where it cannot."""

from __future__ import annotations

import pytest
from broken import BrokenKernel, broken_kernels

import sdpalab
from sdpalab.judge.verdict import Status
from sdpalab.kernels.registry import KERNELS

BROKEN = broken_kernels()


def test_every_kernel_has_every_bug() -> None:
    bugs = {broken.name.removeprefix(f"{broken.name.split()[0]} ") for broken in BROKEN}
    assert bugs == {"lost rescale", "wrong scale", "off-by-one mask", "dropped last tile", "clamped exponential"}
    assert len({broken.name for broken in BROKEN}) == len(bugs) * len(KERNELS)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_the_bug_is_found(broken: BrokenKernel) -> None:
    verdict = sdpalab.judge(broken.kernel, [broken.problem], device="sim")
    assert verdict.status is broken.status, verdict.reason
    case = verdict.cases[0]  # normal inputs: no probe is needed
    assert case.inputs == "normal"
    assert case.status is broken.status, case.reason
    assert broken.reason in case.reason


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_it_is_the_bug_that_is_found(broken: BrokenKernel) -> None:
    verdict = sdpalab.judge(broken.kernel, [broken.harmless], device="sim")
    assert verdict.status is Status.PASSED, verdict.reason


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_shipped_kernels_pass_where_the_broken_fail(kernel: str) -> None:
    problems = {broken.problem for broken in BROKEN}
    verdict = sdpalab.judge(kernel, problems, device="sim")
    assert verdict.status is Status.PASSED, verdict.reason
