"""What is found wrong with a bundle, and which of its files a record accounts for."""

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
    """What was found: ``findings`` are reasons to reject, ``summary`` says what was re-derived."""

    findings: list[str] = field(default_factory=list)
    summary: list[str] = field(default_factory=list)

    @property
    def accepted(self) -> bool:
        """True if nothing was found."""
        return not self.findings


class Findings:
    """The members of one bundle, what was found, and the files that are accounted for."""

    def __init__(self, members: Members) -> None:
        self.members = members
        self.outcome = Outcome()
        self.used = set(FIXED_FILES)
        self.manifest = parse(members, "manifest.yaml", [])

    def find(self, where: str, what: str) -> None:
        """Add a reason to reject."""
        self.outcome.findings.append(f"{where}: {what}")

    def same_keys(self, where: str, kind: str, record: Mapping[str, Any]) -> None:
        """Every field of a record must be there, and no other; a sparse one only if it is not empty."""
        sparse = set(SPARSE.get(kind, ()))
        empty = [name for name in sparse & set(record) if not record[name]]
        if set(record) | sparse != set(KEYS[kind]) or empty:
            self.find(where, f"the fields of its {kind} are not those of the format")

    def parsed(self, name: str) -> tuple[dict[str, Any], list[str]]:
        """A JSON member in canonical form, and nothing found; anything else gives {}, and is the finding."""
        findings: list[str] = []
        return parse(self.members, name, findings), findings
