"""Optuna's samplers behind the protocol of strategies: TPE and NSGA-II (extra ``search``).

Optuna may repeat points and treats constraints as a preference. Each proposed trial is therefore looked up here. A
valid new one is used. An invalid one is reported as failed, and its nearest new valid neighbour replaces it. A repeated
one is reported with its known result, so the sampler moves on.

Sources: Bergstra et al., "Algorithms for Hyper-Parameter Optimization" (2011); Deb et al., "A fast and elitist
multiobjective genetic algorithm: NSGA-II" (2002); Optuna 5 reference, "The Ask-and-Tell Interface".
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import Any

from sdpalab.errors import UserError
from sdpalab.kernels.kernel import Config
from sdpalab.search.outcome import Standing, TrialOutcome
from sdpalab.search.space import ConfigSpace

__all__ = ["Nsga2", "Tpe"]

_MOST_PROPOSALS = 50
"""Largest number of consecutive proposals without a new configuration; the next one is then drawn from the rest."""


class _OptunaStrategy(ABC):
    """A study whose trials are configurations of a space."""

    def __init__(self, space: ConfigSpace, objectives: int, seed: int) -> None:
        optuna = _optuna()
        self._space, self._draw = space, random.Random(seed)
        self._values = {name: optuna.distributions.CategoricalDistribution(v) for name, v in space.knobs.items()}
        self._study = optuna.create_study(directions=["minimize"] * objectives, sampler=self._sampler(optuna, seed))
        self._failed, self._pruned = optuna.trial.TrialState.FAIL, optuna.trial.TrialState.PRUNED
        self._single = objectives == 1
        self._asked: dict[Config, Any] = {}
        self._known: dict[Config, TrialOutcome] = {}
        self._left = list(space)
        self._draw.shuffle(self._left)

    @abstractmethod
    def _sampler(self, optuna: Any, seed: int) -> Any:
        """Optuna's sampler."""

    def ask(self, n: int) -> list[Config]:
        asked: list[Config] = []
        while len(asked) < n and (config := self._next()) is not None:
            asked.append(config)
        return asked

    def tell(self, config: Config, outcome: TrialOutcome) -> None:
        trial = self._asked.pop(config, None)
        self._known[config] = outcome
        if trial is None:  # a start that was not proposed
            trial = self._fixed(config)
        self._report(trial, outcome)

    def _next(self) -> Config | None:
        for _ in range(_MOST_PROPOSALS):
            trial = self._study.ask(self._values)
            config = self._config(trial.params)
            if config not in self._space:
                self._study.tell(trial, state=self._failed)
                near = self._new_near(config)
                if near is not None:
                    self._asked[near] = self._fixed(near)
                    return near
            elif config in self._known:
                self._report(trial, self._known[config])
            elif config in self._asked:
                self._study.tell(trial, state=self._failed)
            else:
                self._asked[config] = trial
                return config
        while self._left:
            config = self._left.pop()
            if config not in self._known and config not in self._asked:
                self._asked[config] = self._fixed(config)
                return config
        return None

    def _config(self, params: dict[str, Any]) -> Config:
        return self._space.configs[0].but(**params)

    def _new_near(self, config: Config) -> Config | None:
        new = [each for each in self._space if each not in self._known and each not in self._asked]
        return min(new, key=lambda each: self._space.distance(each, config), default=None)

    def _fixed(self, config: Config) -> Any:
        """A trial of the study with exactly these knobs."""
        self._study.enqueue_trial({name: config[name] for name in self._values})
        return self._study.ask(self._values)

    def _report(self, trial: Any, outcome: TrialOutcome) -> None:
        if outcome.passed:
            self._study.tell(trial, list(outcome.costs))
        elif outcome.standing is Standing.SCREENED and self._single:
            self._study.tell(trial, state=self._pruned)  # worse than completed ones; a failure carries no information
        else:
            self._study.tell(trial, state=self._failed)


class Tpe(_OptunaStrategy):
    """The tree-structured Parzen estimator."""

    def _sampler(self, optuna: Any, seed: int) -> Any:
        return optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True, n_startup_trials=10)


class Nsga2(_OptunaStrategy):
    """The genetic algorithm NSGA-II, for one cost or several."""

    def _sampler(self, optuna: Any, seed: int) -> Any:
        return optuna.samplers.NSGAIISampler(seed=seed, population_size=16)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UserError(
            f"the strategies tpe and nsga2 need Optuna: pip install 'sdpalab[search]' ({error}); elites needs nothing"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
