"""``sdpalab tune``: the fastest configuration of a kernel that is correct."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sdpalab.commands.option_groups import ConfinementOptions
from sdpalab.commands.options import (
    AddressOption,
    ExecutorOption,
    IncludeOption,
    KernelArgument,
    include_dirs_of,
    shapes,
)
from sdpalab.commands.problem_options import ProblemOptions, problems_of
from warpsan.terminal.console import conclude, console_for, progress_console, verdict_text, write_json
from warpsan.terminal.invocation import console_and_subject, write_document
from warpsan.terminal.options import JsonOption
from warpsan.terminal.tables import show_table, table

if TYPE_CHECKING:
    from sdpalab.search.outcome import Trial
    from sdpalab.search.tuning import TuneResult

__all__ = ["tune"]

_MOST_ROWS = 12


def tune(
    kernel: KernelArgument,
    shape: Annotated[list[str] | None, shapes("Problem to optimise for", "mission")] = None,
    *,
    described: ProblemOptions,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GPU",
            help="L4, H200 or another of the data file: times are modelled; may be repeated, for a Pareto front. here: "
            "times are measured on this GPU. Default: here if there is a GPU, otherwise the kernel's own.",
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option(metavar="TIME|N", help="A time such as 10m, or a number of configurations.")
    ] = "10m",
    strategy: Annotated[str, typer.Option(metavar="NAME", help="elites, exhaustive, tpe or nsga2.")] = "elites",
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the strategy and of held-out inputs.")] = 0,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File of the records. Default: in the user's data folder.")
    ] = None,
    include: IncludeOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the log.")] = False,
    executor: ExecutorOption = "local",
    address: AddressOption = None,
    keep: Annotated[
        bool, typer.Option("--keep/--no-keep", help="Keep the winner as the tuned default of its class of problems.")
    ] = True,
    t4: Annotated[
        str | None, typer.Option("--t4", metavar="FILE", help="Also write the results in the T4 autotuning format.")
    ] = None,
    confined: ConfinementOptions,
    json: JsonOption = None,
) -> int:
    """Search a kernel's configurations; only correct ones are timed or win."""
    from sdpalab.search.log import default_log
    from sdpalab.search.t4 import to_t4
    from sdpalab.search.tuning import tune as run

    console = console_and_subject(json, kernel)
    console_for(t4, option="--t4")
    progress = progress_console()
    folders = include_dirs_of(include, kernel)
    problems = problems_of(shape, described, layouts=False)
    path = log or default_log(kernel, gpu or (), problems, resume=resume)
    head = [f"log: {path}"]

    def show(line: str) -> None:
        for each in (*head, line):
            progress.print(each, soft_wrap=True)
        head.clear()

    try:
        result = run(
            kernel,
            problems,
            gpu=gpu or None,
            budget=budget,
            strategy=strategy,
            executor=executor,
            log=path,
            resume=resume,
            seed=seed,
            address=address,
            include_dirs=folders,
            progress=show,
        )
    except KeyboardInterrupt:
        progress.print(
            f"what was tried is in {path}; the same command with --resume --log {path} goes on", soft_wrap=True
        )
        raise
    for note in result.notes:
        console.print(verdict_text(None, note), soft_wrap=True)
    _print(console, result)
    if t4 is not None:
        write_json(t4, to_t4(result.head, result.trials), option="--t4")
    write_document(json, {**result.to_dict(), "log": str(path)}, status="PASSED" if result.passed else "FAILED")
    _use(console, result, keep)
    return 0 if result.passed else 1


def _print(console: Console, result: TuneResult) -> None:
    """Print the best passed configurations, the counts of the others, and the winner."""
    head = result.head
    kind = "modelled" if head.clock == "modelled" else f"measured, {head.clock} clock"
    costs = tuple(f"{gpu} us ({kind})" for gpu in head.gpus)
    shown = table(
        f"{head.kernel}, {', '.join(problem.label for problem in head.problems)}: configurations that passed",
        ("number", "configuration", *costs, "finalist"),
        numeric=costs,
        prose=("configuration",),
    )
    finals = {each.number: each.standing.value for each in result.finalists}
    passed = [trial for trial in result.trials if trial.costs_us]
    passed.sort(key=lambda trial: (sum(trial.costs_us.values()), trial.number))
    for trial in passed[:_MOST_ROWS]:
        figures = (f"{trial.costs_us[gpu]:.2f}" for gpu in head.gpus)
        shown.add_row(str(trial.number), str(trial.knobs), *figures, finals.get(trial.number, "-"))
    show_table(console, shown)
    if len(head.gpus) > 1:
        console.print(f"Pareto front: configurations {', '.join(str(trial.number) for trial in result.front)}")
    counts: dict[str, int] = {}
    for trial in result.trials:
        counts[trial.standing.value] = counts.get(trial.standing.value, 0) + 1
    listed = ", ".join(f"{count} {name}" for name, count in counts.items())
    console.print(
        f"{len(result.trials)} configurations tried ({listed}), the default among them; "
        f"{head.configurations} are valid; {result.stopped}",
        soft_wrap=True,
    )
    for each in result.finalists:
        if each.reason:
            console.print(f"finalist {each.number} rejected: {each.standing.value}: {each.reason}", soft_wrap=True)


def _use(console: Console, result: TuneResult, keep: bool) -> None:
    """Report the winner, and store it as the tuned default."""
    from sdpalab.evidence.store.tuned import keep_tuned

    kind = "modelled" if result.head.clock == "modelled" else "measured"
    default = result.default
    for gpu, winner in result.winners.items():
        against = _against(winner, default, gpu)
        line = f"winner on {gpu}: {winner.knobs}, {kind} {winner.costs_us[gpu]:.2f} us{against}"
        conclude(console, verdict_text(True, line))
    if not result.winners:
        conclude(console, verdict_text(False, "no configuration passed all gates"))
    for entry in result.tuned_entries() if keep else ():
        if dict(entry.config) == dict(default.config if default else {}):
            console.print(f"the default is the best that was found for {entry.gpu}, {entry.problems.label}")
            continue
        console.print(f"kept as tuned default in {keep_tuned(entry)}", soft_wrap=True)


def _against(winner: Trial, default: Trial | None, gpu: str) -> str:
    if default is None or gpu not in default.costs_us:
        return ""
    if winner.number == default.number:
        return ", the default"
    return f"; the default {default.costs_us[gpu]:.2f} us"
