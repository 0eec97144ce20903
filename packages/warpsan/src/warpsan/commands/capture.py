"""``warpsan capture``: a CUDA program's launches as a launch file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from warpsan.commands.run import FillOption, GpuOption, MemoryOption, TimeoutOption, print_outcome, program_options
from warpsan.errors import UserError
from warpsan.terminal.console import progress_console
from warpsan.terminal.invocation import INVOCATION
from warpsan.terminal.options import JsonOption, MaxStepsOption, at_least

__all__ = ["capture"]


def capture(
    program: Annotated[str, typer.Argument(metavar="PROGRAM", help="Program linked with nvcc -cudart shared.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARG]...", help="Arguments of the program.")] = None,
    out: Annotated[
        str, typer.Option("-o", "--out", metavar="DIR", help="Folder for PTX, buffers and launch file.")
    ] = "case",
    kernel: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD", help="Only kernels with this word in their name; may be repeated."),
    ] = None,
    most: Annotated[int, typer.Option(metavar="N", help="Maximum number of captured launches.")] = 100,
    gpu: GpuOption = None,
    max_steps: MaxStepsOption = None,
    memory: MemoryOption = 16,
    fill: FillOption = "poison",
    timeout: TimeoutOption = None,
    json: JsonOption = None,
) -> int:
    """Run a CUDA program like ``run``, and write a launch file that ``sanitize`` can repeat.

    The program runs with your rights: it is not confined.
    """
    from warpsan.program import run_program

    INVOCATION.subject = program
    at_least("--most", most, 1)
    options = program_options(gpu, "lockstep", "late", False, 0, max_steps, memory, fill, timeout)
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: {error.strerror}") from None
    options = replace(options, capture=folder, kernels=tuple(kernel or ()), most_launches=most)
    outcome = run_program([program, *(arguments or [])], options)
    console = progress_console()
    for written in outcome.captured:
        console.print(f"captured: {INVOCATION.tool.name} sanitize {Path(written).with_suffix('.ptx')}", soft_wrap=True)
    if outcome.left_out:
        console.print(f"note: {outcome.left_out} launches are left out; --most captures more")
    if not outcome.captured:
        console.print("note: there was no launch to capture")
    return print_outcome(outcome, json)
