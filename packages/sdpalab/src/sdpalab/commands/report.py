"""``sdpalab report``: the HTML report of a bundle or of a search's log, generated from its content."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sdpalab.errors import UserError
from warpsan.terminal.console import conclude, verdict_text
from warpsan.terminal.invocation import console_and_subject, write_document
from warpsan.terminal.options import JsonOption

__all__ = ["report"]


def report(
    bundle: Annotated[
        str,
        typer.Argument(
            metavar="BUNDLE|LOG", help="A bundle's tarball, or the folder it unpacks to; or a search's log."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Path of the page. Default: beside the bundle.")
    ] = None,
    json: JsonOption = None,
) -> int:
    """Verify a bundle and regenerate its report, one HTML page, unless it is rejected; or generate that of a search."""
    from sdpalab.evidence import ReportData, render_report, verify_bundle

    console = console_and_subject(json, bundle)
    if bundle.endswith(".jsonl"):
        return _search(console, Path(bundle), out, json)
    outcome = verify_bundle(bundle, report=False)
    page = None
    if outcome.accepted:
        data = ReportData.read(bundle)
        page = out or Path(bundle).parent / f"{data.name}.html"
        _write(console, page, render_report(data))
    else:
        console.print(verdict_text(False, f"rejected, and no report made: {outcome.findings[0]}"), soft_wrap=True)
    write_document(
        json,
        {
            "bundle": bundle,
            "accepted": outcome.accepted,
            "findings": list(outcome.findings),
            "report": str(page) if page else None,
        },
        status="PASSED" if outcome.accepted else "FAILED",
    )
    return 0 if outcome.accepted else 1


def _search(console: Console, log: Path, out: Path | None, json: str | None) -> int:
    """Generate the report of a search."""
    from sdpalab.evidence.report.search_page import search_report

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        text = search_report(log)
    for each in caught:
        console.print(verdict_text(None, str(each.message)), soft_wrap=True)
    page = out or log.with_suffix(".html")
    _write(console, page, text)
    write_document(
        json, {"log": str(log), "damaged": [str(each.message) for each in caught], "report": str(page)}, status="PASSED"
    )
    return 0


def _write(console: Console, page: Path, text: str) -> None:
    try:
        page.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {page}: cannot write: {error.strerror}") from None
    conclude(console, f"report  {page} (open it in any browser)")
