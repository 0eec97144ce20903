"""Fields of a bundle's records, taken from the classes of the lab, and written out in the assembled file.

These are definitions, not results.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sdpalab.compile.gate import GateResult, Rule
from sdpalab.compile.resources import Resources
from sdpalab.evidence.records import SPEED_UNITS, AttemptRecord, BuildRecord, Figure
from sdpalab.judge import verdict
from sdpalab.judge.algebra.outcome import AlgebraCase, AlgebraStatus
from sdpalab.judge.unjudged import EntryCode, UnjudgedCode
from sdpalab.kernels.kernel import MISSION_LIMITS
from sdpalab.problem import FIELDS, Problem

__all__ = [
    "ADVISED",
    "ALGEBRA_STATUSES",
    "KEYS",
    "SPARSE",
    "SPEED_UNITS",
    "STATUSES",
]


def _keys(record: Any) -> list[str]:
    return sorted({*(each.name for each in fields(record)), *getattr(record, "derived", ())})


KEYS = {
    "attempt": _keys(AttemptRecord),
    "verdict": _keys(verdict.Verdict),
    "case": _keys(verdict.Case),
    "algebra": _keys(AlgebraCase),
    "code": _keys(EntryCode),
    "unjudged code": _keys(UnjudgedCode),
    "problem": _keys(Problem),
    "build": _keys(BuildRecord),
    "resources": _keys(Resources),
    "gate": _keys(GateResult),
    "rule": _keys(Rule),
    "figure": _keys(Figure),
}
"""Required fields of every record; no others are allowed."""
SPARSE = {
    "attempt": ["sources"],
    "verdict": list(verdict.Verdict.sparse),
    "case": list(verdict.Case.sparse),
    "algebra": list(AlgebraCase.sparse),
    "rule": list(Rule.sparse),
    "problem": list(FIELDS),
}
"""Fields that a record lacks while they are empty."""
ADVISED = {name: MISSION_LIMITS.value(name) for name in ("registers", "shared_bytes", "spill_bytes", "stack_bytes")}
"""Limits that a gate shows where the kernel declares none."""
STATUSES = [status.value for status in verdict.Status]
ALGEBRA_STATUSES = [status.value for status in AlgebraStatus]
