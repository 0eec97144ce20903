"""Mistakes planted in the warp-specialised kernels' sources are found: by a hazard, or else by the numbers."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from checking import planted, run

from sdpalab import Config, Problem
from sdpalab.bugs.hopper import BUGS, CLUSTER, Bug
from sdpalab.kernels.hopper import HOPPER
from sdpalab.sim import Deadlock, Report

MAX_STEPS = 20_000
"""The kernel without a bug takes about a tenth of it."""


@cache
def expected(problem: Problem, config: Config) -> np.ndarray:
    """What the kernel computes without a bug."""
    result = run(HOPPER, problem, config)
    assert result.hazards == ()
    return result.outputs["o"].astype(np.float64)


def findings(bug: Bug, folder: Path, **options: str) -> set[str]:
    """Kinds of what one run finds."""
    found: set[str] = set()

    def note(_: object, report: Report) -> None:
        found.update(hazard.kind for hazard in report.hazards)

    kernel = planted(HOPPER, bug.edits, folder)
    try:
        result = run(kernel, bug.problem, bug.config, on_launch=note, max_steps=MAX_STEPS, **options)
    except Deadlock:
        return {"deadlock"}
    right = expected(bug.problem, bug.config)
    error = np.linalg.norm(result.outputs["o"].astype(np.float64) - right) / np.linalg.norm(right)
    return found if error < 1e-3 else found | {"wrong"}  # NaN is wrong


@pytest.mark.sample(6)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_bug_is_found(bug: Bug, tmp_path: Path) -> None:
    assert bug.kind in findings(bug, tmp_path)
    if bug.config is CLUSTER and bug.kind not in ("wrong", "deadlock"):
        # Another order may show it in another way, but not hide it.
        assert findings(bug, tmp_path, schedule="reverse", async_mode="early")


def test_there_are_enough() -> None:
    assert len(BUGS) >= 36
    assert {bug.kind for bug in BUGS} >= {"async", "barrier", "deadlock", "mbarrier", "proxy", "race", "wgmma", "wrong"}
