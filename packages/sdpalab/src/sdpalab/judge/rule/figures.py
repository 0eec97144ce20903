"""Figures of a case: errors, their limits, and the errors above their limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from sdpalab.record import RECORD, JsonRecord, dataclass

__all__ = [
    "LIMITED",
    "ORIGINAL_CONTRACT",
    "Errors",
    "Limited",
    "Limits",
    "LseErrors",
    "broken_rules",
    "keeps_original_contract",
    "limited",
    "share_of",
    "yardstick_name",
]

LIMITED = ("max_abs", "rel_l2", "rms_row_rel_l2", "worst_row_rel_l2")
"""Errors that have a limit of the same name."""

ORIGINAL_CONTRACT: Mapping[str, float] = {"max_abs": 0.06, "rel_l2": 1e-3}
"""The project's original contract: max_err <= 0.06 and rel_err <= 1e-3, the latter read as relative L2."""


@dataclass(frozen=True, config=RECORD)
class LseErrors(JsonRecord):
    """Distance of a log-sum-exp from its float64 value, at the row that uses most of its limit.

    Attributes
    ----------
    error, limit : float
        Absolute error of that row, and its limit (:mod:`sdpalab.judge.rule.log_sum_exp`).
    row : tuple of int
        The row (b, h, i).
    not_finite : int
        Number of rows whose log-sum-exp is NaN or infinite, or is not -inf where the row sees no key.
    """

    error: float
    limit: float
    row: tuple[int, int, int]
    not_finite: int

    @property
    def within_limit(self) -> bool:
        """True if every row is finite and within its limit."""
        return not self.not_finite and self.error <= self.limit


@dataclass(frozen=True, config=RECORD)
class Errors(JsonRecord):
    """Distance of an output from the float64 reference, over the rows that are judged.

    Attributes
    ----------
    max_abs, max_abs_index
        Largest absolute error, and its element (b, h, i, d).
    rel_l2 : float
        ||out - reference|| / ||reference|| over all elements.
    rms_row_rel_l2, worst_row_rel_l2, worst_row
        Root mean square and maximum of the rows' own relative L2 errors, and the row (b, h, i) of the maximum.
    not_finite : int
        Elements that are NaN or infinite.
    exact, exact_wrong : int
        Number of elements that the inputs fix bit for bit (:mod:`sdpalab.judge.rule.exact`), and number of those that
        differ.
    ignored_rows : int
        Number of rows that are not judged, because one of their inputs is NaN or infinite.
    lse : LseErrors, optional
        Errors of the log-sum-exp; None for a candidate that writes none.
    """

    added = ("lse",)

    max_abs: float
    max_abs_index: tuple[int, int, int, int]
    rel_l2: float
    rms_row_rel_l2: float
    worst_row_rel_l2: float
    worst_row: tuple[int, int, int]
    not_finite: int
    exact: int = 0
    exact_wrong: int = 0
    ignored_rows: int = 0
    lse: LseErrors | None = None


@dataclass(frozen=True, config=RECORD)
class Limits(JsonRecord):
    """Limits of :class:`Errors`, and the errors from which they are derived.

    ``yardstick_max_abs`` is torch's error in the same precision; ``intended_*`` are errors of the declared numerics.
    """

    max_abs: float
    rel_l2: float
    rms_row_rel_l2: float
    worst_row_rel_l2: float
    yardstick_max_abs: float
    intended_max_abs: float
    intended_rel_l2: float
    intended_rms_row_rel_l2: float
    intended_worst_row_rel_l2: float


def yardstick_name(output: str) -> str:
    """Name of torch's own output among the arrays of a case."""
    return "yardstick" if output == "o" else f"yardstick_{output}"


class Limited(NamedTuple):
    """An error and its limit."""

    error: float
    limit: float

    @property
    def share(self) -> float:
        """The error divided by its limit; with a limit of 0, 0 for no error and 1e9 for any error."""
        if self.limit:
            return self.error / self.limit
        return 1e9 if self.error else 0.0

    @property
    def text(self) -> str:
        """The share as a percentage, or as a multiple where that is easier to read."""
        return f"{self.share:.0%}" if self.share < 10 else f"{self.share:,.0f}x"


def limited(errors: Errors, limits: Limits) -> dict[str, Limited]:
    """Each of :data:`LIMITED` with its limit, and ``lse`` if there is one."""
    figures = {name: Limited(getattr(errors, name), getattr(limits, name)) for name in LIMITED}
    return figures if errors.lse is None else {**figures, "lse": Limited(errors.lse.error, errors.lse.limit)}


def share_of(errors: Errors, limits: Limits) -> float:
    """The largest share of a limit; infinite for an element that is not finite, or not exact where it must be."""
    if errors.not_finite or errors.exact_wrong:
        return math.inf
    return max(each.share for each in limited(errors, limits).values())


def broken_rules(errors: Errors, limits: Limits) -> tuple[str, ...]:
    """Names among :data:`LIMITED`, ``not_finite``, ``exact_wrong`` and ``lse`` that exceed their limits."""
    over = [name for name in LIMITED if not getattr(errors, name) <= getattr(limits, name)]
    over += [name for name in ("not_finite", "exact_wrong") if getattr(errors, name)]
    return (*over, *(["lse"] if errors.lse is not None and not errors.lse.within_limit else []))


def keeps_original_contract(errors: Errors) -> bool:
    """Whether an output with these errors keeps :data:`ORIGINAL_CONTRACT`: reported, but not part of the rule."""
    return not errors.not_finite and all(getattr(errors, name) <= most for name, most in ORIGINAL_CONTRACT.items())
