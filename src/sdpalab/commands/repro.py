"""``sdpalab repro``: the main job. Pre-flight, then for each kernel build, gate and judge; a bundle and a report."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from sdpalab.commands.common import (
    JsonOption,
    console_for,
    one_thread_each,
    problem_of,
    table,
    verdict_text,
    write_json,
)
from sdpalab.commands.doctor import print_checks
from sdpalab.commands.judge import print_outcome
from sdpalab.commands.progress import CaseProgress
from sdpalab.errors import MachineError, UserError
from sdpalab.gpus import default_sms
from sdpalab.kernels.kernel import Kernel
from sdpalab.kernels.userfile import is_user_file
from sdpalab.problem import Problem

if TYPE_CHECKING:
    from sdpalab.commands.building import BuiltStep
    from sdpalab.evidence import BundleWriter
    from sdpalab.judge.verdict import Verdict
    from sdpalab.run import GpuExecutor

__all__ = ["repro"]


@dataclass(frozen=True)
class _KernelRun:
    """The outcome of one kernel."""

    name: str
    steps: tuple[BuiltStep, ...] = ()
    verdict: Verdict | None = None
    failure: str = ""
    seconds: float = 0.0

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
    kernel: Annotated[
        list[str] | None,
        typer.Option(metavar="K", help="A shipped kernel; may be repeated. Default: all."),
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
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the bundle and the report go.")] = Path("out"),
    case_seconds: Annotated[
        float | None,
        typer.Option(metavar="S", help="Most seconds for one case of the judge. Default: 120; on a GPU 10."),
    ] = None,
    json: JsonOption = None,
) -> int:
    """The main job: build, gate and judge kernels on the twelve cases and the probes; leaves a bundle and a report."""
    one_thread_each()
    from sdpalab.doctor import Health, examine
    from sdpalab.evidence import BundleWriter, verify_bundle
    from sdpalab.judge.covering import LARGE_PROBLEMS
    from sdpalab.kernels import registry

    start = time.monotonic()
    console = console_for(json)
    if device not in ("auto", "sim", "gpu"):
        raise UserError(f"--device takes auto, sim or gpu, not {device!r}")
    if case_seconds is not None and not 0 < case_seconds < float("inf"):
        raise UserError(f"--case-seconds takes a number of seconds above 0, not {case_seconds:g}")
    large = [problem_of(text) for text in also_for or ()]
    gpu = _open_gpu() if device == "gpu" else None
    if gpu is not None and also_for is None:
        large = list(LARGE_PROBLEMS)
    for name in kernel or ():
        if is_user_file(name):
            # A verdict in a bundle must not come from a process that has run the candidate's own Python.
            raise UserError(f"--kernel takes shipped kernels; judge your own with: sdpalab judge {name}")
    skipped = {} if kernel else {name: why for name in registry.KERNELS if (why := registry.needs(name))}
    kernels = [registry.get(name) for name in dict.fromkeys(kernel or registry.KERNELS) if name not in skipped]
    refused = {loaded.name: why for loaded in kernels if gpu and (why := loaded.arch_reason(gpu.arch))}
    if kernel and refused:
        raise UserError(f"--device gpu: {next(iter(refused.values()))}")
    skipped |= refused
    kernels = [loaded for loaded in kernels if loaded.name not in refused]

    command = ["sdpalab", "repro", *(word for name in kernel or () for word in ("--kernel", name)), "--device", device]
    command += [word for text in also_for or () for word in ("--also-for", text)]
    with BundleWriter(out, command=command) as bundle:
        _headline(console, "Pre-flight")
        checks = examine()
        print_checks(console, checks)
        missing = [check.name for check in checks if check.health is Health.FAIL]
        if missing:
            raise MachineError(f"this machine lacks what the job needs: {', '.join(missing)}; see the lines above")
        attempts = []
        for loaded in kernels:
            _headline(console, f"Kernel {loaded.name}")
            console.print(loaded.idea, soft_wrap=True)
            attempts.append(_attempt(console, bundle, loaded, device, gpu, large, case_seconds))
        _headline(console, "Evidence")
        written = bundle.write()
    outcome = verify_bundle(written.tarball)
    if not outcome.accepted:
        raise MachineError(f"the bundle just written does not verify: {outcome.findings[0]}")
    seconds = time.monotonic() - start
    console.print(f"bundle  {written.tarball}", soft_wrap=True)
    console.print(f"report  {written.report} (open it in any browser)", soft_wrap=True)
    console.print(f"verify  {_own_command()} verify {written.tarball} (just done: accepted)", soft_wrap=True)
    for why in skipped.values():
        console.print(f"skipped: {why}", soft_wrap=True)
    _summary(console, attempts, seconds, f"run on {gpu.device}" if gpu else "none was run on a GPU")
    passed = all(attempt.passed for attempt in attempts)
    write_json(
        json,
        {
            "passed": passed,
            "bundle": str(written.tarball),
            "report": str(written.report),
            "seconds": seconds,
            "skipped": skipped,
            "attempts": [attempt.to_dict() for attempt in attempts],
        },
    )
    if passed:
        return 0
    return 3 if all(attempt.passed or _machine_failed(attempt) for attempt in attempts) else 1


def _open_gpu() -> GpuExecutor:
    """The GPU that kernels are built for and judged on; raises UserError where there is none."""
    from sdpalab.run import GpuExecutor, gpu_problem

    if problem := gpu_problem():
        raise UserError(f"--device gpu: {problem}; --device sim runs the PTX on the simulator")
    return GpuExecutor()


def _attempt(
    console: Console,
    bundle: BundleWriter,
    kernel: Kernel,
    device: str,
    gpu: GpuExecutor | None,
    large: Sequence[Problem],
    case_seconds: float | None,
) -> _KernelRun:
    """Build, gate and judge one kernel, and add the outcome to the bundle, good or bad.

    Beside the cases of level quick it is judged on small problems with its code for the ``large`` ones.
    """
    from sdpalab.commands.building import build_kernel
    from sdpalab.evidence import built_module
    from sdpalab.judge import judge_candidate
    from sdpalab.judge.cases import cases_for
    from sdpalab.judge.covering import covering_cases

    start = time.monotonic()
    arch, sms = (gpu.arch, gpu.sms) if gpu else (kernel.default_arch, default_sms(kernel.default_arch))
    covering = covering_cases(kernel, None, large, sms=sms)
    for reason in covering.missing.values():
        console.print(f"not judged: {reason}", soft_wrap=True)
    specs = (*cases_for("quick"), *covering.specs)
    steps: tuple[BuiltStep, ...] = ()
    verdict = None
    failure = ""
    try:
        problems = sorted({spec.problem for spec in specs}, key=lambda problem: -problem.scores)
        steps = build_kernel(kernel, kernel.default_config, problems, arch, sms=sms)
        for step in steps:
            _print_build(console, step)
        with CaseProgress(console, f"judging {kernel.name}", len(specs), lines=True) as progress:
            verdict = judge_candidate(
                kernel.name,
                specs,
                device=device,
                arch=arch,
                store=bundle.arrays,
                progress=progress.finished,
                timeout=case_seconds,
            )
        print_outcome(console, verdict, time.monotonic() - start)
    except UserError as error:
        failure = str(error)
        console.print(verdict_text(False, f"no verdict: {failure}"), soft_wrap=True)
    bundle.add(
        kernel.name,
        config=str(kernel.default_config),
        idea=kernel.idea,
        builds=[built_module(step.module, step.build, step.resources, step.gate) for step in steps],
        verdict=verdict,
        failure=failure,
    )
    return _KernelRun(kernel.name, steps, verdict, failure, time.monotonic() - start)


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


def _own_command() -> str:
    """How to call this command line again from here, also if it is not on the path."""
    if shutil.which("sdpalab"):
        return "sdpalab"
    script = Path(sys.executable).with_name("sdpalab")
    if not script.exists():
        return f"{sys.executable} -m sdpalab"
    return str(script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script)


def _headline(console: Console, text: str) -> None:
    console.print()
    console.rule(text, align="left", characters="-")


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
    console.print(shown)
    good = sum(attempt.passed for attempt in attempts)
    line = f"{good} of {len(attempts)} kernels passed gate and judge in {seconds:.1f} s; {ran}"
    console.print(verdict_text(good == len(attempts), line), soft_wrap=True)
