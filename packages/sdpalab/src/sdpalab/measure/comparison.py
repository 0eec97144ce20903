"""A against B, measured in the same rounds: faster, slower, the same, or ambiguous.

Both are timed in every round, so a change of the machine in a round affects both. The compared figure is the median
over the rounds of the ratio of the two times of a round. Temporary throttling hardly moves it, while the ratio of the
two medians jumps if they fall on different sides of the change. Rounds are resampled as for the median of one row.
``margin`` is the smallest difference that counts; the interval of the ratio must lie entirely on one side of it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import numpy as np

from sdpalab.errors import UserError
from sdpalab.measure.samples import Samples
from sdpalab.measure.statistics import Interval, interval_of, resampled_rounds

__all__ = ["LEAST_ROUNDS", "LEVEL", "MARGIN", "Comparison", "ComparisonOutcome", "compare"]

MARGIN = 0.01
"""Smallest relative difference that counts; clocks vary by one percent from one minute to the next."""

LEAST_ROUNDS = 10
"""Least number of rounds for a decision. The median lies outside all of n independent samples in 2 of 2^n cases, so the
widest interval, from the least to the largest sample, has a level of 99% only from n = 8 on. Resampling fewer samples
gives intervals that are too short, and a point for one sample. Two more rounds account for correlated neighbours."""

LEVEL = 0.99
"""Level of the interval of a ratio, above that of a figure, since users act on a verdict."""


class ComparisonOutcome(str, Enum):
    """The outcome of A against B."""

    FASTER = "FASTER"
    """A's time is below B's by more than the margin, over the whole interval."""
    SLOWER = "SLOWER"
    """A's time is above B's by more than the margin, over the whole interval."""
    SAME = "SAME"
    """The whole interval lies within the margin."""
    AMBIGUOUS = "AMBIGUOUS"
    """The interval crosses an edge of the margin, or there are too few rounds: more rounds or an idle machine may
    decide."""
    INVALID = "INVALID"
    """One of the two is not a time of the computation; the reason is in the comparison."""


@dataclass(frozen=True)
class Comparison:
    """The outcome of A against B.

    ``ratio`` is A's time over B's (below 1: A is faster), the median of all ``rounds``, with its interval. For the
    outcome INVALID both are None and ``reason`` is set; other outcomes have no ``reason``.
    """

    a: str
    b: str
    outcome: ComparisonOutcome
    ratio: float | None = None
    interval: Interval | None = None
    margin: float = MARGIN
    reason: str = ""
    rounds: int = 0

    def __post_init__(self) -> None:
        invalid = self.outcome is ComparisonOutcome.INVALID
        if invalid != (self.ratio is None) or invalid != (self.interval is None) or invalid != bool(self.reason):
            raise ValueError(f"{self.a} against {self.b}: a ratio and its interval, or INVALID and a reason")
        if self.rounds < LEAST_ROUNDS and self.outcome not in (ComparisonOutcome.AMBIGUOUS, ComparisonOutcome.INVALID):
            raise ValueError(f"{self.a} against {self.b}: {self.outcome.value} needs {LEAST_ROUNDS} rounds")

    @property
    def sentence(self) -> str:
        """The outcome in words."""
        if self.ratio is None or self.interval is None:
            return f"{self.a} against {self.b}: {self.outcome.value}: {self.reason}"
        few = f" ({self.rounds} rounds, and a verdict needs {LEAST_ROUNDS})" if self.rounds < LEAST_ROUNDS else ""
        return (
            f"{self.a} takes {self.ratio:.3f}x the time of {self.b} ({self.interval.low:.3f} to "
            f"{self.interval.high:.3f} at {self.interval.level:.0%}): {self.outcome.value}{few}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "outcome": self.outcome.value}


def compare(a: Samples, b: Samples, *, margin: float = MARGIN, level: float = LEVEL, seed: int = 0) -> Comparison:
    """Compare two rows of samples that were taken in the same rounds.

    Parameters
    ----------
    a, b : Samples
        Sample i of both from round i, by the same clock, in the same state of L2.
    margin : float
        Smallest relative difference that counts, from 0 to below 1.
    level : float
        Level of the interval of the ratio.
    seed : int
        Seed of the resampling.

    Raises
    ------
    UserError
        If the two cannot be compared.
    """
    if not 0 <= margin < 1:
        raise UserError(f"a margin is a share from 0 up to 1, such as 0.01, not {margin!r}")
    if (a.clock, a.l2) != (b.clock, b.l2):
        raise UserError(
            f"{a.name} has {a.l2.value} {a.clock.value} times and {b.name} {b.l2.value} {b.clock.value} times: "
            "only times of one kind compare"
        )
    if len(a.times_us) != len(b.times_us):
        raise UserError(
            f"{a.name} has {len(a.times_us)} samples and {b.name} {len(b.times_us)}: they are not of the same rounds"
        )
    ratios = np.asarray(a.times_us) / np.asarray(b.times_us)
    interval = interval_of(np.median(ratios[resampled_rounds(ratios.size, seed)], axis=1), level)
    ratio = float(np.median(ratios))
    outcome = _outcome(interval, margin) if ratios.size >= LEAST_ROUNDS else ComparisonOutcome.AMBIGUOUS
    return Comparison(a.name, b.name, outcome, ratio, interval, margin, rounds=ratios.size)


def _outcome(interval: Interval, margin: float) -> ComparisonOutcome:
    # "1% faster" one way must equal "1% slower" the other way, as a ratio.
    low, high = 1.0 - margin, 1.0 / (1.0 - margin)
    if interval.high < low:
        return ComparisonOutcome.FASTER
    if interval.low > high:
        return ComparisonOutcome.SLOWER
    return ComparisonOutcome.SAME if low <= interval.low and interval.high <= high else ComparisonOutcome.AMBIGUOUS
