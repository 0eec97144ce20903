"""Types of the gates' results; a worker's answer of another type is rejected."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from sdpalab.record import RECORD
from sdpalab.search.outcome import Standing

__all__ = ["Built", "Compared", "Counted", "Full", "HeldOut", "Proven", "Raced"]

Text: TypeAlias = Annotated[str, Field(min_length=1)]
Times: TypeAlias = dict[str, dict[str, PositiveFloat]]


class _GateValue(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, **RECORD)


class _NotPassed(_GateValue):
    standing: Standing
    reason: Text

    @model_validator(mode="after")
    def _has_failed(self) -> _NotPassed:
        if self.standing is Standing.PASSED:
            raise ValueError("a gate that passed has no reason")
        return self


class _Built(_GateValue):
    identity: dict[str, Text]
    ptx_sha256: dict[str, list[Text]]
    resources: dict[str, dict[str, int]]


class _OverLimits(_Built, _NotPassed):
    """A build that breaks the kernel's static limits."""


class _Counted(_GateValue):
    times_us: Times


class _Compared(_GateValue):
    ratios: Times


class _Proven(_GateValue):
    gates: list[Text]


class Raced(_GateValue):
    """Medians and comparisons by problem label and entrant; by entrant the reason for a missing time."""

    times_us: Times
    outcomes: dict[str, dict[str, str]]
    reasons: dict[str, str]


class _FullVerdict(_GateValue):
    passed: Literal[True]
    level: Literal["full"]
    cases: PositiveInt
    devices: list[Text]
    judge: Text


class _Full(_GateValue):
    verdict: _FullVerdict


class _HeldOut(_GateValue):
    cases: int


Built: TypeAlias = _OverLimits | _Built | _NotPassed
Counted: TypeAlias = _Counted | _NotPassed
Compared: TypeAlias = _Compared | _NotPassed
Proven: TypeAlias = _Proven | _NotPassed
Full: TypeAlias = _Full | _NotPassed
HeldOut: TypeAlias = _HeldOut | _NotPassed
