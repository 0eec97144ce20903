"""``sdpalab torch-matrix``: did the kernel change, or the reference?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from sdpalab.commands.option_groups import ConfinementOptions
from sdpalab.commands.options import KernelArgument, SeedOption, SetOption, parse_settings, shapes
from sdpalab.commands.problem_options import ProblemOptions, problems_of
from sdpalab.errors import MachineError
from sdpalab.problem import Problem
from warpsan.terminal.console import conclude as say_end
from warpsan.terminal.console import progress_console, verdict_text
from warpsan.terminal.invocation import console_and_subject, write_document
from warpsan.terminal.options import JsonOption, at_least
from warpsan.terminal.tables import show_table, table

if TYPE_CHECKING:
    from sdpalab.judge.cases import CaseSpec

__all__ = ["torch_matrix"]


def torch_matrix(
    kernel: KernelArgument,
    torch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VERSION",
            help="A version of torch, such as 2.5.1; may be repeated. The first that runs is the base of the "
            "comparison; a single one is compared with the installed torch.",
        ),
    ] = None,
    shape: Annotated[list[str] | None, shapes("Problem to judge", "the twelve cases")] = None,
    *,
    described: ProblemOptions,
    settings: SetOption = None,
    packages: Annotated[
        list[str] | None,
        typer.Option(
            "--with", metavar="PACKAGE", help="Requirement of your kernel besides torch, for pip; may be repeated."
        ),
    ] = None,
    seed: SeedOption = 0,
    confined: ConfinementOptions,
    json: JsonOption = None,
) -> int:
    """Judge one kernel with several versions of torch, each in an environment of its own, and report the changes."""
    from sdpalab.judge.verdict import ORIGINAL_CONTRACT
    from sdpalab.torch_matrix import conclude, run_matrix

    console = console_and_subject(json, kernel)
    specs = _cases(problems_of(shape, described, default=None, gradients=False, layouts=False), described, seed)
    start = time.monotonic()
    with progress_console().status(kernel) as status:
        rows = run_matrix(
            kernel,
            torch or (),
            specs,
            config=parse_settings(settings),
            packages=packages or (),
            progress=status.update,
        )
    matrix = conclude(rows)
    _print(console, kernel, rows, matrix)
    ran = [row for row in rows if not row["reason"]]
    say_end(console, Text(matrix["sentence"], style="bold"))
    console.print(f"{len(ran)} of {len(rows)} versions ran in {time.monotonic() - start:.1f} s", soft_wrap=True)
    # A version unknown to pip is a row; an installed version that does not run is a failure.
    wrong = not all(row["verdict"]["passed"] for row in ran)
    failed = [row for row in rows if row["reason"] and row["torch"]]
    status_word = "FAILED" if wrong else "MACHINE_FAILED" if failed else "PASSED"
    write_document(
        json, {"kernel": kernel, **matrix, "contract": dict(ORIGINAL_CONTRACT), "rows": rows}, status=status_word
    )
    if failed and not wrong:
        raise MachineError(f"torch {failed[0]['torch']}: {failed[0]['reason']}")
    return 1 if wrong else 0


def _cases(problems: Sequence[Problem], described: ProblemOptions, seed: int) -> list[CaseSpec]:
    """Cases with public seeds: the same inputs in every environment and at any time."""
    from sdpalab.judge.cases import quick_cases, twelve_cases

    at_least("--seed", seed, 0)
    dtype, causal = described.dtype or "float16", described.causal
    specs = quick_cases(problems, seed=seed) if problems else twelve_cases(dtype=dtype, causal=causal)
    return [spec for spec in specs if spec.seed is not None]


def _print(console: Console, kernel: str, rows: Sequence[dict[str, Any]], matrix: dict[str, Any]) -> None:
    """Print the candidate by version, torch's attentions by version, and the reason of each failure."""
    heads = ("torch", "verdict", "cases", "its output", "original contract", "torch's own choice")
    shown = table(f"{kernel} by version of torch", heads, numeric=heads[2::2], prose=heads[3:4], spare=heads[4:])
    outputs = table("outputs", ("torch", "output", "error", f"from {matrix['base']}"), numeric=("error",))
    lines = []
    for row in rows:
        if row["reason"]:
            shown.add_row(row["asked"], verdict_text(None, "not run" if row["torch"] else "not installed"), *"----")
            lines.append(f"torch {row['asked']}: {row['reason']}")
            continue
        verdict, cases = row["verdict"], row["verdict"]["cases"]
        passed = f"{sum(case['status'] == 'PASSED' for case in cases)}/{len(cases)}"
        changes = {name: _words(change) for name, change in row["changes"].items()}
        contract = f"{row['contract_passed']}/{len(cases)}"
        cells = (passed, changes.get("kernel", "-"), contract, row["own_choice"] or "-")
        shown.add_row(row["torch"], verdict_text(verdict["passed"], verdict["status"]), *cells)
        for name, change in row["changes"].items():
            error = "-" if change["rel_l2"] is None else f"{change['rel_l2']:.2e}"
            outputs.add_row(row["torch"], name, error, changes[name])
        failing = [case for case in cases if case["status"] != "PASSED"]
        lines += [f"torch {row['torch']}: {case['name']}: {case['status']}: {case['reason']}" for case in failing]
    show_table(console, shown)
    show_table(console, outputs)
    for line in lines:
        console.print(line, soft_wrap=True)


def _words(change: dict[str, Any]) -> str | Text:
    if not change["cases"]:
        return str(change["change"])
    style = "bold red" if change["change"] == "changed" else "yellow"
    return Text(f"{change['change']} in {change['cases']} cases", style=style)
