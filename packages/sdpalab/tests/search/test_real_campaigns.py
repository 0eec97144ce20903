"""Searches of real kernels through the real gates: planted bugs never win, and no executor changes a record."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from planted_executors import FaultyExecutor
from tunable_kernel import BUGS

from sdpalab import Problem
from sdpalab.jobs.local import LocalExecutor
from sdpalab.search import Standing, TuneResult, tune

pytestmark = pytest.mark.first

KERNEL = f"{Path(__file__).with_name('tunable_kernel.py')}:TUNABLE"
PROBLEM = Problem(1, 1, 70, 32)

EXPECTED = {
    "none": {Standing.PASSED},
    "skipped_tile": {Standing.INCORRECT},
    "nan": {Standing.INCORRECT, Standing.HAZARD},
    "race": {Standing.HAZARD},
    "hang": {Standing.TIMED_OUT},
    "out_of_bounds": {Standing.HAZARD},
    "does_not_compile": {Standing.BUILD_FAILED},
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    """Every configuration of the small kernel, on this machine."""
    log = tmp_path_factory.mktemp("search") / "log.jsonl"
    return tune(KERNEL, PROBLEM, gpu="L4", budget=100, strategy="exhaustive", log=log)


@pytest.mark.slow
def test_each_planted_bug_is_stopped_by_a_gate(plain: TuneResult) -> None:
    standings_of: dict[str, set[Standing]] = {bug: set() for bug in BUGS}
    for trial in plain.trials:
        if trial.standing not in (Standing.SCREENED, Standing.DUPLICATE):
            standings_of[str(trial.config["BUG"])].add(trial.standing)
    for bug, standings in standings_of.items():
        assert standings, bug
        assert standings <= EXPECTED[bug], bug
    assert {trial.config["BUG"] for trial in plain.trials if trial.costs_us} == {"none"}
    assert plain.passed
    assert plain.winners["L4"].config["BUG"] == "none"
    verdict = plain.finalists[-1].verdict
    assert verdict["level"] == "full"
    assert verdict["cases"] > 100


@pytest.mark.slow
def test_a_faulty_executor_gives_the_same_records(plain: TuneResult) -> None:
    faulty = FaultyExecutor(LocalExecutor(2), seed=1, share=0.1)
    try:
        other = tune(KERNEL, PROBLEM, gpu="L4", budget=100, strategy="exhaustive", executor=faulty)
    finally:
        faulty.close()
    assert faulty.lost + faulty.repeated
    assert _records(other) == _records(plain)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: the extra 'ray'")
def test_two_workers_of_ray_give_the_same_records(plain: TuneResult) -> None:
    from sdpalab.jobs import executor_named

    cluster = executor_named("ray", workers=2)
    try:
        other = tune(KERNEL, PROBLEM, gpu="L4", budget=100, strategy="exhaustive", executor=cluster)
    finally:
        cluster.close()
    assert _records(other) == _records(plain)


def _records(result: TuneResult) -> list[object]:
    """All that was recorded; of a reason its beginning, since hidden seeds make its numbers.

    Without a finalist that a busy machine left too little time: the judge gives a case 120 s of wall clock.
    """
    trials = [{**trial.to_dict(), "reason": trial.reason.split(":")[0]} for trial in result.trials]
    return [trials, [each.to_dict() for each in result.finalists if each.standing is not Standing.TIMED_OUT]]
