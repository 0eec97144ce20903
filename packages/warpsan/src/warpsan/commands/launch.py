"""``warpsan launch``: one run of the launches of a file, with its buffers kept."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from warpsan.errors import SimError, UserError
from warpsan.terminal.console import conclude, verdict_text
from warpsan.terminal.invocation import console_and_subject, write_document
from warpsan.terminal.options import (
    JsonOption,
    LaunchOption,
    MaxStepsOption,
    NumericsOption,
    SelfProfileOption,
    at_least,
    checked_numerics,
)
from warpsan.terminal.self_profile import print_self_profile

if TYPE_CHECKING:
    from warpsan import Report
    from warpsan.profile import SelfProfile

__all__ = ["launch"]


def launch(
    file: Annotated[str, typer.Argument(metavar="FILE", help="FILE.cu or FILE.ptx, with its launch file.")],
    launch: LaunchOption = None,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write each named buffer as DIR/NAME.npy after the last launch.")
    ] = None,
    schedule: Annotated[
        str, typer.Option(metavar="ORDER", help="Order of the warps: lockstep, forward, reverse or random.")
    ] = "lockstep",
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the random order.")] = 0,
    max_steps: MaxStepsOption = None,
    numerics: NumericsOption = None,
    self_profile: SelfProfileOption = False,
    json: JsonOption = None,
) -> int:
    """Run the launches of a file once, in one order of the warps, with all default checks."""
    from warpsan.host.options import SCHEDULES
    from warpsan.sanitize.case import PtxRun, case_of

    if schedule not in SCHEDULES:
        raise UserError(f"--schedule takes {', '.join(SCHEDULES)}, not {schedule!r}")
    at_least("--seed", seed, 0)
    at_least("--max-steps", max_steps, 1)
    console = console_and_subject(json, file)
    case = case_of(Path(file), launch)
    options = {"schedule": schedule, "seed": seed, "max_steps": max_steps, "numerics": checked_numerics(numerics)}
    options["self_profile"] = self_profile
    launches: list[dict[str, Any]] = []
    profiles: list[SelfProfile] = []
    run, start = PtxRun(case, options), time.monotonic()

    def launched(report: Report) -> None:
        described = case.launches.launches[len(launches)]
        launches.append({"entry": case.entry_of(described), "hazards": [each.message for each in report.hazards]})
        profiles.extend(filter(None, [report.self_profile]))

    stopped = ""
    wrong: list[str] = []
    try:
        wrong = run.all(launched)
    except SimError as error:
        stopped = f"{case.name}: {error}"
    for each in launches:
        console.print(f"{each['entry']}: {_count(each['hazards'])}", soft_wrap=True)
        for sentence in each["hazards"]:
            console.print(f"  {sentence}", soft_wrap=True)
    for sentence in [*wrong, *filter(None, [stopped])]:
        console.print(sentence, soft_wrap=True)
    if out is not None:
        _keep(Path(out), run.buffers)
    print_self_profile(console, profiles)
    clean = not (stopped or wrong or any(each["hazards"] for each in launches))
    seconds = time.monotonic() - start
    count = f"{len(launches)} launch{'es' if len(launches) != 1 else ''}"
    conclude(console, verdict_text(clean, f"{'clean' if clean else 'HAZARDS'}: {count} in {seconds:.1f} s"))
    content: dict[str, Any] = {"launches": launches, "wrong": wrong, "stopped": stopped, "out": out or ""}
    write_document(json, content, status="PASSED" if clean else "FAILED")
    return 0 if clean else 1


def _count(hazards: Sequence[str]) -> str:
    return f"{len(hazards) or 'no'} hazard{'s' if len(hazards) > 1 else ''}"


def _keep(folder: Path, buffers: dict[str, Any]) -> None:
    """Write the buffers; elements of a type that NumPy lacks are written as bytes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in buffers.items():
            values = np.asarray(array)
            np.save(folder / f"{name}.npy", values if values.dtype.isbuiltin else values.view(f"V{values.itemsize}"))
    except OSError as error:
        raise UserError(f"--out {folder}: {error.strerror}") from None
