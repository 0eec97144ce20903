"""``warpsan sanitize``: races and memory errors of a file on the simulator."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from warpsan.errors import UserError
from warpsan.report import read_suppressions
from warpsan.terminal.console import console_for, progress_console
from warpsan.terminal.hazards import HazardFilter
from warpsan.terminal.invocation import console_and_subject, write_document
from warpsan.terminal.options import JsonOption, LaunchOption, MaxStepsOption, NumericsOption, checked_numerics
from warpsan.terminal.sanitizing import (
    AsyncModesOption,
    KindOption,
    LineOption,
    SarifOption,
    SchedulesOption,
    SeedOption,
    StrictOption,
    SuppressionsOption,
    VolatileOption,
    modes_of,
    print_sanitized,
    write_sarif,
)

__all__ = ["sanitize"]


def sanitize(
    file: Annotated[str, typer.Argument(metavar="FILE", help="FILE.cu or FILE.ptx, with its launch file.")],
    launch: LaunchOption = None,
    schedule: SchedulesOption = "all",
    async_mode: AsyncModesOption = "both",
    strict: StrictOption = False,
    volatile: VolatileOption = "sync",
    seed: SeedOption = 0,
    max_steps: MaxStepsOption = None,
    numerics: NumericsOption = None,
    kind: KindOption = None,
    line: LineOption = None,
    suppressions: SuppressionsOption = None,
    json: JsonOption = None,
    sarif: SarifOption = None,
) -> int:
    """Run the launches of a file in every order of the warps, and report races and memory errors."""
    from warpsan.sanitize import case_of, sanitize_case

    if json == "-" and sarif == "-":
        raise UserError("--json and --sarif cannot both be standard output")
    console_for(sarif, option="--sarif")
    console = console_and_subject("-" if sarif == "-" else json, file)
    modes = modes_of(schedule, async_mode, strict, volatile, seed, max_steps, checked_numerics(numerics))
    shown = HazardFilter.of(kind, line)
    accepted = read_suppressions(Path(suppressions)) if suppressions is not None else []
    folders = [Path(file).parent, Path.cwd()]
    start = time.monotonic()
    with progress_console().status("compiling") as status:
        outcome = sanitize_case(
            case_of(Path(file), launch),
            modes,
            progress=lambda label: status.update(f"running {label}"),
            folders=folders,
            suppressions=accepted,
        )
    print_sanitized(console, outcome, time.monotonic() - start, shown)
    write_document(json, outcome.to_dict(), status="PASSED" if outcome.clean else "FAILED")
    write_sarif(sarif, outcome, folders)
    return 0 if outcome.clean else 1
