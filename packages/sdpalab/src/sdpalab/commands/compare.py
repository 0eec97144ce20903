"""``sdpalab compare``: two bundles side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from warpsan.terminal.console import conclude, verdict_text, write_text
from warpsan.terminal.invocation import console_and_subject, write_document
from warpsan.terminal.options import JsonOption
from warpsan.terminal.tables import show_table, table

if TYPE_CHECKING:
    from sdpalab.evidence.side_by_side import BundleComparison

__all__ = ["compare"]

_MOST_LINES, _MOST_NAMES = 16, 3
"""Lines below the table, and named cases per line; the page and --json have all."""


def compare(
    before: Annotated[str, typer.Argument(metavar="A", help="A bundle: its tarball, or the folder it unpacks to.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The bundle to hold against it.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Path of the page. Default: beside the bundle B.")
    ] = None,
    json: JsonOption = None,
) -> int:
    """Verify two bundles and show them side by side; exit 1 if anything that passed in A fails in B."""
    from sdpalab.evidence import ReportData, verify_bundle
    from sdpalab.evidence.report.page import render_comparison
    from sdpalab.evidence.side_by_side import compare_bundles

    console = console_and_subject(json, f"{before}, {after}")
    outcomes = {path: verify_bundle(path, report=False) for path in (before, after)}
    sides = {
        side: {"bundle": path, "accepted": outcomes[path].accepted, "findings": list(outcomes[path].findings)}
        for side, path in (("a", before), ("b", after))
    }
    rejected = {path: outcome.findings[0] for path, outcome in outcomes.items() if not outcome.accepted}
    if rejected:
        for path, finding in rejected.items():
            conclude(console, verdict_text(False, f"rejected, and not compared: {path}: {finding}"))
        content: dict[str, Any] = {"kernels": [], "environment": [], "regressions": [], "report": None}
        write_document(json, {**sides, **content}, status="FAILED")
        return 1
    comparison = compare_bundles(ReportData.read(before), ReportData.read(after))
    _print(console, comparison)
    page = out or Path(after).parent / f"{comparison.before.name}-and-{comparison.after.name}.html"
    write_text(str(page), render_comparison(comparison), option="--out")
    console.print(f"report  {page} (open it in any browser)", soft_wrap=True)
    regressions = comparison.regressions
    count = len(regressions)
    if regressions:
        sentence = (
            f"FAILED: {count} case{'s' if count > 1 else ''} that passed in A fail{'' if count > 1 else 's'} in B"
        )
    else:
        sentence = "PASSED: nothing that passed in A fails in B"
    conclude(console, verdict_text(not regressions, sentence))
    content = {
        "kernels": [kernel.to_dict() for kernel in comparison.kernels],
        "environment": [{"name": name, "a": a, "b": b} for name, a, b in comparison.environment],
        "regressions": list(regressions),
        "report": str(page),
    }
    write_document(json, {**sides, **content}, status="FAILED" if regressions else "PASSED")
    return 1 if regressions else 0


def _print(console: Console, comparison: BundleComparison) -> None:
    """Print a row per kernel, then the changes: cases, builds, environment."""
    console.print(f"A  {comparison.before.name}", soft_wrap=True)
    console.print(f"B  {comparison.after.name}", soft_wrap=True)
    heads = ("kernel", "A", "B", "cases A", "cases B", "worst A", "worst B", "outputs")
    numeric = ("cases A", "cases B", "worst A", "worst B")
    shown = table("", heads, numeric=numeric, prose=("kernel",), spare=("outputs", "worst A", "worst B"))
    for kernel in comparison.kernels:
        verdicts = [verdict_text(status == "PASSED", status) if status else "-" for status in kernel.statuses]
        shares = ["-" if share is None else f"{share:.2f}" for share in kernel.shares]
        shown.add_row(kernel.title, *verdicts, *kernel.counts, *shares, kernel.outputs)
    show_table(console, shown)
    lines = []
    for kernel in comparison.kernels:
        failing = [f"{case.name} ({case.statuses[1]})" for case in kernel.cases if case.regressed]
        if failing:
            more = f", and {len(failing) - _MOST_NAMES} more" if len(failing) > _MOST_NAMES else ""
            lines.append(f"{kernel.kernel} fails in B: {', '.join(failing[:_MOST_NAMES])}{more}")
    for kernel in comparison.kernels:
        for build in kernel.builds:
            changed = [f"{name} {a} -> {b}" for name, (a, b) in build.used.items() if a != b and None not in (a, b)]
            if changed:
                lines.append(f"{kernel.kernel}, {build.name}: {', '.join(changed)}")
    lines += [f"{name}: {a} -> {b}" for name, a, b in comparison.environment]
    for line in lines[:_MOST_LINES]:
        console.print(line, soft_wrap=True)
    if len(lines) > _MOST_LINES:
        console.print(f"and {len(lines) - _MOST_LINES} more: see the page or --json")
