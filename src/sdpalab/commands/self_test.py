"""``sdpalab judge --self-test``: the kill rate of the judge."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console

from sdpalab.commands.common import progress_console, table, verdict_text, write_json

if TYPE_CHECKING:
    from sdpalab.campaigns.self_test import MutantResult, Rate

__all__ = ["run_self_test"]


def run_self_test(console: Console, json: str | None) -> int:
    """Judge all mutants, print the kill rate by class and what survived; 1 if anything did."""
    from sdpalab.bugs.catalogue import mutants
    from sdpalab.campaigns.self_test import rates, self_test
    from sdpalab.commands.progress import CaseProgress
    from sdpalab.evidence.campaign import Campaign

    ran = Campaign("self-test", "sdpalab judge --self-test --json FILE", packages=("numpy", "torch"))
    start = time.monotonic()
    chosen = mutants()
    with CaseProgress(progress_console(), "judging mutants", len(chosen)) as progress:
        outcomes = self_test(chosen, progress=lambda outcome: progress.advance())
    found = rates(outcomes)
    _print(console, outcomes, found)
    good = all(outcome.as_it_should for outcome in outcomes)
    planted, killed = sum(rate.planted for rate in found), sum(rate.killed for rate in found)
    line = f"{killed} of {planted} planted bugs rejected ({killed / planted:.1%}) in {time.monotonic() - start:.0f} s"
    console.print(verdict_text(good, line))
    record = ran.record(
        totals={"planted": planted, "killed": killed},
        classes={rate.bug.value: {"planted": rate.planted, "killed": rate.killed} for rate in found},
        mutants=[outcome.to_dict() for outcome in outcomes],
    )
    write_json(json, record)
    return 0 if good else 1


def _print(console: Console, outcomes: tuple[MutantResult, ...], found: tuple[Rate, ...]) -> None:
    columns = ("planted", "killed", "kill rate", "equivalent")
    shown = table("the judge on planted bugs", ("class", *columns), numeric=columns)
    for rate in found:
        share = f"{rate.killed / rate.planted:.0%}" if rate.planted else "-"
        shown.add_row(rate.bug.value, str(rate.planted), str(rate.killed), share, str(rate.equivalent))
    console.print(shown)
    for outcome in outcomes:
        mutant = outcome.mutant
        if not outcome.as_it_should:
            wanted = ["PASSED"] if mutant.equivalent else sorted(status.value for status in mutant.statuses)
            where = f" in {outcome.case}" if outcome.case else ""
            said = f"{outcome.status.value}{where}, and it should be {' or '.join(wanted)}"
            if outcome.harmless is not None:
                said += f"; where it cannot show: {outcome.harmless.value}"
            console.print(f"{mutant.bug.value}: {mutant.name}: {said}", soft_wrap=True)
        elif mutant.equivalent:
            console.print(f"no bug: {mutant.name}, because {mutant.equivalent}", soft_wrap=True)
