"""Statistics of a row of samples: median, percentiles, and the interval of the median.

Times of one kernel are not normal: they have a floor, a long tail, sometimes two modes, and neighbours resemble each
other, since clocks and temperature change slowly. So the figure is the median, and its interval comes from a
bootstrap of whole blocks of neighbours (Kuensch, "The jackknife and the bootstrap for general stationary
observations", 1989; circular, as Politis and Romano, 1992): one that drew single samples would take neighbours for
independent, and give intervals that are too short.
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
"""How intervals are made, for the record."""

_F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An interval that covers what it estimates in ``level`` of all repetitions of the measurement."""

    low: float
    high: float
    level: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"an interval's ends must be in order, not {self.low}, {self.high}")


@dataclass(frozen=True)
class Summary:
    """The figures of one row of samples, microseconds.

    Attributes
    ----------
    n : int
        Samples.
    median_us, p10_us, p90_us : float
    interval : Interval
        Of the median (:data:`METHOD`).
    spread : float
        Interquartile range over the median: how much single samples scatter.
    """

    n: int
    median_us: float
    p10_us: float
    p90_us: float
    interval: Interval
    spread: float

    @property
    def relative_width(self) -> float:
        """Width of the interval over the median: how far the median is known."""
        return (self.interval.high - self.interval.low) / self.median_us

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, with the method of the interval."""
        return {**asdict(self), "method": METHOD}


def resampled_rounds(n: int, seed: int, resamples: int = RESAMPLES) -> npt.NDArray[np.int64]:
    """Rounds that each resample is made of, [resamples, n], numbers from 0 to n - 1.

    Blocks of round(n ** (1/3)) neighbouring rounds, from anywhere on the circle that they form. The same for the same
    arguments on every platform: from the raw stream of Philox, which NumPy guarantees, unlike that of ``integers``.

    Raises
    ------
    ValueError
        If there is no round.
    """
    if n < 1:
        raise ValueError("there is no round to resample")
    length = max(1, round(n ** (1 / 3)))
    blocks = -(-n // length)
    raw = np.random.Philox(key=seed).random_raw(resamples * blocks).reshape(resamples, blocks, 1)
    # 2**64 is no multiple of n; the bias, n / 2**64, is far below anything that can be seen.
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
        In the order in which they were taken: the order is part of what they say.
    level : float
        Of the interval, between 0 and 1.
    seed : int
        Of the resampling.

    Raises
    ------
    ValueError
        If there is no sample.
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
