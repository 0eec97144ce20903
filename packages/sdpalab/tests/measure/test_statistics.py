"""Samples are kept as they are; intervals cover what they say they cover, also where neighbours resemble each other."""

from __future__ import annotations

import numpy as np
import pytest
from simulated_clock import Behaviour, times

from sdpalab.measure.samples import ClockKind, L2State, Samples
from sdpalab.measure.statistics import METHOD, RESAMPLES, interval_of, resampled_rounds, summarise

TRIALS = 500


def samples(row: tuple[float, ...], **changes: object) -> Samples:
    fields = {"name": "a", "clock": ClockKind.GPU, "l2": L2State.WARM, "calls": 100, "times_us": row}
    return Samples(**{**fields, **changes})


def covered(behaviour: Behaviour, n: int, *, independent: bool = False) -> float:
    """Share of trials whose 90% interval has the true median, 5 us, in it."""
    hits = 0
    for trial in range(TRIALS):
        row = np.asarray(times(5.0, behaviour, n, seed=trial))
        if independent:
            drawn = np.random.default_rng(trial).integers(0, n, (RESAMPLES, n))
            interval = interval_of(np.median(row[drawn], axis=1), 0.9)
        else:
            interval = summarise(row, level=0.9, seed=trial).interval
        hits += interval.low <= 5.0 <= interval.high
    return hits / TRIALS


def test_the_interval_of_independent_samples_covers_as_it_says() -> None:
    assert 0.85 <= covered(Behaviour(noise=0.05), 60) <= 0.95


def test_blocks_cover_correlated_samples_better_than_single_draws() -> None:
    behaviour = Behaviour(noise=0.05, correlation=0.5)
    blocks, single = covered(behaviour, 60), covered(behaviour, 60, independent=True)
    assert blocks >= 0.78
    assert blocks - single >= 0.08


def test_outliers_move_the_median_little() -> None:
    clean, dirty = (summarise(times(5.0, Behaviour(outliers=share), 200, seed=3)) for share in (0.0, 0.05))
    assert dirty.median_us == pytest.approx(clean.median_us, rel=0.01)
    assert dirty.p90_us < 1.1 * clean.p90_us


def test_the_figures_of_a_row() -> None:
    summary = summarise([float(n) for n in range(1, 102)])
    assert (summary.n, summary.median_us, summary.p10_us, summary.p90_us) == (101, 51.0, 11.0, 91.0)
    assert summary.spread == pytest.approx(50 / 51)
    assert summary.interval.low < 51.0 < summary.interval.high
    assert summary.relative_width == (summary.interval.high - summary.interval.low) / 51.0
    assert summary.to_dict()["method"] == METHOD
    assert f"{RESAMPLES} circular block bootstrap resamples" in METHOD


def test_the_order_of_samples_counts() -> None:
    """The same numbers in ascending order are a drift, and a drift says less of the median than scatter does."""
    row = times(5.0, Behaviour(noise=0.05), 100, seed=0)
    scattered, drifting = summarise(row), summarise(sorted(row))
    assert drifting.median_us == scattered.median_us
    assert drifting.relative_width > 1.5 * scattered.relative_width


def test_resamples_are_blocks_on_a_circle_and_the_same_everywhere() -> None:
    rounds = resampled_rounds(27, seed=0, resamples=50)
    assert rounds.shape == (50, 27)
    steps = np.diff(rounds, axis=1) % 27
    within = np.arange(26) % 3 != 2  # blocks of 27 ** (1/3) = 3
    assert (steps[:, within] == 1).all()
    assert not (steps[:, ~within] == 1).all()
    assert rounds.min() == 0
    assert rounds.max() == 26
    assert (rounds == resampled_rounds(27, seed=0, resamples=50)).all()
    assert (rounds != resampled_rounds(27, seed=1, resamples=50)).any()


def test_one_sample_is_known_as_well_as_it_is() -> None:
    summary = summarise([3.0])
    assert summary.interval.low == summary.interval.high == summary.median_us == 3.0


def test_samples_keep_their_order_and_their_warm_up() -> None:
    taken = samples((3.0, 1.0, 2.0), warm_up_us=(9.0, 4.0))
    assert taken.to_dict()["times_us"] == [3.0, 1.0, 2.0]
    assert taken.to_dict()["warm_up_us"] == [9.0, 4.0]
    assert taken.to_dict()["clock"] == "gpu"


@pytest.mark.parametrize("row", [(), (0.0,), (-1.0,), (1.0, float("nan")), (float("inf"),)])
def test_what_is_no_time_cannot_be_a_sample(row: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"no sample|positive number of microseconds"):
        samples(row)
    with pytest.raises(ValueError, match="at least 1 call"):
        samples((1.0,), calls=0)
