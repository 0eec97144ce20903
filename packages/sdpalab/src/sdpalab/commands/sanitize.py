"""``sdpalab sanitize``: races and memory errors, found on the simulator."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sdpalab.commands.option_groups import ConfinementOptions, WorkerOptions
from sdpalab.commands.options import ArchOption, IncludeOption, SetOption, include_dirs_of, parse_settings
from sdpalab.commands.problem_options import ProblemOptions, problems_of
from sdpalab.errors import UserError
from sdpalab.kernels.plan import HEADER_FOLDERS
from sdpalab.problem import Problem
from warpsan.report import Suppression, read_suppressions
from warpsan.terminal.console import console_for, progress_console
from warpsan.terminal.hazards import HazardFilter
from warpsan.terminal.invocation import console_and_subject, write_document
from warpsan.terminal.options import (
    JsonOption,
    LaunchOption,
    MaxStepsOption,
    NumericsOption,
    checked_numerics,
)
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
            help="Problem to run, or its name; may be repeated. Default: small problems with one tile of keys, an "
            "even and an odd number, and a ragged last one.",
        ),
    ] = None,
    *,
    described: ProblemOptions,
    settings: SetOption = None,
    include: IncludeOption = None,
    arch: ArchOption = None,
    schedule: SchedulesOption = "all",
    async_mode: AsyncModesOption = "both",
    strict: StrictOption = False,
    volatile: VolatileOption = "sync",
    seed: SeedOption = 0,
    max_steps: MaxStepsOption = None,
    numerics: NumericsOption = None,
    launch: LaunchOption = None,
    kind: KindOption = None,
    line: LineOption = None,
    executor: Annotated[
        str | None,
        typer.Option(metavar="E", help="A job for each problem of a kernel: local (processes of this machine) or ray."),
    ] = None,
    where: WorkerOptions,
    suppressions: SuppressionsOption = None,
    confined: ConfinementOptions,
    json: JsonOption = None,
    sarif: SarifOption = None,
) -> int:
    """Run a kernel on the simulator in every order of its warps, and report races and memory errors."""
    if json == "-" and sarif == "-":
        raise UserError("--json and --sarif cannot both be standard output")
    console_for(sarif, option="--sarif")
    console = console_and_subject("-" if sarif == "-" else json, kernel)
    problems = problems_of(shape, described, default=None)
    modes = modes_of(schedule, async_mode, strict, volatile, seed, max_steps, checked_numerics(numerics))
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
            from sdpalab.judge.sandbox.workshop import workshop_for
            from warpsan.sanitize import case_of, files_of_case, sanitize_case

            folders = [Path(kernel).parent, Path.cwd()]
            with workshop_for(kernel, files=files_of_case(Path(kernel), launch)) as workshop:
                case = case_of(Path(kernel), launch, workshop=workshop)
                outcome = sanitize_case(
                    case, modes, progress=show_progress, folders=[*folders, *HEADER_FOLDERS], suppressions=accepted
                )
        else:
            if launch is not None:
                raise UserError("--launch describes the launch of a FILE.ptx or FILE.cu; a kernel has its own plan")
            options = described, settings, arch, modes, show_progress, accepted
            include_dirs = include_dirs_of(include, kernel)
            jobs = nullcontext() if executor is None else where.on(executor)
            with jobs as on:
                outcome, folders = _kernel(kernel, problems, *options, on, include_dirs)
    print_sanitized(console, outcome, time.monotonic() - start, shown)
    write_document(json, outcome.to_dict(), status="PASSED" if outcome.clean else "FAILED")
    write_sarif(sarif, outcome, folders)
    return 0 if outcome.clean else 1


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
