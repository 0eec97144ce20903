"""Measured costs: challengers against the champion, in the same rounds. Only FASTER, confirmed, replaces the champion.

A time alone is not stored as a cost, since clocks and temperature change from one minute to the next. Each challenger
runs in the same rounds as the champion and the default configuration. Its cost is its ratio to the default, times the
default's time in its first session: costs of different sessions are then comparable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sdpalab.measure.comparison import ComparisonOutcome
from sdpalab.search.context import SearchContext, Value
from sdpalab.search.draft import Draft, GateFailure, costs_of
from sdpalab.search.outcome import Standing, Trial

__all__ = ["CONFIRMED", "NEAR", "Champion"]

CONFIRMED = "faster, confirmed"
"""The gate of a challenger that became the champion."""

NEAR = 1.02
"""Largest cost, relative to the champion's, of configurations that are raced once more at the end."""
SECONDS = 5.0
"""Duration of a race for each problem."""
AGAIN = 1 << 20
"""First seed of the last races, above those of the sweep."""


class Champion:
    """The best configuration by measurement so far; initially the default."""

    def __init__(self, context: SearchContext) -> None:
        self._context = context
        self._default: Trial | None = None
        self._best: Trial | None = None

    @property
    def trial(self) -> Trial | None:
        """Record of the champion."""
        return self._best

    def learn(self, trial: Trial) -> None:
        """Use a record from the log."""
        if trial.standing is not Standing.PASSED:
            return
        self._default = self._default or trial
        if self._best is None or CONFIRMED in trial.gates:
            self._best = trial

    def measured(self, proven: Mapping[int, Draft]) -> dict[int, Trial]:
        """Race each configuration, in order; returns the records."""
        trials = {}
        for place, draft in sorted(proven.items()):
            trials[place] = self._challenge(draft)
            self.learn(trials[place])
        return trials

    def race_again(self, trials: Sequence[Trial]) -> None:
        """Race the near-best once more, in other rounds; one that is FASTER, confirmed, becomes the champion."""
        assert self._best is not None, "the default configuration has passed"
        near = [
            trial
            for trial in trials
            if trial.standing is Standing.PASSED
            and trial.number != self._best.number
            and trial.outcome.costs[0] <= NEAR * self._best.outcome.costs[0]
        ]
        for trial in near:
            draft = Draft(trial.number, trial.knobs)
            values = [self._race(draft, seed=AGAIN + 2 * trial.number + turn) for turn in (0, 1)]
            if all(not isinstance(value, GateFailure) and _faster(value) for value in values):
                self._best = trial

    def _challenge(self, draft: Draft) -> Trial:
        value = self._race(draft, seed=2 * draft.number)
        if isinstance(value, GateFailure):
            return draft.failed(value)
        raced = replace(draft.through("race"), times_us=self._times(value))
        if self._best is None or not _faster(value):
            return self._behind(raced)
        again = self._race(draft, seed=2 * draft.number + 1)
        if isinstance(again, GateFailure) or not _faster(again):
            return self._behind(raced)
        return raced.through(CONFIRMED).passed()

    def _race(self, draft: Draft, seed: int) -> Value | GateFailure:
        """One session with the entrants champion (first), default and challenger."""
        entrants = {"challenger": dict(draft.config)}
        if self._best is not None and self._default is not None:
            others = {"champion": dict(self._best.config)}
            if self._best.number != self._default.number:
                others["default"] = dict(self._default.config)
            entrants = {**others, **entrants}
        job = self._context.job("race", draft.config, entrants=entrants, seconds=SECONDS, seed=seed)
        (value,) = self._context.run([job])
        if isinstance(value, GateFailure):
            return value
        if any("challenger" not in times for times in value["times_us"].values()):
            return GateFailure(Standing.NO_COST, value["reasons"].get("challenger", "it was not measured"))
        return value

    def _times(self, value: Value) -> dict[str, dict[str, float]]:
        """Times of the challenger, scaled to the default's first time."""
        (gpu,) = self._context.gpus
        if self._default is None:
            return {gpu.name: {label: times["challenger"] for label, times in value["times_us"].items()}}
        base = self._default.times_us[gpu.name]
        return {
            gpu.name: {
                label: times["challenger"] / times.get("default", times["champion"]) * base[label]
                for label, times in value["times_us"].items()
            }
        }

    def _behind(self, draft: Draft) -> Trial:
        """Record of a configuration that did not win: its cost is at least the champion's, whatever one session
        shows."""
        if self._best is None or costs_of(draft.times_us) >= self._best.outcome.costs:
            return draft.passed()
        return replace(draft, times_us=self._best.times_us).passed()


def _faster(value: Value) -> bool:
    """Whether the outcome is FASTER on a problem, and SLOWER on none."""
    outcomes = {each.get("challenger") for each in value["outcomes"].values()}
    good = {ComparisonOutcome.FASTER.value, ComparisonOutcome.SAME.value}
    return ComparisonOutcome.FASTER.value in outcomes and outcomes <= good
