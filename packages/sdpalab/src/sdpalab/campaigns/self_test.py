"""The judge's self-test: the whole judge must reject every bug of the catalogue, and for the right reason."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic.dataclasses import dataclass

from sdpalab.bugs import Bug, Family
from sdpalab.bugs.catalogue import BUGS
from sdpalab.campaigns.campaign import CampaignResult, Say
from sdpalab.errors import UserError
from sdpalab.jobs import Executor
from sdpalab.jobs.calling import values
from sdpalab.judge.cases import CaseSpec, cases_for
from sdpalab.judge.session import judge_candidate
from sdpalab.judge.verdict import Status
from sdpalab.record import RECORD, JsonRecord

__all__ = ["PACKAGES", "BugResult", "SelfTest", "bug_job", "judged", "run", "self_test", "specs_of"]

PACKAGES = ("numpy", "torch")
BUG_SECONDS = 1800.0
"""Time limit for one bug: several of its cases may take the judge's limit."""


@dataclass(frozen=True, config=RECORD)
class BugResult(JsonRecord):
    """The judge's result for a bug: the first case that failed and its status, or PASSED.

    Attributes
    ----------
    id, family, equivalent
        Those of the :class:`~sdpalab.bugs.bug.Bug`.
    problem : str
        Label of the problem on whose quick cases it was judged.
    expected : tuple of Status
        One of these is right: PASSED for an equivalent.
    harmless : Status, optional
        The status on the problem where the bug cannot show, if there is one.
    """

    derived: ClassVar[tuple[str, ...]] = ("as_it_should",)

    id: str
    family: Family
    problem: str
    expected: tuple[Status, ...]
    status: Status
    case: str
    reason: str
    harmless: Status | None
    equivalent: str

    @property
    def as_it_should(self) -> bool:
        """True if a bug was rejected for a right reason, or an equivalent passed."""
        return self.status in self.expected and self.harmless in (None, Status.PASSED)


@dataclass(frozen=True, config=RECORD)
class SelfTest(JsonRecord):
    """The record of a self-test. Format 1 had ``name`` and ``class`` for a bug's ``id`` and ``family``.

    ``earlier`` of the results are those of an earlier record, named ``since``.
    """

    derived: ClassVar[tuple[str, ...]] = ("totals", "classes")
    sparse: ClassVar[tuple[str, ...]] = ("since", "earlier")

    mutants: tuple[BugResult, ...]
    format: int = 2
    since: str = ""
    earlier: int = 0

    @property
    def totals(self) -> dict[str, int]:
        """How many bugs were ``planted`` and ``killed``; equivalents are not among them."""
        bugs = [result for result in self.mutants if not result.equivalent]
        return {"planted": len(bugs), "killed": sum(result.as_it_should for result in bugs)}

    @property
    def classes(self) -> dict[str, dict[str, int]]:
        """The totals of each family that occurs."""
        families = {family: tuple(each for each in self.mutants if each.family is family) for family in Family}
        return {family.value: SelfTest(results).totals for family, results in families.items() if results}


def self_test(bugs: Iterable[Bug], executor: Executor, say: Say = lambda line: None) -> SelfTest:
    """Judge bugs of the catalogue on an executor's workers, a job a bug, until a case of each has failed.

    The results are in the order of ``bugs``; ``say`` prints a line for each as it is finished.
    """
    inputs = [{"id": bug.id} for bug in bugs]
    results = values(
        executor,
        "bug",
        inputs,
        seconds=BUG_SECONDS,
        finished=lambda _, value: say(_line(BugResult.from_dict(value))),
    )
    return SelfTest(tuple(BugResult.from_dict(value) for value in results))


def bug_job(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Judge the bug with that ``id``: a :class:`BugResult` as plain JSON values."""
    return judged(BUGS[inputs["id"]]).to_dict()


def run(words: str, say: Say, executor: Executor, since: Path | None = None) -> CampaignResult:
    """Judge the bugs whose id has ``words`` in it, and print the kill rate by family and the survivors.

    ``since`` is the file of an earlier record: bugs with the right result there are not judged again.

    Raises
    ------
    UserError
        If there is no such bug, or ``since`` is no record of a self-test.
    """
    chosen = [bug for bug in BUGS.values() if words in bug.id]
    if not chosen:
        raise UserError(f"no bug of the catalogue has {words!r} in its id")
    right = _right(since) if since is not None else {}
    today = self_test([bug for bug in chosen if _key(bug) not in right], executor, say)
    by_bug = right | {(each.id, each.problem): each for each in today.mutants}
    results, count = tuple(by_bug[_key(bug)] for bug in chosen), len(chosen) - len(today.mutants)
    record = SelfTest(results, since=since.name, earlier=count) if since is not None else today
    if since is not None:
        say(f"{count} results are those of {since.name}")
    say("| family | bugs | rejected |\n|---|---|---|")
    for family, rate in record.classes.items():
        say(f"| {family} | {rate['planted']} | {rate['killed']} |")
    wrong = [result for result in record.mutants if not result.as_it_should]
    for result in wrong:
        say(f"{_line(result)} {result.reason}")
    planted, killed = record.totals["planted"], record.totals["killed"]
    share = f" ({killed / planted:.1%})" if planted else ""
    summary = f"{killed} of {planted} planted bugs rejected{share}"
    return CampaignResult(record.to_dict(), not wrong, summary)


def _key(bug: Bug) -> tuple[str, str]:
    """The bug and its problem."""
    return bug.id, bug.problem.label


def _right(file: Path) -> dict[tuple[str, str], BugResult]:
    """The right results of a record."""
    try:
        results = [BugResult.from_dict(each) for each in json.loads(file.read_text())["mutants"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{file} is no record of the campaign self-test: {error}") from error
    return {(each.id, each.problem): each for each in results if each.as_it_should}


def specs_of(bug: Bug) -> tuple[CaseSpec, ...]:
    """Cases on which the bug is judged."""
    return cases_for("quick", [bug.problem], claims=bug.claims)


def judged(bug: Bug) -> BugResult:
    """Judge one bug on its problem, and on the problem that cannot show it, if there is one."""
    verdict = judge_candidate(bug.candidate, specs_of(bug), workers=1, until_failure=True)
    harmless = None
    if bug.harmless is not None:
        specs = [CaseSpec("harmless", bug.harmless, seed=None)]
        # Without exact arithmetic: its problems would show the bug.
        harmless = judge_candidate(bug.candidate, specs, workers=1, algebra=False).status
    failed = next((case for case in verdict.cases if not case.passed), None)
    status, case, reason = (failed.status, failed.name, failed.reason) if failed else (Status.PASSED, "", "")
    expected = tuple(sorted(bug.expected))
    return BugResult(bug.id, bug.family, bug.problem.label, expected, status, case, reason, harmless, bug.equivalent)


def _line(result: BugResult) -> str:
    """A result in a line."""
    parts = [f"{result.family.value}: {result.id}: {result.status.value}"]
    if result.case:
        parts.append(f"in {result.case}")
    if result.equivalent:
        parts.append(f"(no bug: {result.equivalent})")
    if not result.as_it_should:
        parts.append(f"where it should be {' or '.join(result.expected)}")
        if result.harmless not in (None, Status.PASSED):
            parts.append(f"and PASSED where it cannot show, not {result.harmless.value}")
    return " ".join(parts)
