"""``sdpalab repro``: the main job. Pre-flight, then for each kernel build, gate and judge; a bundle and a report."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sdpalab.commands.bundling import write_bundle
from sdpalab.commands.common import INTERRUPTED, conclude, verdict_text
from sdpalab.commands.doctor import print_checks
from sdpalab.commands.invocation import OUTCOMES, command_line, console_and_subject, write_document
from sdpalab.commands.judge import print_outcome
from sdpalab.commands.option_groups import ConfinementOptions
from sdpalab.commands.options import (
    KERNEL_HELP,
    IncludeOption,
    JsonOption,
    NumericsOption,
    checked_numerics,
    include_dirs_of,
)
from sdpalab.commands.preparing import JudgedKernel, PreparedKernel, judged_kernel
from sdpalab.commands.problem_options import KvHeadsOption, ProblemOptions, SeqKvOption, problems_of
from sdpalab.commands.progress import CaseProgress
from sdpalab.commands.side_by_side import CaseStarted, JudgeRequest, KernelOutcome, KernelRun, judged_side_by_side
from sdpalab.commands.tables import show_table, table
from sdpalab.errors import MachineError, UserError
from sdpalab.kernels.userfile import is_user_file

if TYPE_CHECKING:
    from sdpalab.commands.building import BuiltStep
    from sdpalab.evidence import BundleWriter
    from sdpalab.run import GpuExecutor

__all__ = ["repro"]

RULE_WIDTH = 78


def repro(
    named: Annotated[list[str] | None, typer.Argument(metavar="KERNEL", help="As --kernel.")] = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option(metavar="K", help=f"{KERNEL_HELP} May be repeated. Default: all shipped kernels."),
    ] = None,
    device: Annotated[str, typer.Option(metavar="D", help="auto, sim or gpu.")] = "auto",
    also_for: Annotated[
        list[str] | None,
        typer.Option(
            metavar="B,H,S,D",
            help="Judge the code that kernels have for this shape, too, on a small problem; may be repeated. Default: "
            "with --device gpu large shapes that are timed.",
        ),
    ] = None,
    kv_heads: KvHeadsOption = None,
    seq_kv: SeqKvOption = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the bundle and the report go.")] = Path("out"),
    case_seconds: Annotated[
        float | None,
        typer.Option(
            "--case-seconds",
            "--timeout",
            metavar="S",
            help="Most seconds for one case of the judge. Default: 120; on a GPU 10.",
        ),
    ] = None,
    include: IncludeOption = None,
    numerics: NumericsOption = None,
    *,
    confined: ConfinementOptions,
    json: JsonOption = None,
) -> int:
    """The main job: build, gate and judge kernels on the twelve cases and the probes; leaves a bundle and a report."""
    from sdpalab.doctor import Health, examine
    from sdpalab.evidence import BundleWriter
    from sdpalab.judge.covering import LARGE_PROBLEMS
    from sdpalab.judge.sandbox.guarded import fork_server
    from sdpalab.kernels import registry
    from sdpalab.sim import prepare

    start = time.monotonic()
    asked = list(dict.fromkeys([*(named or ()), *(kernel or ())]))
    console = console_and_subject(json, ", ".join(asked))
    if device not in ("auto", "sim", "gpu"):
        raise UserError(f"--device takes auto, sim or gpu, not {device!r}")
    if case_seconds is not None and not 0 < case_seconds < float("inf"):
        raise UserError(f"--case-seconds takes a number of seconds above 0, not {case_seconds:g}")
    sums = checked_numerics(numerics)
    folders = include_dirs_of(include, *asked)
    large = problems_of(also_for, ProblemOptions(kv_heads=kv_heads, seq_kv=seq_kv), default=None)
    gpu = _open_gpu() if device == "gpu" else None
    if gpu is not None and also_for is None:
        large = list(LARGE_PROBLEMS)
    if gpu is None:
        prepare()  # the simulator, if that must be compiled first: in a process beside this one
    skipped = {} if asked else {name: why for name in registry.KERNELS if (why := registry.needs(name))}
    with ExitStack() as processes:
        if len(asked) != 1:
            processes.enter_context(fork_server(torch=any(map(is_user_file, asked))))
        subjects = [
            judged_kernel(name, processes, gpu, folders) for name in asked or registry.KERNELS if name not in skipped
        ]
        refused = {
            each.name: why for each in subjects if gpu and each.kernel and (why := each.kernel.arch_reason(gpu.arch))
        }
        if asked and refused:
            raise UserError(f"--device gpu: {next(iter(refused.values()))}")
        skipped |= refused
        subjects = [each for each in subjects if each.name not in refused]

        with BundleWriter(out, command=command_line()) as bundle:
            request = JudgeRequest(device, gpu, large, bundle.arrays, case_seconds, sums, folders)
            attempts: list[KernelOutcome] = []
            left: list[str] = []
            interrupted = False
            with judged_side_by_side(subjects, request) as runs:
                _headline(console, "Pre-flight")  # which takes seconds: the first kernels are built meanwhile
                checks = examine()
                print_checks(console, checks)
                missing = [check.name for check in checks if check.health is Health.FAIL]
                if missing:
                    raise MachineError(
                        f"this machine lacks what the job needs: {', '.join(missing)}; see the lines above"
                    )
                for run in runs:
                    if not interrupted or run.outcome().verdict:
                        _show(console, run, case_seconds)
                    outcome = run.outcome()
                    interrupted |= outcome.interrupted
                    if outcome.verdict or outcome.failure:
                        attempts.append(outcome)
                        _keep(bundle, run.subject, outcome)
                    else:
                        left.append(run.subject.name)
            if interrupted and not attempts:
                raise KeyboardInterrupt
            _headline(console, "Evidence")
            written = write_bundle(console, bundle)
    seconds = time.monotonic() - start
    for why in skipped.values():
        console.print(f"skipped: {why}", soft_wrap=True)
    _summary(console, attempts, seconds, f"run on {gpu.device}" if gpu else "none was run on a GPU")
    if interrupted:
        console.print(f"interrupted{': not judged: ' if left else ''}{', '.join(left)}", soft_wrap=True)
    passed = not interrupted and all(attempt.passed for attempt in attempts)
    machine = all(attempt.passed or _machine_failed(attempt) for attempt in attempts)
    code = INTERRUPTED if interrupted else 0 if passed else 3 if machine else 1
    write_document(
        json,
        {
            "passed": passed,
            "bundle": str(written.tarball),
            "report": str(written.report),
            "seconds": seconds,
            "skipped": skipped,
            "unjudged": left,
            "attempts": [attempt.to_dict() for attempt in attempts],
        },
        status=OUTCOMES[code],
    )
    return code


def _open_gpu() -> GpuExecutor:
    """The GPU that kernels are built for and judged on; raises UserError where there is none."""
    from sdpalab.run import GpuExecutor, gpu_problem

    if problem := gpu_problem():
        raise UserError(f"--device gpu: {problem}; --device sim runs the PTX on the simulator")
    return GpuExecutor()


def _show(console: Console, run: KernelRun, case_seconds: float | None) -> None:
    """Print how a kernel is built and judged, while it is."""
    subject = run.subject
    _headline(console, f"Kernel {subject.name}")
    console.print(subject.idea, soft_wrap=True)
    with CaseProgress(f"judging {subject.name}", lines=console, seconds=case_seconds) as progress:
        for event in run:
            if isinstance(event, PreparedKernel):
                for reason in event.missing:
                    console.print(f"not judged: {reason}", soft_wrap=True)
                for step in event.steps:
                    _print_build(console, step)
            elif isinstance(event, CaseStarted):
                progress.started(event.name, event.total, event.since)
            else:
                progress.finished(event)
    outcome = run.outcome()
    if outcome.verdict:
        print_outcome(console, outcome.verdict, outcome.seconds)
    elif outcome.failure:
        console.print(verdict_text(False, f"no verdict: {outcome.failure}"), soft_wrap=True)


def _keep(bundle: BundleWriter, subject: JudgedKernel, outcome: KernelOutcome) -> None:
    """Add the outcome of a kernel to the bundle, good or bad."""
    from sdpalab.evidence.user_source import user_files

    kernel, verdict = subject.kernel, outcome.verdict
    bundle.add(
        subject.name,
        config=verdict.config if verdict else str(kernel.default_config) if kernel else "",
        idea=subject.idea,
        builds=outcome.builds,
        verdict=verdict,
        failure=outcome.failure,
        sources=user_files(subject.spec) if is_user_file(subject.spec) else None,
    )


def _print_build(console: Console, step: BuiltStep) -> None:
    """One line: the build, its resources, the result of the gate."""
    used = step.resources
    console.print(
        f"built for {step.build.arch} in {step.build.seconds * 1e3:.0f} ms"
        f"{' (from the cache)' if step.build.cache_hit else ''}: {used.registers} registers, {used.spill_bytes} bytes "
        f"spilled, {used.shared_bytes} bytes of shared memory, {used.blocks_per_sm} blocks an SM",
        soft_wrap=True,
    )
    outcome = "gate passed" if step.gate.ok else f"gate failed: {'; '.join(step.gate.failures)}"
    console.print(verdict_text(step.gate.ok, outcome), soft_wrap=True)


def _headline(console: Console, text: str) -> None:
    console.print()
    console.print(f"{text} {'-' * (min(console.width, RULE_WIDTH) - len(text) - 1)}", soft_wrap=True)


def _machine_failed(attempt: KernelOutcome) -> bool:
    from sdpalab.judge.verdict import Status

    return attempt.verdict is not None and attempt.verdict.status is Status.INFRA_ERROR


def _summary(console: Console, attempts: list[KernelOutcome], seconds: float, ran: str) -> None:
    """A row a kernel, and the outcome of all, with where they ``ran``, as the last line."""
    shown = table("", ("kernel", "gate", "verdict", "cases", "seconds"), numeric=("cases", "seconds"))
    for attempt in attempts:
        status = attempt.verdict.status.value if attempt.verdict else "NOT JUDGED"
        cases = attempt.verdict.cases if attempt.verdict else ()
        gate = ("passed" if attempt.gate_ok else "failed") if attempt.steps else "-"
        shown.add_row(
            attempt.kernel,
            verdict_text(attempt.gate_ok, gate) if attempt.steps else gate,
            verdict_text(bool(attempt.verdict and attempt.verdict.passed), status),
            f"{sum(case.passed for case in cases)}/{len(cases)}",
            f"{attempt.seconds:.1f}",
        )
    show_table(console, shown)
    good = sum(attempt.passed for attempt in attempts)
    line = f"{good} of {len(attempts)} kernels passed gate and judge in {seconds:.1f} s; {ran}"
    conclude(console, verdict_text(good == len(attempts), line))
