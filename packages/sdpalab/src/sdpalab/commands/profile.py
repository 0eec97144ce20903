"""``sdpalab profile``: Nsight Compute's measurements of a kernel beside the simulator's counts, and its limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from sdpalab.commands.bench import show_gate
from sdpalab.commands.option_groups import ConfinementOptions
from sdpalab.commands.options import (
    KERNEL_HELP,
    IncludeOption,
    SetOption,
    VerdictsOption,
    complete_kernel,
    include_dirs_of,
    parse_settings,
)
from sdpalab.commands.problem_options import ProblemOptions, problem_of
from sdpalab.commands.simulated_profile import output_folder, show_profile
from sdpalab.errors import UserError
from warpsan.gpus import GPUS
from warpsan.terminal.console import progress_console, verdict_text
from warpsan.terminal.invocation import console_and_subject, write_document
from warpsan.terminal.options import JsonOption, LaunchOption
from warpsan.terminal.tables import show_table, table

if TYPE_CHECKING:
    from sdpalab.problem import Problem
    from sdpalab.profile import LaunchProfile

__all__ = ["profile", "show_launch"]

Counts = Sequence[tuple[str, Mapping[str, float]]]


def profile(
    kernel: Annotated[
        str,
        typer.Argument(
            metavar="KERNEL|FILE",
            help=f"{KERNEL_HELP} With --device sim also FILE.ptx or FILE.cu with a --launch.",
            autocompletion=complete_kernel,
        ),
    ],
    shape: Annotated[
        str | None, typer.Option(metavar="B,H,S,D", help="Problem, or its name. Default: mission.")
    ] = None,
    *,
    described: ProblemOptions,
    device: Annotated[
        str, typer.Option(metavar="D", help="gpu (Nsight Compute), or sim (simulator and model).")
    ] = "gpu",
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"With --device sim, the GPU that is modelled: {', '.join(GPUS)}."),
    ] = None,
    line: Annotated[
        list[str] | None,
        typer.Option(metavar="[FILE:]N", help="With --device sim, show the banks and the tile that a line accesses."),
    ] = None,
    source: Annotated[
        bool, typer.Option("--source", help="With --device sim, print the whole source with the cost of each line.")
    ] = False,
    cold: Annotated[
        bool, typer.Option("--cold", help="Empty the caches before each replay; with --device sim, inputs in DRAM.")
    ] = False,
    knobs: SetOption = None,
    include: IncludeOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the report. Default: out/profile; with --device sim no report.",
        ),
    ] = None,
    launch: LaunchOption = None,
    verdicts: VerdictsOption = None,
    confined: ConfinementOptions,
    json: JsonOption = None,
) -> int:
    """Profile a kernel with Nsight Compute, or on the simulator, and report its limits."""
    console = console_and_subject(json, kernel)
    if device == "sim" and verdicts is not None:
        raise UserError("--verdicts is for --device gpu: on the simulator nothing is timed")
    if kernel.endswith((".ptx", ".cu")):
        if device != "sim":
            raise UserError(
                f"{kernel} is profiled with --device sim; on a GPU, run ncu on the program that launches it"
            )
        if shape is not None or described.given or knobs or include:
            raise UserError("--shape and its options, --set and --include are for kernels; a file has its --launch")
        from sdpalab.profile.on_simulator import profile_file

        folder = output_folder(out) if out is not None else None
        with progress_console().status("compiling") as status:
            path = Path(kernel)
            report = profile_file(path, launch, gpu=gpu, cold=cold, lines=line or (), progress=status.update)
        return show_profile(console, report, source=source, out=folder, json=json)
    if launch is not None:
        raise UserError("--launch describes the launch of a FILE.ptx or FILE.cu; a kernel has its own plan")
    problem = problem_of(shape or "mission", described)
    settings, folders = parse_settings(knobs), include_dirs_of(include, kernel)
    if device == "sim":
        from sdpalab.profile.on_simulator import profile_kernel

        folder = output_folder(out) if out is not None else None
        with progress_console().status("compiling") as status:
            report = profile_kernel(
                *(kernel, problem, settings),
                gpu=gpu,
                cold=cold,
                lines=line or (),
                include_dirs=folders,
                progress=status.update,
            )
        return show_profile(console, report, source=source, out=folder, json=json)
    if device != "gpu":
        raise UserError(f"--device takes gpu or sim, not {device!r}")
    if gpu is not None or line or source:
        raise UserError("--gpu, --line and --source are for --device sim")
    place = out or Path("out/profile")
    return _profile_on_gpu(console, kernel, problem, settings, cold, place, verdicts, json, folders)


def _profile_on_gpu(
    console: Console,
    kernel: str,
    problem: Problem,
    settings: Mapping[str, str],
    cold: bool,
    out: Path,
    verdicts: Path | None,
    json: str | None,
    include_dirs: Sequence[Path],
) -> int:
    """Profile one run of the plan with Nsight Compute; clocks are left unchanged."""
    from sdpalab.evidence.store.lookup import recorded_verdicts
    from sdpalab.judge.sandbox.sandboxed import compile_for, configured_kernel
    from sdpalab.measure.benchmark import cuda_device
    from sdpalab.measure.timing_gate import NOT_BUILT, judge_for_timing
    from sdpalab.profile import clean_csv, profile_command, read_raw_csv, run_ncu
    from sdpalab.profile.simulated import simulated_counts
    from sdpalab.run import GpuExecutor

    opened = configured_kernel(kernel, [problem], settings, else_say=NOT_BUILT, include_dirs=include_dirs)
    with opened as (loaded, config):
        try:
            device = cuda_device()
        except UserError as error:
            raise UserError(f"{error}; 'sdpalab profile {kernel} --device sim' profiles it without one") from None
        report = output_folder(out) / f"{loaded.name}.ncu-rep"
        gpu = GpuExecutor(device.ordinal)
        compile_for(loaded, gpu.arch)
        place = report.resolve()
        command = profile_command(kernel, problem, settings, place, cold=cold, arch=gpu.arch, include_dirs=include_dirs)
        with progress_console().status(f"judging {kernel} on the simulator"):
            judged = judge_for_timing(
                loaded,
                config,
                [problem],
                arch=gpu.arch,
                sms=gpu.sms,
                candidate=kernel,
                recorded=recorded_verdicts(verdicts),
                include_dirs=include_dirs,
            )
        show_gate(console, judged)
        record: dict[str, Any] = {
            "kind": "measured",
            "gpu": device.name,
            "sms": gpu.sms,
            "kernel": loaded.name,
            "config": str(config),
            "problem": problem.to_dict(),
            "l2": "cold" if cold else "warm",
            "judged": judged.to_dict(),
        }
        if judged.permit_for(problem) is None:
            write_document(json, {**record, "launches": []}, status="FAILED")
            return 1
        with progress_console().status(f"profiling {loaded.name} on {device.name}"):
            raw = run_ncu(command, report)
        report.with_suffix(".csv").write_text(clean_csv(raw))
        with progress_console().status(f"counting {loaded.name} on the simulator"):
            counts = simulated_counts(loaded, problem, config, gpu.arch, sms=gpu.sms)
        console.print(f"report  {report} (open it in Nsight Compute; it names this machine)", soft_wrap=True)
        console.print(f"table   {report.with_suffix('.csv')}", soft_wrap=True)
        launches = [show_launch(console, device.name, launch, counts) for launch in read_raw_csv(raw)]
        write_document(json, {**record, "launches": launches}, status="PASSED")
        return 0


def show_launch(console: Console, device: str, launch: LaunchProfile, counts: Counts) -> dict[str, Any]:
    """Print one launch, measured on ``device`` beside its simulated counts, and return it as JSON values."""
    from sdpalab.profile import METRICS, observations

    simulated = _counted(launch.kernel, counts)
    columns = ("measured", "simulated", "ratio")
    title = f"{launch.kernel}, grid {launch.grid}, block {launch.block}: measured on {device}"
    shown = table(title, ("figure", "unit", *columns), numeric=columns)
    for figure in METRICS:
        if figure.key in launch.figures:
            value, counted = launch.figures[figure.key], simulated.get(figure.counter)
            ratio = f"{value / counted:.2f}" if counted else "-"
            beside = "-" if counted is None else f"{counted:,.0f}"
            shown.add_row(figure.title, figure.unit, _text(value, figure.unit), beside, ratio)
    show_table(console, shown)
    observed = observations(launch)
    for observation in observed:
        console.print(
            verdict_text(None, observation.sentence) if observation.limits else observation.sentence, soft_wrap=True
        )
    missing = [figure.title for figure in METRICS if figure.key not in launch.figures]
    if missing:
        console.print(f"not reported by this ncu: {', '.join(missing)}", soft_wrap=True)
    return {
        "kernel": launch.kernel,
        "grid": launch.grid,
        "block": launch.block,
        "measured": dict(launch.figures),
        "stalls": dict(launch.stalls),
        "simulated": dict(simulated),
        "observations": [observation.sentence for observation in observed],
    }


def _counted(kernel: str, counts: Counts) -> Mapping[str, float]:
    """The counts of the launch of that function: its bare name is within the mangled one. Library functions have
    none."""
    name = kernel.partition("(")[0].partition("<")[0].split("::")[-1].split()[-1]
    return next((numbers for entry, numbers in counts if name in entry), {})


def _text(value: float, unit: str) -> str:
    return f"{value:,.0f}" if unit in ("bytes", "count") else f"{value:.2f}"
