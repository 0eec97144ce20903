"""The rule for stopping a measurement: medians known well enough, or time limit reached. The reason is recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from sdpalab.errors import UserError
from sdpalab.measure.statistics import summarise

__all__ = ["StopReason", "StoppingRule"]


class StopReason(str, Enum):
    """Reason for the end of a measurement."""

    CONVERGED = "converged"
    """The interval of every median is as narrow as required."""
    MOST_ROUNDS = "most rounds"
    """An interval is wider, and the largest number of rounds is reached."""
    TIME_UP = "time up"
    """An interval is wider, and the time is used up."""


@dataclass(frozen=True)
class StoppingRule:
    """At least ``least`` rounds, until every median's interval is narrow, at most ``most`` rounds or ``seconds``.

    Intervals are checked after ``least`` rounds and then whenever a quarter more rounds are complete: a check after
    every round would stop at the first chance success.

    Attributes
    ----------
    least, most : int
        Numbers of rounds.
    relative_width : float
        Largest width of an interval over its median; 0.01 means a median known to half a percent either way.
    seconds : float
        Wall clock of the whole measurement, which ends then with any number of rounds, even below ``least``.

    Raises
    ------
    UserError
        If no measurement could satisfy the rule.
    """

    least: int = 30
    most: int = 1000
    relative_width: float = 0.01
    seconds: float = 10.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise UserError(
                f"rounds must be at least 1, and the least no more than the most: {self.least}, {self.most}"
            )
        if not (self.relative_width > 0 and self.seconds > 0):
            raise UserError(
                f"the width of an interval and the time must be above 0, not {self.relative_width}, {self.seconds}"
            )

    def reason_to_stop(self, rows: Sequence[Sequence[float]], seconds: float) -> StopReason | None:
        """Reason to stop after these measurements, or None to continue.

        Parameters
        ----------
        rows : sequence of sequences of float
            Times of each subject in order, in microseconds; all rows have the same length.
        seconds : float
            Time since the first of them.
        """
        n = min((len(row) for row in rows), default=0)
        if n < 1:
            return None
        looked_at = n == self.most or self._is_a_look(n)
        if looked_at and all(summarise(row).relative_width <= self.relative_width for row in rows):
            return StopReason.CONVERGED
        if n >= self.most:
            return StopReason.MOST_ROUNDS
        return StopReason.TIME_UP if seconds >= self.seconds else None

    def _is_a_look(self, n: int) -> bool:
        look = self.least
        while look < n:
            look = math.ceil(look * 1.25)
        return look == n
