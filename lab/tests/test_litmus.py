"""A sample of the campaign ``litmus``: litmus tests against the axioms of PTX's memory model."""

import pytest

from lab.litmus import litmus_row
from lab.litmus_programs import programs

PROGRAMS = {program.name: program for program in programs()}
SAMPLE = (
    "message passing, grid, release-acquire, .gpu",
    "message passing, grid, fence.acq_rel, .cta",
    "message passing, cluster, release-acquire, .cluster",
    "message passing, only the writer fences",
    "store buffering, block, fence.sc, .cta",
    "store buffering, grid, fence.acq_rel, .gpu",
    "load buffering, grid, weak",
    "load buffering, shared memory, fence.sc, .cta",
    "2+2W, grid, relaxed, .gpu",
    "S, grid, relaxed, .gpu",
    "CoRR, grid, weak",
    "CoRR, block, relaxed, .cta",
    "CoRW, cluster, relaxed, .cluster",
    "a reduction acquires nothing",
    "release, then relaxed, to one place",
    "relaxed, then acquire, of one place",
    "lost updates of narrow atomics",
    "a barrier between two warps",
)


@pytest.mark.parametrize("name", SAMPLE)
def test_litmus(name):
    """Each outcome that the mode gives comes, and none that the axioms forbid; ``python -m lab litmus`` runs all."""
    row = litmus_row(PROGRAMS[name], 240, 0)  # half of them show every outcome that the mode gives
    assert row.forbidden == []
    assert row.missing == []


def test_names_of_litmus_tests_are_unique():
    assert len(PROGRAMS) == len(list(programs()))
