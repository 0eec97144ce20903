"""``sdpalab prove``: judge and time kernels on this machine's GPU, for ``scaled_dot_product_attention`` to run them."""

from __future__ import annotations

import time as clock
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from sdpalab.commands.common import (
    CausalOption,
    DtypeOption,
    JsonOption,
    console_for,
    one_thread_each,
    problem_of,
    progress_console,
    verdict_text,
    write_json,
)
from sdpalab.commands.judge import print_outcome
from sdpalab.commands.progress import CaseProgress
from sdpalab.errors import MachineError, UserError
from sdpalab.problem import Problem

if TYPE_CHECKING:
    from sdpalab.evidence.choice import Machine
    from sdpalab.judge.verdict import Verdict
    from sdpalab.kernels.kernel import Kernel
    from sdpalab.run import GpuExecutor

__all__ = ["prove"]


@dataclass
class _Attempt:
    """One kernel: the problems that it takes, its verdict and where that is kept."""

    kernel: Kernel
    problems: tuple[Problem, ...]
    verdict: Verdict | None = None
    failure: str = ""
    record: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel.name,
            "status": self.verdict.status.value if self.verdict else "NOT JUDGED",
            "reason": self.verdict.reason if self.verdict else self.failure,
            "record": str(self.record) if self.record else None,
        }


def prove(
    kernel: Annotated[
        list[str] | None,
        typer.Argument(metavar="KERNEL", help="Shipped kernels. Default: all that this GPU runs, as exact as torch."),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(metavar="B,H,S,D", help="What to prove them for, or a name; may be repeated. Default: mission."),
    ] = None,
    dtype: DtypeOption = None,
    causal: CausalOption = False,
    kv_heads: Annotated[int | None, typer.Option(metavar="N", help="Heads of K and V; with --shape.")] = None,
    seq_kv: Annotated[int | None, typer.Option(metavar="N", help="Length of K and V; with --shape.")] = None,
    shapes_from: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A problem a line, as '1,8,512,64 causal kv_heads=2' or a JSON object."),
    ] = None,
    time: Annotated[
        bool, typer.Option("--time", help="Time what passes beside torch; without a time none runs.")
    ] = False,
    seconds: Annotated[float, typer.Option(metavar="S", help="Most seconds of timing for one shape.")] = 10.0,
    level: Annotated[str, typer.Option(metavar="L", help="quick (a minute) or full (many minutes).")] = "quick",
    seed: Annotated[int, typer.Option(metavar="N", help="Public seed of the inputs.")] = 0,
    json: JsonOption = None,
) -> int:
    """Judge kernels on this GPU, and keep the verdicts: the op runs a kernel where they and a time allow it."""
    one_thread_each()
    from sdpalab.evidence.choice import choose, forget
    from sdpalab.evidence.folders import proofs_folder
    from sdpalab.evidence.kept import check_writable
    from sdpalab.judge.cases import LEVELS

    console = console_for(json)
    problems = _problems(shape, shapes_from, dtype=dtype, causal=causal, kv_heads=kv_heads, seq_kv=seq_kv)
    if level not in LEVELS:
        raise UserError(f"--level takes {' or '.join(LEVELS)}, not {level!r}")
    if seed < 0:
        raise UserError(f"--seed takes a number from 0 up, not {seed}")
    named = _named(kernel or ())
    executor, machine = _open()
    attempts, skipped = _attempts(named, problems, executor)
    check_writable()
    console.print(f"{machine.gpu}, driver {machine.driver}, torch {machine.torch}; records go to {proofs_folder()}")
    for attempt in attempts:
        _judge(console, attempt, executor, machine, level, seed)
    times = _time(console, attempts, problems, executor, machine, seconds) if time else []
    for reason in skipped:
        console.print(f"skipped: {reason}", soft_wrap=True)
    forget()
    choices = {problem: choose(problem, machine) for problem in problems}
    for problem, choice in choices.items():
        runs = choice.kernel.proof.kernel if choice.kernel else "torch"
        line = f"{problem.label}: scaled_dot_product_attention runs {runs}: {choice.reason}"
        console.print(verdict_text(True if choice.kernel else None, line), soft_wrap=True)
    write_json(
        json,
        {
            "machine": vars(machine),
            "folder": str(proofs_folder()),
            "attempts": [attempt.to_dict() for attempt in attempts],
            "times": [str(path) for path in times],
            "skipped": skipped,
            "choices": [
                {
                    "problem": problem.to_dict(),
                    "kernel": choice.kernel.proof.kernel if choice.kernel else None,
                    "reason": choice.reason,
                }
                for problem, choice in choices.items()
            ],
        },
    )
    return _exit_code(attempts)


