"""Bugs planted in the cluster kernel are found: by a hazard where there is one, else by the numbers."""

from __future__ import annotations

from typing import Any

import pytest
from checking import judged, run
from cluster_attention import CLUSTER_ATTENTION
from cluster_bugs import BUGS, Bug, planted

from sdpalab import sim
from sdpalab.compile import Build
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import CudaKernel
from sdpalab.problem import Problem

TWO_STAGES = CLUSTER_ATTENTION.default_config.but(NUM_STAGES=2)
STRICT = (*sim.CHECKS, "strict")


def found(kernel: CudaKernel, problem: Problem, **options: Any) -> set[str]:
    """Kinds of what is wrong with one run: of hazards, ``deadlock``, or ``wrong`` if the judge refuses the numbers."""
    kinds: set[str] = set()

    def note(_: Build, report: sim.Report) -> None:
        kinds.update(hazard.kind for hazard in report.hazards)

    try:
        result = run(kernel, problem, TWO_STAGES, checks=STRICT, max_steps=20_000, on_launch=note, **options)
    except sim.Deadlock:
        return {"deadlock"}
    if not kinds and judged(kernel, problem, result).status is not Status.PASSED:
        kinds.add("wrong")
    return kinds


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_bug_is_found(bug: Bug) -> None:
    kernel = planted(bug)
    assert bug.kind in found(kernel, bug.problem)
    if bug.kind not in ("wrong", "deadlock"):  # another order may show it in another way, but not hide it
        assert found(kernel, bug.problem, schedule="reverse", async_mode="early")


def test_the_kernel_itself_has_none() -> None:
    for problem in {bug.problem for bug in BUGS}:
        assert found(CLUSTER_ATTENTION, problem) == set()
