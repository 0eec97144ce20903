"""Parser of the output of ``ncu --import FILE --csv --page raw --print-units base``: names, units, one row per launch.

Messages of ncu come before it, on lines that begin with ``==``. Source: Nsight Compute, "Nsight Compute CLI",
"Command Line Options" (Console Output).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sdpalab.errors import UserError
from sdpalab.profile.metrics import METRICS, STALL_PATTERN

__all__ = ["LaunchProfile", "clean_csv", "read_raw_csv"]

_PRIVATE = ("Process ID", "Process Name", "Host Name")
"""Columns that identify the process or the host."""

_MICROSECONDS = {
    "ns": 1e-3,
    "nsecond": 1e-3,
    "us": 1.0,
    "usecond": 1.0,
    "ms": 1e3,
    "msecond": 1e3,
    "s": 1e6,
    "second": 1e6,
}
_BYTES = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


@dataclass(frozen=True)
class LaunchProfile:
    """One launch.

    Attributes
    ----------
    kernel : str
        Name of the function in ncu.
    grid, block : str
        Text of ncu, such as ``(8, 8, 1)``.
    figures : mapping of str to float
        Values by :attr:`sdpalab.profile.metrics.Metric.key`, in the figure's unit; unreported figures are absent.
    stalls : mapping of str to float
        Warps that wait for each reason per issued instruction, in descending order.
    """

    kernel: str
    grid: str
    block: str
    figures: Mapping[str, float]
    stalls: Mapping[str, float]


def read_raw_csv(text: str) -> tuple[LaunchProfile, ...]:
    """The launches of a raw page.

    Raises
    ------
    UserError
        For another format: no row of names with ``Kernel Name``, no row of units, or a value that is not a number.
    """
    names, units, rows = _table(text)
    where = {name: place for place, name in enumerate(names)}
    stalls = {match[1]: place for name, place in where.items() if (match := re.fullmatch(STALL_PATTERN, name))}
    launches = []
    for row in rows:
        figures = {}
        for figure in METRICS:
            places = [where[name] for name in figure.metrics if name in where and _has_value(row[where[name]])]
            values = [_number(row[place], names[place]) * _scale(units[place], figure.unit) for place in places]
            if values:
                figures[figure.key] = max(values) if figure.largest else values[0]
        waits = {name: _number(row[place], names[place]) for name, place in stalls.items() if _has_value(row[place])}
        launches.append(
            LaunchProfile(
                kernel=row[where["Kernel Name"]],
                grid=row[where["Grid Size"]] if "Grid Size" in where else "",
                block=row[where["Block Size"]] if "Block Size" in where else "",
                figures=figures,
                stalls=dict(sorted(waits.items(), key=lambda item: -item[1])),
            )
        )
    return tuple(launches)


def clean_csv(text: str) -> str:
    """The same table without ncu's leading messages, and without the columns that name a process or a host."""
    names, units, rows = _table(text)
    columns = [place for place, name in enumerate(names) if name not in _PRIVATE]
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([row[place] for place in columns] for row in (names, units, *rows))
    return out.getvalue()


def _table(text: str) -> tuple[list[str], list[str], list[list[str]]]:
    """Names, units and rows, all of the length of the names."""
    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith('"ID",')), None)
    if start is None:
        raise UserError(
            'this is not a raw page of ncu: it has no line that begins with "ID"; export it with '
            "ncu --import FILE --csv --page raw --print-units base"
        )
    table = list(csv.reader(lines[start:]))
    names = table[0]
    if "Kernel Name" not in names:
        raise UserError("this is not a raw page of ncu: its first row names no column Kernel Name")
    if len(table) < 2 or table[1][0]:
        raise UserError("this is not a raw page of ncu: behind the names of the columns there is no row of their units")
    for number, row in enumerate(table, 1):
        if len(row) != len(names):
            raise UserError(f"the raw page is damaged: row {number} has {len(row)} columns, and there are {len(names)}")
    return names, table[1], table[2:]


def _has_value(value: str) -> bool:
    """Whether ncu has a value: uncollected metrics are empty or n/a."""
    return value not in ("", "n/a")


def _number(text: str, name: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        raise UserError(f"the raw page is damaged: {name} is {text!r}, which is not a number") from None


def _scale(unit: str, wanted: str) -> float:
    """Factor from a value in ncu's ``unit`` to one in the figure's unit."""
    known = {"us": _MICROSECONDS, "bytes": _BYTES}.get(wanted)
    if known is None:
        return 1.0
    if unit not in known:
        raise UserError(f"the raw page has a value in {unit!r}, where one of {', '.join(known)} was expected")
    return known[unit]
