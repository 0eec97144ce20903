"""Interpretation of a profile: one situation a test, each sentence from the figures that cause it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sdpalab.profile import LaunchProfile, observations, read_raw_csv

QUIET = LaunchProfile("k", "(1, 1, 1)", "(32, 1, 1)", {}, {})


def sentences(launch: LaunchProfile, *, limits: bool) -> list[str]:
    return [observation.sentence for observation in observations(launch) if observation.limits is limits]


@pytest.mark.parametrize(
    ("key", "word"),
    [("tensor", "tensor cores"), ("dram", "DRAM"), ("l2", "L2"), ("exp", "exponential unit"), ("issue", "issue slots")],
)
def test_a_busy_unit_limits(key: str, word: str) -> None:
    (observed,) = sentences(replace(QUIET, figures={key: 91.0, "alu": 30.0}), limits=True)
    assert word in observed
    assert "91% busy" in observed


def test_of_two_busy_units_the_busier_comes_first() -> None:
    observed = sentences(replace(QUIET, figures={"issue": 85.0, "tensor": 90.0}), limits=True)
    assert ["tensor" in observed[0], "issue" in observed[1]] == [True, True]


def test_with_no_busy_unit_it_is_latency_and_the_longest_waits_are_reported() -> None:
    stalls = {"long_scoreboard": 3.0, "selected": 5.0, "wait": 0.9, "barrier": 0.1}
    observed = sentences(replace(QUIET, figures={"tensor": 40.0, "issue": 79.9}, stalls=stalls), limits=True)
    assert observed[0] == "limited by latency: no unit is busy 80% of the time, the most is 80% (issue)"
    assert observed[1].startswith("75% of the waiting warps wait for data from L2 or DRAM")
    assert observed[1].endswith("(long_scoreboard)")
    assert "22%" in observed[2]
    assert len(observed) == 3  # a warp that is issued does not wait


def test_a_reason_that_is_not_in_the_table_is_reported_by_its_name() -> None:
    observed = sentences(replace(QUIET, figures={"tensor": 1.0}, stalls={"novelty": 1.0}), limits=True)
    assert observed[-1] == "100% of the waiting warps wait for a reason that is not in the lab's table (novelty)"


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({"waves": 0.37}, "the grid is 0.37 of a wave"),
        ({"waves": 1.25}, "the last one leaves the GPU 62% filled"),
        ({"occupancy": 10.0, "occupancy_limit": 25.0}, "occupancy is 10% and could be 25%"),
        ({"wavefronts": 100.0, "conflicts": 20.0}, "20% of the shared-memory wavefronts are bank conflicts"),
        ({"local": 12.0}, "registers spill"),
    ],
    ids=str,
)
def test_what_else_is_noticed(figures: dict[str, float], expected: str) -> None:
    assert any(expected in sentence for sentence in sentences(replace(QUIET, figures=figures), limits=False))


@pytest.mark.parametrize(
    "figures",
    [
        {"waves": 2.0},
        {"waves": 30.5},
        {"occupancy": 24.0, "occupancy_limit": 25.0},
        {"wavefronts": 100.0, "conflicts": 5.0},
        {"local": 0.0},
        {},
    ],
    ids=str,
)
def test_what_is_as_it_should_be_is_not_noticed(figures: dict[str, float]) -> None:
    assert not sentences(replace(QUIET, figures=figures), limits=False)


def test_nothing_is_said_of_what_was_not_reported() -> None:
    assert observations(QUIET) == ()


def test_findings_name_figures_that_are_there() -> None:
    (launch,) = read_raw_csv((Path(__file__).parent / "synthetic_raw.csv").read_text())
    observed = observations(launch)
    assert observed
    assert {name for observation in observed for name in observation.figures} <= {*launch.figures, *launch.stalls}
