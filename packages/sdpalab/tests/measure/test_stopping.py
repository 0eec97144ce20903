"""The rule stops when the medians are known, when that takes too long, and at no lucky moment between."""

from __future__ import annotations

import pytest
from simulated_clock import Behaviour, SimulatedClock, Work, times

from sdpalab.errors import UserError
from sdpalab.measure.session import MeasuredSession, measure
from sdpalab.measure.stopping import StoppingRule, StopReason


def session(behaviour: Behaviour, rule: StoppingRule, seed: int = 0) -> MeasuredSession:
    clock = SimulatedClock(behaviour, seed)
    return measure([Work("a", 5.0).subject(), Work("b", 7.0).subject()], clock, rule, now=clock.now, seed=seed)


def test_quiet_times_stop_at_once_and_noisy_ones_later() -> None:
    rule = StoppingRule(least=20, most=2000, relative_width=0.01, seconds=1e9)
    quiet, noisy = session(Behaviour(noise=0.002), rule), session(Behaviour(noise=0.03), rule)
    assert quiet.stopped is noisy.stopped is StopReason.CONVERGED
    assert len(quiet.states) == 20
    assert 40 < len(noisy.states) < 2000
    for measurement in (*quiet.measurements, *noisy.measurements):
        assert measurement.summary is not None
        assert measurement.summary.relative_width <= 0.01


def test_a_noisy_machine_ends_at_the_most_rounds() -> None:
    ended = session(Behaviour(noise=0.2), StoppingRule(least=10, most=60, relative_width=0.001, seconds=1e9))
    assert ended.stopped is StopReason.MOST_ROUNDS
    assert len(ended.states) == 60


def test_time_ends_it_even_below_the_least() -> None:
    ended = session(Behaviour(noise=0.2), StoppingRule(least=500, most=1000, seconds=0.05))
    assert ended.stopped is StopReason.TIME_UP
    assert 1 <= len(ended.states) < 500
    assert ended.seconds >= 0.05


def test_it_looks_only_now_and_then() -> None:
    rule = StoppingRule(least=20, most=1000, seconds=1e9)
    still = [[5.0] * 100]
    looks = [n for n in range(1, 101) if rule.reason_to_stop([still[0][:n]], 0.0) is StopReason.CONVERGED]
    assert looks == [20, 25, 32, 40, 50, 63, 79, 99]


def test_every_row_must_be_known() -> None:
    rule = StoppingRule(least=40, most=1000, seconds=1e9)
    quiet, noisy = times(5.0, Behaviour(noise=0.001), 40, 0), times(5.0, Behaviour(noise=0.3), 40, 0)
    assert rule.reason_to_stop([quiet, quiet], 0.0) is StopReason.CONVERGED
    assert rule.reason_to_stop([quiet, noisy], 0.0) is None
    assert rule.reason_to_stop([], 0.0) is None


def test_stopping_early_does_not_spoil_the_interval() -> None:
    rule = StoppingRule(least=20, most=300, relative_width=0.02, seconds=1e9)
    hits = 0
    for seed in range(150):
        clock = SimulatedClock(Behaviour(noise=0.03), seed)
        summary = measure([Work("a", 5.0).subject()], clock, rule, now=clock.now).of("a").summary
        assert summary is not None
        hits += summary.interval.low <= 5.0 <= summary.interval.high
    assert 0.88 <= hits / 150 <= 0.99, "of 95% intervals"


@pytest.mark.parametrize(
    "fields", [{"least": 0}, {"least": 10, "most": 5}, {"relative_width": 0.0}, {"seconds": 0.0}, {"seconds": -1.0}]
)
def test_a_rule_that_cannot_be_kept(fields: dict[str, float]) -> None:
    with pytest.raises(UserError):
        StoppingRule(**fields)
