"""Findings about a bundle, and the files that its records account for."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sdpalab.evidence.verifier.archive import Members, parse
from sdpalab.evidence.verifier.facts import KEYS, SPARSE

__all__ = ["MALFORMED", "Findings", "Outcome"]

MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, struct.error)
"""Exceptions that a malformed record causes."""
FIXED_FILES = {"manifest.yaml", "report.html", "environment.json", "floors.json", "verify.py", "harness.diff"}


@dataclass
class Outcome:
    """Result of a verification: ``findings`` are reasons to reject, ``summary`` lists the re-derived parts."""

    findings: list[str] = field(default_factory=list)
    summary: list[str] = field(default_factory=list)

    @property
    def accepted(self) -> bool:
        """True if there are no findings."""
        return not self.findings


class Findings:
    """The members of one bundle, the findings, and the files accounted for."""

    def __init__(self, members: Members) -> None:
        self.members = members
        self.outcome = Outcome()
        self.used = set(FIXED_FILES)
        self.manifest = parse(members, "manifest.yaml", [])

    def find(self, where: str, what: str) -> None:
        """Add a reason to reject."""
        self.outcome.findings.append(f"{where}: {what}")

    def same_keys(self, where: str, kind: str, record: Mapping[str, Any]) -> None:
        """Require every field of a record and no other; a sparse field only if it is not empty."""
        sparse = set(SPARSE.get(kind, ()))
        empty = [name for name in sparse & set(record) if not record[name]]
        if set(record) | sparse != set(KEYS[kind]) or empty:
            self.find(where, f"the fields of its {kind} are not those of the format")

    def parsed(self, name: str) -> tuple[dict[str, Any], list[str]]:
        """Parse a JSON member in canonical form; any other form gives {} and a finding."""
        findings: list[str] = []
        return parse(self.members, name, findings), findings
