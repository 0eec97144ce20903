"""``sdpalab prove``: judge and time kernels on this machine's GPU, for ``scaled_dot_product_attention`` to run them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sdpalab.commands.common import conclude, verdict_text
from sdpalab.commands.invocation import OUTCOMES, console_and_subject, write_document
from sdpalab.commands.option_groups import ConfinementOptions
from sdpalab.commands.options import (
    JsonOption,
    LevelOption,
    SeedOption,
    at_least,
    shapes,
)
from sdpalab.commands.problem_options import ProblemOptions, problems_of
from sdpalab.commands.proving import Attempt, judge_attempt, machine_failed, time_attempts
from sdpalab.errors import UserError
from sdpalab.problem import Problem

if TYPE_CHECKING:
    from sdpalab.evidence.choice import GpuPlatform
    from sdpalab.kernels.kernel import Config, Kernel
    from sdpalab.run import GpuExecutor

__all__ = ["prove"]


def prove(
    kernel: Annotated[
        list[str] | None,
        typer.Argument(metavar="KERNEL", help="Shipped kernels. Default: all that this GPU runs, as exact as torch."),
    ] = None,
    shape: Annotated[list[str] | None, shapes("What to prove them for", "mission")] = None,
    *,
    described: ProblemOptions,
    shapes_from: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A problem a line, as '1,8,512,64 causal kv_heads=2' or a JSON object."),
    ] = None,
    time: Annotated[
        bool, typer.Option("--time", help="Time what passes beside torch; without a time none runs.")
    ] = False,
    seconds: Annotated[float, typer.Option(metavar="S", help="Most seconds of timing for one shape.")] = 10.0,
    level: LevelOption = "quick",
    seed: SeedOption = 0,
    confined: ConfinementOptions,
    json: JsonOption = None,
) -> int:
    """Judge kernels on this GPU, and keep the verdicts: the op runs a kernel where they and a time allow it."""
    from sdpalab.evidence.choice import choose, forget
    from sdpalab.evidence.folders import proofs_folder
    from sdpalab.evidence.kept import check_writable
    from sdpalab.judge.cases import LEVELS

    console = console_and_subject(json, ", ".join(kernel or ()))
    problems = _problems(shape, shapes_from, described)
    if level not in LEVELS:
        raise UserError(f"--level takes {' or '.join(LEVELS)}, not {level!r}")
    at_least("--seed", seed, 0)
    named = _named(kernel or ())
    executor, machine = _open()
    attempts, skipped = _attempts(named, problems, executor)
    check_writable()
    about = f"{machine.gpu}, driver {machine.driver}, torch {machine.torch}; records go to {proofs_folder()}"
    console.print(about, soft_wrap=True)
    for attempt in attempts:
        judge_attempt(console, attempt, executor, machine, level, seed)
    times, timed = time_attempts(console, attempts, problems, executor, machine, seconds) if time else ([], True)
    for reason in skipped:
        console.print(f"skipped: {reason}", soft_wrap=True)
    forget()
    choices = {problem: choose(problem, machine) for problem in problems}
    for problem, choice in choices.items():
        runs = choice.kernel.proof.kernel if choice.kernel else "torch"
        line = f"{problem.label}: scaled_dot_product_attention runs {runs}: {choice.reason}"
        conclude(console, verdict_text(True if choice.kernel else None, line))
    code = _exit_code(attempts) or (0 if timed else 1)
    write_document(
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
        status=OUTCOMES[code],
    )
    return code


def _problems(texts: Sequence[str] | None, file: Path | None, described: ProblemOptions) -> tuple[Problem, ...]:
    """What is to be proven, each once: the shapes, with the options, and then those of the file."""
    from sdpalab.evidence.workload import read_workload

    if file is not None and described.given and not texts:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in described.given)
        raise UserError(f"{names} is for --shape; in a file each line has its own")
    default = None if file is not None else "mission"
    problems = problems_of(texts, described, default=default)
    listed = read_workload(file) if file is not None else ()
    return tuple(dict.fromkeys([*problems, *listed]))


def _named(names: Sequence[str]) -> list[Kernel]:
    """The named kernels; raises UserError for one that the op would never run."""
    from sdpalab.evidence.proven import exactness_reason
    from sdpalab.kernels.registry import get
    from sdpalab.kernels.userfile import is_user_file

    kernels = []
    for name in dict.fromkeys(names):
        if is_user_file(name):
            raise UserError(
                f"prove takes shipped kernels; judge your own on the GPU with: sdpalab judge {name} --device gpu"
            )
        kernel = get(name)
        reason = exactness_reason(name, str(kernel.default_config))
        if reason is not None:
            raise UserError(f"{reason}; judge it with: sdpalab judge {name} --device gpu")
        kernels.append(kernel)
    return kernels


def _tuned(kernel: Kernel, problems: Sequence[Problem], device: str) -> list[tuple[Kernel, tuple[Problem, ...]]]:
    """The kernel with each configuration that is its default on the GPU, tuned or not, and the problems of each."""
    from sdpalab.gpus import gpu_of_device
    from sdpalab.kernels.tuned import tuned_kernel

    gpu = gpu_of_device(device)
    groups: dict[Config, tuple[Kernel, list[Problem]]] = {}
    for problem in problems:
        tuned = kernel if gpu is None else tuned_kernel(kernel, problem, gpu.name)
        groups.setdefault(tuned.default_config, (tuned, []))[1].append(problem)
    return [(tuned, tuple(group)) for tuned, group in groups.values()]


def _open() -> tuple[GpuExecutor, GpuPlatform]:
    """This machine's GPU; raises UserError where there is none, or torch does not find it."""
    import torch

    from sdpalab.evidence.choice import GpuPlatform
    from sdpalab.run import GpuExecutor, gpu_problem, torch_gpu
    from sdpalab.run.driver_version import driver_version

    if problem := gpu_problem():
        raise UserError(
            f"prove judges kernels on a GPU, and there is none here: {problem}; sdpalab judge has a simulator"
        )
    if not torch_gpu.available():
        raise UserError(
            "torch finds no GPU here, so scaled_dot_product_attention can run no kernel: install torch's CUDA build"
        )
    executor = GpuExecutor()
    return executor, GpuPlatform(executor.device, driver_version(), torch.__version__, torch_gpu.properties(0).sm_count)


def _attempts(
    named: Sequence[Kernel], problems: Sequence[Problem], executor: GpuExecutor
) -> tuple[list[Attempt], list[str]]:
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
        attempts += [Attempt(tuned, of_it) for tuned, of_it in _tuned(kernel, taken, executor.device)]
    if not attempts:
        raise UserError(f"no kernel can be proven for these shapes on {executor.device}: {'; '.join(skipped)}")
    return attempts, skipped


def _exit_code(attempts: Sequence[Attempt]) -> int:
    """0 if all passed; 3 if the machine failed for all others; otherwise 1."""
    bad = [attempt for attempt in attempts if not attempt.passed]
    if not bad:
        return 0
    return 3 if all(machine_failed(attempt) for attempt in bad) else 1
