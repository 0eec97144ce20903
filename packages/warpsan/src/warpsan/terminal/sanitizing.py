"""Sanitizing in a terminal: the options, the hazards by pair of source lines, and SARIF."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from warpsan.errors import UserError
from warpsan.terminal.console import conclude, print_set_aside, verdict_text, write_json
from warpsan.terminal.hazards import HazardFilter, count_of, print_hazards
from warpsan.terminal.invocation import INVOCATION
from warpsan.terminal.options import at_least

if TYPE_CHECKING:
    from warpsan.sanitize import Modes, Sanitized

__all__ = [
    "AsyncModesOption",
    "KindOption",
    "LineOption",
    "SarifOption",
    "SchedulesOption",
    "SeedOption",
    "StrictOption",
    "SuppressionsOption",
    "VolatileOption",
    "modes_of",
    "print_sanitized",
    "write_sarif",
]

SchedulesOption = Annotated[
    str,
    typer.Option("--schedule", metavar="ORDER", help="Order of the warps: lockstep, forward, reverse, random or all."),
]
AsyncModesOption = Annotated[
    str, typer.Option("--async-mode", metavar="WHEN", help="Completion of asynchronous copies: early, late or both.")
]
StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Also report accesses outside the buffer of their pointer, and mbarriers for copies without "
        "fence.mbarrier_init.",
    ),
]
VolatileOption = Annotated[
    str,
    typer.Option(
        "--volatile",
        metavar="data|sync",
        help="Volatile accesses: plain data, or relaxed operations of system scope, as PTX defines them.",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the random order.")]
KindOption = Annotated[
    list[str] | None, typer.Option("--kind", metavar="KIND", help="Show hazards of this kind only; may be repeated.")
]
LineOption = Annotated[
    list[str] | None,
    typer.Option("--line", metavar="[FILE:]N", help="Show hazards at this source line only; may be repeated."),
]
SuppressionsOption = Annotated[
    str | None,
    typer.Option(
        "--suppressions",
        metavar="FILE",
        help="Accepted hazards, each with a reason: KIND FILE:LINE [FILE:LINE]: REASON.",
    ),
]
SarifOption = Annotated[
    str | None,
    typer.Option("--sarif", metavar="FILE", help="Write the hazards as SARIF 2.1.0, for CI; - is standard output."),
]


def modes_of(
    schedule: str,
    async_mode: str,
    strict: bool,
    volatile: str,
    seed: int,
    max_steps: int | None,
    numerics: str,
) -> Modes:
    """Modes from the options.

    Raises
    ------
    UserError
        If an option is invalid.
    """
    from warpsan.sanitize import ASYNC_MODES, MAX_STEPS, SCHEDULES, Modes

    if volatile not in ("data", "sync"):
        raise UserError(f"--volatile takes data or sync, not {volatile!r}")
    if schedule not in (*SCHEDULES, "all"):
        raise UserError(f"--schedule takes {', '.join(SCHEDULES)} or all, not {schedule!r}")
    if async_mode not in (*ASYNC_MODES, "both"):
        raise UserError(f"--async-mode takes {', '.join(ASYNC_MODES)} or both, not {async_mode!r}")
    at_least("--seed", seed, 0)
    at_least("--max-steps", max_steps, 1)
    return Modes(
        schedules=SCHEDULES if schedule == "all" else (schedule,),
        async_modes=ASYNC_MODES if async_mode == "both" else (async_mode,),
        strict=strict,
        volatile=volatile,
        seed=seed,
        max_steps=max_steps or MAX_STEPS,
        numerics=numerics,
    )


def print_sanitized(console: Console, outcome: Sanitized, seconds: float, shown: HazardFilter) -> None:
    """Print the hazards by pair of source lines, and the outcome as the last line."""
    title = " ".join(filter(None, (outcome.target, outcome.config)))
    console.print(f"{title} on {outcome.device}: {'; '.join(outcome.cases)}", soft_wrap=True)
    print_set_aside(console, str(outcome.set_aside))
    print_hazards(console, outcome.groups, len(outcome.runs), shown=shown)
    for note in outcome.notes:
        console.print(f"note: {note}", soft_wrap=True)
    for suppression in outcome.unused:
        console.print(f"unused suppression: {suppression}", soft_wrap=True)
    runs = f"{len(outcome.runs)} run{'s' if len(outcome.runs) > 1 else ''} in {seconds:.1f} s"
    line = f"{'clean' if outcome.clean else 'HAZARDS'}: {count_of(outcome.groups)} in {runs}"
    conclude(console, verdict_text(outcome.clean, line))


def write_sarif(target: str | None, outcome: Sanitized, folders: Sequence[Path]) -> None:
    """Write the hazards to the ``--sarif`` target, ``-`` for stdout; nothing without a target.

    ``folders`` has the folders of the sources.
    """
    if target is not None:
        from warpsan.report import to_sarif

        log = to_sarif(outcome, version=INVOCATION.tool.version, root=Path.cwd(), directories=folders)
        write_json(target, log, option="--sarif")
