"""Source lines with their costs in a terminal: the hottest ones, or the whole text."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from sdpalab.profile.simulated_profile import LaunchFigures
    from sdpalab.profile.source_lines import LineFigures
    from warpsan.report import Sources

__all__ = ["MOST_HOT", "print_hot_lines", "print_listing"]

MOST_HOT = 10
"""Number of lines shown without ``--source``."""
CONTEXT = 2
"""Number of lines without figures shown around one with figures."""
_HEAD = f"{'SASS':>5} {'PTX':>6} {'sectors':>9} {'passes':>9}  "


def print_hot_lines(console: Console, launch: LaunchFigures, sources: Sources) -> None:
    """Print the lines with the largest share of issued instructions."""
    from sdpalab.profile.simulated_profile import hot_lines

    shown = hot_lines(launch.lines, MOST_HOT)
    console.print(Text(f"Hot lines ({_share_kind(launch)})", style="bold"))
    console.print(f"{_HEAD}line", soft_wrap=True)
    for line in shown:
        code = sources.line(line.place).strip()
        _print(console, Text.assemble(_cells(line, launch), (line.place, "bold"), f"  {code}"))


def print_listing(console: Console, launch: LaunchFigures, sources: Sources) -> None:
    """Print the source files with executed lines, the launch's own first; ``...`` for omitted lines."""
    from sdpalab.profile.source_lines import lines_of_file

    for name in launch.files:
        text = sources.text(name)
        if text is None:
            continue
        known = lines_of_file(launch.lines, name)
        console.print()
        console.print(Text(f"{name} ({_share_kind(launch)})", style="bold"))
        console.print(f"{_HEAD}line", soft_wrap=True)
        last = 0
        for number, code in enumerate(text.splitlines(), 1):
            line = known.get(number)
            if not any(near in known for near in range(number - CONTEXT, number + CONTEXT + 1)):
                continue
            if number > last + 1:
                console.print(" " * len(_HEAD) + " ...", soft_wrap=True)
            last = number
            cells = _cells(line, launch) if line else " " * len(_HEAD)
            _print(console, Text.assemble(cells, (f"{number:>4}", "bold" if line else "dim"), f"  {code}"))


def _share_kind(launch: LaunchFigures) -> str:
    sass = "share of what is issued, modelled" if launch.issue else "share of the code, compiled"
    return f"SASS: {sass}; others simulated"


def _cells(line: LineFigures, launch: LaunchFigures) -> str:
    """The figures of a line."""
    share = line.issued
    if share is None:
        share = sum(line.sass.values()) / max(1, sum(sum(each.sass.values()) for each in launch.lines))
    sectors = _over(line.sectors, line.ideal_sectors)
    wavefronts = _over(line.wavefronts, line.ideal_wavefronts)
    return f"{share:>5.1%} {_short(line.warps):>6} {sectors:>9} {wavefronts:>9}  "


def _over(count: int, ideal: int) -> str:
    """``512 8x``: the count, and its ratio to the least number if above 1; empty for 0."""
    more = count / ideal if ideal else 0.0
    times = f" {more:.0f}x" if more >= 9.95 else f" {more:.1f}x" if more >= 1.05 else ""
    return f"{_short(count)}{times}" if ideal else ""


def _short(count: int) -> str:
    """Four digits at most, or three and a unit: ``1234``, ``12.3k``, ``123k``, ``1.2M``."""
    if count < 10_000:
        return str(count)
    for unit in "kMG":
        scaled = count / 1000.0 ** ("kMG".index(unit) + 1)
        if scaled < 999.5:
            return f"{scaled:.0f}{unit}" if scaled >= 99.95 else f"{scaled:.1f}{unit}"
    return f"{count / 1e12:.1f}T"


def _print(console: Console, text: Text) -> None:
    """Print one line: truncated on a terminal, whole in a pipe."""
    text.expand_tabs(4)
    if console.is_terminal or "COLUMNS" in os.environ:
        console.print(text, no_wrap=True, overflow="ellipsis")
    else:
        console.print(text, soft_wrap=True)
