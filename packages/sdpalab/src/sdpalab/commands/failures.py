"""A failed verdict in a terminal: its hazards by source line, the reasons, and hints of the diagnosis."""

from __future__ import annotations

import os

from rich.console import Console

from sdpalab.judge.diagnose.summary import FailureSummary
from sdpalab.judge.verdict import Case, Verdict
from warpsan.terminal.hazards import print_hazards

__all__ = ["MOST_ROWS", "print_failures", "rows_of"]

MOST_ROWS = 3
"""Number of cases of a failed verdict with a row in the table."""
_MOST_NAMES = 5
"""Number of further failed cases that are named; the reason of the first is shown."""


def rows_of(verdict: Verdict) -> tuple[list[Case], str]:
    """The cases with a row in the table, and a sentence on the others.

    A passed verdict has rows for all cases but the passed trials; a failed one for the first failed cases.
    """
    shown = [case for case in verdict.cases if not (case.passed and case.run.get("trial"))]
    if verdict.passed:
        return shown, ""
    failed = [case for case in shown if not case.passed]
    passed, more = sum(case.passed for case in verdict.cases), len(failed) - MOST_ROWS
    others = [f"{passed} passed"] if passed else []
    others += [f"{more} more failed"] if more > 0 else []
    return failed[:MOST_ROWS], f"{' and '.join(others)}, see --json" if others else ""


def print_failures(console: Console, verdict: Verdict, summary: FailureSummary) -> None:
    """Print why a verdict failed: each hazard once, the first reason, and the summary's hints."""
    if verdict.passed:
        return
    hazardous = [case for case in verdict.cases if case.run.get("hazards")]
    print_hazards(console, summary.hazards, len(verdict.cases), unit="case")
    reasons = [case for case in verdict.cases if not case.passed and case not in hazardous]
    soft = not console.is_terminal and "COLUMNS" not in os.environ  # whole lines for readers of a pipe
    if reasons:
        case = reasons[0]
        console.print(f"{case.name}: {case.status.value}: {case.reason}", soft_wrap=soft)
    elif not hazardous and verdict.algebra:
        console.print(verdict.reason, soft_wrap=soft)
    if more := reasons[1:]:
        names = ", ".join(case.name for case in more[:_MOST_NAMES])
        console.print(f"and {len(more)} more: {names}{', ...' if len(more) > _MOST_NAMES else ''}", soft_wrap=soft)
    for line in summary.lines():
        console.print(line, soft_wrap=soft)
