"""Verdicts: a closed set of statuses, and records that are valid by construction.

The same objects are the records of a bundle, as JSON (:mod:`sdpalab.record`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from sdpalab.judge.algebra.outcome import AlgebraCase, AlgebraStatus
from sdpalab.judge.coverage import coverage_of
from sdpalab.judge.rule.figures import (
    LIMITED,
    ORIGINAL_CONTRACT,
    Errors,
    Limited,
    Limits,
    LseErrors,
    broken_rules,
    keeps_original_contract,
    limited,
    share_of,
    yardstick_name,
)
from sdpalab.judge.unjudged import EntryCode
from sdpalab.problem import TWELVE_CASES
from sdpalab.record import RECORD, JsonRecord, ProblemField, dataclass
from sdpalab.status import Status

__all__ = [
    "LIMITED",
    "ORIGINAL_CONTRACT",
    "Case",
    "Errors",
    "Figures",
    "Limited",
    "Limits",
    "LseErrors",
    "Status",
    "Verdict",
    "broken_rules",
    "keeps_original_contract",
    "limited",
]

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, config=RECORD)
class Figures(JsonRecord):
    """Errors of one output, and their limits."""

    errors: Errors
    limits: Limits

    @property
    def share(self) -> float:
        """The largest share of a limit (:func:`sdpalab.judge.rule.figures.share_of`)."""
        return share_of(self.errors, self.limits)


@dataclass(frozen=True, config=RECORD)
class Case(JsonRecord):
    """One judged problem on one set of inputs.

    ``errors`` and ``limits`` are those of the output; of several outputs (``figures``, by name) those of the one that
    uses most of a limit. ``digests`` maps an array's name (q, k, v, o, yardstick, perhaps lse) to the sha256 of its
    bytes; ``run`` describes the execution (device, sha256 of each PTX, configuration).

    Raises
    ------
    ValueError
        On construction, if the record is invalid: PASSED without errors and limits, with an error above its limit, or
        without the digests of its arrays; or a status other than PASSED without a reason.
    """

    derived = ("original_contract",)
    sparse = ("figures",)

    name: str
    problem: ProblemField
    inputs: str
    seed: int
    status: Status
    reason: str = ""
    errors: Errors | None = None
    limits: Limits | None = None
    digests: Mapping[str, str] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, Figures] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, digest in self.digests.items():
            if not _SHA256.fullmatch(digest):
                raise ValueError(f"case {self.name}: the digest of {name} is not a sha256: {digest!r}")
        if self.status is Status.INTERRUPTED:
            raise ValueError(
                f"case {self.name}: only a verdict is INTERRUPTED; a case that was not judged is not there"
            )
        if self.status is not Status.PASSED:
            if not self.reason:
                raise ValueError(f"case {self.name}: status {self.status.value} needs a reason")
            return
        if self.errors is None or self.limits is None:
            raise ValueError(f"case {self.name}: PASSED needs its errors and limits")
        outputs = self.problem.outputs
        if len(outputs) > 1 and set(self.figures) != set(outputs):
            raise ValueError(f"case {self.name}: PASSED needs the figures of {', '.join(outputs)}")
        for name, figures in (("", Figures(self.errors, self.limits)), *self.figures.items()):
            if over := broken_rules(figures.errors, figures.limits):
                raise ValueError(f"case {self.name}: PASSED with {name}{', '.join(over)} over the limit")
        needed = ["q", "k", "v", *self.problem.array_shapes, *outputs, *map(yardstick_name, outputs)]
        needed += ["lse"] if self.errors.lse else []
        if missing := [name for name in needed if name not in self.digests]:
            raise ValueError(f"case {self.name}: PASSED without the digest of {', '.join(missing)}")

    @property
    def passed(self) -> bool:
        """True if the status is PASSED."""
        return self.status is Status.PASSED

    @property
    def original_contract(self) -> bool | None:
        """Whether the original contract holds; None if there are no errors."""
        return keeps_original_contract(self.errors) if self.errors else None

    @property
    def limited(self) -> dict[str, Limited]:
        """Each error with its limit (:func:`limited`); empty without errors and limits."""
        return limited(self.errors, self.limits) if self.errors and self.limits else {}

    @property
    def shares(self) -> dict[str, float]:
        """Share of each entry of :attr:`limited`."""
        return {name: each.share for name, each in self.limited.items()}


@dataclass(frozen=True, config=RECORD)
class Verdict(JsonRecord):
    """All cases of one candidate. PASSED needs at least one case, all cases PASSED, and no case left unjudged.

    ``status`` is the status of the first case that is not PASSED; INFRA_ERROR counts only if no other failure was
    found. If all cases are PASSED, it is INCORRECT where a problem of ``algebra`` is UNEQUAL
    (:mod:`sdpalab.judge.algebra`). ``unjudged`` holds the names of the cases that were not judged, because judging was
    interrupted or stopped at the first failure. ``code`` lists the code of each entry that no case executed: a verdict
    does not cover it.
    """

    derived = ("status", "passed", "reason", "original_contract", "covers", "confinement")
    sparse = ("unjudged", "algebra", "code", "covers", "confinement")

    kernel: str
    config: str
    device: str
    level: str
    seed: int
    cases: tuple[Case, ...]
    unjudged: tuple[str, ...] = ()
    algebra: tuple[AlgebraCase, ...] = ()
    code: tuple[EntryCode, ...] = ()

    @property
    def passed(self) -> bool:
        """True if there is at least one case, all are PASSED, none was left unjudged, and no problem in exact
        arithmetic is UNEQUAL."""
        return self.status is Status.PASSED

    @property
    def status(self) -> Status:
        """The worst status of the cases; INFRA_ERROR if there is none."""
        bad = [case.status for case in self.cases if not case.passed]
        faults = [status for status in bad if status is not Status.INFRA_ERROR]
        if faults:
            return faults[0]
        if self._unequal is not None:
            return Status.INCORRECT
        if bad or not (self.cases or self.unjudged):
            return Status.INFRA_ERROR
        return Status.INTERRUPTED if self.unjudged else Status.PASSED

    @property
    def reason(self) -> str:
        """The reason of the case that decided the status; empty if PASSED."""
        for case in self.cases:
            if case.status is self.status:
                return case.reason
        if self._unequal is not None:
            return f"{self._unequal.name}: {self._unequal.reason}"
        if self.unjudged:
            total = len(self.cases) + len(self.unjudged)
            return f"judging was interrupted after {len(self.cases)} of {total} cases"
        return "no case was judged"

    @property
    def _unequal(self) -> AlgebraCase | None:
        """The first problem in exact arithmetic whose outputs differ from attention."""
        return next((each for each in self.algebra if each.status is AlgebraStatus.UNEQUAL), None)

    @property
    def covers(self) -> list[str]:
        """Coverage of a PASSED verdict (:func:`sdpalab.judge.coverage.coverage_of`); otherwise empty."""
        if not self.passed:
            return []
        return coverage_of(
            [case.problem for case in self.cases], any(case.errors and case.errors.lse for case in self.cases)
        )

    @property
    def not_covered(self) -> list[str]:
        """Sentences on code that a PASSED verdict does not cover: code that no case executed, and reads of registers
        that tell the machine. A GPU does not tell the executed code, which is then unknown."""
        if not self.passed:
            return []
        on_gpu = not self.device.startswith("simulator") and any("ptx_sha256" in case.run for case in self.cases)
        unknown = ["the executed code is unknown, because a GPU ran the cases"] if on_gpu and not self.code else []
        return [sentence for each in self.code for sentence in each.sentences] + unknown

    @property
    def confinement(self) -> str:
        """Confinement of the candidate's processes: ``namespaces``, or ``processes`` if a case ran without namespaces
        (docs/isolation.md); empty if no case ran."""
        stated = {str(case.run["confinement"]) for case in self.cases if "confinement" in case.run}
        return "processes" if "processes" in stated else next(iter(stated), "")

    @property
    def fast_0(self) -> float | None:
        """Share of the trials that passed, as fast_0 of KernelBench (Ouyang et al. 2025); None without trials."""
        trials = [case.passed for case in self.cases if case.run.get("trial")]
        return sum(trials) / len(trials) if trials else None

    @property
    def original_contract(self) -> int:
        """Number of cases that keep the original contract."""
        return sum(case.original_contract is True for case in self.cases)

    @property
    def twelve(self) -> int:
        """Number of the twelve contract cases among the cases (normal inputs, their seeds), 0 to 12."""
        judged = {(case.problem, case.seed) for case in self.cases if case.inputs == "normal"}
        return sum(pair in judged for pair in TWELVE_CASES)
