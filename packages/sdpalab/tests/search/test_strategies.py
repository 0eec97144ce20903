"""Strategies: never a repeat, never an invalid configuration, and how soon the best of a real landscape is found."""

from __future__ import annotations

import random
from math import inf
from statistics import median

import pytest
from flash_landscape import landscape

from sdpalab import MISSION, UserError
from sdpalab.kernels.kernel import Config
from sdpalab.kernels.registry import get
from sdpalab.search.outcome import Standing, TrialOutcome
from sdpalab.search.space import ConfigSpace
from sdpalab.search.strategy import STRATEGIES, Strategy, strategy_named

NAMES = tuple(STRATEGIES)


@pytest.fixture(scope="module")
def toy() -> ConfigSpace:
    """Six separable knobs with an invalid corner: 580 valid configurations."""
    knobs = {"A": (1, 2, 3, 4), "B": (1, 2, 3, 4), "C": (1, 2, 3), "D": ("x", "y", "z"), "E": (0, 1), "F": (0, 1, 2)}
    every: list[Config] = [Config()]
    for name, values in knobs.items():
        every = [config.but(**{name: value}) for config in every for value in values]
    valid = [config for config in every if not (config.int("A") * config.int("B") > 8 and config["D"] != "x")]
    return ConfigSpace(knobs, tuple(valid[:580]))


def _cost(config: Config) -> float:
    steps = abs(config.int("A") - 3) + abs(config.int("B") - 2) + abs(config.int("C") - 2)
    return 1 + steps + "xzy".index(str(config["D"])) + config.int("E") + abs(config.int("F") - 1)


def _named(name: str, space: ConfigSpace, objectives: int = 1, seed: int = 0) -> Strategy:
    if name in ("tpe", "nsga2"):
        pytest.importorskip("optuna", reason="needs Optuna: the extra 'search'")
    return strategy_named(name, space, objectives, seed)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("objectives", [1, 2])
def test_every_configuration_is_asked_once_and_then_none(toy: ConfigSpace, name: str, objectives: int) -> None:
    space = ConfigSpace(toy.knobs, toy.configs[:150]) if name in ("tpe", "nsga2") else toy
    strategy = _named(name, space, objectives)
    strategy.tell(space.configs[7], TrialOutcome(Standing.PASSED, (1.0,) * objectives))
    asked: list[Config] = []
    draw = random.Random(1)
    while batch := strategy.ask(8):
        assert len(batch) <= 8
        asked += batch
        for config in batch:
            outcomes = [TrialOutcome(Standing.PASSED, (_cost(config),) * objectives), TrialOutcome(Standing.INCORRECT)]
            outcomes.append(TrialOutcome(Standing.SCREENED))
            strategy.tell(config, draw.choice(outcomes))
    assert len(asked) == len(set(asked)), "a configuration was asked twice"
    assert set(asked) == set(space) - {space.configs[7]}
    assert not strategy.ask(1)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_and_outcomes_give_the_same_choices(toy: ConfigSpace, name: str) -> None:
    def run() -> list[Config]:
        strategy, asked = _named(name, toy, seed=4), []
        for _ in range(4):
            batch = strategy.ask(6)
            asked += batch
            for config in batch:
                strategy.tell(config, TrialOutcome(Standing.PASSED, (_cost(config),)))
        return asked

    assert run() == run()


@pytest.mark.parametrize(("name", "most"), [("elites", 90), ("tpe", 90), ("nsga2", 580)])
def test_the_best_of_a_toy_space_is_found_soon(toy: ConfigSpace, name: str, most: int) -> None:
    best = min(map(_cost, toy))
    needed = []
    for seed in range(5):
        strategy, count = _named(name, toy, seed=seed), 0
        found = False
        while not found:
            for config in strategy.ask(1):
                count += 1
                strategy.tell(config, TrialOutcome(Standing.PASSED, (_cost(config),)))
                found = _cost(config) == best
        needed.append(count)
    assert median(needed) <= most


def test_elites_come_within_two_percent_of_flash_with_a_quarter_of_the_evaluations() -> None:
    knobs, times = landscape()
    space = ConfigSpace(knobs, tuple(times))
    optimum = min(us for _, us in times.values())
    reached = []
    for seed in range(20):
        strategy = strategy_named("elites", space, 1, seed)
        codes: dict[int, float] = {}
        for _ in range(len(space) // 4):
            (config,) = strategy.ask(1)
            code, us = times[config]
            if code in codes:
                strategy.tell(config, TrialOutcome(Standing.DUPLICATE))
            elif us < inf:
                strategy.tell(config, TrialOutcome(Standing.PASSED, (us,)))
            else:
                strategy.tell(config, TrialOutcome(Standing.NO_COST))
            codes[code] = us
        reached.append(min(codes.values()))
    assert median(reached) <= 1.02 * optimum
    # A random draw reaches no better than that: else the test would show nothing of the strategy.
    draws = [min(us for _, us in random.Random(seed).sample(list(times.values()), 34)) for seed in range(20)]
    assert median(reached) < median(draws)


def test_the_landscape_is_of_the_space_that_flash_has() -> None:
    _, times = landscape()
    space = set(get("flash").space(MISSION))
    assert {config.but(ROWS_PER_WARP=16) for config in times} <= space  # the record is of the time before that knob


def test_only_what_passed_is_an_elite(toy: ConfigSpace) -> None:
    from sdpalab.search.strategy import Elites

    strategy = Elites(toy)
    for place, config in enumerate(strategy.ask(60)):
        good = place % 3 == 0
        strategy.tell(
            config, TrialOutcome(Standing.PASSED, (_cost(config),)) if good else TrialOutcome(Standing.INCORRECT)
        )
        if not good:
            assert config not in strategy.elites
    assert len(strategy.elites) == Elites.ELITES
    costs = [_cost(config) for config in strategy.elites]
    assert costs == sorted(costs)


def test_an_unknown_strategy_is_refused(toy: ConfigSpace) -> None:
    with pytest.raises(UserError, match=r"no strategy 'annealing'.*elites, exhaustive, tpe, nsga2"):
        strategy_named("annealing", toy, 1, 0)
