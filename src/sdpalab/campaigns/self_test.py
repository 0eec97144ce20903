"""The judge's self-test: the whole judge must reject every mutant of the catalogue, and for the right reason."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from sdpalab.bugs.bug import Bug, Mutant
from sdpalab.judge.cases import CaseSpec, quick_cases
from sdpalab.judge.session import judge_candidate
from sdpalab.judge.verdict import Status

__all__ = ["MutantResult", "Rate", "rates", "self_test"]


@dataclass(frozen=True)
class MutantResult:
    """What became of a mutant: the first case that failed, and how; without one, PASSED."""

    mutant: Mutant
    status: Status
    case: str
    reason: str
    harmless: Status | None = None
    """The status on the problem where the bug cannot show, if there is one."""

    @property
    def as_it_should(self) -> bool:
        """True if a bug was rejected for a right reason, or an equivalent passed."""
        expected = {Status.PASSED} if self.mutant.equivalent else self.mutant.statuses
        return self.status in expected and self.harmless in (None, Status.PASSED)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "class": self.mutant.bug.value,
            "name": self.mutant.name,
            "problem": self.mutant.problem.label,
            "status": self.status.value,
            "case": self.case,
            "reason": self.reason,
            "equivalent": self.mutant.equivalent,
            "harmless": self.harmless.value if self.harmless else None,
            "as_it_should": self.as_it_should,
        }


@dataclass(frozen=True)
class Rate:
    """How many bugs of a class were planted and killed; equivalents are counted apart."""

    bug: Bug
    planted: int
    killed: int
    equivalent: int


def self_test(
    chosen: Iterable[Mutant],
    *,
    progress: Callable[[MutantResult], None] = lambda outcome: None,
    at_once: int | None = None,
) -> tuple[MutantResult, ...]:
    """Judge mutants, ``at_once`` at a time (default: 2, or 1 on a single CPU), until a case of each has failed.

    Returns
    -------
    tuple of MutantResult
        In the order of ``chosen``; ``progress`` is told of each as it is finished.
    """

    def outcome(mutant: Mutant) -> MutantResult:
        made = _outcome(mutant)
        progress(made)
        return made

    with ThreadPoolExecutor(at_once or min(2, os.cpu_count() or 1)) as pool:
        return tuple(pool.map(outcome, chosen))


def _outcome(mutant: Mutant) -> MutantResult:
    verdict = judge_candidate(mutant.candidate, quick_cases([mutant.problem]), workers=1, until_failure=True)
    harmless = None
    if mutant.harmless is not None:
        specs = [CaseSpec("harmless", mutant.harmless, seed=None)]
        harmless = judge_candidate(mutant.candidate, specs, workers=1).status
    failed = next((case for case in verdict.cases if not case.passed), None)
    if failed is None:
        return MutantResult(mutant, Status.PASSED, "", "", harmless)
    return MutantResult(mutant, failed.status, failed.name, failed.reason, harmless)


def rates(outcomes: Sequence[MutantResult]) -> tuple[Rate, ...]:
    """The kill rate of each class that occurs."""
    found = []
    for bug in Bug:
        mine = [outcome for outcome in outcomes if outcome.mutant.bug is bug]
        bugs = [outcome for outcome in mine if not outcome.mutant.equivalent]
        if mine:
            killed = sum(outcome.as_it_should for outcome in bugs)
            found.append(Rate(bug, len(bugs), killed, len(mine) - len(bugs)))
    return tuple(found)
