"""A against B: how often it errs on equal times, what it finds on unequal ones, and what it refuses to compare."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from simulated_clock import Behaviour, SimulatedClock, Work

from sdpalab.errors import UserError
from sdpalab.measure.comparison import LEAST_ROUNDS, LEVEL, Comparison, ComparisonOutcome, compare
from sdpalab.measure.samples import ClockKind, L2State, Samples
from sdpalab.measure.session import measure
from sdpalab.measure.statistics import Interval
from sdpalab.measure.stopping import StoppingRule

ROUGH = Behaviour(noise=0.03, correlation=0.5, drift=0.1, outliers=0.02, throttled=0.3)
"""All at once: correlated noise, drift, outliers, and half again as long for a third of the time."""
CALM = Behaviour(noise=0.01)
TRIALS = 100


def outcomes(ratio: float, behaviour: Behaviour, rounds: int = 60, **options: float) -> list[ComparisonOutcome]:
    """Verdicts on A, whose true time is ``ratio`` of B's, over seeded trials of interleaved rounds."""
    drawn = []
    for seed in range(TRIALS):
        clock = SimulatedClock(behaviour, seed)
        samples = [clock.ready(Work("a", 5.0 * ratio)), clock.ready(Work("b", 5.0))]
        row_a, row_b = zip(*([sample() for sample in samples] for _ in range(rounds)), strict=True)
        a, b = (Samples(name, clock.kind, clock.l2, clock.calls, row) for name, row in (("a", row_a), ("b", row_b)))
        drawn.append(compare(a, b, **options).outcome)
    return drawn


def share(drawn: list[ComparisonOutcome], *wanted: ComparisonOutcome) -> float:
    return sum(outcome in wanted for outcome in drawn) / len(drawn)


@pytest.mark.parametrize("behaviour", [CALM, ROUGH], ids=["calm", "rough"])
def test_equal_times_are_seldom_called_different(behaviour: Behaviour) -> None:
    """At most one in twenty both ways together, with no margin to hide behind, and hardly any with it."""
    assert share(outcomes(1.0, behaviour, margin=0.0), ComparisonOutcome.FASTER, ComparisonOutcome.SLOWER) <= 0.05
    assert share(outcomes(1.0, behaviour), ComparisonOutcome.FASTER, ComparisonOutcome.SLOWER) <= 0.01


def test_a_real_difference_is_found() -> None:
    assert share(outcomes(0.95, CALM), ComparisonOutcome.FASTER) >= 0.99
    assert share(outcomes(1.05, CALM), ComparisonOutcome.SLOWER) >= 0.99
    assert share(outcomes(1.0, CALM), ComparisonOutcome.SAME) >= 0.85
    assert share(outcomes(0.9, ROUGH), ComparisonOutcome.FASTER) >= 0.95


def test_at_the_edge_of_the_margin_it_does_not_decide() -> None:
    edge = outcomes(0.99, CALM)
    assert share(edge, ComparisonOutcome.AMBIGUOUS) >= 0.9
    assert share(edge, ComparisonOutcome.SLOWER) == 0.0


def test_pairing_takes_out_what_the_machine_did() -> None:
    clock = SimulatedClock(Behaviour(noise=0.01, throttled=0.5, stretch=40), 1)
    rule = StoppingRule(least=100, most=100, seconds=1e9)
    session = measure([Work("a", 4.5).subject(), Work("b", 5.0).subject()], clock, rule, now=clock.now)
    a, b = (session.of(name).samples for name in "ab")
    assert a is not None
    assert b is not None
    shuffled = Samples("b", b.clock, b.l2, b.calls, b.times_us[50:] + b.times_us[:50])
    paired, unpaired = compare(a, b).interval, compare(a, shuffled).interval
    assert paired is not None
    assert unpaired is not None
    assert paired.high - paired.low < (unpaired.high - unpaired.low) / 3


def test_recorded_samples_of_a_busy_machine() -> None:
    recorded = json.loads((Path(__file__).parent / "recorded_samples.json").read_text())["rows"]
    rows = {name: Samples(name, ClockKind.EAGER, L2State.WARM, 10, tuple(row)) for name, row in recorded.items()}
    same = compare(rows["a"], rows["same as a"])
    assert same.outcome in (ComparisonOutcome.SAME, ComparisonOutcome.AMBIGUOUS)
    more = compare(rows["a"], rows["more keys"])
    assert more.outcome is ComparisonOutcome.FASTER
    assert more.ratio is not None
    assert more.ratio < 0.8
    assert compare(rows["more keys"], rows["a"]).outcome is ComparisonOutcome.SLOWER
    assert "FASTER" in more.sentence


@pytest.mark.parametrize("rounds", [1, 2, LEAST_ROUNDS - 1])
def test_few_rounds_decide_nothing(rounds: int) -> None:
    """One sample is a point, not an interval: "0.971 to 0.971 at 99%" was once called FASTER."""
    few = [Samples(name, ClockKind.GPU, L2State.WARM, 100, (us,) * rounds) for name, us in (("a", 4.0), ("b", 5.0))]
    compared = compare(*few)
    assert compared.outcome is ComparisonOutcome.AMBIGUOUS
    assert compared.rounds == compared.to_dict()["rounds"] == rounds
    assert compared.sentence.endswith(f"AMBIGUOUS ({rounds} rounds, and a verdict needs 10)")
    enough = [replace(each, times_us=each.times_us[:1] * LEAST_ROUNDS) for each in few]
    assert compare(*enough).outcome is ComparisonOutcome.FASTER


def test_the_least_rounds_are_those_of_an_interval_of_the_median_and_two_more() -> None:
    least = next(n for n in range(1, 99) if 2 * 0.5**n <= 1 - LEVEL)
    assert least + 2 == LEAST_ROUNDS
    with pytest.raises(ValueError, match="FASTER needs 10 rounds"):
        Comparison("a", "b", ComparisonOutcome.FASTER, 0.5, Interval(0.4, 0.6, 0.99), rounds=9)


def row(name: str, n: int = 10, clock: ClockKind = ClockKind.GPU, l2: L2State = L2State.WARM) -> Samples:
    return Samples(name, clock, l2, 100, (5.0,) * n)


def test_only_times_of_one_kind_and_of_the_same_rounds_compare() -> None:
    with pytest.raises(UserError, match="a has warm gpu times and b warm eager times"):
        compare(row("a"), row("b", clock=ClockKind.EAGER))
    with pytest.raises(UserError, match="cold gpu"):
        compare(row("a"), row("b", l2=L2State.COLD))
    with pytest.raises(UserError, match="10 samples and b 9"):
        compare(row("a"), row("b", 9))
    with pytest.raises(UserError, match="margin"):
        compare(row("a"), row("b"), margin=1.0)


def test_an_illegal_comparison_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="INVALID and a reason"):
        Comparison("a", "b", ComparisonOutcome.FASTER)
    with pytest.raises(ValueError, match="INVALID and a reason"):
        Comparison("a", "b", ComparisonOutcome.INVALID, 0.5, Interval(0.4, 0.6, 0.95), reason="below its floor")
    with pytest.raises(ValueError, match="in order"):
        Interval(2.0, 1.0, 0.95)
