"""Results of a tool's machine check in a terminal, and its document."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from warpsan.doctor import Check, Health
from warpsan.terminal.console import conclude, verdict_text
from warpsan.terminal.invocation import write_document
from warpsan.terminal.tables import show_table, table

__all__ = ["conclude_checks", "print_checks"]

_GOOD = {Health.OK: True, Health.WARN: None, Health.FAIL: False}


def print_checks(console: Console, checks: Sequence[Check]) -> None:
    """Print one line per check, with the advice below it."""
    shown = table("", ("", "what", "detail"), prose=("detail",))
    shown.show_header = False
    shown.title = None
    for check in checks:
        detail = check.detail + (f"\n-> {check.advice}" if check.advice else "")
        shown.add_row(verdict_text(_GOOD[check.health], check.health.value), check.name, detail)
    show_table(console, shown)


def conclude_checks(console: Console, checks: Sequence[Check], json: str | None) -> int:
    """Print all checks and the outcome, write the document, and return the exit code."""
    print_checks(console, checks)
    failed = [check for check in checks if check.health is Health.FAIL]
    conclude(console, f"not ready: {', '.join(check.name for check in failed)}" if failed else "ready")
    content = {"ready": not failed, "checks": [check.to_dict() for check in checks]}
    write_document(json, content, status="MACHINE_FAILED" if failed else "PASSED")
    return 3 if failed else 0
