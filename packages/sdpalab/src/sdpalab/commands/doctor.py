"""``sdpalab doctor``: the pre-flight."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from sdpalab.doctor import Check, Health, examine
from warpsan.terminal.console import conclude, verdict_text
from warpsan.terminal.invocation import console_and_subject, write_document
from warpsan.terminal.options import JsonOption
from warpsan.terminal.tables import show_table, table

__all__ = ["doctor", "print_checks"]

_GOOD = {Health.OK: True, Health.WARN: None, Health.FAIL: False}


def doctor(json: JsonOption = None) -> int:
    """Check what the lab needs from this machine, and say what to do where something is missing."""
    console = console_and_subject(json)
    checks = examine()
    print_checks(console, checks)
    failed = [check for check in checks if check.health is Health.FAIL]
    if failed:
        conclude(console, f"not ready: {', '.join(check.name for check in failed)}")
    else:
        conclude(console, "ready")
    write_document(
        json,
        {"ready": not failed, "checks": [check.to_dict() for check in checks]},
        status="MACHINE_FAILED" if failed else "PASSED",
    )
    return 3 if failed else 0


def print_checks(console: Console, checks: Sequence[Check]) -> None:
    """One line a check, with the advice below it."""
    shown = table("", ("", "what", "detail"), prose=("detail",))
    shown.show_header = False
    shown.title = None
    for check in checks:
        detail = check.detail + (f"\n-> {check.advice}" if check.advice else "")
        shown.add_row(verdict_text(_GOOD[check.health], check.health.value), check.name, detail)
    show_table(console, shown)
