"""Searches of a planted landscape: a wrong configuration is never an elite, whatever the workers and the GPU do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from planted import Landscape, campaign, kernel, true_us, wrong
from planted_executors import FaultyExecutor, InlineExecutor

from sdpalab.jobs import Job, JobResult
from sdpalab.jobs.kinds import KINDS
from sdpalab.kernels.kernel import Config
from sdpalab.search import Standing, TuneResult, finals
from sdpalab.search.context import SearchContext
from sdpalab.search.outcome import Finalist, Trial

BEST_US = 3.1


def _no_wrong_one(result: TuneResult) -> None:
    """No wrong configuration has a cost, is on the front, a finalist or a winner."""
    assert result.trials
    for trial in result.trials:
        assert not (wrong(trial.config) and trial.costs_us), trial
    chosen = {trial.number: trial for trial in (*result.front, *result.winners.values())}
    assert not [trial for trial in chosen.values() if wrong(trial.config)]
    finalists = [each for each in result.finalists if each.standing is Standing.PASSED]
    assert not [each for each in finalists if wrong(each.config)]


def test_the_planted_gates_are_those_that_there_are() -> None:
    assert set(Landscape().kinds) == {kind for kind, place in KINDS.items() if place.startswith("sdpalab.search.")}


@pytest.mark.parametrize("strategy", ["elites", "exhaustive"])
def test_no_wrong_configuration_is_ever_an_elite(strategy: str) -> None:
    found: set[str] = set()
    for seed in range(40 if strategy == "elites" else 1):
        landscape = Landscape(seed)
        budget = 60 if strategy == "elites" else 10_000
        result = campaign(InlineExecutor(landscape.run), seed=seed, budget=budget, strategy=strategy)
        _no_wrong_one(result)
        assert result.passed
        winner = result.winners["L4"]
        assert true_us(winner.config) <= true_us(kernel().default_config)
        found |= {trial.standing.value for trial in result.trials}
    # The landscape was worth searching: everything that can happen to a configuration did.
    every = {each.value for each in Standing} - {"NO_COST", "SLOWER"}
    assert found >= (every if strategy == "elites" else every - {"LOST"})


@pytest.mark.parametrize("seed", range(100))
@pytest.mark.sample(6)
def test_a_throttling_gpu_with_noise_makes_no_winner_of_a_slow_or_wrong_one(seed: int) -> None:
    landscape = Landscape(seed)
    result = campaign(InlineExecutor(landscape.run), seed=seed, budget=50, measured=True)
    _no_wrong_one(result)
    timed = {config for kind, config in landscape.asked if kind == "race"}
    assert timed
    assert not [config for config in timed if wrong(config)], "a wrong configuration was timed"
    winner = result.winners["L4"]
    reached = min(true_us(trial.config) for trial in result.trials if trial.costs_us)
    assert true_us(winner.config) <= 1.02 * reached
    faster = [trial for trial in result.trials if "faster, confirmed" in trial.gates]
    costs = [true_us(trial.config) for trial in faster]
    assert costs == sorted(costs, reverse=True), "each champion is truly faster than the one before"


def test_elites_find_the_best_of_the_landscape() -> None:
    reached = []
    for seed in range(9):
        result = campaign(InlineExecutor(Landscape(seed).run), seed=seed, budget=100)
        reached.append(true_us(result.winners["L4"].config))
    assert sorted(reached)[4] <= 1.02 * BEST_US


def test_where_nothing_beats_the_default_on_held_out_shapes_the_default_is_the_winner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged = finals._judged

    def slower_elsewhere(context: SearchContext, trial: Trial, default: Trial) -> Finalist:
        if trial.number == default.number:
            return judged(context, trial, default)
        return Finalist(trial.number, trial.config, Standing.SLOWER, "1.2x on a held-out shape", trial.identity)

    monkeypatch.setattr(finals, "_judged", slower_elsewhere)
    result = campaign(InlineExecutor(Landscape(0).run), budget=60)
    assert [each.standing for each in result.finalists] == [Standing.SLOWER] * finals.MOST_FINALISTS + [Standing.PASSED]
    assert result.winners["L4"].number == 0
    assert result.passed


def test_a_search_goes_on_while_its_last_gates_leave_time() -> None:
    landscape, elapsed = Landscape(), [0.0]
    seconds = {"build": 0.25, "count": 0.5, "compare": 1.0, "prove": 12.0, "full": 20.0, "held_out": 2.0}

    def run(job: Job) -> JobResult:
        elapsed[0] += seconds[job.kind]
        return landscape.run(job)

    result = campaign(InlineExecutor(run), budget="600s", now=lambda: elapsed[0])
    kinds = [kind for kind, _ in landscape.asked]
    assert "build" in kinds[kinds.index("full") :], "nothing was tried after the first last gates"
    assert result.winners
    assert 450 < elapsed[0] <= 600


def test_what_is_behind_the_elites_by_the_model_is_not_judged() -> None:
    landscape = Landscape()
    result = campaign(InlineExecutor(landscape.run), budget=60)
    judged = {config for kind, config in landscape.asked if kind == "prove"}
    screened = [trial for trial in result.trials if trial.standing is Standing.SCREENED]
    assert screened
    assert not [trial for trial in screened if trial.knobs in judged or trial.times_us]


def test_two_gpus_give_a_front_that_nothing_dominates() -> None:
    result = campaign(InlineExecutor(Landscape().run), budget=120, gpus=("L4", "H200"))
    _no_wrong_one(result)
    assert len(result.front) > 1
    passed = [trial for trial in result.trials if trial.costs_us]
    for member in result.front:
        better = [
            other
            for other in passed
            if all(other.costs_us[gpu] <= member.costs_us[gpu] for gpu in ("L4", "H200"))
            and any(other.costs_us[gpu] < member.costs_us[gpu] for gpu in ("L4", "H200"))
        ]
        assert not better
    assert set(result.winners) == {"L4", "H200"}


@pytest.mark.parametrize("strategy", ["elites", "exhaustive"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_faulty_executor_changes_no_record(strategy: str, seed: int) -> None:
    plain = campaign(InlineExecutor(Landscape().run), strategy=strategy, seed=seed, budget=60)
    # A share of 5% loses three answers in a row once in eight thousand jobs, and then there is no verdict: with these
    # seeds of the faults, no job does.
    faulty = FaultyExecutor(InlineExecutor(Landscape().run, capacity=3), seed + 10, share=0.05)
    other = campaign(faulty, strategy=strategy, seed=seed, budget=60)
    assert faulty.lost
    assert faulty.repeated
    assert plain.trials == other.trials
    assert plain.finalists == other.finalists


@pytest.mark.sample(1)
@pytest.mark.parametrize("measured", [False, True])
def test_a_search_that_is_cut_after_any_record_comes_to_the_same_end(tmp_path: Path, measured: bool) -> None:
    """The log is cut after each record, within each record, and before its end of line."""
    options: dict[str, Any] = {"budget": 14 if measured else 25, "seed": 3, "measured": measured}
    whole = tmp_path / "whole.jsonl"
    plain = campaign(InlineExecutor(Landscape().run), whole, **options)
    data = whole.read_bytes()
    ends = [place + 1 for place, byte in enumerate(data) if byte == ord("\n")]
    cuts = sorted({cut for end in ends for cut in (end, end - 1, end - 30) if ends[0] <= cut <= len(data)})
    for cut in cuts:
        log = tmp_path / f"cut-{cut}.jsonl"
        log.write_bytes(data[:cut])
        landscape = Landscape()
        resumed = campaign(InlineExecutor(landscape.run), log, resume=True, **options)
        assert (resumed.trials, resumed.finalists) == (plain.trials, plain.finalists), cut
        assert log.read_bytes() == data, cut
    lost = {trial.knobs for trial in plain.trials if trial.standing is Standing.LOST}
    again = {config for kind, config in landscape.asked if kind in ("prove", "full")}
    assert again <= lost, "what is in the log was asked for again, and was not lost"


_KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from planted import Landscape, campaign
from planted_executors import InlineExecutor
from sdpalab.search.log import SearchLog
kept, real = 0, SearchLog.keep
def keep(self, record):
    global kept
    real(self, record)
    kept += 1
    if kept == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
SearchLog.keep = keep
campaign(InlineExecutor(Landscape().run), Path(sys.argv[2]), budget=30, seed=5, resume=Path(sys.argv[2]).exists())
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("records", [1, 7, 20])
def test_a_killed_process_loses_nothing(tmp_path: Path, records: int) -> None:
    plain = campaign(InlineExecutor(Landscape().run), tmp_path / "plain.jsonl", budget=30, seed=5)
    log = tmp_path / "log.jsonl"
    command = [sys.executable, "-c", _KILLED, str(Path(__file__).parent), str(log), str(records)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert log.read_bytes().count(b"\n") == records + 1
    resumed = campaign(InlineExecutor(Landscape().run), log, budget=30, seed=5, resume=True)
    assert (resumed.trials, resumed.finalists) == (plain.trials, plain.finalists)


def test_duplicates_are_one() -> None:
    result = campaign(InlineExecutor(Landscape().run), strategy="exhaustive", budget=10_000)
    duplicates = [trial for trial in result.trials if trial.standing is Standing.DUPLICATE]
    assert len(duplicates) > 100
    for trial in duplicates:
        earlier = result.trials[trial.same_as]
        assert {**earlier.config, "NOISE": 0} == {**trial.config, "NOISE": 0}
    judged = [Config({**trial.config, "NOISE": 0}) for trial in result.trials if trial.costs_us]
    assert len(set(judged)) == len(judged)


class Liar(Landscape):
    """Workers that say that every configuration is right, and some that a slow one is fast."""

    def __init__(self, lies: str) -> None:
        super().__init__()
        self._lies = lies

    def _told(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        right = {**inputs["config"], "MODE": "a" if inputs["config"]["MODE"] == "e" else inputs["config"]["MODE"]}
        return {**inputs, "config": right if self._lies == "verdict" else inputs["config"]}

    def _build(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        value = super()._build(inputs)
        if self._lies == "verdict" and "identity" not in value:
            value = super()._build(self._told(inputs))
        return {name: each for name, each in value.items() if name not in ("standing", "reason")}

    def _count(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        value = super()._count(inputs)
        if self._lies == "cost" and inputs["config"]["MODE"] == "b":
            value["times_us"]["L4"] = {label: time / 100 for label, time in value["times_us"]["L4"].items()}
        return value

    def _prove(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return super()._prove(self._told(inputs))

    def _full(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return super()._full(self._told(inputs))


@pytest.mark.parametrize("lies", ["verdict", "cost"])
def test_what_workers_of_other_machines_say_makes_no_winner(lies: str) -> None:
    def lied_about(trial: Trial) -> bool:
        return bool(wrong(trial.config)) if lies == "verdict" else trial.config["MODE"] == "b"

    taken = campaign(InlineExecutor(Liar(lies).run), budget=120)
    assert lied_about(taken.winners["L4"])
    honest = Landscape()
    result = campaign(InlineExecutor(Liar(lies).run), budget=120, here=InlineExecutor(honest.run))
    assert not lied_about(result.winners["L4"])
    refused = [each for each in result.finalists if each.standing is not Standing.PASSED]
    assert refused
    assert all(each.reason and not each.verdict for each in refused)
    if lies == "cost":
        assert {each.standing for each in refused} == {Standing.LOST}
        assert "another times_us of configuration" in refused[0].reason
    assert {kind for kind, _ in honest.asked} >= {"build", "count", "full", "held_out"}


def test_honest_workers_of_other_machines_change_no_result() -> None:
    executor = InlineExecutor(Landscape().run)
    assert campaign(executor).to_dict() | {"head": 0} == (
        campaign(executor, here=InlineExecutor(Landscape().run)).to_dict() | {"head": 0}
    )
