"""``sdpalab profile --device sim``: figures of a kernel without a GPU, in the terminal and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from sdpalab.commands.source_listing import print_hot_lines, print_listing
from sdpalab.errors import UserError
from warpsan.terminal.access_pictures import print_picture
from warpsan.terminal.console import conclude, print_set_aside, verdict_text, write_text
from warpsan.terminal.invocation import write_document
from warpsan.terminal.tables import show_table, table

if TYPE_CHECKING:
    from sdpalab.model.critical_path import CriticalPath
    from sdpalab.model.worst import TimesByInputs
    from sdpalab.profile.on_simulator import ProfileReport
    from sdpalab.profile.simulated_profile import LaunchFigures, SimulatedProfile
    from warpsan.profile import AccessPicture

__all__ = ["output_folder", "show_profile"]

NOT_MEASURED = "Nothing here was measured, and the kernel was not judged."
_MOST_PIPES = 8


def output_folder(out: Path) -> Path:
    """The folder of ``--out``, created if missing; raises UserError if that fails."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be made: {error.strerror}") from None
    return out


def show_profile(console: Console, report: ProfileReport, *, source: bool, out: Path | None, json: str | None) -> int:
    """Print a profile, with the whole source if ``source``; write its page into ``out``, its document to ``json``."""
    from sdpalab.evidence.report.profile_page import render_profile_page
    from sdpalab.profile.on_simulator import KINDS

    profile = report.profile
    console.print(f"{report.title} on {report.label}, for {report.gpu.name} ({report.arch})", soft_wrap=True)
    print_set_aside(console, str(report.set_aside))
    console.print(NOT_MEASURED, soft_wrap=True)
    for launch in profile.launches:
        _print_launch(console, launch)
        print_hot_lines(console, launch, profile.sources)
        if source:
            print_listing(console, launch, profile.sources)
    for place, shown in report.pictures.items():
        _print_pictures(console, place, shown, profile)
    page = ""
    if out is not None:
        page = str(out / f"{report.name}-simulated.html")
        text = render_profile_page(report.title, report.label, profile, report.pictures, KINDS)
        write_text(page, text, option="--out")
        console.print(f"page  {page} (open it in any browser)", soft_wrap=True)
    _print_time(console, profile, report.by_inputs)
    write_document(json, {**report.to_dict(), "page": page}, status="PASSED")
    return 0


def _print_launch(console: Console, launch: LaunchFigures) -> None:
    """Print remarks, then the figures of the launch, of its instructions, and of the units."""
    from sdpalab.profile.remarks import remarks
    from sdpalab.profile.summary import summary_rows

    grid, block = ("x".join(map(str, size)) for size in (launch.grid, launch.block))
    console.print()
    console.print(Text(f"{launch.name}, grid {grid}, block {block}", style="bold"), soft_wrap=True)
    for remark in remarks(launch):
        sentence = verdict_text(None, remark.sentence) if remark.binds else Text(remark.sentence)
        console.print(Text.assemble(f"{remark.kind:<9}  ", sentence), soft_wrap=True)
    shown = table("", ("figure", "value", "kind"), numeric=("value",))
    for figure, value, kind in summary_rows(launch):
        shown.add_row(figure, value, kind)
    show_table(console, shown)
    show_table(console, _instructions(launch))
    if launch.critical_path is not None:
        show_table(console, _phases(launch.critical_path))


def _phases(path: CriticalPath) -> Any:
    """The critical path, phase by phase, and the sum."""
    shown = table("", ("critical path of a block, modelled", "clocks", "us"), numeric=("clocks", "us"))
    for phase in path.phases:
        shown.add_row(phase.name, f"{phase.clocks:,.0f}", f"{phase.clocks / path.clock_mhz:.2f}")
    shown.add_row("all", f"{path.clocks:,.0f}", f"{path.microseconds:.2f}")
    return shown


def _instructions(launch: LaunchFigures) -> Any:
    """Three tables side by side, each in descending order: PTX by pipe, machine code by class, and units by use."""
    total = max(1, launch.counters.total("warps"))
    pipes = [(name, f"{count / total:.1%}") for name, count in launch.counters.mix().items() if count]
    sass = launch.resources.sass
    classes = [(name, f"{count / sum(sass.values()):.1%}") for name, count in sass.items()]
    units = [(name, f"{share:.1%}") for name, share in (launch.issue.busy if launch.issue else {}).items()]
    columns = ("PTX pipe", "simulated", "SASS class", "compiled", "unit busy", "modelled")
    shown = table("", columns, numeric=("simulated", "compiled", "modelled"))
    for row in range(min(_MOST_PIPES, max(map(len, (pipes, classes, units))))):
        shown.add_row(
            *(cell for part in (pipes, classes, units) for cell in (part[row] if row < len(part) else ("", "")))
        )
    return shown


def _print_pictures(console: Console, place: str, pictures: Sequence[AccessPicture], profile: SimulatedProfile) -> None:
    from sdpalab.profile.on_simulator import lines_with_accesses

    code = profile.sources.line(place).strip()
    console.print()
    console.print(Text.assemble((place, "bold"), f"  {code}"), no_wrap=True, overflow="ellipsis")
    if not pictures:
        numbers = lines_with_accesses(place.rpartition(":")[0], profile)
        hint = f"; it does in line {', '.join(map(str, numbers))}" if numbers else ""
        console.print(f"no warp accesses memory by lanes at this line{hint}", soft_wrap=True)
    for picture in pictures:
        print_picture(console, picture)


def _print_time(console: Console, profile: SimulatedProfile, worst: TimesByInputs | None) -> None:
    """Print the modelled time as the last line, with the worst kind of inputs."""
    if profile.time is None:
        conclude(console, verdict_text(None, f"no modelled time: {profile.not_modelled}"))
        return
    time = profile.time
    where = "DRAM" if time.cold else "L2"
    steps = f", {len(time.steps)} steps" if len(time.steps) > 1 else ""
    beside = f"{worst.sentence}; " if worst else ""
    line = f"modelled: {time.microseconds:.2f} us on {time.gpu}, inputs in {where}{steps}; {beside}not measured"
    conclude(console, verdict_text(None, line))
