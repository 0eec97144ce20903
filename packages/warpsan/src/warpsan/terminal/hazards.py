"""Hazards in a terminal: each group with its source lines, and a caret under each access."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from rich.console import Console
from rich.text import Text

from warpsan.errors import UserError
from warpsan.report.groups import ALL_KINDS, HazardGroup, Party
from warpsan.report.source_text import split_place
from warpsan.terminal.console import verdict_text

__all__ = ["MOST_SHOWN", "HazardFilter", "count_of", "hazard_lines", "print_hazards"]

MOST_SHOWN = 4
"""Maximum groups shown with their source; up to MOST_LISTED others have one line each."""
MOST_LISTED = 12


@dataclass(frozen=True)
class HazardFilter:
    """Filter of hazards by kind and line; empty for all.

    Raises
    ------
    UserError
        If a hazard kind is unknown, or a line is neither a number nor ``FILE:LINE``.
    """

    kinds: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = sorted(ALL_KINDS)
        for kind in self.kinds:
            if kind not in known:
                raise UserError(f"--kind takes one of {', '.join(known)}, not {kind!r}")
        for line in self.lines:
            if not line.isdigit() and not split_place(line)[1]:
                raise UserError(f"--line takes a line's number or FILE:LINE, not {line!r}")

    @classmethod
    def of(cls, kinds: Sequence[str] | None, lines: Sequence[str] | None) -> HazardFilter:
        """The filter of optional command line values."""
        return cls(tuple(kinds or ()), tuple(lines or ()))

    def shows(self, group: HazardGroup) -> bool:
        """Whether a group passes the filter."""
        patterns = [f"*:{line}" if line.isdigit() else line for line in self.lines]
        at_line = any(fnmatchcase(place, pattern) for place in group.places for pattern in patterns)
        return (not self.kinds or group.kind in self.kinds) and (not self.lines or at_line)


def count_of(groups: Sequence[HazardGroup]) -> str:
    """Number of hazards as text: ``2 hazards``, ``no hazard (1 suppressed)``."""
    suppressed = sum(bool(group.suppressed) for group in groups)
    count = len(groups) - suppressed
    text = f"{count} hazard{'s' if count > 1 else ''}" if count else "no hazard"
    return f"{text} ({suppressed} suppressed)" if suppressed else text


def print_hazards(
    console: Console,
    groups: Sequence[HazardGroup],
    runs: int,
    *,
    unit: str = "run",
    shown: HazardFilter | None = None,
) -> None:
    """Print groups of hazards from ``runs`` runs or cases: the first in full, the others on one line each.

    Suppressed groups come last, with their reasons only.
    """
    chosen = [group for group in groups if shown is None or shown.shows(group)]
    active = [group for group in chosen if not group.suppressed]
    for group in active[:MOST_SHOWN]:
        console.print(Text.assemble(_title(group), f": {_count(group, runs, unit)}"))
        for line in hazard_lines(group, console.width):
            console.print(line, no_wrap=True, overflow="ellipsis")
    for group in active[MOST_SHOWN : MOST_SHOWN + MOST_LISTED]:
        console.print(Text.assemble(_title(group), f": {_count(group, runs, unit)}"))
    hidden = len(active) - MOST_SHOWN - MOST_LISTED
    if hidden > 0:
        console.print(f"and {hidden} more: choose by --kind or --line, or see --json")
    for group in chosen:
        if group.suppressed:
            console.print(Text.assemble(_title(group), f": suppressed: {group.suppressed}"))
    if len(chosen) < len(groups):
        console.print(f"{len(groups) - len(chosen)} of {len(groups)} are not shown, because of --kind or --line")


def hazard_lines(group: HazardGroup, columns: int) -> Iterator[Text]:
    """Lines below the title of a group: both source lines with carets, the error, and the probable fix.

    ``columns`` is the width of the terminal.
    """
    parties = [group.here, *([group.other] if group.other else [])]
    width = max(len(str(split_place(party.place)[1])) for party in parties)
    for party in parties:
        yield from _party_lines(party, width, columns)
    other = f"{group.other.text} in line {split_place(group.other.place)[1]}" if group.other else ""
    for sentence in filter(None, (group.what.replace("{other}", other), group.advice)):
        for line in textwrap.wrap(sentence, columns, initial_indent="  ", subsequent_indent="  "):
            yield Text(line)


def _title(group: HazardGroup) -> Text:
    style = verdict_text(None if group.suppressed else False, group.kind)
    return Text.assemble(style, f" at {' and '.join(dict.fromkeys(group.places))}")


def _count(group: HazardGroup, runs: int, unit: str) -> str:
    many, seen = len(group.instructions), len(group.runs)
    at = f"{many} instruction{'s' if many > 1 else ''}"
    return f"{at}, in {seen} of {runs} {unit}{'s' if runs > 1 else ''}, first in {group.runs[0]}"


def _party_lines(party: Party, width: int, columns: int) -> Iterator[Text]:
    """The source line of an access, cut to the terminal's width, and a caret with thread and access below it."""
    _, number = split_place(party.place)
    code = party.line.replace("\t", " ")
    indent = len(code) - len(code.lstrip())
    caret = max(0, party.column - 1 - indent)
    if code.strip():
        yield Text.assemble(f"  {number:>{width}} | ", (code.strip(), "bold"))
    if caret >= len(code.strip()):
        caret = 0
    who = f"{party.text}, {party.who}" if party.who else party.text
    calls = [frame.rpartition(":")[0] for frame in party.frames]
    outward = calls[calls.index(party.place) + 1 :] if party.place in calls else []
    via = f", called from {outward[-1]}" if outward else ""
    margin = f"  {' ' * width} | {' ' * caret}"
    for line in textwrap.wrap(f"{who}{via}", columns, initial_indent=f"{margin}^ ", subsequent_indent=f"{margin}  "):
        yield Text(line)
