"""Hazards of bugs planted in the shipped kernels that copy and multiply asynchronously: both engines of the simulator
report the same."""

from __future__ import annotations

import pytest

from sdpalab.bugs import Bug, Family, SourceEdit
from sdpalab.bugs.catalogue import BUGS
from sdpalab.inputs import make_inputs
from sdpalab.run.simulated import SimulatedExecutor
from sdpalab.sim import SimError
from sdpalab.sim.hazards import Hazard
from two_engines import agreement, engine

pytest.importorskip("llvmlite", reason="the native engine needs llvmlite")

KERNELS = ("warp_specialized", "hopper")
PLANTED = [
    bug
    for bug in BUGS.values()
    if bug.family is Family.SYNCHRONISATION
    and isinstance(bug.edit, SourceEdit)
    and bug.edit.kernel in KERNELS
    and bug.cause
]


def outcome(bug: Bug) -> tuple[str, object]:
    """The exception of a launch of a mutant, or nothing, and what both engines must report alike."""
    kernel, hazards = bug.candidate, list[Hazard]()
    plan = kernel.launch_plan(bug.problem, kernel.default_config)
    executor = SimulatedExecutor(kernel.default_arch, on_launch=lambda _, report: hazards.extend(report.hazards))
    try:
        executor.run(plan, make_inputs(bug.problem).arrays)
    except SimError as error:
        return type(error).__name__, agreement(error.hazards)
    return "", agreement(hazards)


@pytest.mark.sample(3)
@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.id)
def test_both_engines_report_the_same_hazards(bug: Bug) -> None:
    with engine("reference"):
        expected = outcome(bug)
    assert expected != ("", set())
    with engine("native", alone=True):
        assert outcome(bug) == expected
