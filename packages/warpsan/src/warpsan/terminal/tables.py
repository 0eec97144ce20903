"""Tables that can be read at any width: a cell with a name or a number is never cut or wrapped, only prose is.

Where a terminal is too narrow, columns that are marked as spare are left out, the first of them first, and a line
names them. A file or a pipe gets every column, however wide.
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
"""Columns that prose gets at least, where it is longer."""


class FittedTable(Table):
    """A table that names the columns which may wrap (``prose``) and those that may be left out (``spare``)."""

    def __init__(self, title: str, prose: Sequence[str], spare: Sequence[str], **style: Any) -> None:
        super().__init__(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, **style)
        self.prose, self.spare = frozenset(prose), tuple(spare)

    def least_width(self, console: Console) -> int:
        """Columns of the terminal below which a cell would be cut or wrapped that is not prose."""
        for column in self.columns:
            if column.header in self.prose:
                column.max_width = LEAST_PROSE
        least = Measurement.get(console, console.options.update(max_width=10_000), self).maximum
        for column in self.columns:
            column.max_width = None
        return least

    def fitted(self, console: Console) -> tuple[FittedTable, tuple[str, ...]]:
        """This table, or one without spare columns that fits the console's width; and the names of what it lacks."""
        shown = self
        dropped: tuple[str, ...] = ()
        for name in self.spare:
            if shown.least_width(console) <= console.width:
                break
            shown, dropped = shown._without(name), (*dropped, name)
        return shown, dropped

    def _without(self, name: str) -> FittedTable:
        """A copy without that column: rich has no way to remove one."""
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
    """An empty table in the common style: title, line under the heads, no frame.

    Parameters
    ----------
    title : str
    columns : sequence of str
    numeric : sequence of str
        Columns that are right-aligned.
    prose : sequence of str
        Columns whose text may wrap.
    spare : sequence of str
        Columns that are left out where there is no room, in this order.
    """
    shown = FittedTable(title, prose, spare, pad_edge=False)
    for column in columns:
        wraps = column in prose
        align: Any = "right" if column in numeric else "left"
        shown.add_column(column, justify=align, overflow="fold", no_wrap=not wraps)
    return shown


def show_table(console: Console, shown: FittedTable) -> None:
    """Print a table, and below it which columns there was no room for."""
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
