"""``sdpalab report``: the HTML report of a bundle, made again from what is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sdpalab.commands.common import JsonOption, console_for, verdict_text, write_json
from sdpalab.errors import UserError

__all__ = ["report"]


def report(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="A bundle's tarball, or the folder it unpacks to.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the page goes. Default: beside the bundle.")
    ] = None,
    json: JsonOption = None,
) -> int:
    """Verify a bundle and make its report, one HTML page, again; what is rejected gets none."""
    from sdpalab.evidence import ReportData, render_report, verify_bundle

    console = console_for(json)
    outcome = verify_bundle(bundle)
    page = None
    if outcome.accepted:
        data = ReportData.read(bundle)
        page = out or Path(bundle).parent / f"{data.name}.html"
        try:
            page.write_text(render_report(data), encoding="utf-8")
        except OSError as error:
            raise UserError(f"--out {page}: cannot write: {error.strerror}") from None
        console.print(f"report  {page} (open it in any browser)", soft_wrap=True)
    else:
        console.print(verdict_text(False, f"rejected, and no report made: {outcome.findings[0]}"), soft_wrap=True)
    write_json(
        json,
        {
            "bundle": bundle,
            "accepted": outcome.accepted,
            "findings": list(outcome.findings),
            "report": str(page) if page else None,
        },
    )
    return 0 if outcome.accepted else 1
