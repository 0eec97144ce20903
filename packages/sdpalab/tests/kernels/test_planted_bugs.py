"""Bugs planted in the sources of shipped kernels are found: by a hazard of the right kind, or else by the numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checking import judged, run

from sdpalab.bugs import Bug, Family, SourceEdit, replace_once
from sdpalab.bugs.catalogue import BUGS
from sdpalab.bugs.edit import QUANTISE
from sdpalab.campaigns.self_test import specs_of
from sdpalab.judge.sanitize import sanitize_kernel
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import CudaKernel
from warpsan.report.hazards import KINDS
from warpsan.sanitize.sanitizer import Modes

IN_SOURCE = [bug for bug in BUGS.values() if bug.in_source]
HAZARDS = [bug for bug in IN_SOURCE if bug.cause]
WRONG = [bug for bug in IN_SOURCE if not bug.cause and Status.INCORRECT in bug.statuses]
MAX_STEPS = 20_000
"""Steps of one warp, above which it counts as endless: bugs must show well before."""


def candidate(bug: Bug) -> CudaKernel:
    assert isinstance(bug.edit, SourceEdit)
    return bug.edit.apply()


def hazards(bug: Bug, schedule: str = "lockstep", async_mode: str = "late") -> dict[str, str]:
    """Source line of each kind of hazard, in one order of the warps."""
    modes = Modes(schedules=(schedule,), async_modes=(async_mode,), max_steps=MAX_STEPS)
    outcome = sanitize_kernel(candidate(bug), [bug.problem], modes=modes)
    return {hazard.kind: hazard.source for hazard in outcome.hazards}


@pytest.mark.sample(5)
@pytest.mark.parametrize("bug", HAZARDS, ids=lambda bug: bug.id)
def test_the_hazard_is_reported(bug: Bug) -> None:
    reported = hazards(bug)
    assert bug.cause in reported, reported
    assert reported[bug.cause] or bug.cause == "deadlock"
    if isinstance(bug.edit, SourceEdit) and bug.edit.knobs.get("SPLIT") == 2:
        # Another order may show it in another way, but not hide it.
        assert hazards(bug, "reverse", "early")


@pytest.mark.sample(4)
@pytest.mark.parametrize("bug", WRONG, ids=lambda bug: bug.id)
def test_the_output_is_wrong(bug: Bug) -> None:
    kernel = candidate(bug)
    specs = [spec for spec in specs_of(bug) if kernel.why_not(spec.problem) is None]
    for spec in specs[::-1] if bug.claims else specs:
        result = run(kernel, spec.problem, kind=spec.inputs, max_steps=MAX_STEPS)
        status = judged(kernel, spec.problem, result, kind=spec.inputs).status
        if status is not Status.PASSED:
            break
    assert status in bug.statuses


def test_the_catalogue_has_every_family_and_many_bugs_of_every_sort() -> None:
    assert {bug.family for bug in BUGS.values()} == set(Family)
    assert all(bug.id == name for name, bug in BUGS.items())
    assert len(BUGS) - len(IN_SOURCE) > 100
    assert len(WRONG) > 60
    assert len(HAZARDS) > 60
    assert {bug.cause for bug in HAZARDS} <= KINDS | {"deadlock"}
    assert {bug.cause for bug in HAZARDS} >= {"async", "barrier", "deadlock", "mbarrier", "proxy", "race", "wgmma"}
    assert all(len(bug.equivalent) > 60 for bug in BUGS.values() if bug.equivalent)


def edited(bug: Bug, edit: SourceEdit) -> object:
    """The source that an edit is of."""
    kernel = edit.apply()
    if edit.of != QUANTISE:
        return getattr(kernel, edit.of)
    return [launch.module for launch in kernel.launch_plan(bug.problem).launches]


def test_every_bug_in_a_source_can_be_planted() -> None:
    for bug in IN_SOURCE:
        assert isinstance(bug.edit, SourceEdit)
        assert edited(bug, bug.edit) != edited(bug, replace(bug.edit, replacements=())), bug.id


@pytest.mark.parametrize("text", ["", "a a"])
def test_an_edit_needs_its_text_exactly_once(text: str) -> None:
    with pytest.raises(ValueError, match=rf"an edit of page 1 .*not {text.count('a')}: 'a'"):
        replace_once(text, ("a", "b"), where="page 1")
