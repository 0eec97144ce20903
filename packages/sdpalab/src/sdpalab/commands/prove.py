"""``sdpalab prove``: judge and time kernels on this machine's GPU, for ``scaled_dot_product_attention`` to run them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sdpalab.commands.bench import show_session
from sdpalab.commands.judge import print_outcome
from sdpalab.commands.option_groups import ConfinementOptions
from sdpalab.commands.options import LevelOption, SeedOption, shapes
from sdpalab.commands.problem_options import ProblemOptions, problems_of
from sdpalab.commands.progress import CaseProgress
from sdpalab.errors import UserError
from sdpalab.evidence.prove import ProveAttempt, ProveObserver
from sdpalab.judge.verdict import Case
from sdpalab.problem import Problem
from warpsan.terminal.console import conclude, progress_console, verdict_text
from warpsan.terminal.invocation import OUTCOMES, console_and_subject, write_document
from warpsan.terminal.options import JsonOption, at_least

if TYPE_CHECKING:
    from sdpalab.evidence.store.choice import GpuPlatform
    from sdpalab.evidence.store.record import SampledRecord
    from sdpalab.measure.session import MeasuredSession

__all__ = ["prove"]


def prove(
    kernel: Annotated[
        list[str] | None,
        typer.Argument(metavar="KERNEL", help="Shipped kernels. Default: all that this GPU runs, as exact as torch."),
    ] = None,
    shape: Annotated[list[str] | None, shapes("Problem to prove them for", "mission")] = None,
    *,
    described: ProblemOptions,
    shapes_from: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A trace, or a problem a line: '1,8,512,64 causal kv_heads=2' or JSON."),
    ] = None,
    time: Annotated[
        bool, typer.Option("--time", help="Time passed kernels against torch; the op requires a time.")
    ] = False,
    seconds: Annotated[
        float, typer.Option(metavar="S", help="Most seconds of timing for one shape and kind of inputs.")
    ] = 10.0,
    level: LevelOption = "quick",
    seed: SeedOption = 0,
    confined: ConfinementOptions,
    json: JsonOption = None,
) -> int:
    """Judge kernels on this GPU, and store the verdicts: the op runs a kernel if verdict and time allow it."""
    from sdpalab.evidence.prove import prove as prove_kernels
    from sdpalab.evidence.store.trace import function_of
    from sdpalab.judge.cases import LEVELS

    console = console_and_subject(json, ", ".join(kernel or ()))
    problems = _problems(shape, shapes_from, described)
    if level not in LEVELS:
        raise UserError(f"--level takes {' or '.join(LEVELS)}, not {level!r}")
    at_least("--seed", seed, 0)
    result = prove_kernels(
        kernel or (), problems, time=time, seconds=seconds, level=level, seed=seed, observer=_Printed(console)
    )
    for reason in result.skipped:
        console.print(f"skipped: {reason}", soft_wrap=True)
    for problem, choice in result.choices.items():
        runs = choice.kernel.certificate.kernel if choice.kernel else "torch"
        line = f"{problem.label}: {function_of(problem)} runs {runs}: {choice.reason}"
        conclude(console, verdict_text(True if choice.kernel else None, line))
    code = 0 if result.passed else 3 if result.machine_failed else 1
    write_document(json, result.to_dict(), status=OUTCOMES[code])
    return code


def _problems(texts: Sequence[str] | None, file: Path | None, described: ProblemOptions) -> tuple[Problem, ...]:
    """The distinct problems to prove: the shapes, with the options, and then those of the file."""
    from sdpalab.evidence.store.workload import read_workload

    if file is not None and described.given and not texts:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in described.given)
        raise UserError(f"{names} is for --shape; in a file each line has its own")
    default = None if file is not None else "mission"
    problems = problems_of(texts, described, default=default, layouts=False)
    listed = read_workload(file) if file is not None else ()
    return tuple(dict.fromkeys([*problems, *listed]))


class _Printed(ProveObserver):
    """Prints each step."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._since = 0.0

    def begun(self, machine: GpuPlatform, folder: Path) -> None:
        about = f"{machine.gpu}, driver {machine.driver}, torch {machine.torch}; records go to {folder}"
        self._console.print(about, soft_wrap=True)

    @contextmanager
    def judging(self, kernel: str) -> Iterator[tuple[Callable[[str, int], None] | None, Callable[[Case], None] | None]]:
        self._since = time.monotonic()
        with CaseProgress(f"judging {kernel}") as progress:
            yield progress.started, progress.finished

    def judged(self, attempt: ProveAttempt) -> None:
        if attempt.verdict is None:
            line = f"{attempt.kernel.name}: no verdict: {attempt.failure}"
            self._console.print(verdict_text(False, line), soft_wrap=True)
            return
        print_outcome(self._console, attempt.verdict, time.monotonic() - self._since)
        if not attempt.verdict.passed:
            self._console.print(attempt.verdict.reason, soft_wrap=True)

    def sampled(self, attempt: ProveAttempt, record: SampledRecord) -> None:
        about = f"{attempt.kernel.name}: {record.problem.label} has the code of {record.small.label}"
        line = f"{about}; {record.rows} rows of each head: {record.wrong or 'right'}"
        self._console.print(verdict_text(not record.wrong, line), soft_wrap=True)

    def not_sampled(self, attempt: ProveAttempt, problem: Problem, reason: str) -> None:
        self._console.print(f"{problem.label} is not proven for {attempt.kernel.name}: {reason}", soft_wrap=True)

    def stored(self, path: Path) -> None:
        self._console.print(f"kept in {path}", soft_wrap=True)

    @contextmanager
    def timing(self, problem: Problem, inputs: str) -> Iterator[None]:
        with progress_console().status(f"timing {problem.label} on {inputs} inputs"):
            yield

    def timed(self, device: str, problem: Problem, inputs: str, session: MeasuredSession) -> None:
        from sdpalab.measure.samples import ClockKind

        show_session(self._console, device, problem, ClockKind.EAGER, session, inputs)

    def not_timed(self, problem: Problem) -> None:
        self._console.print(f"not timed: no kernel passed that takes {problem.label}", soft_wrap=True)
