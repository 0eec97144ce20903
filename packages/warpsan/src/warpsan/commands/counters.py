"""``warpsan counters``: profiler counters from the simulation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from warpsan.errors import UserError
from warpsan.terminal.access_pictures import picture_dict, print_picture
from warpsan.terminal.console import conclude
from warpsan.terminal.invocation import console_and_subject, write_document
from warpsan.terminal.options import JsonOption, LaunchOption
from warpsan.terminal.tables import show_table, table

if TYPE_CHECKING:
    from warpsan import Report
    from warpsan.profile import Counters

__all__ = ["counters"]

_MOST_LINES = 20
_FIGURES = ("warp instructions", "sectors", "coalesced", "wavefronts", "conflict-free")


def counters(
    file: Annotated[str, typer.Argument(metavar="FILE", help="FILE.cu or FILE.ptx, with its launch file.")],
    launch: LaunchOption = None,
    line: Annotated[
        list[str] | None,
        typer.Option(metavar="[FILE:]N", help="Picture the accesses of this source line; may be repeated."),
    ] = None,
    json: JsonOption = None,
) -> int:
    """Count instructions by unit, sectors, wavefronts and bank conflicts of each launch; no times are measured."""
    from warpsan.profile import AccessRecorder, access_pictures
    from warpsan.sanitize.case import PtxRun, case_of

    console = console_and_subject(json, file)
    case = case_of(Path(file), launch)
    places = tuple(_place(each, case.name) for each in line or ())
    recorders = [AccessRecorder(place) for place in places]
    reports: list[Report] = []
    PtxRun(case, {"checks": (), "counters": True, "watchers": recorders}).all(reports.append)
    content: list[dict[str, Any]] = []
    for described, report in zip(case.launches.launches, reports, strict=True):
        assert report.counters is not None, "counters were requested"
        entry = case.entry_of(described)
        _print(console, entry, report.counters)
        content.append({"entry": entry, **report.counters.to_dict()})
    pictures = []
    for place, recorder in zip(places, recorders, strict=True):
        console.print()
        console.print(place)
        of_line = access_pictures(recorder.records)
        if not of_line:
            console.print("no warp accesses memory by lanes at this line")
        for picture in of_line:
            print_picture(console, picture)
            pictures.append(picture_dict(place, picture))
    conclude(console, f"counted: {len(reports)} launch{'es' if len(reports) != 1 else ''} on the simulator")
    write_document(json, {"launches": content, "pictures": pictures}, status="PASSED")
    return 0


def _place(line: str, own: str) -> str:
    name, _, number = line.rpartition(":")
    if not number.isdigit():
        raise UserError(f"--line takes a line's number or FILE:LINE, not {line!r}")
    return f"{name or own}:{number}"


def _print(console: Console, entry: str, counts: Counters) -> None:
    """Print the mix by unit, the totals, and the lines with the most issued instructions."""
    console.print()
    console.print(entry, style="bold", soft_wrap=True)
    mix = ", ".join(f"{unit} {number:,}" for unit, number in counts.mix().items() if number)
    console.print(f"warp instructions: {mix}", soft_wrap=True)
    sectors, wavefronts = counts.total("sectors"), counts.total("wavefronts")
    console.print(
        f"global memory: {sectors:,} sectors, {counts.total('ideal_sectors'):,} if coalesced; "
        f"shared memory: {wavefronts:,} wavefronts, {counts.total('ideal_wavefronts'):,} without bank conflicts; "
        f"tensor cores: {counts.tensor_flops:,} FLOP; divergence {counts.divergence:.1%}",
        soft_wrap=True,
    )
    lines: dict[str, list[int]] = {}
    for each in counts.by_instruction:
        figures = lines.setdefault(each.source or f"PTX line {each.ptx_line}", [0] * 5)
        values = (each.warps, each.sectors, each.ideal_sectors, each.wavefronts, each.ideal_wavefronts)
        figures[:] = [one + other for one, other in zip(figures, values, strict=True)]
    shown = table("", ("line", *_FIGURES), numeric=_FIGURES)
    for place, figures in sorted(lines.items(), key=lambda item: -item[1][0])[:_MOST_LINES]:
        shown.add_row(place, *(f"{figure:,}" for figure in figures))
    shown.title = None
    show_table(console, shown)
    if len(lines) > _MOST_LINES:
        console.print(f"and {len(lines) - _MOST_LINES} more lines: --json has all")
