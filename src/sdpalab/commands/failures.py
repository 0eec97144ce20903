"""A failed verdict in a terminal: its hazards by source line, the reasons, and what the diagnosis adds."""

from __future__ import annotations

from rich.console import Console

from sdpalab.commands.hazards import print_hazards
from sdpalab.judge.diagnose.summary import Summary
from sdpalab.judge.verdict import Case, Verdict

__all__ = ["MOST_ROWS", "print_failures", "rows_of"]

MOST_ROWS = 5
"""Cases of a failed verdict that have a row in the table."""
_MOST_REASONS = 3
"""Failed cases whose reasons are shown; of the others, only the names."""
_MOST_NAMES = 8


def rows_of(verdict: Verdict) -> tuple[list[Case], str]:
    """The cases that have a row in the table, and what to say of the others.

    Of a passed verdict all but the trials that passed; of a failed one the first failed cases.
    """
    shown = [case for case in verdict.cases if not (case.passed and case.run.get("trial"))]
    if verdict.passed:
        return shown, ""
    failed = [case for case in shown if not case.passed]
    passed, more = sum(case.passed for case in verdict.cases), len(failed) - MOST_ROWS
    others = [f"{passed} passed"] if passed else []
    others += [f"{more} more failed"] if more > 0 else []
    return failed[:MOST_ROWS], f"{' and '.join(others)}, see --json" if others else ""


def print_failures(console: Console, verdict: Verdict, summary: Summary) -> None:
    """Why a verdict failed: each hazard once, the first reasons, and the summary's hints."""
    if verdict.passed:
        return
    hazardous = [case for case in verdict.cases if case.run.get("hazards")]
    print_hazards(console, summary.hazards, len(verdict.cases), unit="case")
    reasons = [case for case in verdict.cases if not case.passed and case not in hazardous]
    for case in reasons[:_MOST_REASONS]:
        console.print(f"{case.name}: {case.status.value}: {case.reason}", soft_wrap=True)
    if more := reasons[_MOST_REASONS:]:
        names = ", ".join(case.name for case in more[:_MOST_NAMES])
        console.print(f"and {len(more)} more: {names}{', ...' if len(more) > _MOST_NAMES else ''}", soft_wrap=True)
    for line in summary.lines():
        console.print(line, soft_wrap=True)
