"""``sdpalab judge``: does a kernel compute attention?"""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from sdpalab.commands.common import (
    JsonOption,
    SetOption,
    console_for,
    parse_settings,
    problem_of,
    progress_console,
    table,
    verdict_text,
    write_json,
)
from sdpalab.errors import MachineError, UserError
from sdpalab.judge.verdict import Case, Status, Verdict

__all__ = ["CaseProgress", "judge", "print_outcome"]


def judge(
    kernel: Annotated[
        str, typer.Argument(metavar="KERNEL", help="A shipped kernel's name, or your own as FILE.py or FILE.py:NAME.")
    ],
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="B,H,S,D",
            help="What to judge it on, or a name such as mission; may be repeated. Default: the twelve cases.",
        ),
    ] = None,
    dtype: Annotated[str | None, typer.Option(metavar="T", help="float16 or bfloat16.")] = None,
    causal: Annotated[bool, typer.Option("--causal", help="Query i sees keys 0 to i.")] = False,
    device: Annotated[str, typer.Option(metavar="D", help="auto, sim, cpu or gpu.")] = "auto",
    level: Annotated[str, typer.Option(metavar="L", help="How much is judged: quick.")] = "quick",
    kv_heads: Annotated[int | None, typer.Option(metavar="N", help="Heads of K and V; with --shape.")] = None,
    seq_kv: Annotated[int | None, typer.Option(metavar="N", help="Length of K and V; with --shape.")] = None,
    settings: SetOption = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the inputs for --shape.")] = 0,
    json: JsonOption = None,
) -> int:
    """Run a kernel in a process of its own and hold what it computes against float64."""
    from sdpalab.judge import judge_candidate, quick_cases, twelve_cases

    console = console_for(json)
    if level == "full":
        raise UserError("--level full is not built yet; --level quick is what there is")
    if level != "quick":
        raise UserError(f"--level takes quick, not {level!r}")
    if seed < 0:
        raise UserError(f"--seed takes a number from 0 up, not {seed}")
    if shape:
        problems = [problem_of(text, dtype=dtype, causal=causal, kv_heads=kv_heads, seq_kv=seq_kv) for text in shape]
        specs = quick_cases(problems, seed=seed)
    elif kv_heads is not None or seq_kv is not None:
        raise UserError("--kv-heads and --seq-kv need a --shape: the twelve cases have their own")
    else:
        specs = twelve_cases(dtype=dtype or "float16", causal=causal)

    start = time.monotonic()
    with CaseProgress(progress_console(), kernel, len(specs)) as progress:
        verdict = judge_candidate(
            kernel,
            specs,
            device=device,
            config=parse_settings(settings) or None,
            level=level,
            seed=seed,
            progress=progress.finished,
        )
    _print_cases(console, verdict)
    print_outcome(console, verdict, time.monotonic() - start)
    write_json(json, verdict.to_dict())
    bad = {case.status for case in verdict.cases if not case.passed}
    if not verdict.passed and bad <= {Status.INFRA_ERROR}:
        raise MachineError(verdict.reason)
    if not verdict.passed and bad <= {Status.UNSUPPORTED, Status.BUILD_FAILED}:
        raise UserError(verdict.reason)
    return 0 if verdict.passed else 1


def _print_cases(console: Console, verdict: Verdict) -> None:
    """A row a case: status, each error with its share of the limit, the worst row; then the reasons."""
    title = " ".join(filter(None, (verdict.kernel, verdict.config)))
    heads = ("max error", "of limit", "rel L2", "of limit ", "worst row", "of limit  ")
    shown = table(f"{title} on {verdict.device}", ("case", "status", *heads, "at (b,h,i)"), numeric=heads)
    for case in verdict.cases:
        shown.add_row(case.name, verdict_text(case.passed, case.status.value), *_figures(case))
    console.print(shown)
    for case in verdict.cases:
        if not case.passed:
            console.print(f"{case.name}: {case.status.value}: {case.reason}", soft_wrap=True)


def print_outcome(console: Console, verdict: Verdict, seconds: float) -> None:
    """The verdict in one line."""
    passed = sum(case.passed for case in verdict.cases)
    outcome = f"{passed} of {len(verdict.cases)} cases passed on {verdict.device} in {seconds:.1f} s"
    line = f"{verdict.status.value}: {verdict.kernel}, {outcome}"
    console.print(verdict_text(verdict.passed, line), soft_wrap=True)


def _figures(case: Case) -> tuple[str, ...]:
    if case.errors is None:
        return ("-",) * 7
    cells: list[str] = []
    for name in ("max_abs", "rel_l2", "worst_row_rel_l2"):
        error = getattr(case.errors, name)
        limit = getattr(case.limits, name) if case.limits else 0.0
        cells += [f"{error:.2e}", _share(error, limit)]
    return (*cells, ",".join(map(str, case.errors.worst_row)))


def _share(error: float, limit: float) -> str:
    """An error as a percentage of its limit, or as a multiple where that reads better."""
    if not limit:
        return "-"
    return f"{error / limit:.0%}" if error < 10 * limit else f"{error / limit:,.0f}x"


class CaseProgress:
    """Progress over the cases: a bar on a terminal, and a line for each finished case if ``lines``."""

    def __init__(self, console: Console, label: str, total: int, *, lines: bool = False) -> None:
        self._console, self._lines = console, lines
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(f"judging {label}", total=total)

    def __enter__(self) -> CaseProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def finished(self, case: Case) -> None:
        """Count one finished case."""
        self._bar.advance(self._task)
        if self._lines:
            max_abs, share, _, rel_l2_share, _, row_share, _ = _figures(case)
            figures = f"max error {max_abs}, {share} of its limit; rel L2 {rel_l2_share}; worst row {row_share}"
            said = figures if case.passed else case.reason
            line = Text.assemble(verdict_text(case.passed, f"{case.status.value:9}"), f" {case.name:24} {said}")
            self._console.print(line, soft_wrap=True)
