"""The outcome of a program's run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from warpsan.report.groups import HazardGroup

__all__ = ["ProgramOutcome"]


@dataclass(frozen=True)
class ProgramOutcome:
    """The outcome of a run.

    Attributes
    ----------
    command : tuple of str
    gpu : str
        What the program found.
    exit_code : int
        Of the program; negative for a signal.
    launches : int
    operations : int
        Launches, copies, fills, and accesses of the host to closed pages.
    hazards : tuple of HazardGroup
    problems : tuple of str
        Calls that failed or are not modelled.
    notes : tuple of str
        What the run's figures are not.
    captured : tuple of str
        The launch files that were left.
    left_out : int
        Launches beyond the most that are captured.
    fatal : str
        What the simulator could not do; the results are then not the program's.
    """

    command: tuple[str, ...]
    gpu: str
    exit_code: int
    launches: int
    operations: int
    hazards: tuple[HazardGroup, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    captured: tuple[str, ...]
    left_out: int
    fatal: str

    @property
    def clean(self) -> bool:
        """True if there is no hazard, no call failed, and the program ended well."""
        return not (self.hazards or self.problems or self.exit_code)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "program": list(self.command),
            "gpu": self.gpu,
            "exit_code": self.exit_code,
            "launches": self.launches,
            "operations": self.operations,
            "clean": self.clean,
            "hazards": [each.to_dict() for each in self.hazards],
            "problems": list(self.problems),
            "notes": list(self.notes),
            "captured": list(self.captured),
        }
