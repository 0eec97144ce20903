"""The budget of a search: a number of configurations, or a time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sdpalab.errors import UserError

__all__ = ["FULL_OVER_PROVE", "Budget", "BudgetClock"]

FULL_OVER_PROVE = 14.0
"""Wall clock of the last gates over that of the sanitizer and the quick judge: 8.7 for ``flash`` on an idle machine,
and more than 9 on one with half of its time in other work."""
LEAST_SHARE, MOST_SHARE, USUAL_SHARE = 0.25, 0.75, 0.6
"""Share of a time budget reserved for the last gates: smallest, largest, and the default without judged data."""

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Budget:
    """A limit by configurations or by time; exactly one of the two is set.

    Attributes
    ----------
    configurations : int or None
        Number of configurations to try, including those of a resumed log; the last gates come on top.
    seconds : float or None
        Duration of this run, including the last gates.
    """

    configurations: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str | int) -> Budget:
        """Parse ``200``, ``90s``, ``10m`` or ``1h``.

        Raises
        ------
        UserError
            For any other text, or a budget of zero.
        """
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(text).strip())
        if match is None or (not match[2] and "." in match[1]):
            raise UserError(
                f"a budget is a number of configurations or a time, such as 200, 90s, 10m or 1h, not {text!r}"
            )
        amount = float(match[1])
        if amount <= 0:
            raise UserError(f"a budget of {text} leaves nothing to try: give configurations or a time above 0")
        return cls(seconds=amount * _UNITS[match[2]]) if match[2] else cls(configurations=int(amount))


@dataclass(frozen=True)
class BudgetClock:
    """A running budget."""

    budget: Budget
    now: Callable[[], float] = time.monotonic
    start: float = field(default=-1.0)

    def __post_init__(self) -> None:
        if self.start < 0:
            object.__setattr__(self, "start", self.now())

    def left(self, tried: int) -> int | None:
        """Number of configurations that may still be tried; None for no limit."""
        return None if self.budget.configurations is None else max(0, self.budget.configurations - tried)

    @property
    def seconds_left(self) -> float:
        """Seconds until the end of the whole run; infinite without a limit."""
        if self.budget.seconds is None:
            return float("inf")
        return self.start + self.budget.seconds - self.now()

    def for_last_gates(self, prove_seconds: float | None) -> float:
        """Seconds to reserve for the last gates, if the sanitizer and the quick judge took ``prove_seconds``."""
        if self.budget.seconds is None:
            return 0.0
        share = USUAL_SHARE if prove_seconds is None else FULL_OVER_PROVE * prove_seconds / self.budget.seconds
        return self.budget.seconds * min(MOST_SHARE, max(LEAST_SHARE, share))
