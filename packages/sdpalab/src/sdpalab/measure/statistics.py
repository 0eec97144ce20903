"""Statistics of a row of samples: median, percentiles, and the interval of the median.

Times of one kernel are not normally distributed: they have a floor, a long tail, sometimes two modes, and correlated
neighbours, since clocks and temperature change slowly. The figure is therefore the median, with an interval from a
bootstrap of whole blocks of neighbours (Kuensch, "The jackknife and the bootstrap for general stationary observations",
1989; circular, as Politis and Romano, 1992). A bootstrap of single samples would assume independent neighbours, and
give intervals that are too short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["LEVEL", "METHOD", "RESAMPLES", "Interval", "Summary", "interval_of", "resampled_rounds", "summarise"]

LEVEL = 0.95
RESAMPLES = 1000
METHOD = "percentiles of the medians of 1000 circular block bootstrap resamples, blocks of n**(1/3) rounds"
"""Method of the intervals, for the record."""

_F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An interval that covers the estimated quantity in ``level`` of all repetitions of the measurement."""

    low: float
    high: float
    level: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"an interval's ends must be in order, not {self.low}, {self.high}")


@dataclass(frozen=True)
class Summary:
    """The figures of one row of samples, in microseconds.

    Attributes
    ----------
    n : int
        Number of samples.
    median_us, p10_us, p90_us : float
    interval : Interval
        Interval of the median (:data:`METHOD`).
    spread : float
        Interquartile range over the median: the scatter of single samples.
    """

    n: int
    median_us: float
    p10_us: float
    p90_us: float
    interval: Interval
    spread: float

    @property
    def relative_width(self) -> float:
        """Width of the interval over the median: the relative uncertainty of the median."""
        return (self.interval.high - self.interval.low) / self.median_us

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, with the method of the interval."""
        return {**asdict(self), "method": METHOD}


def resampled_rounds(n: int, seed: int, resamples: int = RESAMPLES) -> npt.NDArray[np.int64]:
    """Rounds of each resample, [resamples, n], numbers from 0 to n - 1.

    A resample consists of blocks of round(n ** (1/3)) neighbouring rounds, drawn from the circle of all rounds. Equal
    arguments give equal results on every platform: the numbers come from the raw stream of Philox, which NumPy
    guarantees, unlike that of ``integers``.

    Raises
    ------
    ValueError
        If ``n`` is 0.
    """
    if n < 1:
        raise ValueError("there is no round to resample")
    length = max(1, round(n ** (1 / 3)))
    blocks = -(-n // length)
    raw = np.random.Philox(key=seed).random_raw(resamples * blocks).reshape(resamples, blocks, 1)
    # 2**64 is not a multiple of n; the bias, n / 2**64, is negligible.
    starts = (raw % np.uint64(n)).astype(np.int64)
    rounds: npt.NDArray[np.int64] = ((starts + np.arange(length)) % n).reshape(resamples, -1)[:, :n]
    return rounds


def interval_of(values: _F64, level: float) -> Interval:
    """The middle ``level`` of the bootstrapped ``values`` [resamples]: Efron's percentile interval."""
    low, high = np.quantile(values, ((1 - level) / 2, (1 + level) / 2))
    return Interval(float(low), float(high), level)


def summarise(times_us: Sequence[float], *, level: float = LEVEL, seed: int = 0) -> Summary:
    """Median, percentiles and the interval of the median.

    Parameters
    ----------
    times_us : sequence of float
        Times in the order of measurement, which affects the interval.
    level : float
        Level of the interval, between 0 and 1.
    seed : int
        Seed of the resampling.

    Raises
    ------
    ValueError
        Without samples.
    """
    times = np.asarray(times_us, np.float64)
    medians = np.median(times[resampled_rounds(times.size, seed)], axis=1)
    p10, p25, median, p75, p90 = (float(x) for x in np.quantile(times, (0.1, 0.25, 0.5, 0.75, 0.9)))
    return Summary(
        n=times.size,
        median_us=median,
        p10_us=p10,
        p90_us=p90,
        interval=interval_of(medians, level),
        spread=(p75 - p25) / median,
    )