def _problems(
    shapes: Sequence[str] | None, file: Path | None, *, dtype: str | None, causal: bool, **sizes: int | None
) -> tuple[Problem, ...]:
    """What is to be proven, each once: the shapes, with the options, and then those of the file."""
    from sdpalab.evidence.workload import read_workload

    options = dtype is not None or causal or any(size is not None for size in sizes.values())
    if file is not None and options and not shapes:
        raise UserError("--dtype, --causal, --kv-heads and --seq-kv are for --shape; in a file each line has its own")
    texts = shapes or ([] if file is not None else ["mission"])
    found = [problem_of(text, dtype=dtype, causal=causal, **sizes) for text in texts]
    return tuple(dict.fromkeys([*found, *(read_workload(file) if file is not None else ())]))


def _named(names: Sequence[str]) -> list[Kernel]:
    """The kernels that were asked for; raises UserError for one that the op would never run."""
    from sdpalab.evidence.proven import exactness_reason
    from sdpalab.kernels.registry import get
    from sdpalab.kernels.userfile import is_user_file

    made = []
    for name in dict.fromkeys(names):
        if is_user_file(name):
            raise UserError(
                f"prove takes shipped kernels; judge your own on the GPU with: sdpalab judge {name} --device gpu"
            )
        kernel = get(name)
        reason = exactness_reason(name, str(kernel.default_config))
        if reason is not None:
            raise UserError(f"{reason}; judge it with: sdpalab judge {name} --device gpu")
        made.append(kernel)
    return made


def _open() -> tuple[GpuExecutor, Machine]:
    """This machine's GPU; raises UserError where there is none, or torch does not see it."""
    import torch

    from sdpalab.evidence.choice import Machine
    from sdpalab.run import GpuExecutor, gpu_problem, torch_gpu
    from sdpalab.run.driver_version import driver_version

    if problem := gpu_problem():
        raise UserError(
            f"prove judges kernels on a GPU, and there is none here: {problem}; sdpalab judge has a simulator"
        )
    if not torch_gpu.available():
        raise UserError(
            "torch sees no GPU here, so scaled_dot_product_attention can run no kernel: install torch's CUDA build"
        )
    executor = GpuExecutor()
    return executor, Machine(executor.device, driver_version(), torch.__version__, torch_gpu.properties(0).sm_count)


def _attempts(
    named: Sequence[Kernel], problems: Sequence[Problem], executor: GpuExecutor
) -> tuple[list[_Attempt], list[str]]:
    """Each kernel with the problems that it takes, and why others are skipped.

    Raises
    ------
    UserError
        If a kernel that was named does not take a problem or the GPU, or no kernel takes any problem.
    """
    from sdpalab.evidence.proven import exactness_reason
    from sdpalab.kernels.registry import KERNELS, get, needs

    skipped = []
    chosen = list(named)
    if not named:
        for name in KERNELS:
            why = needs(name) or exactness_reason(name, str(get(name).default_config))
            if why:
                skipped.append(why)
            else:
                chosen.append(get(name))
    attempts = []
    for kernel in chosen:
        refused = kernel.arch_reason(executor.arch)
        reasons = {problem: refused or kernel.reject_reason(problem) for problem in problems}
        wrong = list(dict.fromkeys(reason for reason in reasons.values() if reason))
        if wrong and named:
            raise UserError(wrong[0])
        skipped += wrong
        taken = tuple(problem for problem in problems if reasons[problem] is None)
        if taken:
            attempts.append(_Attempt(kernel, taken))
    if not attempts:
        raise UserError(f"no kernel can be proven for these shapes on {executor.device}: {'; '.join(skipped)}")
    return attempts, skipped


def _judge(console: Console, attempt: _Attempt, executor: GpuExecutor, machine: Machine, level: str, seed: int) -> None:
    """Judge a kernel on all its problems, and keep what came of it, good or bad."""
    from sdpalab.evidence.kept import keep
    from sdpalab.judge import judge_candidate
    from sdpalab.judge.cases import cases_for

    start = clock.monotonic()
    kernel = attempt.kernel
    specs = cases_for(level, attempt.problems, seed=seed)
    try:
        with CaseProgress(progress_console(), f"judging {kernel.name}", len(specs)) as progress:
            verdict = judge_candidate(
                kernel.name,
                specs,
                device="gpu",
                arch=executor.arch,
                level=level,
                seed=seed,
                progress=progress.finished,
            )
    except UserError as error:
        attempt.failure = str(error)
        console.print(verdict_text(False, f"{kernel.name}: no verdict: {error}"), soft_wrap=True)
        return
    attempt.verdict = verdict
    print_outcome(console, verdict, clock.monotonic() - start)
    if not verdict.passed:
        console.print(verdict.reason, soft_wrap=True)
    if _machine_failed(attempt):
        return
    attempt.record = keep(_record(attempt, executor, machine), kernel.name)
    console.print(f"kept in {attempt.record}", soft_wrap=True)


