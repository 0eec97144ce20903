"""The sweep: batches of configurations pass the gates, cheapest first, and the strategy gets the results.

A batch has a fixed size and passes its gates together; results are reported and recorded in the order of the requests.
The records therefore depend neither on the number of workers nor on their speed.

Modelled costs precede the sanitizer and the judge, which take ten times as long. Configurations that :data:`KEEP`
passed ones beat by the model are SCREENED, without a cost. Measured costs follow the judge: only judged code is timed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sdpalab.errors import MachineError
from sdpalab.kernels.kernel import Config
from sdpalab.search.context import SearchContext, Value
from sdpalab.search.draft import Draft, GateFailure
from sdpalab.search.measured import Champion
from sdpalab.search.outcome import Standing, Trial
from sdpalab.search.pareto import at_least_as_good, ranked
from sdpalab.search.strategy import Strategy

__all__ = ["BATCH", "KEEP", "Sweep", "line_of"]

BATCH = 8
"""Number of configurations per request."""
KEEP = 3
"""Number of better passed configurations from which on the model screens a configuration."""


class Sweep:
    """Runs a strategy until the budget is used up or the space is exhausted.

    Attributes
    ----------
    trials : list of Trial
        Records in the order of the requests; the first is the default configuration.
    stopped : str
        Reason for the end, in words; empty before it.
    """

    def __init__(self, context: SearchContext, strategy: Strategy) -> None:
        self._context, self._strategy = context, strategy
        self._seen: dict[tuple[tuple[str, str], ...], int] = {}
        self._champion = None if context.modelled else Champion(context)
        self._prove_seconds: float | None = None
        self._batch_seconds = 0.0
        self.trials: list[Trial] = []
        self.stopped = ""

    @property
    def baseline(self) -> Trial:
        """Record of the default configuration."""
        return self.trials[0]

    def champion(self) -> Trial | None:
        """The best configuration by measured races, after a second race of the near-best; None for modelled costs.

        Raises
        ------
        TimeUp
            If the time ends before.
        """
        if self._champion is None or self.baseline.standing is not Standing.PASSED:
            return None
        self._champion.race_again(self.trials)
        return self._champion.trial

    @property
    def passed(self) -> list[Trial]:
        """Records of possible elites."""
        return [trial for trial in self.trials if trial.standing is Standing.PASSED]

    def run(self, last_gates_s: float | None = None) -> bool:
        """Try configurations; returns True if only time ended the sweep, and it can continue after the last gates.

        Parameters
        ----------
        last_gates_s : float, optional
            Seconds to reserve for the last gates. Default: estimated.

        Raises
        ------
        TimeUp
            If the time ends in the middle of a batch.
        """
        context = self._context
        if not self.trials:
            self._batch([context.kernel.default_config])
            self._start()
        while True:
            left = self._left
            if left == 0:
                self.stopped = "the budget of configurations is used up"
                return False
            reserved_s = context.clock.for_last_gates(self._prove_seconds) if last_gates_s is None else last_gates_s
            if context.clock.seconds_left - self._batch_seconds < reserved_s:
                self.stopped = f"the last {reserved_s:.0f} s of the budget are for the last gates"
                return True
            asked = list(self._strategy.ask(BATCH if left is None else min(BATCH, left)))
            if not asked:
                self.stopped = "every configuration was tried"
                return False
            start_s = context.clock.now()
            for trial in self._batch(asked):
                self._strategy.tell(trial.knobs, trial.outcome)
            self._batch_seconds = context.clock.now() - start_s

    @property
    def _left(self) -> int | None:
        """Number of configurations left in the budget; None for no limit."""
        return self._context.clock.left(sum(trial.same_as is None for trial in self.trials))

    def _start(self) -> None:
        """Report the default configuration to the strategy, or the nearest one in the space with its own outcome."""
        context = self._context
        default = context.kernel.default_config
        if default not in context.space:
            resolved = context.kernel.resolved(context.problems[0], default, context.gpus[0].sms)
            near = context.space.nearest(resolved)
            if near is None or self._left == 0:
                return
            (trial,) = self._batch([near])
            same = trial.same_as == self.baseline.number
            self._strategy.tell(near, self.baseline.outcome if same else trial.outcome)
            return
        self._strategy.tell(default, self.baseline.outcome)

    def _batch(self, configs: Sequence[Config]) -> list[Trial]:
        """Run configurations through the gates; stores and returns their records, in order."""
        first = len(self.trials)
        builds = self._context.run([self._context.job("build", config) for config in configs])
        settled: dict[int, Trial] = {}
        drafts: dict[int, Draft] = {}
        for place, (config, build) in enumerate(zip(configs, builds, strict=True)):
            begun = self._begun(first + place, config, build)
            if isinstance(begun, Trial):
                settled[place] = begun
            else:
                drafts[place] = begun
        settled |= self._gated(drafts)
        trials = [settled[place] for place in range(len(configs))]
        for trial in trials:
            if trial.standing is Standing.LOST and not self.trials:
                raise MachineError(f"the default configuration cannot be tried: {trial.reason}")
            self.trials.append(trial)
            self._context.log.keep(trial)
            self._context.progress(line_of(trial))
        return trials

    def _begun(self, number: int, config: Config, build: Value | GateFailure) -> Draft | Trial:
        """The draft of a configuration after its build, or its record if it ends there."""
        draft = Draft(number, config)
        if isinstance(build, GateFailure):
            return draft.failed(build)
        draft = replace(draft, **{name: build[name] for name in ("identity", "ptx_sha256", "resources")})
        key = tuple(sorted(draft.identity.items()))
        earlier = self._seen.setdefault(key, number)
        if earlier != number:
            reason = f"the same PTX and launches as configuration {earlier}"
            return draft.failed(GateFailure(Standing.DUPLICATE, reason), same_as=earlier)
        if "standing" in build:
            return draft.failed(GateFailure(Standing(build["standing"]), build["reason"]))
        return draft.through("build", "static gate")

    def _gated(self, drafts: Mapping[int, Draft]) -> dict[int, Trial]:
        """Records of built configurations: from the log, or after the other gates."""
        replayed: dict[int, Trial] = {}
        for place, draft in drafts.items():
            known = self._context.log.known(draft.identity)
            if known is not None:
                replayed[place] = replace(known, number=draft.number, config=dict(draft.config))
        new = {place: draft for place, draft in drafts.items() if place not in replayed}
        if self._champion is None:
            return {**replayed, **self._modelled(new, list(replayed.values()))}
        for trial in replayed.values():
            self._champion.learn(trial)
        settled, proven = _parted(self._answers("prove", new))
        return {**replayed, **settled, **self._champion.measured(proven)}

    def _modelled(self, drafts: Mapping[int, Draft], replayed: Sequence[Trial]) -> dict[int, Trial]:
        """Cost, screen, sanitize, judge."""
        settled, costed = _parted(self._answers("count", drafts))
        passed = [trial.outcome.costs for trial in (*self.trials, *replayed) if trial.outcome.passed]
        while costed:
            first = not self.trials  # the default, the basis of all comparisons, is judged at any cost
            chosen = list(costed) if first else _worth_judging(costed, passed)
            if not chosen:
                break
            rejected, proven = _parted(self._answers("prove", {place: costed.pop(place) for place in chosen}))
            settled |= rejected | {place: draft.passed() for place, draft in proven.items()}
            passed += [draft.costs for draft in proven.values()]
        behind = GateFailure(Standing.SCREENED, f"by the model {KEEP} that passed are at least as fast; not judged")
        return settled | {place: draft.failed(behind) for place, draft in costed.items()}

    def _answers(self, kind: str, drafts: Mapping[int, Draft]) -> dict[int, Draft | Trial]:
        """Results of a gate: a draft for each passed configuration, a record for each rejected one."""
        if not drafts:
            return {}
        start_s = self._context.clock.now()
        values = self._context.run([self._context.job(kind, draft.config) for draft in drafts.values()])
        if not self.trials:
            seconds = self._context.clock.now() - start_s
            self._context.took(kind, seconds)
            self._prove_seconds = seconds if kind == "prove" else self._prove_seconds
        results: dict[int, Draft | Trial] = {}
        for (place, draft), value in zip(drafts.items(), values, strict=True):
            if isinstance(value, GateFailure):
                results[place] = draft.failed(value)
            else:
                more = {"times_us": value["times_us"]} if "times_us" in value else {}
                results[place] = replace(draft.through(*value.get("gates", ())), **more)
        return results


def _parted(results: Mapping[int, Draft | Trial]) -> tuple[dict[int, Trial], dict[int, Draft]]:
    """The results, split into records and drafts."""
    trials = {place: each for place, each in results.items() if isinstance(each, Trial)}
    return trials, {place: each for place, each in results.items() if isinstance(each, Draft)}


def _worth_judging(costed: Mapping[int, Draft], passed: Sequence[tuple[float, ...]]) -> list[int]:
    """Positions of configurations that fewer than :data:`KEEP` passed or previously chosen ones are at least as good
    as.

    For any division into rounds, a configuration is judged if fewer than KEEP configurations before it pass; a search
    interrupted in a batch therefore screens the same ones after it is resumed.
    """
    places = sorted(costed)
    ahead, chosen = list(passed), []
    for rank in ranked([costed[place].costs for place in places]):
        costs = costed[places[rank]].costs
        if sum(at_least_as_good(other, costs) for other in ahead) < KEEP:
            ahead.append(costs)
            chosen.append(places[rank])
    return sorted(chosen)


def line_of(trial: Trial) -> str:
    """One line of progress for a record."""
    costs = ", ".join(f"{gpu} {cost:.2f} us" for gpu, cost in trial.costs_us.items())
    return f"{trial.number:4} {trial.standing.value:13} {trial.knobs}: {costs or trial.reason}"
