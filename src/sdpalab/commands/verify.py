"""``sdpalab verify``: check a bundle again."""

from __future__ import annotations

from typing import Annotated

import typer

from sdpalab.commands.common import conclude, verdict_text
from sdpalab.commands.invocation import console_and_subject, write_document
from sdpalab.commands.shared_options import JsonOption

__all__ = ["verify"]


def verify(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="A bundle's tarball, or the folder it unpacks to.")],
    json: JsonOption = None,
) -> int:
    """Recompute every digest of a bundle and derive every verdict in it again from the raw arrays."""
    from sdpalab.evidence import verify_bundle

    console = console_and_subject(json, bundle)
    outcome = verify_bundle(bundle)
    for finding in outcome.findings:
        console.print(verdict_text(False, "REJECTED"), finding, soft_wrap=True)
    for line in outcome.summary if outcome.accepted else ():
        console.print(line, soft_wrap=True)
    count = len(outcome.findings)
    if outcome.accepted:
        conclude(console, verdict_text(True, "accepted"))
    else:
        conclude(console, verdict_text(False, f"rejected: {count} finding{'s' if count > 1 else ''}"))
    write_document(
        json,
        {
            "bundle": bundle,
            "accepted": outcome.accepted,
            "findings": list(outcome.findings),
            "summary": list(outcome.summary),
        },
        status="PASSED" if outcome.accepted else "FAILED",
    )
    return 0 if outcome.accepted else 1
