"""Litmus tests with stale reads, against the axioms of PTX's memory model.

Each test runs in 10,000 instances with independent random choices. No forbidden outcome may occur, and every allowed
one must, except those that need more than late loads (``LitmusRow.beyond``).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lab.litmus_programs import LitmusProgram, Outcome, programs, run_program
from ptx_axioms import Axioms
from sdpalab.campaigns.campaign import CampaignResult, Say

__all__ = ["LitmusRow", "litmus_row", "run"]


@dataclass(frozen=True)
class LitmusRow:
    """One litmus test.

    Attributes
    ----------
    name : str
    threads : tuple of tuple of str
    seen : dict of str to int
        Count of each outcome: ``reads | places at the end``.
    forbidden : list of str
        Outcomes that occurred although the axioms forbid them.
    missing : list of str
        Outcomes that the simulator should produce and that did not occur.
    beyond : list of str
        Allowed outcomes that the simulator does not produce: late loads behind a release, an acquire or an atomic
        operation.
    """

    name: str
    threads: tuple[tuple[str, ...], ...]
    seen: dict[str, int]
    forbidden: list[str]
    missing: list[str]
    beyond: list[str]


def litmus_row(program: LitmusProgram, instances: int, seed: int) -> LitmusRow:
    """Run a test."""
    axioms = Axioms(program.threads, program.blocks, program.clusters)
    allowed, possible = axioms.outcomes(), axioms.outcomes(late="plain")
    seen = run_program(program, instances, seed)
    return LitmusRow(
        *(program.name, program.threads),
        {_text(outcome): count for outcome, count in sorted(seen.items())},
        _texts(set(seen) - allowed),
        _texts(possible - set(seen)),
        _texts(allowed - possible),
    )


def _text(outcome: Outcome) -> str:
    reads, places = (" ".join(map(str, values)) for values in outcome)
    return f"{reads} | {places}"


def _texts(outcomes: set[Outcome]) -> list[str]:
    return [_text(outcome) for outcome in sorted(outcomes)]


def run(only: str, instances: int, seed: int, say: Say) -> CampaignResult:
    """Run the tests whose names have ``only`` in them."""
    rows: list[LitmusRow] = []
    for program in programs():
        if only in program.name:
            rows.append(row := litmus_row(program, instances, seed))
            for what, texts in (("forbidden", row.forbidden), ("did not come", row.missing)):
                if texts:
                    say(f"{row.name}: {what}: {'; '.join(texts)}")
    wrong = sum(bool(row.forbidden) for row in rows)
    short = sum(bool(row.missing) for row in rows)
    content: dict[str, Any] = {"instances": instances, "seed": seed, "tests": [asdict(row) for row in rows]}
    summary = (
        f"{len(rows)} litmus tests of {instances} instances: {wrong} with a forbidden outcome, {short} with one that "
        f"did not come, {sum(bool(row.beyond) for row in rows)} with one that is not modelled"
    )
    return CampaignResult(content, bool(rows) and not wrong and not short, summary)
