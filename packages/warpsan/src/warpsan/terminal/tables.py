"""Tables for any terminal width: cells with names or numbers are never cut or wrapped, only prose.

In a narrow terminal, spare columns are omitted, the first ones first, and a line lists them. Files and pipes get every
column at full width.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

__all__ = ["FittedTable", "show_table", "table"]

LEAST_PROSE = 24
"""Minimum width of longer prose, in columns."""


class FittedTable(Table):
    """A table with columns that may wrap (``prose``) and columns that may be omitted (``spare``)."""

    def __init__(self, title: str, prose: Sequence[str], spare: Sequence[str], **style: Any) -> None:
        super().__init__(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, **style)
        self.prose, self.spare = frozenset(prose), tuple(spare)

    def least_width(self, console: Console) -> int:
        """Width in columns below which a cell other than prose would be cut or wrapped."""
        for column in self.columns:
            if column.header in self.prose:
                column.max_width = LEAST_PROSE
        least = Measurement.get(console, console.options.update(max_width=10_000), self).maximum
        for column in self.columns:
            column.max_width = None
        return least

    def fitted(self, console: Console) -> tuple[FittedTable, tuple[str, ...]]:
        """The table, without spare columns as needed for the console's width; and the names of the omitted columns."""
        shown = self
        dropped: tuple[str, ...] = ()
        for name in self.spare:
            if shown.least_width(console) <= console.width:
                break
            shown, dropped = shown._without(name), (*dropped, name)
        return shown, dropped

    def _without(self, name: str) -> FittedTable:
        """A copy without a column: rich cannot remove one."""
        copy = FittedTable(str(self.title or ""), tuple(self.prose), self.spare, pad_edge=False)
        copy.show_header = self.show_header
        columns = [column for column in self.columns if column.header != name]
        for column in columns:
            copy.add_column(column.header, justify=column.justify, overflow=column.overflow, no_wrap=column.no_wrap)
        for row in zip(*(column.cells for column in columns), strict=True):
            copy.add_row(*row)
        return copy


def table(
    title: str,
    columns: Sequence[str],
    *,
    numeric: Sequence[str] = (),
    prose: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> FittedTable:
    """An empty table in the common style: title, line under the headings, no frame.

    Parameters
    ----------
    title : str
    columns : sequence of str
    numeric : sequence of str
        Right-aligned columns.
    prose : sequence of str
        Columns whose text may wrap.
    spare : sequence of str
        Columns omitted in narrow terminals, in this order.
    """
    shown = FittedTable(title, prose, spare, pad_edge=False)
    for column in columns:
        wraps = column in prose
        align: Any = "right" if column in numeric else "left"
        shown.add_column(column, justify=align, overflow="fold", no_wrap=not wraps)
    return shown


def show_table(console: Console, shown: FittedTable) -> None:
    """Print a table, and the names of omitted columns below it."""
    dropped: tuple[str, ...] = ()
    has_width = console.is_terminal or "COLUMNS" in os.environ
    if has_width:
        shown, dropped = shown.fitted(console)
    width = console.width
    if shown.least_width(console) > width and has_width:
        for column in shown.columns:
            column.no_wrap = False  # too narrow for any table: cells fold
    else:
        console.width = max(width, shown.least_width(console))  # a pipe has no width
    console.print(shown)
    console.width = width
    if dropped:
        console.print(f"no room for: {', '.join(dropped)} (a wider terminal and --json have them)")
