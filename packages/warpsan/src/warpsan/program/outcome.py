"""Outcome of a program's run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from warpsan.report.groups import HazardGroup

__all__ = ["ProgramOutcome"]


@dataclass(frozen=True)
class ProgramOutcome:
    """Outcome of a run.

    Attributes
    ----------
    command : tuple of str
    gpu : str
        GPU that the program saw.
    exit_code : int
        Exit code of the program; negative for a signal.
    launches : int
    operations : int
        Launches, copies, fills, and host accesses to closed pages.
    hazards : tuple of HazardGroup
    problems : tuple of str
        Calls that failed or have no model.
    notes : tuple of str
        Limits of the run's figures.
    captured : tuple of str
        Written launch files.
    left_out : int
        Launches beyond the maximum of captured ones.
    fatal : str
        Simulator limit that invalidates the results; empty otherwise.
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
        """Whether there are no hazards and no failed calls, and the program exited with 0."""
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
