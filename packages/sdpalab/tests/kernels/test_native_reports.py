"""Hazards of bugs planted in the shipped kernels that copy and multiply asynchronously, as they are recorded."""

from __future__ import annotations

import pytest

from outcomes import alike
from recorded import Recorded
from sdpalab.bugs import Bug, Family, SourceEdit
from sdpalab.bugs.catalogue import BUGS
from sdpalab.inputs import make_inputs
from sdpalab.run.simulated import SimulatedExecutor
from warpsan import SimError
from warpsan.report.hazards import Hazard

KERNELS = ("warp_specialized", "hopper")
PLANTED = [
    bug
    for bug in BUGS.values()
    if bug.family is Family.SYNCHRONISATION
    and isinstance(bug.edit, SourceEdit)
    and bug.edit.kernel in KERNELS
    and bug.cause
]


def outcome(bug: Bug) -> tuple[str, list[str]]:
    """The exception of a launch of a mutant, or nothing, and its hazards."""
    kernel, hazards = bug.candidate, list[Hazard]()
    plan = kernel.launch_plan(bug.problem, kernel.default_config)
    executor = SimulatedExecutor(kernel.default_arch, on_launch=lambda _, report: hazards.extend(report.hazards))
    try:
        executor.run(plan, make_inputs(bug.problem).arrays)
    except SimError as error:
        return type(error).__name__, alike(error.hazards)
    return "", alike(hazards)


@pytest.mark.sample(3)
@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.id)
def test_hazards_are_reported(bug: Bug, recorded: Recorded) -> None:
    reported = outcome(bug)
    assert reported != ("", [])
    recorded.check(reported)
