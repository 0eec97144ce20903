"""Modelled costs of a search: one kind for all of its configurations, that of the default."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sdpalab.errors import UserError
from sdpalab.kernels.registry import get
from sdpalab.model.modelled import ModelledTime, StepWork, modelled
from sdpalab.problem import MISSION
from sdpalab.search import cost
from warpsan.gpus import gpu_named

FLASH, L4 = get("flash"), gpu_named("L4")
OTHER = FLASH.default_config.but(BLOCK_M=32)


@pytest.fixture
def without_schedule(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the model of the configurations that a test names have no issue schedule."""
    monkeypatch.setattr(cost, "_scheduled", {})

    def choose(*configs: object) -> None:
        def of(kernel: object, config: object, problem: object, gpu: Any) -> ModelledTime:
            (step,) = modelled([StepWork("k", wavefronts=10_000)], gpu).steps
            fits = {"schedule_us": 9.0, "microseconds": 9.0}
            changes: dict[str, Any] = {"no_schedule": "its paths do not fit"} if config in configs else fits
            return ModelledTime(gpu.name, (replace(step, **changes),), cold=False)

        monkeypatch.setattr(cost, "_modelled", of)

    return choose


def test_a_configuration_without_a_schedule_has_no_cost_beside_a_default_with_one(without_schedule: Any) -> None:
    without_schedule(OTHER)
    assert cost.modelled_us(FLASH, FLASH.default_config, MISSION, L4) == 9.0
    with pytest.raises(UserError, match="the model has no issue schedule of k: its paths do not fit"):
        cost.modelled_us(FLASH, OTHER, MISSION, L4)


def test_where_the_default_has_none_all_costs_are_floors(without_schedule: Any) -> None:
    without_schedule(FLASH.default_config)
    costs = [cost.modelled_us(FLASH, config, MISSION, L4) for config in (FLASH.default_config, OTHER)]
    assert costs[0] == costs[1] < 9.0


def test_two_configurations_are_compared_by_schedules_or_by_floors_but_never_by_one_of_each(
    without_schedule: Any,
) -> None:
    for misfits in ((), (OTHER,), (FLASH.default_config,)):
        without_schedule(*misfits)
        assert cost.modelled_ratio(FLASH, OTHER, FLASH.default_config, MISSION, L4) == 1.0
