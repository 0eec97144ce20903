"""Mistakes planted in a warp-specialised Hopper kernel are found: by a hazard, or else by the numbers."""

from __future__ import annotations

import numpy as np
import pytest
from checking import run
from hopper_attention import KERNEL
from hopper_bugs import BUGS, Bug

from sdpalab import Config, Problem
from sdpalab.sim import Deadlock, Report

CONFIG = Config(BLOCK_M=128, BLOCK_N=64, NUM_STAGES=2)
PROBLEM = Problem(1, 1, 100, 64, seq_kv=64 * 5 - 7)
"""One block with both consumers ragged, every stage filled again, the last tile of keys ragged."""
MAX_STEPS = 10_000
"""The kernel without a bug takes 2,175."""


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    """What the kernel computes without a bug."""
    result = run(KERNEL, PROBLEM, CONFIG)
    assert result.hazards == ()
    return result.outputs["o"].astype(np.float64)


def findings(bug: Bug, expected: np.ndarray) -> set[str]:
    """Kinds of what one run finds."""
    found: set[str] = set()

    def note(_: object, report: Report) -> None:
        found.update(hazard.kind for hazard in report.hazards)

    try:
        output = run(bug.kernel, PROBLEM, CONFIG, on_launch=note, max_steps=MAX_STEPS).outputs["o"]
    except Deadlock:
        return {"deadlock"}
    error = np.linalg.norm(output.astype(np.float64) - expected) / np.linalg.norm(expected)
    return found if error < 1e-3 else found | {"wrong"}  # NaN is wrong


@pytest.mark.sample(6)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_bug_is_found(bug: Bug, expected: np.ndarray) -> None:
    assert bug.kind in findings(bug, expected)


def test_there_are_enough() -> None:
    assert len(BUGS) >= 20
    assert {bug.kind for bug in BUGS} >= {"async", "barrier", "deadlock", "mbarrier", "proxy", "race", "wgmma", "wrong"}
