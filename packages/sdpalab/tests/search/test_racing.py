"""A race times what has a verdict: an entrant without one is judged first, and left out with the reason if it fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sdpalab.kernels.registry import get
from sdpalab.measure.timing_gate import GateOutcome, TimingPermit
from sdpalab.problem import Problem
from sdpalab.search.racing import race

FLASH, PROBLEM = get("flash"), Problem(1, 1, 64, 64)
TILES = FLASH.default_config.but(SCHEDULE="tiles")
WRONG = TILES.but(BLOCK_M=32)


def test_an_entrant_that_the_judge_rejects_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []
    timed: list[list[str]] = []
    good: Any = SimpleNamespace(problems=(PROBLEM,), named=lambda name: SimpleNamespace(name=name))

    def judged(kernel: Any, config: Any, problems: Any, **options: Any) -> GateOutcome:
        asked.append((str(config), options["device"]))
        permit: TimingPermit | None = None if config == WRONG else good
        reason = "it is INCORRECT on a GPU: zeros" if permit is None else ""
        return GateOutcome("flash", str(config), options["arch"], options["sms"], permit, reason=reason)

    def measured(problem: Problem, peers: Any, kernels: Any, *_: Any, **__: Any) -> Any:
        timed.append([permit.name for permit in kernels])
        summary = SimpleNamespace(median_us=5.0)
        return SimpleNamespace(
            measurements=[SimpleNamespace(name=each, summary=summary, reason="") for each in timed[-1]]
        )

    monkeypatch.setattr("sdpalab.measure.benchmark.cuda_device", lambda: SimpleNamespace(ordinal=0))
    monkeypatch.setattr("sdpalab.measure.benchmark.benchmark", measured)
    monkeypatch.setattr("sdpalab.measure.timing_gate.judge_for_timing", judged)
    monkeypatch.setattr("sdpalab.run.GpuExecutor", lambda ordinal: SimpleNamespace(arch="sm_89", sms=58))
    value = race(FLASH, {"champion": TILES, "challenger": WRONG}, [PROBLEM], seconds=1.0, seed=1)
    assert asked == [(str(TILES), "gpu"), (str(WRONG), "gpu")]
    assert timed == [["champion"]]
    assert value["times_us"] == {PROBLEM.label: {"champion": 5.0}}
    assert value["reasons"] == {"challenger": "it is INCORRECT on a GPU: zeros"}
