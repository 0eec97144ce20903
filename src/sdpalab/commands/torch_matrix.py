"""``sdpalab torch-matrix``: did the kernel change, or the reference?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from sdpalab.commands.common import conclude, progress_console, verdict_text
from sdpalab.commands.invocation import console_and_subject, write_document
from sdpalab.commands.option_groups import ConfinementOptions
from sdpalab.commands.options import (
    JsonOption,
    KernelArgument,
    SeedOption,
    SetOption,
    at_least,
    parse_settings,
    shapes,
)
from sdpalab.commands.problem_options import ProblemOptions, problems_of
from sdpalab.commands.tables import show_table, table
from sdpalab.errors import MachineError, UserError
from sdpalab.judge.verdict import Status
from sdpalab.problem import Problem

if TYPE_CHECKING:
    from sdpalab.judge.cases import CaseSpec
    from sdpalab.torch_matrix.matrix import Drift, Matrix, VersionRow

__all__ = ["torch_matrix", "versions_for"]


def torch_matrix(
    kernel: KernelArgument,
    torch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VERSION",
            help="A version of torch, such as 2.5.1; may be repeated. The first that runs is what the others are "
            "compared with; one alone is compared with the torch that is here.",
        ),
    ] = None,
    shape: Annotated[list[str] | None, shapes("What to judge it on", "the twelve cases")] = None,
    *,
    described: ProblemOptions,
    settings: SetOption = None,
    packages: Annotated[
        list[str] | None,
        typer.Option(
            "--with", metavar="PACKAGE", help="What your kernel imports beside torch, as pip takes it; may be repeated."
        ),
    ] = None,
    max_download: Annotated[
        float, typer.Option(metavar="GIB", help="Most that one environment may download.", min=0.0)
    ] = 4.0,
    seed: SeedOption = 0,
    confined: ConfinementOptions,
    json: JsonOption = None,
) -> int:
    """Judge one kernel with several versions of torch, each in an environment of its own, and say what changed."""
    from sdpalab.torch_matrix.run import run_matrix

    console = console_and_subject(json, kernel)
    problems = problems_of(shape, described, default=None)
    specs = _cases(problems, described, seed)
    start = time.monotonic()
    with progress_console().status(kernel) as status:
        matrix = run_matrix(
            kernel,
            versions_for(torch),
            specs,
            config=parse_settings(settings),
            packages=packages or (),
            max_bytes=int(max_download * 2**30),
            tell=status.update,
        )
    _print(console, kernel, matrix, time.monotonic() - start)
    # A version that could not be installed is a row; one that is there and where nothing runs, or fails, is judged.
    statuses = {str(row.run.verdict.get("status", row.run.reason)) for row in matrix.rows if row.run.torch}
    wrong = bool(statuses - {Status.PASSED.value, Status.INFRA_ERROR.value})
    machine = Status.INFRA_ERROR.value in statuses
    outcome = "FAILED" if wrong else "MACHINE_FAILED" if machine else "PASSED"
    write_document(json, {"kernel": kernel, **matrix.to_dict()}, status=outcome)
    if wrong:
        return 1
    if machine:
        raise MachineError("in one of the environments the machine failed, not the kernel: its reason is above")
    return 0


def versions_for(given: Sequence[str] | None) -> list[str]:
    """The requested versions; for a single one, also that of this environment.

    Raises
    ------
    UserError
        If none is given, or one is no version.
    """
    from sdpalab.torch_matrix.environments import check_version, this_environment

    if not given:
        raise UserError("--torch takes a version such as 2.5.1 and may be repeated: name at least one")
    versions = [check_version(version) for version in given]
    here = this_environment()
    if len(set(versions)) == 1 and here is not None and this_environment(versions[0]) is None:
        versions.append(here.torch)
    return versions


def _cases(problems: Sequence[Problem], described: ProblemOptions, seed: int) -> list[CaseSpec]:
    """The cases whose seeds are public: the same inputs in every environment, today and next year."""
    from sdpalab.judge.cases import quick_cases, twelve_cases

    at_least("--seed", seed, 0)
    dtype, causal = described.dtype or "float16", described.causal
    specs = quick_cases(problems, seed=seed) if problems else twelve_cases(dtype=dtype, causal=causal)
    return [spec for spec in specs if spec.seed is not None]


def _print(console: Console, kernel: str, matrix: Matrix, seconds: float) -> None:
    """The candidate by version, the witnesses by version, what could not be run and why, and the conclusion."""
    shown = table(
        f"{kernel} by version of torch",
        ("torch", "verdict", "cases", "its output", "original contract", "torch's own choice"),
        numeric=("cases", "original contract"),
        prose=("its output", "torch's own choice"),
        spare=("original contract", "torch's own choice"),
    )
    for row in matrix.rows:
        shown.add_row(*_candidate_cells(row, matrix.base))
    show_table(console, shown)
    heads = ("rel L2 error", "max error", "from the kernel")
    witnesses = table(
        "witnesses", ("torch", "witness", *heads, f"from {matrix.base}"), numeric=heads, spare=("max error",)
    )
    for row in matrix.rows:
        for witness in row.witnesses:
            figures = (_figure(witness.rel_l2), _figure(witness.max_abs), _figure(witness.from_candidate))
            drift = "base" if row.run.torch == matrix.base else _drift(witness.drift)
            witnesses.add_row(row.run.torch, witness.name, *figures, drift)
    show_table(console, witnesses)
    for row in matrix.rows:
        if row.run.reason:
            console.print(f"torch {row.run.asked}: {row.run.reason}", soft_wrap=True)
        for case in row.run.verdict.get("cases", ()):
            if row.ran and case["status"] != "PASSED":
                reason = f"torch {row.run.torch}: {case['name']}: {case['status']}: {case['reason']}"
                console.print(reason, soft_wrap=True)
    conclude(console, Text(matrix.sentence, style="bold"))
    ran = sum(row.ran for row in matrix.rows)
    console.print(f"{ran} of {len(matrix.rows)} versions ran in {seconds:.1f} s", soft_wrap=True)


def _candidate_cells(row: VersionRow, base: str) -> tuple[str | Text, ...]:
    name = f"{row.run.torch or row.run.asked}{' (this environment)' if row.run.here else ''}"
    if not row.ran:
        word = "not run" if row.run.torch else "not installed"
        return (name, verdict_text(None, word), "-", "-", "-", "-")
    good = bool(row.run.verdict["passed"])
    output = "base" if row.run.torch == base else _drift(row.output)
    return (
        name,
        verdict_text(good, str(row.run.verdict["status"])),
        f"{row.passed}/{row.cases}",
        output,
        f"{row.contract}/{row.cases}",
        row.own_choice or "-",
    )


def _drift(drift: Drift | None) -> str | Text:
    if drift is None:
        return "-"
    if not drift.cases:
        return drift.change.value
    from sdpalab.torch_matrix.matrix import Change

    style = "bold red" if drift.change is Change.CHANGED else "yellow"
    return Text(f"{drift.change.value}, {_figure(drift.rel_l2)} in {drift.cases} cases", style=style)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2e}"