def _record(attempt: _Attempt, executor: GpuExecutor, machine: Machine) -> Any:
    """The verdict as it is kept, with a record of every build that it ran.

    Raises
    ------
    MachineError
        If a build of this process is not the one that ran: nothing was kept of the latter.
    """
    from sdpalab.build import build
    from sdpalab.evidence import built_module
    from sdpalab.evidence.kept import sealed
    from sdpalab.evidence.records import AttemptRecord, VerdictRecord

    verdict, kernel = attempt.verdict, attempt.kernel
    assert verdict is not None
    made: Mapping[str, Any] = {}
    for case in verdict.cases:
        for step in kernel.launch_plan(case.problem, sms=machine.sms).launches:
            assert step.module is not None, "a launch plan names the module of every step"
            built = build(step.module, executor.arch)
            made = {**made, built.ptx_sha256: (step.module, built)}
    ran = {digest for case in verdict.cases for digest in case.run.get("ptx_sha256", ())}
    if not ran <= made.keys():
        raise MachineError(
            f"what was judged of {kernel.name} is not what it builds to in this process: the build cache kept nothing"
        )
    return sealed(
        gpu=machine.gpu,
        driver=machine.driver,
        code={digest: built.code_sha256 for digest, (_, built) in made.items()},
        attempt=AttemptRecord(
            kernel=kernel.name,
            config=verdict.config,
            idea=kernel.idea,
            builds=tuple(
                built_module(module, built).record(f"build/{number:02d}-{kernel.name}")
                for number, (module, built) in enumerate(made.values())
            ),
            verdict=VerdictRecord.of(verdict),
        ),
    )


def _time(
    console: Console,
    attempts: Sequence[_Attempt],
    problems: Sequence[Problem],
    executor: GpuExecutor,
    machine: Machine,
    seconds: float,
) -> list[Path]:
    """Time what passed beside torch by the eager clock, a record for each problem; returns where they are."""
    from sdpalab.commands.bench import show_session
    from sdpalab.evidence.kept import keep, sealed
    from sdpalab.evidence.measured import bench_record
    from sdpalab.evidence.timings import TORCH, code_of
    from sdpalab.measure.benchmark import benchmark, cuda_device
    from sdpalab.measure.peers import peers_named
    from sdpalab.measure.samples import ClockKind
    from sdpalab.measure.stopping import StoppingRule

    device, rule, peers = cuda_device(), StoppingRule(seconds=seconds), peers_named([TORCH])
    kept = []
    for problem in problems:
        passed = [each for each in attempts if each.verdict and each.verdict.passed and problem in each.problems]
        if not passed:
            console.print(f"not timed: no kernel passed that takes {problem.label}", soft_wrap=True)
            continue
        kernels = [(each.kernel, each.kernel.default_config) for each in passed]
        with progress_console().status(f"timing {problem.label}"):
            session = benchmark(problem, peers, kernels, device, clock=ClockKind.EAGER, rule=rule, executor=executor)
        result = show_session(console, device.name, problem, ClockKind.EAGER, session)
        result["code"] = {
            kernel.name: code_of(kernel, config, problem, executor.arch, machine.sms) for kernel, config in kernels
        }
        times = bench_record(machine.gpu, [_judged(each) for each in passed], [result])
        path = keep(sealed(gpu=machine.gpu, driver=machine.driver, bench=times), "times")
        console.print(f"kept in {path}", soft_wrap=True)
        kept.append(path)
    return kept


def _judged(attempt: _Attempt) -> dict[str, Any]:
    """What a record of times says of a kernel's verdict, as ``bench`` does where a record proves it."""
    config, record = str(attempt.kernel.default_config), attempt.record
    proven_by = [f"{record.parent.name}/{record.name}"] if record else []
    return {"kernel": attempt.kernel.name, "config": config, "passed": True, "proven_by": proven_by}


def _machine_failed(attempt: _Attempt) -> bool:
    from sdpalab.judge.verdict import Status

    return attempt.verdict is not None and attempt.verdict.status is Status.INFRA_ERROR


def _exit_code(attempts: Sequence[_Attempt]) -> int:
    """0 if all passed; 3 if the machine failed for all that did not; otherwise 1."""
    bad = [attempt for attempt in attempts if attempt.verdict is None or not attempt.verdict.passed]
    if not bad:
        return 0
    return 3 if all(_machine_failed(attempt) for attempt in bad) else 1
