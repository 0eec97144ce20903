"""``sdpalab sanitize``: races and memory errors, found on the simulator."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sdpalab.commands.option_groups import ConfinementOptions, WorkerOptions
from sdpalab.commands.options import ArchOption, IncludeOption, SetOption, include_dirs_of, parse_settings
from sdpalab.commands.problem_options import ProblemOptions, problems_of
from sdpalab.errors import UserError
from sdpalab.kernels.plan import HEADER_FOLDERS
from sdpalab.problem import Problem
from warpsan.report import Suppression, read_suppressions
from warpsan.terminal.console import conclude, console_for, print_set_aside, progress_console, verdict_text, write_json
from warpsan.terminal.hazards import HazardFilter, count_of, print_hazards
from warpsan.terminal.invocation import console_and_subject, write_document
from warpsan.terminal.options import (
    JsonOption,
    LaunchOption,
    MaxStepsOption,
    NumericsOption,
    at_least,
    checked_numerics,
)

if TYPE_CHECKING:
    from sdpalab.jobs import Executor
    from warpsan.sanitize import Modes, Progress, Sanitized

__all__ = ["sanitize"]


def sanitize(
    kernel: Annotated[
        str,
        typer.Argument(
            metavar="KERNEL", help="A shipped kernel's name, your own as FILE.py or FILE.py:NAME, FILE.ptx or FILE.cu."
        ),
    ],
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="B,H,S,D",
            help="What to run it on, or a name; may be repeated. Default: small problems with one tile of keys, an "
            "even and an odd number, and a ragged last one.",
        ),
    ] = None,
    *,
    described: ProblemOptions,
    settings: SetOption = None,
    include: IncludeOption = None,
    arch: ArchOption = None,
    schedule: Annotated[
        str, typer.Option(metavar="ORDER", help="Order of the warps: lockstep, forward, reverse, random or all.")
    ] = "all",
    async_mode: Annotated[
        str, typer.Option(metavar="WHEN", help="When asynchronous copies land: early, late or both.")
    ] = "both",
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Also accesses that leave the buffer of their pointer for another, and mbarriers for copies without "
            "fence.mbarrier_init.",
        ),
    ] = False,
    volatile: Annotated[
        str,
        typer.Option(
            metavar="data|sync",
            help="What volatile accesses are: relaxed operations of the whole system, the letter of PTX, or data.",
        ),
    ] = "sync",
    reads: Annotated[
        str,
        typer.Option(
            metavar="latest|stale",
            help="What reads return: what was written last, or any value that PTX's memory model allows, by the seed.",
        ),
    ] = "latest",
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the random order and of stale reads.")] = 0,
    max_steps: MaxStepsOption = None,
    numerics: NumericsOption = None,
    launch: LaunchOption = None,
    kind: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="Show hazards of this kind only; may be repeated.")
    ] = None,
    line: Annotated[
        list[str] | None,
        typer.Option(metavar="[FILE:]N", help="Show hazards at this source line only; may be repeated."),
    ] = None,
    executor: Annotated[
        str | None,
        typer.Option(metavar="E", help="A job for each problem of a kernel: local (processes of this machine) or ray."),
    ] = None,
    where: WorkerOptions,
    suppressions: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Accepted hazards, each with a reason: KIND FILE:LINE [FILE:LINE]: REASON."),
    ] = None,
    confined: ConfinementOptions,
    json: JsonOption = None,
    sarif: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the hazards as SARIF 2.1.0, for CI; - is standard output."),
    ] = None,
) -> int:
    """Run a kernel on the simulator in every order of its warps, and report races and memory errors."""
    if json == "-" and sarif == "-":
        raise UserError("--json and --sarif cannot both be standard output")
    console_for(sarif, option="--sarif")
    console = console_and_subject("-" if sarif == "-" else json, kernel)
    problems = problems_of(shape, described, default=None)
    modes = _modes(schedule, async_mode, strict, volatile, reads, seed, max_steps, checked_numerics(numerics))
    shown = HazardFilter.of(kind, line)
    accepted = read_suppressions(Path(suppressions)) if suppressions is not None else []
    start = time.monotonic()
    with progress_console().status("compiling") as status:

        def show_progress(label: str) -> None:
            status.update(f"running {label}")

        if kernel.endswith((".ptx", ".cu")):
            if shape or described.given or settings or arch or include:
                raise UserError(
                    "--shape and its options, --set, --arch and --include are for kernels; a file has its --launch"
                )
            if executor is not None:
                raise UserError("--executor is for kernels; a file with its launch runs here")
            folders = [Path(kernel).parent, Path.cwd()]
            outcome = _file(Path(kernel), launch, modes, show_progress, folders, accepted)
        else:
            if launch is not None:
                raise UserError("--launch describes the launch of a FILE.ptx or FILE.cu; a kernel has its own plan")
            options = described, settings, arch, modes, show_progress, accepted
            include_dirs = include_dirs_of(include, kernel)
            jobs = nullcontext() if executor is None else where.on(executor)
            with jobs as on:
                outcome, folders = _kernel(kernel, problems, *options, on, include_dirs)
    _print(console, outcome, time.monotonic() - start, shown)
    write_document(json, outcome.to_dict(), status="PASSED" if outcome.clean else "FAILED")
    if sarif is not None:
        from sdpalab.version import __version__
        from warpsan.report import to_sarif

        write_json(
            sarif, to_sarif(outcome, version=__version__, root=Path.cwd(), directories=folders), option="--sarif"
        )
    return 0 if outcome.clean else 1


def _modes(
    schedule: str,
    async_mode: str,
    strict: bool,
    volatile: str,
    reads: str,
    seed: int,
    max_steps: int | None,
    numerics: str,
) -> Modes:
    from warpsan.sanitize import ASYNC_MODES, MAX_STEPS, SCHEDULES, Modes

    if volatile not in ("data", "sync"):
        raise UserError(f"--volatile takes data or sync, not {volatile!r}")
    if reads not in ("latest", "stale"):
        raise UserError(f"--reads takes latest or stale, not {reads!r}")
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
        reads=reads,
        seed=seed,
        max_steps=max_steps or MAX_STEPS,
        numerics=numerics,
    )


def _kernel(
    name: str,
    given: Sequence[Problem],
    described: ProblemOptions,
    settings: Sequence[str] | None,
    arch: str | None,
    modes: Modes,
    progress: Progress,
    accepted: Sequence[Suppression],
    executor: Executor | None,
    include_dirs: Sequence[Path],
) -> tuple[Sanitized, list[Path]]:
    """The outcome, and the folders of the kernel's sources."""
    from sdpalab.jobs.sanitizing import sanitize_by_jobs
    from sdpalab.judge.sandbox.sandboxed import kernel_in_sandbox
    from sdpalab.run.sanitize import sanitize_kernel, small_problems

    with kernel_in_sandbox(name, arch=arch, else_say="there is no PTX to run", include_dirs=include_dirs) as kernel:
        config = kernel.config_with(parse_settings(settings))
        problems = given or small_problems(kernel, config, dtype=described.dtype, causal=described.causal)
        if executor is None:
            outcome = sanitize_kernel(
                kernel, problems, config, modes, arch=arch, progress=progress, suppressions=accepted
            )
        else:
            progress(f"{len(problems)} jobs")
            outcome = sanitize_by_jobs(
                *(executor, name, kernel, problems, config, modes),
                arch=arch,
                suppressions=accepted,
                include_dirs=include_dirs,
            )
        return outcome, [*filter(None, [kernel.folder]), *HEADER_FOLDERS]


def _file(
    path: Path,
    launch: str | None,
    modes: Modes,
    progress: Progress,
    folders: Sequence[Path],
    accepted: Sequence[Suppression],
) -> Sanitized:
    """The outcome of a PTX or CUDA C++ file with its launch file."""
    from sdpalab.judge.sandbox.workshop import workshop_for
    from warpsan.sanitize import case_of, files_of_case, sanitize_case

    with workshop_for(str(path), files=files_of_case(path, launch)) as workshop:
        case = case_of(path, launch, workshop=workshop)
        return sanitize_case(case, modes, progress=progress, folders=folders, suppressions=accepted)


def _print(console: Console, outcome: Sanitized, seconds: float, shown: HazardFilter) -> None:
    """The hazards by pair of source lines, and the outcome as the last line."""
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
