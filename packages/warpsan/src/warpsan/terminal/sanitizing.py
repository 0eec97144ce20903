"""Sanitizing in a terminal: the options, the hazards by pair of source lines, and SARIF."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from warpsan.errors import UserError
from warpsan.report import Suppression, read_suppressions
from warpsan.terminal.console import (
    conclude,
    console_for,
    print_set_aside,
    progress_console,
    verdict_text,
    write_json,
)
from warpsan.terminal.hazards import HazardFilter, count_of, print_hazards
from warpsan.terminal.invocation import INVOCATION, console_and_subject, write_document
from warpsan.terminal.options import (
    JsonOption,
    MaxStepsOption,
    NumericsOption,
    SelfProfileOption,
    at_least,
    checked_numerics,
)
from warpsan.terminal.self_profile import print_self_profile

if TYPE_CHECKING:
    from warpsan.sanitize import Modes, Progress, Sanitized

__all__ = ["SanitizeOptions", "print_sanitized", "write_sarif"]

Sanitize = Callable[["Modes", "Progress", Sequence[Suppression]], tuple["Sanitized", Sequence[Path]]]
"""The run itself: from modes, progress and accepted hazards to the outcome, and the folders of its sources."""


@dataclass(frozen=True)
class SanitizeOptions:
    """Options of ``sanitize`` besides its subject."""

    schedule: Annotated[
        str,
        typer.Option(metavar="ORDER", help="Order of the warps: lockstep, forward, reverse, random or all."),
    ] = "all"
    async_mode: Annotated[
        str,
        typer.Option(metavar="WHEN", help="Completion of asynchronous copies: early, late or both."),
    ] = "both"
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Also report accesses outside the buffer of their pointer, and mbarriers for copies without "
            "fence.mbarrier_init.",
        ),
    ] = False
    volatile: Annotated[
        str,
        typer.Option(
            metavar="data|sync",
            help="Volatile accesses: plain data, or relaxed operations of system scope, as PTX defines them.",
        ),
    ] = "sync"
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the random order.")] = 0
    max_steps: MaxStepsOption = None
    numerics: NumericsOption = None
    self_profile: SelfProfileOption = False
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="Show hazards of this kind only; may be repeated."),
    ] = None
    line: Annotated[
        list[str] | None,
        typer.Option(metavar="[FILE:]N", help="Show hazards at this source line only; may be repeated."),
    ] = None
    suppressions: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Accepted hazards, each with a reason: KIND FILE:LINE [FILE:LINE]: REASON.",
        ),
    ] = None
    json: JsonOption = None
    sarif: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the hazards as SARIF 2.1.0, for CI; - is standard output."),
    ] = None

    def modes(self) -> Modes:
        """The modes of the runs.

        Raises
        ------
        UserError
            If an option is invalid.
        """
        from warpsan.sanitize import ASYNC_MODES, MAX_STEPS, SCHEDULES, Modes

        if self.volatile not in ("data", "sync"):
            raise UserError(f"--volatile takes data or sync, not {self.volatile!r}")
        if self.schedule not in (*SCHEDULES, "all"):
            raise UserError(f"--schedule takes {', '.join(SCHEDULES)} or all, not {self.schedule!r}")
        if self.async_mode not in (*ASYNC_MODES, "both"):
            raise UserError(f"--async-mode takes {', '.join(ASYNC_MODES)} or both, not {self.async_mode!r}")
        at_least("--seed", self.seed, 0)
        at_least("--max-steps", self.max_steps, 1)
        return Modes(
            schedules=SCHEDULES if self.schedule == "all" else (self.schedule,),
            async_modes=ASYNC_MODES if self.async_mode == "both" else (self.async_mode,),
            strict=self.strict,
            volatile=self.volatile,
            seed=self.seed,
            max_steps=self.max_steps or MAX_STEPS,
            numerics=checked_numerics(self.numerics),
            self_profile=self.self_profile,
        )

    def report(self, subject: str, sanitize: Sanitize) -> int:
        """Sanitize ``subject``; print the hazards, write the documents, and return the exit code.

        Raises
        ------
        UserError
            If an option is invalid, or from ``sanitize``.
        """
        if self.json == "-" and self.sarif == "-":
            raise UserError("--json and --sarif cannot both be standard output")
        console_for(self.sarif, option="--sarif")
        console = console_and_subject("-" if self.sarif == "-" else self.json, subject)
        modes, shown = self.modes(), HazardFilter.of(self.kind, self.line)
        accepted = read_suppressions(Path(self.suppressions)) if self.suppressions is not None else []
        start = time.monotonic()
        with progress_console().status("compiling") as status:
            outcome, folders = sanitize(modes, lambda label: status.update(f"running {label}"), accepted)
        print_self_profile(console, outcome.self_profiles)
        print_sanitized(console, outcome, time.monotonic() - start, shown)
        write_document(self.json, outcome.to_dict(), status="PASSED" if outcome.clean else "FAILED")
        write_sarif(self.sarif, outcome, folders)
        return 0 if outcome.clean else 1


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
