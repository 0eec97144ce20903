"""``sdpalab profile``: what Nsight Compute measures of a kernel beside the simulator's counts, and what limits it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from sdpalab.commands.common import progress_console, verdict_text
from sdpalab.commands.invocation import console_and_subject, write_document
from sdpalab.commands.options import (
    CausalOption,
    DtypeOption,
    JsonOption,
    KernelArgument,
    KvHeadsOption,
    SeqKvOption,
    SetOption,
    parse_settings,
    problem_of,
)
from sdpalab.commands.tables import show_table, table
from sdpalab.commands.timing_gate import VerdictsOption, compile_for, kernel_for, timing_gate
from sdpalab.errors import UserError

if TYPE_CHECKING:
    from sdpalab.profile import LaunchProfile

__all__ = ["profile", "show_launch"]

Counts = Sequence[tuple[str, Mapping[str, float]]]


def profile(
    kernel: KernelArgument,
    shape: Annotated[str, typer.Option(metavar="B,H,S,D", help="What to profile, or a name.")] = "mission",
    dtype: DtypeOption = None,
    causal: CausalOption = False,
    kv_heads: KvHeadsOption = None,
    seq_kv: SeqKvOption = None,
    cold: Annotated[bool, typer.Option("--cold", help="Empty the caches before each replay.")] = False,
    knobs: SetOption = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the report and its table go.")] = Path("out/profile"),
    verdicts: VerdictsOption = None,
    json: JsonOption = None,
) -> int:
    """Profile a kernel with Nsight Compute, and say what limits it; clocks are left as they are."""
    from sdpalab.measure.benchmark import cuda_device
    from sdpalab.profile import clean_csv, profile_command, read_raw_csv, run_ncu
    from sdpalab.profile.simulated import simulated_counts
    from sdpalab.run import GpuExecutor

    console = console_and_subject(json, kernel)
    problem = problem_of(shape, dtype=dtype, causal=causal, kv_heads=kv_heads, seq_kv=seq_kv)
    settings = parse_settings(knobs)
    with kernel_for(kernel, [problem], settings) as (loaded, config):
        device = cuda_device()
        report = _folder(out) / f"{loaded.name}.ncu-rep"
        gpu = GpuExecutor(device.ordinal)
        compile_for(loaded, gpu)
        command = profile_command(kernel, problem, settings, report.resolve(), cold=cold, arch=gpu.arch)
        judged = timing_gate(console, kernel, loaded, config, [problem], settings, gpu, verdicts)
        record: dict[str, Any] = {
            "kind": "measured",
            "gpu": device.name,
            "sms": gpu.sms,
            "kernel": loaded.name,
            "config": str(config),
            "problem": problem.to_dict(),
            "l2": "cold" if cold else "warm",
            "judged": judged,
        }
        if not judged["passed"] or judged["left_out"]:
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


def _folder(out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be made: {error.strerror}") from None
    return out


def show_launch(console: Console, device: str, launch: LaunchProfile, counts: Counts) -> dict[str, Any]:
    """Print one launch, measured on ``device`` beside what was simulated, and return it as JSON values."""
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
    """The counts of the launch of that function: its bare name is within the mangled one. A library's has none."""
    name = kernel.partition("(")[0].partition("<")[0].split("::")[-1].split()[-1]
    return next((numbers for entry, numbers in counts if name in entry), {})


def _text(value: float, unit: str) -> str:
    return f"{value:,.0f}" if unit in ("bytes", "count") else f"{value:.2f}"
