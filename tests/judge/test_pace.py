"""Judging behind what is computed, and when a second set of processes pays."""

from __future__ import annotations

import threading
import time

import pytest

from sdpalab.judge import pace
from sdpalab.judge.pace import Behind, Pace


def test_work_is_done_in_order_and_all_of_it() -> None:
    done: list[int] = []
    with Behind() as behind:
        for n in range(10):
            behind.submit(lambda n=n: done.append(n))  # type: ignore[misc]
    assert done == list(range(10))


def test_the_caller_goes_on_and_waits_where_too_much_is_left() -> None:
    gate, done = threading.Event(), list[int]()

    def work(n: int) -> None:
        gate.wait(10)
        done.append(n)

    with Behind() as behind:
        for n in range(pace.MOST_BEHIND):
            behind.submit(lambda n=n: work(n))  # type: ignore[misc]
        assert done == []
        threading.Timer(0.05, gate.set).start()
        behind.submit(lambda: work(9))
        assert 0 in done
    assert done == [*range(pace.MOST_BEHIND), 9]


def test_an_exception_is_the_callers() -> None:
    def fail() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"), Behind() as behind:
        behind.submit(fail)
    done: list[int] = []
    behind = Behind()
    behind.submit(lambda: time.sleep(0.05))
    behind.submit(lambda: done.append(1))
    behind.__exit__(KeyError, KeyError(), None)
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
