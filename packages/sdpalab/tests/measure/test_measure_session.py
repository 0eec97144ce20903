"""A session: interleaved, in order, checked; who computes nothing, or something else, has no time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from simulated_clock import Behaviour, SimulatedClock, Work

from sdpalab.errors import UserError
from sdpalab.measure.comparison import ComparisonOutcome
from sdpalab.measure.floor import FloorCheck, check_floor
from sdpalab.measure.samples import L2State
from sdpalab.measure.session import MeasuredSession, Measurement, MeasureStatus, Subject, measure
from sdpalab.measure.stopping import StoppingRule
from sdpalab.measure.throttle import ClockState
from sdpalab.problem import MISSION
from warpsan.gpus import gpu_named

RULE = StoppingRule(least=10, most=10, seconds=1e9)


def run(*subjects: Subject, rounds: int = 10, seed: int = 0, checked_share: float = 0.0) -> MeasuredSession:
    clock = SimulatedClock(Behaviour(), seed)
    rule = StoppingRule(least=rounds, most=rounds, seconds=1e9)
    return measure(subjects, clock, rule, now=clock.now, checked_share=checked_share, seed=seed)


def test_rounds_are_interleaved_forwards_and_backwards() -> None:
    clock = SimulatedClock(Behaviour(), 0)
    subjects = [Work(name, 5.0).subject() for name in "abc"]
    measure(subjects, clock, StoppingRule(least=4, most=4, seconds=1e9), warm_up=2, now=clock.now, checked_share=0.0)
    assert "".join(clock.log) == "abccbaabccbaabccbaabc"  # the last is the closing check


def test_samples_are_those_of_the_clock_in_order_and_warm_ups_apart() -> None:
    ruler = SimulatedClock(Behaviour(), 7)
    sample = ruler.ready(Work("ruler", 5.0))
    expected = [sample() for _ in range(15)]
    clock = SimulatedClock(Behaviour(), 7)
    samples = measure([Work("a", 5.0).subject()], clock, RULE, now=clock.now).of("a").samples
    assert samples is not None
    assert samples.warm_up_us == tuple(expected[:5])
    assert samples.times_us == tuple(expected[5:])
    assert (samples.clock, samples.l2, samples.calls) == (clock.kind, clock.l2, clock.calls)


def test_slow_calls_warm_up_for_a_quarter_of_the_time() -> None:
    """A sample takes 0.1 s: three rounds of warm-up in 1.2 s, and not five."""
    clock = SimulatedClock(Behaviour(noise=0.001), 0)
    rule = StoppingRule(least=10, most=100, relative_width=1e-9, seconds=1.2)
    samples = measure([Work("slow", 1000.0).subject()], clock, rule, now=clock.now).of("slow").samples
    assert samples is not None
    assert len(samples.warm_up_us) == 3
    assert 8 <= len(samples.times_us) <= 10


def slow_and_fast(slow_us: float, seconds: float, fast: int = 3) -> MeasuredSession:
    """A sample is 100 calls: 50 us are 5 ms."""
    clock = SimulatedClock(Behaviour(noise=0.001), 0)
    subjects = [Work("slow", slow_us).subject(), *(Work(f"fast {n}", 50.0).subject() for n in range(fast))]
    return measure(subjects, clock, StoppingRule(least=10, most=50, seconds=seconds), now=clock.now)


def test_a_subject_is_left_out_if_the_others_have_too_few_rounds_with_it() -> None:
    session = slow_and_fast(20_000.0, 1.0)  # 2 s a sample
    slow = session.of("slow")
    assert slow.status is MeasureStatus.LEFT_OUT
    assert slow.reason == (
        "a sample of it takes 2 s, and 10 rounds of 4 subjects have 1 s: give it more with --seconds, or fewer subjects"
    )
    assert slow.samples is None
    assert session.compare("slow", "fast 0").outcome is ComparisonOutcome.INVALID


def test_the_time_of_what_is_left_out_is_not_taken_from_the_others() -> None:
    clock = SimulatedClock(Behaviour(noise=0.001), 0)
    subjects = [Work("slow", 1500.0).subject(), Work("fast", 50.0).subject()]  # 0.15 s and 5 ms
    session = measure(subjects, clock, StoppingRule(least=10, most=50, seconds=1.0), now=clock.now)
    assert session.of("slow").status is MeasureStatus.LEFT_OUT
    fast = session.of("fast").samples
    assert fast is not None
    assert len(fast.times_us) >= 10


def test_no_subject_is_left_out_if_there_is_time_or_all_are_as_slow() -> None:
    assert slow_and_fast(20_000.0, 60.0).of("slow").status is MeasureStatus.MEASURED
    clock = SimulatedClock(Behaviour(noise=0.001), 0)
    subjects = [Work(name, 20_000.0).subject() for name in "abc"]
    session = measure(subjects, clock, StoppingRule(least=10, most=50, seconds=9.0), now=clock.now)
    assert {measurement.status for measurement in session.measurements} == {MeasureStatus.MEASURED}


def test_the_same_seed_gives_the_same_session() -> None:
    one, same, other = (run(Work("a", 5.0).subject(), seed=seed).to_dict() for seed in (1, 1, 2))
    assert one == same
    assert one != other


def wrong(out: np.ndarray, called: int) -> None:
    out[:] = 7.0


def only_once(out: np.ndarray, called: int) -> None:
    if called == 1:
        out[:] = np.arange(1.0, 5.0)


def breaks_at_ten(out: np.ndarray, called: int) -> None:
    if called == 10:
        raise RuntimeError("no luck\ntoday")
    out[:] = np.arange(1.0, 5.0)


def test_what_is_wrong_is_not_timed_at_all() -> None:
    clock = SimulatedClock(Behaviour(), 0)
    session = measure([Work("bad", 1.0, wrong).subject(), Work("good", 5.0).subject()], clock, RULE, now=clock.now)
    bad, good = session.of("bad"), session.of("good")
    assert bad.status is MeasureStatus.INVALID
    assert "its output is wrong: [7.0, 7.0, 7.0, 7.0] is not" in bad.reason
    assert bad.samples is None
    assert clock.readied == ["good"]
    assert "bad" not in clock.log
    assert good.status is MeasureStatus.MEASURED
    assert session.compare("bad", "good").outcome is ComparisonOutcome.INVALID


def test_who_computes_only_while_unwatched_calls_are_few_is_found_out() -> None:
    """It leaves its first, right output where it is; the closing check overwrites that before."""
    session = run(Work("lazy", 1.0, only_once).subject(), Work("good", 5.0).subject())
    assert session.of("lazy").status is MeasureStatus.INVALID
    assert "nan" in session.of("lazy").reason
    assert session.of("lazy").samples is None


def test_rounds_drawn_by_chance_are_checked_too() -> None:
    few, many = (run(Work("a", 5.0).subject(), rounds=200, checked_share=share).of("a").checks for share in (0.0, 0.25))
    assert few == 2
    assert 2 + 30 <= many <= 2 + 70


def test_one_failure_ends_one_subject() -> None:
    session = run(Work("broken", 1.0, breaks_at_ten).subject(), Work("good", 5.0).subject())
    assert session.of("broken").status is MeasureStatus.FAILED
    assert session.of("broken").reason == "RuntimeError: no luck today"
    good = session.of("good").samples
    assert good is not None
    assert len(good.times_us) == 10


def test_when_all_fail_it_ends() -> None:
    session = run(Work("bad", 1.0, wrong).subject())
    assert session.stopped is None
    assert session.states == ()


def test_a_time_below_the_floor_is_invalid_and_its_samples_are_kept() -> None:
    def floor(time_us: float) -> FloorCheck:
        return check_floor(time_us, MISSION, gpu_named("L4"), l2=L2State.WARM)

    session = run(Work("magic", 1.7).subject(floor=floor), Work("good", 24.5).subject(floor=floor))
    magic, good = session.of("magic"), session.of("good")
    assert magic.status is MeasureStatus.INVALID
    assert "impossible on L4" in magic.reason
    assert magic.summary is None
    assert magic.samples is not None
    assert good.floor is not None
    assert good.floor.share == pytest.approx(4.43 / 24.5, rel=0.02)
    compared = session.compare("magic", "good")
    assert compared.outcome is ComparisonOutcome.INVALID
    assert compared.ratio is None
    assert "impossible" in compared.sentence


def test_every_call_is_made_in_its_scope_and_the_scope_is_not_timed() -> None:
    inside: list[bool] = []
    active = [False]

    @contextmanager
    def scope() -> Iterator[None]:
        active[0] = True
        yield
        active[0] = False

    def note(out: np.ndarray, called: int) -> None:
        inside.append(active[0])
        out[:] = np.arange(1.0, 5.0)

    run(Work("a", 5.0, note).subject(scope=scope))
    assert len(inside) == 1 + 5 + 10 + 1
    assert all(inside)


class Overheating:
    """A watch that sees thermal slowdown in every other round."""

    about, most_mhz = "made up", None

    def __init__(self) -> None:
        self._looks = 0

    def look(self) -> ClockState:
        self._looks += 1
        return ClockState(1200, 90, 70.0, ("hardware thermal slowdown",) if self._looks % 2 else ("power cap",))


def test_the_watch_is_read_after_every_round_that_counts() -> None:
    clock = SimulatedClock(Behaviour(), 0)
    session = measure([Work("a", 5.0).subject()], clock, RULE, watch=Overheating(), now=clock.now)
    assert len(session.states) == 10
    assert session.slowed == 0.5
    assert session.to_dict()["watch"] == "made up"
    assert run(Work("a", 5.0).subject()).slowed is None


def test_illegal_measurements_cannot_be_built() -> None:
    session = run(Work("a", 5.0).subject())
    good = session.of("a")
    with pytest.raises(ValueError, match="a summary if MEASURED"):
        Measurement("a", MeasureStatus.INVALID, "wrong", good.samples, good.summary)
    with pytest.raises(ValueError, match="a summary if MEASURED"):
        Measurement("a", MeasureStatus.MEASURED)
    with pytest.raises(ValueError, match="without a checked output"):
        Measurement("a", MeasureStatus.MEASURED, "", good.samples, good.summary, checks=0)
    with pytest.raises(KeyError):
        session.of("b")


def test_subjects_need_names_of_their_own() -> None:
    with pytest.raises(UserError, match="different names, not a, a"):
        run(Work("a", 5.0).subject(), Work("a", 6.0).subject())
    with pytest.raises(UserError, match="not none"):
        run()
