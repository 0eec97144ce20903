"""``sdpalab repro``: the main job. Pre-flight, then for each kernel build, gate and judge; a bundle and a report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from sdpalab.commands.bundling import write_bundle
from sdpalab.commands.common import INTERRUPTED, conclude, verdict_text
from sdpalab.commands.doctor import print_checks
from sdpalab.commands.invocation import OUTCOMES, command_line, console_and_subject, write_document
from sdpalab.commands.judge import print_outcome
from sdpalab.commands.options import (
    KERNEL_HELP,
    IncludeOption,
    JsonOption,
    NumericsOption,
    checked_numerics,
    include_dirs_of,
)
from sdpalab.commands.preparing import JudgedKernel, PreparedKernel, judged_kernel, one_ahead
from sdpalab.commands.problem_options import KvHeadsOption, ProblemOptions, SeqKvOption, problems_of
from sdpalab.commands.progress import CaseProgress
from sdpalab.commands.tables import show_table, table
from sdpalab.errors import MachineError, UserError
from sdpalab.kernels.userfile import is_user_file

if TYPE_CHECKING:
    from sdpalab.commands.building import BuiltStep
    from sdpalab.evidence import BundleWriter
    from sdpalab.judge.verdict import Verdict
    from sdpalab.run import GpuExecutor

__all__ = ["repro"]

RULE_WIDTH = 78


@dataclass(frozen=True)
class _KernelRun:
    """The outcome of one kernel."""

    name: str
    steps: tuple[BuiltStep, ...] = ()
    verdict: Verdict | None = None
    failure: str = ""
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def gate_ok(self) -> bool:
        return all(step.gate.ok for step in self.steps)

    @property
    def passed(self) -> bool:
        return self.gate_ok and self.verdict is not None and self.verdict.passed

    def to_dict(self) -> dict[str, Any]:
        return {
            "kernel": self.name,
            "passed": self.passed,
            "failure": self.failure,
            "seconds": self.seconds,
            "builds": [step.to_dict() for step in self.steps],
            "verdict": self.verdict.to_dict() if self.verdict else None,
        }


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
    json: JsonOption = None,
) -> int:
    """The main job: build, gate and judge kernels on the twelve cases and the probes; leaves a bundle and a report."""
    from sdpalab.doctor import Health, examine
    from sdpalab.evidence import BundleWriter
    from sdpalab.judge.covering import LARGE_PROBLEMS
    from sdpalab.kernels import registry

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
    skipped = {} if asked else {name: why for name in registry.KERNELS if (why := registry.needs(name))}
    with ExitStack() as processes:
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
            _headline(console, "Pre-flight")
            checks = examine()
            print_checks(console, checks)
            missing = [check.name for check in checks if check.health is Health.FAIL]
            if missing:
                raise MachineError(f"this machine lacks what the job needs: {', '.join(missing)}; see the lines above")
            attempts: list[_KernelRun] = []
            interrupted = False
            for subject, prepared in one_ahead(subjects, gpu, large):
                _headline(console, f"Kernel {subject.name}")
                console.print(subject.idea, soft_wrap=True)
                try:
                    attempts.append(_attempt(console, bundle, subject, prepared, device, case_seconds, sums, folders))
                    interrupted = attempts[-1].interrupted
                except KeyboardInterrupt:
                    if not attempts:
                        raise
                    interrupted = True
                if interrupted:
                    break
            _headline(console, "Evidence")
            written = write_bundle(console, bundle)
    seconds = time.monotonic() - start
    for why in skipped.values():
        console.print(f"skipped: {why}", soft_wrap=True)
    _summary(console, attempts, seconds, f"run on {gpu.device}" if gpu else "none was run on a GPU")
    left = [each.name for each in subjects[len(attempts) :]]
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


def _attempt(
    console: Console,
    bundle: BundleWriter,
    subject: JudgedKernel,
    preparation: Future[PreparedKernel],
    device: str,
    case_seconds: float | None,
    numerics: str,
    include_dirs: Sequence[Path],
) -> _KernelRun:
    """Gate and judge one kernel, and add the outcome to the bundle, good or bad."""
    from sdpalab.evidence import built_module
    from sdpalab.evidence.executed import ExecutedPlans
    from sdpalab.evidence.user_source import user_files
    from sdpalab.judge import judge_candidate
    from sdpalab.judge.session import JudgingInterrupted

    start = time.monotonic()
    kernel = subject.kernel
    steps: tuple[BuiltStep, ...] = ()
    verdict, failure, interrupted = None, "", False
    executed = ExecutedPlans()
    try:
        prepared = preparation.result()
        steps = prepared.steps
        for reason in prepared.missing:
            console.print(f"not judged: {reason}", soft_wrap=True)
        for step in steps:
            _print_build(console, step)
        with CaseProgress(f"judging {subject.name}", lines=console, seconds=case_seconds) as progress:
            try:
                verdict = judge_candidate(
                    subject.spec,
                    prepared.specs,
                    device=device,
                    arch=prepared.arch,
                    store=bundle.arrays,
                    progress=progress.finished,
                    on_start=progress.started,
                    on_plan=executed,
                    timeout=case_seconds,
                    numerics=numerics,
                    include_dirs=include_dirs if is_user_file(subject.spec) else (),
                )
            except JudgingInterrupted as stop:
                verdict, interrupted = stop.verdict, True
        print_outcome(console, verdict, time.monotonic() - start)
    except UserError as error:
        failure = str(error)
        console.print(verdict_text(False, f"no verdict: {failure}"), soft_wrap=True)
    builds = [built_module(step.module, step.build, step.resources, step.gate) for step in steps]
    bundle.add(
        subject.name,
        config=verdict.config if verdict else str(kernel.default_config) if kernel else "",
        idea=subject.idea,
        builds=executed.builds(verdict, builds) if verdict else builds,
        verdict=verdict,
        failure=failure,
        sources=user_files(subject.spec) if is_user_file(subject.spec) else None,
    )
    return _KernelRun(subject.name, steps, verdict, failure, time.monotonic() - start, interrupted)


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


def _machine_failed(attempt: _KernelRun) -> bool:
    from sdpalab.judge.verdict import Status

    return attempt.verdict is not None and attempt.verdict.status is Status.INFRA_ERROR


def _summary(console: Console, attempts: list[_KernelRun], seconds: float, ran: str) -> None:
    """A row a kernel, and the outcome of all, with where they ``ran``, as the last line."""
    shown = table("", ("kernel", "gate", "verdict", "cases", "seconds"), numeric=("cases", "seconds"))
    for attempt in attempts:
        status = attempt.verdict.status.value if attempt.verdict else "NOT JUDGED"
        cases = attempt.verdict.cases if attempt.verdict else ()
        gate = ("passed" if attempt.gate_ok else "failed") if attempt.steps else "-"
        shown.add_row(
            attempt.name,
            verdict_text(attempt.gate_ok, gate) if attempt.steps else gate,
            verdict_text(bool(attempt.verdict and attempt.verdict.passed), status),
            f"{sum(case.passed for case in cases)}/{len(cases)}",
            f"{attempt.seconds:.1f}",
        )
    show_table(console, shown)
    good = sum(attempt.passed for attempt in attempts)
    line = f"{good} of {len(attempts)} kernels passed gate and judge in {seconds:.1f} s; {ran}"
    conclude(console, verdict_text(good == len(attempts), line))
