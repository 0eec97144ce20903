"""The matrix: one row a version of torch, and what follows from it. Records only; they are made by ``compare``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

__all__ = ["CONTRACT", "OWN_CHOICE", "Change", "Conclusion", "Drift", "Matrix", "Run", "VersionRow", "WitnessRow"]

OWN_CHOICE = "own choice"
"""The witness that is whichever backend torch takes by itself."""

CONTRACT = {"max_abs": 0.06, "rel_l2": 1e-3}
"""The original contract: how far an output could be from torch's own choice of backend, that version's own."""


class Change(str, Enum):
    """How far two arrays that should be the same are apart; in order."""

    SAME_BITS = "same bits"
    ROUNDING = "rounding"
    CHANGED = "changed"


class Conclusion(str, Enum):
    """What follows from the matrix."""

    KERNEL_CHANGED = "the kernel changed"
    REFERENCE_CHANGED = "the reference changed"
    BOTH_CHANGED = "the kernel and the reference changed"
    NEITHER_CHANGED = "neither the kernel nor the reference changed"
    NOT_COMPARED = "nothing was compared"


@dataclass(frozen=True)
class Run:
    """The result of one version.

    Attributes
    ----------
    asked : str
        The requested version.
    torch, here, about
        The build that ran, whether it is that of this process, and its Python, NumPy and device.
    reason : str
        Why there is no verdict; empty if there is one.
    verdict : mapping
        As :meth:`sdpalab.judge.verdict.Verdict.to_dict` gives it.
    witnesses : mapping of case to mapping of witness to digest
    missing : mapping of witness to torch's message
    """

    asked: str
    torch: str = ""
    here: bool = False
    about: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    verdict: Mapping[str, Any] = field(default_factory=dict)
    witnesses: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Drift:
    """The worst change over the cases, the largest relative L2 distance (None: not a finite number), and how many cases
    differ in any bit."""

    change: Change
    rel_l2: float | None
    cases: int


@dataclass(frozen=True)
class WitnessRow:
    """One witness in one version; the figures are the largest over the cases (None: not finite, or no output).

    ``rel_l2`` and ``max_abs`` are its error against float64, ``drift`` its distance from itself in the base version
    (None if either has none), ``from_candidate`` the relative L2 distance of the candidate's output from it.
    """

    name: str
    rel_l2: float | None
    max_abs: float | None
    drift: Drift | None
    from_candidate: float | None
    missing: str = ""


@dataclass(frozen=True)
class VersionRow:
    """One version. ``output`` is the candidate's drift from the base; ``contract`` counts cases that the original
    contract would have passed; ``own_choice`` names the backend whose bits torch's own choice has, if one's."""

    run: Run
    output: Drift | None = None
    contract: int = 0
    own_choice: str = ""
    witnesses: tuple[WitnessRow, ...] = ()

    @property
    def ran(self) -> bool:
        """True if there is a verdict."""
        return not self.run.reason

    @property
    def passed(self) -> int:
        """Cases that PASSED."""
        return sum(case["status"] == "PASSED" for case in self.run.verdict.get("cases", ()))

    @property
    def cases(self) -> int:
        """Cases that were judged."""
        return len(self.run.verdict.get("cases", ()))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "asked": self.run.asked,
            "torch": self.run.torch or None,
            "this_environment": self.run.here,
            **self.run.about,
            "reason": self.run.reason,
            "passed": self.passed,
            "cases": self.cases,
            "contract_passed": self.contract,
            "output": asdict(self.output) if self.output else None,
            "own_choice": self.own_choice,
            "witnesses": [asdict(witness) for witness in self.witnesses],
            "witness_digests": {case: dict(digests) for case, digests in self.run.witnesses.items()},
            "verdict": dict(self.run.verdict) or None,
        }


@dataclass(frozen=True)
class Matrix:
    """All versions, in the requested order, and what follows."""

    rows: tuple[VersionRow, ...]
    base: str
    conclusion: Conclusion
    sentence: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "base": self.base or None,
            "conclusion": self.conclusion.value,
            "sentence": self.sentence,
            "contract": CONTRACT,
            "rows": [row.to_dict() for row in self.rows],
        }
