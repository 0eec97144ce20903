"""``warpsan doctor``: the pre-flight."""

from __future__ import annotations

from warpsan.terminal.checks import conclude_checks
from warpsan.terminal.invocation import console_and_subject
from warpsan.terminal.options import JsonOption

__all__ = ["doctor"]


def doctor(json: JsonOption = None) -> int:
    """Check the requirements of warpsan on this machine, with a fix for each missing one."""
    from warpsan.doctor import examine

    console = console_and_subject(json)
    return conclude_checks(console, examine(), json)
