"""``sdpalab repro``: the main job. Pre-flight, then for each kernel build, gate and judge; a bundle and a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sdpalab.commands.bundling import print_bundle
from sdpalab.commands.judge import print_outcome
from sdpalab.commands.option_groups import ConfinementOptions
from sdpalab.commands.options import KERNEL_HELP, IncludeOption, SignOption, include_dirs_of
from sdpalab.commands.problem_options import KvHeadsOption, ProblemOptions, SeqKvOption, problems_of
from sdpalab.commands.progress import CaseProgress
from sdpalab.evidence.kernel_runs import CaseStarted, KernelRun
from sdpalab.evidence.preparing import PreparedKernel
from sdpalab.evidence.repro import ReproObserver, ReproResult
from warpsan.terminal.checks import print_checks
from warpsan.terminal.console import INTERRUPTED, conclude, verdict_text
from warpsan.terminal.invocation import OUTCOMES, command_line, console_and_subject, write_document
from warpsan.terminal.options import JsonOption, NumericsOption, checked_numerics
from warpsan.terminal.tables import show_table, table

if TYPE_CHECKING:
    from sdpalab.compile.building import BuiltStep
    from warpsan.doctor import Check

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
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the bundle and the report.")] = Path("out"),
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
    sign: SignOption = None,
    *,
    confined: ConfinementOptions,
    json: JsonOption = None,
) -> int:
    """The main job: build, gate and judge kernels on the twelve cases and the probes; leaves a bundle and a report."""
    from sdpalab.evidence import repro as job

    asked = list(dict.fromkeys([*(named or ()), *(kernel or ())]))
    console = console_and_subject(json, ", ".join(asked))
    large = problems_of(also_for, ProblemOptions(kv_heads=kv_heads, seq_kv=seq_kv), default=None)
    result = job.repro(
        asked,
        device=device,
        also_for=None if also_for is None else large,
        out=out,
        case_seconds=case_seconds,
        numerics=checked_numerics(numerics),
        include_dirs=include_dirs_of(include, *asked),
        sign=sign,
        command=command_line(),
        observer=_PrintedRepro(console, case_seconds),
    )
    print_bundle(console, result.bundle)
    for why in result.skipped.values():
        console.print(f"skipped: {why}", soft_wrap=True)
    _summary(console, result)
    if result.interrupted:
        left = result.unjudged
        console.print(f"interrupted{': not judged: ' if left else ''}{', '.join(left)}", soft_wrap=True)
    code = INTERRUPTED if result.interrupted else 0 if result.passed else 3 if result.machine_failed else 1
    write_document(json, result.to_dict(), status=OUTCOMES[code])
    return code


class _PrintedRepro(ReproObserver):
    """Prints each step."""

    def __init__(self, console: Console, case_seconds: float | None) -> None:
        self._console, self._case_seconds = console, case_seconds

    def preflight(self) -> None:
        _headline(self._console, "Pre-flight")

    def examined(self, checks: Sequence[Check]) -> None:
        print_checks(self._console, checks)

    def kernel(self, run: KernelRun) -> None:
        console, subject = self._console, run.subject
        _headline(console, f"Kernel {subject.name}")
        console.print(subject.idea, soft_wrap=True)
        with CaseProgress(f"judging {subject.name}", lines=console, seconds=self._case_seconds) as progress:
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

    def bundling(self) -> None:
        _headline(self._console, "Evidence")


def _print_build(console: Console, step: BuiltStep) -> None:
    """Print one line: the build, its resources, the result of the gate."""
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


def _summary(console: Console, result: ReproResult) -> None:
    """Print a row per kernel, and, as the last line, the outcome of all with the device."""
    shown = table("", ("kernel", "gate", "verdict", "cases", "seconds"), numeric=("cases", "seconds"))
    for attempt in result.attempts:
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
    good, tried = sum(attempt.passed for attempt in result.attempts), len(result.attempts)
    ran = f"run on {result.gpu}" if result.gpu else "none was run on a GPU"
    line = f"{good} of {tried} kernels passed gate and judge in {result.seconds:.1f} s; {ran}"
    conclude(console, verdict_text(good == tried, line))
