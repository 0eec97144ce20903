"""The table of ``--self-profile``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from warpsan.terminal.tables import show_table, table

if TYPE_CHECKING:
    from warpsan.profile import SelfProfile

__all__ = ["print_self_profile"]

_MOST_OPERATIONS = 20


def print_self_profile(console: Console, profiles: Sequence[SelfProfile]) -> None:
    """Print the time of launches by phase, by check and unit, and by operation; nothing without launches."""
    from warpsan.profile import merged

    if not profiles:
        return
    profile = merged(profiles)
    native = profile.dispatch + sum(each.seconds for each in profile.operations)
    phases = ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in profile.phases.items())
    console.print(f"self-profile, milliseconds: {phases}", soft_wrap=True)
    groups = table("native code by check and unit", ["check or unit", "ms", "share"], numeric=["ms", "share"])
    for name, seconds in profile.groups.items():
        groups.add_row(name, f"{1e3 * seconds:.2f}", _share(seconds, native))
    show_table(console, groups)
    numbers = ["calls", "ms", "share", "ns/call"]
    shown = table("native code by operation", ["operation", *numbers], numeric=numbers, spare=["share"])
    for each in profile.operations[:_MOST_OPERATIONS]:
        columns = f"{1e3 * each.seconds:.2f}", _share(each.seconds, native), f"{1e9 * each.seconds / each.calls:.0f}"
        shown.add_row(each.name, str(each.calls), *columns)
    show_table(console, shown)
    rest = profile.operations[_MOST_OPERATIONS:]
    if rest:
        console.print(f"{len(rest)} more operations: {1e3 * sum(each.seconds for each in rest):.2f} ms", soft_wrap=True)


def _share(seconds: float, total: float) -> str:
    return f"{100 * seconds / total:.1f}%" if total else "-"
