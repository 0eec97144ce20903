"""``sdpalab sanitize``: races and memory errors, found on the simulator."""

from __future__ import annotations

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
from warpsan.report import Suppression
from warpsan.terminal.options import LaunchOption
from warpsan.terminal.sanitizing import SanitizeOptions

if TYPE_CHECKING:
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
    launch: LaunchOption = None,
    executor: Annotated[
        str | None,
        typer.Option(metavar="E", help="A job for each problem of a kernel: local (processes of this machine) or ray."),
    ] = None,
    where: WorkerOptions,
    confined: ConfinementOptions,
    options: SanitizeOptions,
) -> int:
    """Run a kernel on the simulator in every order of its warps, and report races and memory errors."""

    def run(modes: Modes, progress: Progress, accepted: Sequence[Suppression]) -> tuple[Sanitized, Sequence[Path]]:
        from sdpalab.jobs.sanitizing import sanitize_by_jobs
        from sdpalab.judge.sandbox.sandboxed import kernel_in_sandbox
        from sdpalab.judge.sanitize import sanitize_kernel, small_problems

        given = problems_of(shape, described, default=None)
        if kernel.endswith((".ptx", ".cu")):
            if shape or described.given or settings or arch or include:
                raise UserError(
                    "--shape and its options, --set, --arch and --include are for kernels; a file has its --launch"
                )
            if executor is not None:
                raise UserError("--executor is for kernels; a file with its launch runs here")
            return _file(Path(kernel), launch, modes, progress, accepted)
        if launch is not None:
            raise UserError("--launch describes the launch of a FILE.ptx or FILE.cu; a kernel has its own plan")
        folders = include_dirs_of(include, kernel)
        jobs = nullcontext() if executor is None else where.on(executor)
        loading = kernel_in_sandbox(kernel, arch=arch, else_say="there is no PTX to run", include_dirs=folders)
        with jobs as on, loading as loaded:
            config = loaded.config_with(parse_settings(settings))
            problems = given or small_problems(loaded, config, dtype=described.dtype, causal=described.causal)
            if on is None:
                outcome = sanitize_kernel(
                    loaded, problems, config, modes, arch=arch, progress=progress, suppressions=accepted
                )
            else:
                progress(f"{len(problems)} jobs")
                outcome = sanitize_by_jobs(
                    *(on, kernel, loaded, problems, config, modes),
                    arch=arch,
                    suppressions=accepted,
                    include_dirs=folders,
                )
            return outcome, [*filter(None, [loaded.folder]), *HEADER_FOLDERS]

    return options.report(kernel, run)


def _file(
    path: Path, launch: str | None, modes: Modes, progress: Progress, accepted: Sequence[Suppression]
) -> tuple[Sanitized, Sequence[Path]]:
    """The outcome of a file with its launch, assembled and run in a confined process."""
    from sdpalab.judge.sandbox.workshop import workshop_for
    from warpsan.sanitize import case_of, files_of_case, sanitize_case

    folders = [path.parent, Path.cwd()]
    with workshop_for(str(path), files=files_of_case(path, launch)) as workshop:
        case = case_of(path, launch, workshop=workshop)
        searched = [*folders, *HEADER_FOLDERS]
        return sanitize_case(case, modes, progress=progress, folders=searched, suppressions=accepted), folders
