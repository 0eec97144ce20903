"""The work of ``sdpalab prove``: judge kernels on the GPU, sample large problems, measure times, and keep the
records."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sdpalab.commands.common import progress_console, verdict_text
from sdpalab.commands.judge import print_outcome
from sdpalab.commands.progress import CaseProgress
from sdpalab.errors import MachineError, UserError
from sdpalab.problem import Problem

if TYPE_CHECKING:
    from sdpalab.compile import Build
    from sdpalab.evidence.choice import GpuPlatform
    from sdpalab.evidence.kept import KeptRecord, SampledRecord
    from sdpalab.judge.verdict import Verdict
    from sdpalab.kernels.kernel import Kernel
    from sdpalab.kernels.plan import Source
    from sdpalab.run import GpuExecutor

__all__ = ["Attempt", "judge_attempt", "machine_failed", "sample", "small_ones", "time_attempts"]


@dataclass
class Attempt:
    """One kernel: the problems that it takes, its verdict and the path of its record."""

    kernel: Kernel
    problems: tuple[Problem, ...]
    verdict: Verdict | None = None
    failure: str = ""
    sampled: list[SampledRecord] = field(default_factory=list)
    record: Path | None = None

    @property
    def passed(self) -> bool:
        """Judged PASSED, and nothing wrong in a large problem."""
        return bool(self.verdict and self.verdict.passed) and not any(each.wrong for each in self.sampled)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel.name,
            "status": self.verdict.status.value if self.verdict else "NOT JUDGED",
            "reason": self.verdict.reason if self.verdict else self.failure,
            "sampled": [each.model_dump(mode="json") for each in self.sampled],
            "record": str(self.record) if self.record else None,
        }


def judge_attempt(
    console: Console, attempt: Attempt, executor: GpuExecutor, machine: GpuPlatform, level: str, seed: int
) -> None:
    """Judge a kernel on all its problems, and keep the result, good or bad."""
    from sdpalab.evidence.kept import keep
    from sdpalab.judge import judge_candidate
    from sdpalab.judge.cases import cases_for
    from sdpalab.judge.covering import covering_cases

    start = time.monotonic()
    kernel = attempt.kernel
    small = small_ones(attempt.problems, attempt.kernel, machine.sms)
    large = [problem for problem, judged in small.items() if judged != problem]
    specs = [
        *cases_for(level, small.values(), seed=seed),
        *covering_cases(kernel, None, large, sms=machine.sms).specs,
    ]
    specs = list({spec.name: spec for spec in specs}.values())
    try:
        with CaseProgress(f"judging {kernel.name}") as progress:
            verdict = judge_candidate(
                kernel.name,
                specs,
                device="gpu",
                arch=executor.arch,
                config={name: str(value) for name, value in kernel.default_config.items()},
                level=level,
                seed=seed,
                progress=progress.finished,
                on_start=progress.started,
            )
    except UserError as error:
        attempt.failure = str(error)
        console.print(verdict_text(False, f"{kernel.name}: no verdict: {error}"), soft_wrap=True)
        return
    attempt.verdict = verdict
    print_outcome(console, verdict, time.monotonic() - start)
    if not verdict.passed:
        console.print(verdict.reason, soft_wrap=True)
    if machine_failed(attempt):
        return
    if verdict.passed:
        attempt.sampled = [
            record for problem in large if (record := sample(console, kernel, problem, small[problem], executor))
        ]
    attempt.record = keep(_record(attempt, executor, machine), kernel.name)
    console.print(f"kept in {attempt.record}", soft_wrap=True)


def small_ones(problems: Sequence[Problem], kernel: Kernel, sms: int) -> dict[Problem, Problem]:
    """What each problem is judged on: itself, or if it is large a small one with the same code, if there is one."""
    from sdpalab.kernels.equivalent import MOST_FLOPS, equivalent_small

    judged_on = {}
    for problem in problems:
        large = problem.flops > MOST_FLOPS
        other = equivalent_small(kernel, None, problem, sms=sms).problem if large else None
        judged_on[problem] = other or problem
    return judged_on


def sample(
    console: Console, kernel: Kernel, problem: Problem, small: Problem, executor: GpuExecutor
) -> SampledRecord | None:
    """Launch a large problem once and check rows of it; None, with a line that says why, where that cannot be done."""
    from sdpalab.evidence.kept import SampledRecord
    from sdpalab.inputs import make_inputs
    from sdpalab.judge.rule.numerics import on_architecture
    from sdpalab.measure.outputs import Outputs
    from sdpalab.run import KernelFault

    seed = int.from_bytes(os.urandom(6), "little")
    inputs = make_inputs(problem, "normal", seed)
    outputs, numerics = Outputs(problem, inputs, seed), on_architecture(kernel.numerics_of(), executor.arch)
    try:
        result = executor.run(kernel.launch_plan(problem, sms=executor.sms), inputs.arrays)
        damage = [*result.hazards, *(f"it wrote to its input {name}" for name in result.changed_inputs)]
        wrong = "; ".join(damage) or outputs.wrong(result.outputs["o"], numerics)
    except KernelFault as error:
        wrong = str(error)
    except MachineError as error:
        console.print(f"{problem.label} is not proven for {kernel.name}: {error}", soft_wrap=True)
        return None
    chosen = outputs.references.rows
    rows = problem.seq_q if chosen is None else len(chosen)
    line = f"{kernel.name}: {problem.label} has the code of {small.label}; {rows} rows of each head: {wrong or 'right'}"
    console.print(verdict_text(not wrong, line), soft_wrap=True)
    return SampledRecord(
        problem=problem,
        small=small,
        rows=rows,
        seed=seed,
        wrong=wrong,
    )


def _record(attempt: Attempt, executor: GpuExecutor, machine: GpuPlatform) -> KeptRecord:
    """The verdict as it is kept, with a record of every build that it ran.

    Raises
    ------
    MachineError
        If a build of this process is not the one that ran: nothing was kept of the latter.
    """
    from sdpalab.compile import build
    from sdpalab.evidence import built_module
    from sdpalab.evidence.kept import sealed
    from sdpalab.evidence.records import AttemptRecord
    from sdpalab.kernels.equivalent import modules_of

    verdict, kernel = attempt.verdict, attempt.kernel
    assert verdict is not None
    builds: dict[str, tuple[Source, Build]] = {}
    for case in verdict.cases:
        for module in modules_of(kernel.launch_plan(case.problem, sms=machine.sms)):
            built = build(module, executor.arch)
            builds[built.ptx_sha256] = module, built
    ran = {digest for case in verdict.cases for digest in case.run.get("ptx_sha256", ())}
    if not ran <= builds.keys():
        raise MachineError(
            f"the code of {kernel.name} that was judged differs from its build in this process: "
            "the build cache stored nothing"
        )
    return sealed(
        gpu=machine.gpu,
        driver=machine.driver,
        code={digest: built.code_sha256 for digest, (_, built) in builds.items()},
        sampled=tuple(attempt.sampled),
        attempt=AttemptRecord(
            kernel=kernel.name,
            config=verdict.config,
            idea=kernel.idea,
            builds=tuple(
                built_module(module, built).record(f"build/{number:02d}-{kernel.name}")
                for number, (module, built) in enumerate(builds.values())
            ),
            verdict=(verdict),
        ),
    )


def time_attempts(
    console: Console,
    attempts: Sequence[Attempt],
    problems: Sequence[Problem],
    executor: GpuExecutor,
    machine: GpuPlatform,
    seconds: float,
) -> tuple[list[Path], bool]:
    """Time what passed beside torch by the eager clock, a record for each problem.

    Returns where they are, and whether every kernel has a time or was left out as too slow.
    """
    from sdpalab.commands.bench import show_session
    from sdpalab.evidence.kept import keep, sealed
    from sdpalab.evidence.measured import bench_record
    from sdpalab.evidence.timings import TORCH, codes_of
    from sdpalab.measure.benchmark import benchmark, cuda_device
    from sdpalab.measure.peers import peers_named
    from sdpalab.measure.samples import ClockKind
    from sdpalab.measure.session import MeasureStatus
    from sdpalab.measure.stopping import StoppingRule

    device, rule, peers = cuda_device(), StoppingRule(seconds=seconds), peers_named([TORCH])
    paths, good = [], True
    for problem in problems:
        passed = [each for each in attempts if each.passed and problem in each.problems]
        if not passed:
            console.print(f"not timed: no kernel passed that takes {problem.label}", soft_wrap=True)
            continue
        kernels = [(each.kernel, each.kernel.default_config) for each in passed]
        with progress_console().status(f"timing {problem.label}"):
            session = benchmark(problem, peers, kernels, device, clock=ClockKind.EAGER, rule=rule, executor=executor)
        result = show_session(console, device.name, problem, ClockKind.EAGER, session)
        result["code"] = codes_of(kernels, problem, executor.arch, machine.sms)
        times = bench_record(machine.gpu, [_judged(each) for each in passed], [result])
        path = keep(sealed(gpu=machine.gpu, driver=machine.driver, bench=times), "times")
        console.print(f"kept in {path}", soft_wrap=True)
        paths.append(path)
        statuses = {session.of(kernel.name).status for kernel, _ in kernels}
        good &= statuses <= {MeasureStatus.MEASURED, MeasureStatus.LEFT_OUT}
    return paths, good


def _judged(attempt: Attempt) -> dict[str, Any]:
    """What a record of times says of a kernel's verdict, as ``bench`` does where a record proves it."""
    assert attempt.record is not None, "what passed is kept"
    record = f"{attempt.record.parent.name}/{attempt.record.name}"
    return {
        "kernel": attempt.kernel.name,
        "config": str(attempt.kernel.default_config),
        "passed": True,
        "left_out": {},
        "proven_by": {problem.label: record for problem in attempt.problems},
    }


def machine_failed(attempt: Attempt) -> bool:
    from sdpalab.judge.verdict import Status

    return attempt.verdict is not None and attempt.verdict.status is Status.INFRA_ERROR
