"""What the judge says: a closed set of statuses, and records that cannot say anything illegal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from sdpalab.problem import Problem

__all__ = [
    "LIMITED",
    "ORIGINAL_CONTRACT",
    "Case",
    "Errors",
    "Limits",
    "LseErrors",
    "Status",
    "Verdict",
    "keeps_original_contract",
]

LIMITED = ("max_abs", "rel_l2", "rms_row_rel_l2", "worst_row_rel_l2")
"""The errors that have a limit of the same name."""

ORIGINAL_CONTRACT: Mapping[str, float] = {"max_abs": 0.06, "rel_l2": 1e-3}
"""The contract this project started with: max_err <= 0.06 and rel_err <= 1e-3, the latter read as relative L2."""


class Status(str, Enum):
    """Outcome of a case or of a verdict. The only good one is PASSED."""

    PASSED = "PASSED"
    INCORRECT = "INCORRECT"
    """The numbers are wrong: a limit of the rule is exceeded, or an element that must be exact is not."""
    NOT_FINITE = "NOT_FINITE"
    """NaN or Inf where the case declares none; an output that was never written is the usual cause."""
    NONDETERMINISTIC = "NONDETERMINISTIC"
    """Two runs on the same inputs, with differently poisoned outputs, differ."""
    STALE = "STALE"
    """Right on its inputs, and wrong on other data in the same memory: something is remembered that must not be."""
    INCONSISTENT = "INCONSISTENT"
    """Right on its inputs, but what must hold between its outputs on related inputs does not."""
    INPUT_CHANGED = "INPUT_CHANGED"
    """The candidate wrote to its inputs."""
    BAD_OUTPUT = "BAD_OUTPUT"
    """Wrong shape, dtype or type of output."""
    HAZARD = "HAZARD"
    """The simulator found an illegal access (out of bounds, misaligned, uninitialised, a race), or the launch is one
    that no such GPU takes."""
    UNSUPPORTED = "UNSUPPORTED"
    """The kernel says that it does not compute this problem, or the simulator that it does not model an instruction."""
    BUILD_FAILED = "BUILD_FAILED"
    CRASHED = "CRASHED"
    """The candidate raised, or its process died."""
    TIMED_OUT = "TIMED_OUT"
    INFRA_ERROR = "INFRA_ERROR"
    """The machine failed, not the kernel; neither a pass nor a fail."""


@dataclass(frozen=True)
class LseErrors:
    """Distance of a log-sum-exp from its float64 value, at the row that uses most of its limit.

    Attributes
    ----------
    error, limit : float
        Absolute error of that row, and what it may be (:mod:`sdpalab.judge.rule.log_sum_exp`).
    row : tuple of int
        The row (b, h, i).
    not_finite : int
        Rows whose log-sum-exp is NaN or infinite.
    """

    error: float
    limit: float
    row: tuple[int, int, int]
    not_finite: int

    @property
    def within_limit(self) -> bool:
        """True if every row is finite and within its limit."""
        return not self.not_finite and self.error <= self.limit


@dataclass(frozen=True)
class Errors:
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
        Elements that the inputs fix bit for bit (:mod:`sdpalab.judge.rule.exact`), and how many of them differ.
    ignored_rows : int
        Rows that are not judged, because an input of theirs is NaN or infinite.
    lse : LseErrors, optional
        Of the log-sum-exp; None for a candidate that writes none.
    """

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


@dataclass(frozen=True)
class Limits:
    """What :class:`Errors` may be at most, and the yardsticks the limits were derived from.

    ``yardstick_max_abs`` is torch's own same-precision error; ``intended_*`` are those of the declared numerics.
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


def keeps_original_contract(errors: Errors) -> bool:
    """Whether an output with these errors keeps :data:`ORIGINAL_CONTRACT`: reported beside the rule, never deciding."""
    return not errors.not_finite and all(getattr(errors, name) <= most for name, most in ORIGINAL_CONTRACT.items())


@dataclass(frozen=True)
class Case:
    """One judged problem on one set of inputs.

    ``digests`` maps an array's name (q, k, v, o, yardstick, perhaps lse) to the sha256 of its bytes; ``run`` says what
    executed it (device, sha256 of each PTX, configuration).

    Raises
    ------
    ValueError
        On construction, if the record is illegal: PASSED without errors and limits or with an error above its limit,
        or a status other than PASSED without a reason.
    """

    name: str
    problem: Problem
    inputs: str
    seed: int
    status: Status
    reason: str = ""
    errors: Errors | None = None
    limits: Limits | None = None
    digests: Mapping[str, str] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status is not Status.PASSED:
            if not self.reason:
                raise ValueError(f"case {self.name}: status {self.status.value} needs a reason")
            return
        if self.errors is None or self.limits is None:
            raise ValueError(f"case {self.name}: PASSED needs its errors and limits")
        over = [name for name in LIMITED if not getattr(self.errors, name) <= getattr(self.limits, name)]
        over += [name for name in ("not_finite", "exact_wrong") if getattr(self.errors, name)]
        over += ["lse"] if self.errors.lse is not None and not self.errors.lse.within_limit else []
        if over:
            raise ValueError(f"case {self.name}: PASSED with {', '.join(over)} over the limit")

    @property
    def passed(self) -> bool:
        """True if the status is PASSED."""
        return self.status is Status.PASSED

    @property
    def original_contract(self) -> bool | None:
        """Whether the original contract is kept; None if there are no errors to tell by."""
        return keeps_original_contract(self.errors) if self.errors else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: the fields, and ``original_contract``."""
        return {
            "name": self.name,
            "problem": self.problem.to_dict(),
            "inputs": self.inputs,
            "seed": self.seed,
            "status": self.status.value,
            "reason": self.reason,
            "errors": asdict(self.errors) if self.errors else None,
            "limits": asdict(self.limits) if self.limits else None,
            "digests": dict(self.digests),
            "run": dict(self.run),
            "original_contract": self.original_contract,
        }


@dataclass(frozen=True)
class Verdict:
    """All cases of one candidate. It is PASSED only if there is a case and every case is.

    ``status`` is that of the first case that is not PASSED, with INFRA_ERROR only where nothing worse was found.
    """

    kernel: str
    config: str
    device: str
    level: str
    seed: int
    cases: tuple[Case, ...]

    @property
    def passed(self) -> bool:
        """True if there is at least one case and all of them are PASSED."""
        return self.status is Status.PASSED

    @property
    def status(self) -> Status:
        """The worst status of the cases; INFRA_ERROR if there is none."""
        bad = [case.status for case in self.cases if not case.passed]
        faults = [status for status in bad if status is not Status.INFRA_ERROR]
        if faults:
            return faults[0]
        if bad or not self.cases:
            return Status.INFRA_ERROR
        return Status.PASSED

    @property
    def reason(self) -> str:
        """The reason of the case that decided the status; empty if PASSED."""
        for case in self.cases:
            if case.status is self.status:
                return case.reason
        return "no case was judged"

    @property
    def original_contract(self) -> int:
        """How many of the cases keep the original contract."""
        return sum(case.original_contract is True for case in self.cases)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: the fields, the status, how many cases keep the original contract, and every case."""
        return {
            "kernel": self.kernel,
            "config": self.config,
            "device": self.device,
            "level": self.level,
            "seed": self.seed,
            "status": self.status.value,
            "passed": self.passed,
            "reason": "" if self.passed else self.reason,
            "original_contract": self.original_contract,
            "cases": [case.to_dict() for case in self.cases],
        }
