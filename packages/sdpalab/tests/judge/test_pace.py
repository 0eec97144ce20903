"""Judging while the next case is computed, and when a second set of processes pays."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sdpalab import Problem
from sdpalab.judge import judge_candidate, pace
from sdpalab.judge.pace import BackgroundJudge, Pace
from sdpalab.judge.sandbox import plan_server
from sdpalab.judge.sandbox.guarded import GuardedProcess
from sdpalab.judge.small_cases import CaseSpec


def test_work_is_done_in_order_and_all_of_it() -> None:
    done: list[int] = []
    with BackgroundJudge() as background:
        for n in range(10):
            background.submit(lambda n=n: done.append(n))  # type: ignore[misc]
    assert done == list(range(10))


def test_the_caller_goes_on_and_waits_where_too_much_is_left() -> None:
    gate, done = threading.Event(), list[int]()

    def work(n: int) -> None:
        gate.wait(10)
        done.append(n)

    with BackgroundJudge() as background:
        for n in range(pace.MOST_BEHIND):
            background.submit(lambda n=n: work(n))  # type: ignore[misc]
        assert done == []
        threading.Timer(0.05, gate.set).start()
        background.submit(lambda: work(9))
        assert 0 in done
    assert done == [*range(pace.MOST_BEHIND), 9]


def test_an_exception_is_the_callers() -> None:
    def fail() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"), BackgroundJudge() as background:
        background.submit(fail)
    done: list[int] = []
    background = BackgroundJudge()
    background.submit(lambda: time.sleep(0.05))
    background.submit(lambda: done.append(1))
    background.__exit__(KeyError, KeyError(), None)
    assert done == [], "what waits when the caller fails is not done"


@pytest.mark.parametrize(("cases", "seconds", "pays"), [(59, 0.05, False), (59, 0.5, True), (400, 0.05, True)])
def test_a_second_set_of_processes_is_started_once_and_only_where_much_is_left(
    cases: int, seconds: float, pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(pace.time, "monotonic", lambda: now)
    started: list[float] = []
    of = Pace(cases, lambda: started.append(now))
    for _ in range(cases):
        of.begin()
        now += seconds
    assert len(started) == int(pays)
    assert not pays or started[0] == pytest.approx(100.0 + pace.FIRST_CASES * seconds)


def test_slow_first_cases_start_no_second_set(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(pace.time, "monotonic", lambda: now)
    started: list[float] = []
    of = Pace(59, lambda: started.append(now))
    for case in range(59):
        of.begin()
        now += 20.0 if case < 3 else 0.05
    assert started == []


def _alone(monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[bool]:
    """Whether the launch of each run of four small cases may use every core."""
    sent: list[Mapping[str, Any]] = []
    exchange = GuardedProcess.exchange

    def recorded(self: GuardedProcess, order: Mapping[str, Any], *rest: Any) -> Any:
        sent.append(order)
        return exchange(self, order, *rest)

    monkeypatch.setattr(GuardedProcess, "exchange", recorded)
    specs = [CaseSpec(f"seed {seed}", Problem(1, 1, 9, 32), seed=seed) for seed in range(4)]
    assert judge_candidate("scalar", specs, algebra=False, **options).passed
    return [order["alone"] for order in sent if order["do"] == "run"]


def test_one_set_of_processes_has_all_cores_unless_the_caller_has_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _alone(monkeypatch) == [True] * 8
    assert _alone(monkeypatch, workers=1) == [False] * 8


def test_a_second_set_of_processes_shares_the_cores_with_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "FIRST_CASES", 1)
    monkeypatch.setattr(pace, "PAYS_SECONDS", -1.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    alone = _alone(monkeypatch)
    assert alone[:2] == [True, True]
    assert alone[-2:] == [False, False]


@pytest.mark.parametrize(("alone", "workers"), [(True, None), (False, 1)])
def test_a_launch_gets_as_many_threads_as_it_may_use(
    alone: bool, workers: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {}

    def simulated(*_: Any, **given: Any) -> Any:
        options.update(given)
        return SimpleNamespace(run=lambda *_, **__: None)

    monkeypatch.setattr(plan_server, "SimulatedExecutor", simulated)
    order = {"arch": "sm_89", "cache": ".", "watched": True, "max_steps": None, "numerics": "hardware", "poison": 0}
    order["schedule"] = "lockstep"
    plan_server._PlanServer()._run({**order, "alone": alone}, cast(Any, None), (), {})
    assert options["workers"] == workers
