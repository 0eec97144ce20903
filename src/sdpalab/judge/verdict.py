"""What the judge says: a closed set of statuses, and records that cannot say anything illegal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from sdpalab.problem import Problem

__all__ = ["Case", "Errors", "Limits", "Status", "Verdict"]


class Status(str, Enum):
    """Outcome of a case or of a verdict. The only good one is PASSED."""

    PASSED = "PASSED"
    INCORRECT = "INCORRECT"
    """The numbers are wrong: a limit of the rule is exceeded."""
    NOT_FINITE = "NOT_FINITE"
    """NaN or Inf where the case declares none; an output that was never written is the usual cause."""
    NONDETERMINISTIC = "NONDETERMINISTIC"
    """Two runs on the same inputs, with differently poisoned outputs, differ."""
    INPUT_CHANGED = "INPUT_CHANGED"
    """The candidate wrote to its inputs."""
    BAD_OUTPUT = "BAD_OUTPUT"
    """Wrong shape, dtype or type of output."""
    HAZARD = "HAZARD"
    """The simulator found an illegal access: out of bounds, misaligned, uninitialised, a race."""
    UNSUPPORTED = "UNSUPPORTED"
    """The kernel says that it does not compute this problem, or the simulator that it does not model an instruction."""
    BUILD_FAILED = "BUILD_FAILED"
    CRASHED = "CRASHED"
    """The candidate raised, or its process died."""
    TIMED_OUT = "TIMED_OUT"
    INFRA_ERROR = "INFRA_ERROR"
    """The machine failed, not the kernel; neither a pass nor a fail."""


@dataclass(frozen=True)
class Errors:
    """Distance of an output from the float64 reference. Indices are (b, h, i, d) and (b, h, i)."""

    max_abs: float
    max_abs_index: tuple[int, int, int, int]
    rel_l2: float
    worst_row_rel_l2: float
    worst_row: tuple[int, int, int]
    not_finite: int


@dataclass(frozen=True)
class Limits:
    """What :class:`Errors` may be at most, and the yardsticks the limits were derived from.

    ``yardstick_max_abs`` is torch's own same-precision error; ``intended_*`` are those of the declared numerics.
    """

    max_abs: float
    rel_l2: float
    worst_row_rel_l2: float
    yardstick_max_abs: float
    intended_rel_l2: float
    intended_worst_row_rel_l2: float


@dataclass(frozen=True)
class Case:
    """One judged problem on one set of inputs.

    ``digests`` maps an array's name (q, k, v, o, yardstick) to the sha256 of its bytes; ``run`` says what executed it
    (device, sha256 of each PTX, configuration).

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
        over = [
            name
            for name in ("max_abs", "rel_l2", "worst_row_rel_l2")
            if not getattr(self.errors, name) <= getattr(self.limits, name)
        ]
        if over or self.errors.not_finite:
            raise ValueError(f"case {self.name}: PASSED with {', '.join(over) or 'values that are not finite'}")

    @property
    def passed(self) -> bool:
        """True if the status is PASSED."""
        return self.status is Status.PASSED

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, one key a field."""
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

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: the fields, the status, and every case."""
        return {
            "kernel": self.kernel,
            "config": self.config,
            "device": self.device,
            "level": self.level,
            "seed": self.seed,
            "status": self.status.value,
            "passed": self.passed,
            "reason": "" if self.passed else self.reason,
            "cases": [case.to_dict() for case in self.cases],
        }
