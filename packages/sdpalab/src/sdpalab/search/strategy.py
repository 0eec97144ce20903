"""Strategies choose the next configurations. A search uses only their methods ``ask`` and ``tell``.

To add one, write a module with a class that has these two methods, and add a line to :data:`STRATEGIES`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sdpalab.errors import UserError
from sdpalab.kernels.kernel import Config
from sdpalab.search.outcome import TrialOutcome
from sdpalab.search.pareto import ranked
from sdpalab.search.space import ConfigSpace

__all__ = ["STRATEGIES", "Elites", "Exhaustive", "Strategy", "strategy_named"]


class Strategy(Protocol):
    """Chooses configurations of a space. Equal seeds and outcomes give equal choices."""

    def ask(self, n: int) -> Sequence[Config]:
        """At most ``n`` valid configurations that were neither asked for nor told before; empty if all were."""
        ...

    def tell(self, config: Config, outcome: TrialOutcome) -> None:
        """Report the outcome of a configuration that was asked for, or of one to start from."""
        ...


class Exhaustive:
    """All configurations, in the order of the space."""

    def __init__(self, space: ConfigSpace, objectives: int = 1, seed: int = 0) -> None:
        self._left = list(space)[::-1]
        self._seen: set[Config] = set()

    def ask(self, n: int) -> list[Config]:
        asked: list[Config] = []
        while self._left and len(asked) < n:
            config = self._left.pop()
            if config not in self._seen:
                asked.append(config)
        return asked

    def tell(self, config: Config, outcome: TrialOutcome) -> None:
        self._seen.add(config)


class Elites:
    """An evolutionary sweep: the best passed configurations, and their one-step mutations.

    The first :data:`FIRST` configurations are drawn from the whole space, besides any told before. Later, most are one
    step from an elite, with a preference for better ones; a few are drawn from the whole space, so every part of it
    stays reachable. No configuration is returned twice.

    Parameters
    ----------
    space : ConfigSpace
    objectives : int
        Number of costs of an outcome; several costs are ranked front by front.
    seed : int
    """

    FIRST = 12
    ELITES = 8
    DRAWN = 0.1
    """Share of later configurations that are drawn from the whole space."""

    def __init__(self, space: ConfigSpace, objectives: int = 1, seed: int = 0) -> None:
        self._space, self._draw = space, random.Random(seed)
        self._asked: set[Config] = set()
        self._elites: dict[Config, tuple[float, ...]] = {}
        self._shuffled = list(space)
        self._draw.shuffle(self._shuffled)

    @property
    def elites(self) -> tuple[Config, ...]:
        """The best passed configurations, best first."""
        return tuple(self._elites)

    def ask(self, n: int) -> list[Config]:
        asked: list[Config] = []
        while len(asked) < n and (config := self._next()) is not None:
            self._asked.add(config)
            asked.append(config)
        return asked

    def tell(self, config: Config, outcome: TrialOutcome) -> None:
        self._asked.add(config)
        if not outcome.passed:
            return
        pool = [*self._elites.items(), (config, outcome.costs)]
        best = ranked([costs for _, costs in pool])[: self.ELITES]
        self._elites = dict(pool[place] for place in best)

    def _next(self) -> Config | None:
        if len(self._asked) >= self.FIRST and self._elites and self._draw.random() >= self.DRAWN:
            step = self._step()
            if step is not None:
                return step
        return self._drawn()

    def _step(self) -> Config | None:
        """A new configuration one step from an elite; from a worse elite if the better ones have no new steps."""
        preference = {elite: place + self.ELITES * self._draw.random() / 2 for place, elite in enumerate(self._elites)}
        for elite in sorted(self._elites, key=preference.__getitem__):
            new = [step for step in self._space.steps(elite) if step not in self._asked]
            if new:
                return self._draw.choice(new)
        return None

    def _drawn(self) -> Config | None:
        while self._shuffled:
            config = self._shuffled.pop()
            if config not in self._asked:
                return config
        return None


def _tpe(space: ConfigSpace, objectives: int, seed: int) -> Strategy:
    from sdpalab.search.optuna_strategies import Tpe

    return Tpe(space, objectives, seed)


def _nsga2(space: ConfigSpace, objectives: int, seed: int) -> Strategy:
    from sdpalab.search.optuna_strategies import Nsga2

    return Nsga2(space, objectives, seed)


STRATEGIES: Mapping[str, Callable[[ConfigSpace, int, int], Strategy]] = {
    "elites": Elites,
    "exhaustive": Exhaustive,
    "tpe": _tpe,
    "nsga2": _nsga2,
}
"""Strategies by name; the first is the default."""


def strategy_named(name: str, space: ConfigSpace, objectives: int, seed: int) -> Strategy:
    """The strategy of that name for a space.

    Raises
    ------
    UserError
        For an unknown name, or if a required package is not installed.
    """
    if name not in STRATEGIES:
        raise UserError(f"there is no strategy {name!r}: the strategies are {', '.join(STRATEGIES)}")
    return STRATEGIES[name](space, objectives, seed)
