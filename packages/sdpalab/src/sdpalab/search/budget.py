"""How long a search may go on: so many configurations, or so much time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sdpalab.errors import UserError

__all__ = ["FULL_OVER_PROVE", "Budget", "BudgetClock"]

FULL_OVER_PROVE = 14.0
"""Wall clock of the last gates over that of the sanitizer and the quick judge: 8.7 for ``flash`` on a quiet machine,
and more than 9 on one where other work had half of the time."""
LEAST_SHARE, MOST_SHARE, USUAL_SHARE = 0.25, 0.75, 0.6
"""Of a time budget, what is kept for the last gates: at least, at most, and where nothing was judged to tell by."""

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Budget:
    """One of the two is given.

    Attributes
    ----------
    configurations : int or None
        That are tried, those of a resumed log among them; the last gates come on top.
    seconds : float or None
        Of this run, last gates included.
    """

    configurations: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str | int) -> Budget:
        """From ``200``, ``90s``, ``10m`` or ``1h``.

        Raises
        ------
        UserError
            If it is none of these, or nothing.
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
    """A budget that began to run."""

    budget: Budget
    now: Callable[[], float] = time.monotonic
    start: float = field(default=-1.0)

    def __post_init__(self) -> None:
        if self.start < 0:
            object.__setattr__(self, "start", self.now())

    def left(self, tried: int) -> int | None:
        """Configurations that may still be tried; None for any number."""
        return None if self.budget.configurations is None else max(0, self.budget.configurations - tried)

    @property
    def seconds_left(self) -> float:
        """Until the end of everything; infinite without a limit."""
        if self.budget.seconds is None:
            return float("inf")
        return self.start + self.budget.seconds - self.now()

    def for_last_gates(self, prove_seconds: float | None) -> float:
        """Seconds to keep for the last gates where the sanitizer and the quick judge took ``prove_seconds``."""
        if self.budget.seconds is None:
            return 0.0
        share = USUAL_SHARE if prove_seconds is None else FULL_OVER_PROVE * prove_seconds / self.budget.seconds
        return self.budget.seconds * min(MOST_SHARE, max(LEAST_SHARE, share))
