"""``sdpalab verify``: check a bundle again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from warpsan.terminal.console import conclude, verdict_text
from warpsan.terminal.invocation import console_and_subject, write_document
from warpsan.terminal.options import JsonOption

__all__ = ["verify"]


def verify(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="A bundle's tarball, or the folder it unpacks to.")],
    signer: Annotated[
        Path | None,
        typer.Option(metavar="KEY", help="The ed25519 public key, PEM or OpenSSH, that must have signed it."),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Hold the report in it against the one its records make.")
    ] = True,
    json: JsonOption = None,
) -> int:
    """Recompute every digest of a bundle, and derive its verdicts and its report again from the raw arrays."""
    from sdpalab.evidence import verify_bundle
    from sdpalab.evidence.signing import envelope_path, fingerprint, public_key

    console = console_and_subject(json, bundle)
    key = None if signer is None else public_key(signer)
    outcome = verify_bundle(bundle, report=report, signer=key)
    if not report:
        outcome.summary.append("report.html: not checked")
    if key is not None:
        outcome.summary.append(f"signed by the key {fingerprint(key)} in {signer}")
    elif envelope_path(Path(bundle)).is_file():
        outcome.summary.append(f"{envelope_path(Path(bundle)).name}: not checked; --signer KEY says whose it is")
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
            "signer": fingerprint(key) if key is not None and outcome.accepted else None,
        },
        status="PASSED" if outcome.accepted else "FAILED",
    )
    return 0 if outcome.accepted else 1
