"""``sdpalab doctor``: the pre-flight."""

from __future__ import annotations

from sdpalab.doctor import examine
from warpsan.terminal.checks import conclude_checks
from warpsan.terminal.invocation import console_and_subject
from warpsan.terminal.options import JsonOption

__all__ = ["doctor"]


def doctor(json: JsonOption = None) -> int:
    """Check the requirements of the lab on this machine, with advice for missing ones."""
    console = console_and_subject(json)
    return conclude_checks(console, examine(), json)
