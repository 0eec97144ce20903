"""``warpsan run``: a CUDA program, or a Python program with Triton kernels, with the simulator in place of a GPU."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from warpsan.errors import UserError
from warpsan.gpus import gpu_named
from warpsan.terminal.console import conclude, console_for, verdict_text
from warpsan.terminal.hazards import count_of, print_hazards
from warpsan.terminal.invocation import INVOCATION, write_document
from warpsan.terminal.options import JsonOption, MaxStepsOption, at_least

if TYPE_CHECKING:
    from warpsan.program import ProgramOutcome, RunOptions

__all__ = ["print_outcome", "program_options", "run"]

GpuOption = Annotated[
    str | None,
    typer.Option(
        metavar="GPU",
        help="Simulated GPU, such as L4 or H200. Default: by the newest PTX in the program; H200 for Python.",
    ),
]
ScheduleOption = Annotated[
    str, typer.Option(metavar="ORDER", help="Order of the warps: lockstep, forward, reverse or random.")
]
AsyncOption = Annotated[str, typer.Option(metavar="WHEN", help="Completion of asynchronous copies: early or late.")]
StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Also report accesses outside the buffer of their pointer, and mbarriers for copies without "
        "fence.mbarrier_init.",
    ),
]
RandomSeedOption = Annotated[int, typer.Option(metavar="N", help="Seed of the random order.")]
MemoryOption = Annotated[
    int, typer.Option(metavar="GIB", help="Size of device memory; unused pages take no host memory.")
]
FillOption = Annotated[
    str,
    typer.Option(
        metavar="poison|zeros",
        help="Content of unwritten device memory: NaN, or zeros, which GPUs often have.",
    ),
]
TimeoutOption = Annotated[float | None, typer.Option(metavar="S", help="Time limit of the program in seconds.")]


def run(
    program: Annotated[
        str, typer.Argument(metavar="PROGRAM", help="Program linked with nvcc -cudart shared, or a Python file (.py).")
    ],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARG]...", help="Arguments of the program.")] = None,
    gpu: GpuOption = None,
    schedule: ScheduleOption = "lockstep",
    async_mode: AsyncOption = "late",
    strict: StrictOption = False,
    seed: RandomSeedOption = 0,
    max_steps: MaxStepsOption = None,
    memory: MemoryOption = 16,
    fill: FillOption = "poison",
    timeout: TimeoutOption = None,
    json: JsonOption = None,
) -> int:
    """Run a CUDA program without a GPU: its kernels run on the simulator, and hazards are reported by source line.

    A Python file (.py) runs with the simulator as Triton's GPU.

    The program runs with your rights, like on a GPU: it is not confined. Its output is unchanged; the report is on
    standard error.
    """
    from warpsan.program import run_program

    INVOCATION.subject = program
    options = program_options(gpu, schedule, async_mode, strict, seed, max_steps, memory, fill, timeout)
    outcome = run_program([program, *(arguments or [])], options)
    return print_outcome(outcome, json)


def program_options(
    gpu: str | None,
    schedule: str,
    async_mode: str,
    strict: bool,
    seed: int,
    max_steps: int | None,
    memory: int,
    fill: str,
    timeout: float | None,
) -> RunOptions:
    """Options of a run from the command line.

    Raises
    ------
    UserError
        If an option is invalid.
    """
    from warpsan.host.device import FILLS
    from warpsan.host.options import SCHEDULES
    from warpsan.program import RunOptions

    if schedule not in SCHEDULES:
        raise UserError(f"--schedule takes {', '.join(SCHEDULES)}, not {schedule!r}")
    if async_mode not in ("early", "late"):
        raise UserError(f"--async-mode takes early or late, not {async_mode!r}")
    if fill not in FILLS:
        raise UserError(f"--fill takes {' or '.join(FILLS)}, not {fill!r}")
    at_least("--seed", seed, 0)
    at_least("--max-steps", max_steps, 1)
    at_least("--memory", memory, 1)
    chosen = gpu_named(gpu) if gpu is not None else None
    return RunOptions(
        gpu=chosen,
        arch=chosen.arch if chosen is not None else "",
        memory=memory * 2**30,
        fill=fill,
        schedule=schedule,
        async_mode=async_mode,
        strict=strict,
        seed=seed,
        max_steps=max_steps,
        seconds=timeout,
        report=lambda sentence: print(f"{INVOCATION.tool.name}: {sentence}", file=sys.stderr, flush=True),
    )


def print_outcome(outcome: ProgramOutcome, json: str | None) -> int:
    """Print the report of a run, write its document, and return the exit code.

    Raises
    ------
    UserError
        If the simulator could not run the whole program.
    """
    console = console_for("-")  # standard error: standard output belongs to the program
    print_hazards(console, outcome.hazards, outcome.operations, unit="operation")
    for note in outcome.notes:
        console.print(f"note: {note}", soft_wrap=True)
    if outcome.exit_code:
        ended = f"signal {-outcome.exit_code}" if outcome.exit_code < 0 else f"exit code {outcome.exit_code}"
        console.print(f"the program ended with {ended}")
    many = f"{outcome.launches} launch{'es' if outcome.launches != 1 else ''} on a simulated {outcome.gpu}"
    calls = len(outcome.problems)
    failed = f", {calls} call{'s' if calls > 1 else ''} failed" if calls else ""
    line = f"{'clean' if outcome.clean else 'HAZARDS' if outcome.hazards else 'FAILED'}: {count_of(outcome.hazards)}"
    conclude(console, verdict_text(outcome.clean, f"{line} in {many}{failed}"))
    if outcome.fatal:
        raise UserError(outcome.fatal)
    write_document(json, outcome.to_dict(), status="PASSED" if outcome.clean else "FAILED")
    return 0 if outcome.clean else 1
