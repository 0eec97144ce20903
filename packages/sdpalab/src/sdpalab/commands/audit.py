"""``sdpalab audit``: kernel submissions in public formats, judged as they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from sdpalab.commands.option_groups import ConfinementOptions
from warpsan.terminal.console import conclude, verdict_text
from warpsan.terminal.invocation import console_and_subject, write_document
from warpsan.terminal.options import JsonOption

if TYPE_CHECKING:
    from sdpalab.formats import Audited

__all__ = ["audit"]


def audit(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR|FILE...",
            help="Submissions, or folders of them: KernelBench ModelNew, GPU MODE custom_kernel, reference.py with "
            "solution.py, flashinfer-bench and SOL-ExecBench solution.json.",
        ),
    ],
    timeout: Annotated[float, typer.Option(metavar="S", help="Most seconds of one case.")] = 120.0,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="DIR",
            help="Also write flashinfer-bench Traces of its solutions to DIR/DEFINITION.jsonl.",
        ),
    ] = None,
    *,
    confined: ConfinementOptions,
    json: JsonOption = None,
) -> int:
    """Judge submissions in public formats, without changes to their files; exit code 1 if one is not PASSED.

    The table has for each submission the verdict, its first hazard, executed basic blocks of its kernels, the origin of
    its output, and the verdict of the format's own check beside ours.
    """
    from sdpalab.formats import audit as audit_all
    from sdpalab.formats import submissions_in, write_traces
    from sdpalab.judge.sandbox.guarded import fork_server

    console = console_and_subject(json, " ".join(paths))
    submissions = submissions_in(paths)
    with confined.in_force(), fork_server():
        rows = audit_all(
            submissions,
            timeout=timeout,
            progress=lambda row: console.print(
                verdict_text(row.passed, f"{row.status}: {row.submission}" + (f": {row.reason}" * (not row.passed))),
                soft_wrap=True,
            ),
        )
    traces = write_traces(trace, submissions, rows) if trace is not None else 0
    console.print(_table(rows))
    for row in rows:
        for sentence in row.unjudged if row.passed else ():
            console.print(f"not judged: {row.submission}: {sentence}", soft_wrap=True)
    passed, disagree = sum(row.passed for row in rows), sum(row.own == "accepts" and not row.passed for row in rows)
    line = f"{passed} of {len(rows)} submissions PASSED; the formats' own checks accept {disagree} of the others"
    if trace is not None:
        console.print(f"traces: {traces} in {trace}, without performance: the simulator has no clock", soft_wrap=True)
    conclude(console, verdict_text(passed == len(rows), line))
    content = {"submissions": [row.to_dict() for row in rows], "passed": passed}
    write_document(json, content, status="PASSED" if passed == len(rows) else "FAILED")
    return 0 if passed == len(rows) else 1


def _table(rows: list[Audited]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("submission", "verdict", "cases", "coverage", "output by", "own check"):
        table.add_column(name, overflow="fold")
    for row in rows:
        own = f"{row.own} ({row.check})" if row.check else row.own
        table.add_row(row.submission, row.status, str(row.cases), row.coverage, row.provenance, own)
    return table
