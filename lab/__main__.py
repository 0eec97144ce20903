"""``python -m lab NAME``: run one campaign and write its record.

Exit codes are those of ``sdpalab``: 0 good, 1 not good, 2 bad input, 3 the machine failed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sdpalab.commands.option_groups import ExecutorOptions
from sdpalab.commands.options import WorkersOption
from sdpalab.errors import UserError
from sdpalab.version import __version__
from warpsan.terminal.console import conclude, verdict_text
from warpsan.terminal.exits import run_app
from warpsan.terminal.invocation import Tool, console_and_subject
from warpsan.terminal.output_options import with_output_options

if TYPE_CHECKING:
    from sdpalab.campaigns.campaign import CampaignResult, Content, Say

__all__ = ["app", "main"]

app = typer.Typer(
    name="lab",
    help="Long runs over many kernels, cases or mutants; each leaves a record in evidence/.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

KernelsArgument = Annotated[list[str] | None, typer.Argument(metavar="KERNEL", help="Default: all.")]
OutOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File of the record. Default: a file in evidence/.")
]


@app.command()
def ladder(kernel: KernelsArgument = None, *, out: OutOption = None) -> int:
    """Resources, counts and modelled times of each kernel on the mission shape; the source of README's table."""
    from lab import ladder as runs

    if kernel and out is None:
        raise UserError("a record of some kernels is not the ladder's: say where it goes with --out FILE")
    names = kernel or []
    return _run("ladder", names, lambda say, _: runs.run(names, say), out, packages=runs.PACKAGES, folder="ladder")


@app.command()
def verdicts(kernel: KernelsArgument = None, *, jobs: ExecutorOptions, out: OutOption = None) -> int:
    """Judge kernels at level full on the simulator; the record is written after every kernel."""
    from lab import verdicts as runs

    names = kernel or []
    with jobs.open() as on:
        return _run("verdicts", names, lambda say, keep: runs.run(names, say, keep, on), out, packages=runs.PACKAGES)


@app.command()
def calibration(*, out: OutOption = None) -> int:
    """Judge correct implementations, none of which may be rejected, and deliberately worse arithmetic."""
    from lab import calibration as runs

    return _run("calibration", (), lambda say, _: runs.run(say), out, packages=runs.PACKAGES)


@app.command()
def diagnosis(
    words: Annotated[
        str, typer.Option("--only", metavar="WORDS", help="Only edits with these words in their id.")
    ] = "",
    *,
    out: OutOption = None,
) -> int:
    """Judge the edits of CUDA sources whose cause is certain: how often does the diagnosis name it?"""
    from lab import diagnosis as runs

    given = ["--only", words] if words else []
    return _run("diagnosis", given, lambda say, _: runs.run(words, say), out, packages=runs.PACKAGES)


@app.command()
def algebra(
    kernel: KernelsArgument = None,
    copies: Annotated[
        int, typer.Option(metavar="N", min=0, help="Mutants of each source line and opcode, at most. Default: all.")
    ] = 0,
    *,
    out: OutOption = None,
) -> int:
    """Replace each floating-point instruction of a kernel in turn: exact arithmetic must notice; and planted bugs."""
    from lab import algebra as runs

    names, words = kernel or [], ["--copies", str(copies)] if copies else []
    return _run(
        *("algebra", [*names, *words], lambda say, keep: runs.run(names, copies, say, keep), out),
        packages=runs.PACKAGES,
    )


@app.command()
def deletion(kernel: KernelsArgument = None, *, jobs: ExecutorOptions, out: OutOption = None) -> int:
    """Run ``sdpalab campaign deletion`` on the tests' kernels, too, with reasons for their survivors."""
    from lab import deletion as runs

    names = kernel or []
    with jobs.open() as on:
        return _run("deletion", names, lambda say, _: runs.run(names, say, on), out)


@app.command()
def weakening(kernel: KernelsArgument = None, workers: WorkersOption = None, *, out: OutOption = None) -> int:
    """Make each memory order and scope of a kernel weaker by one step in turn, as deletion does with instructions."""
    from lab import weakening as runs

    names = kernel or []
    return _run("weakening", names, lambda say, _: runs.run(names, say, workers), out)


@app.command()
def faults(
    kills: Annotated[int, typer.Option(metavar="N", help="Processes of the judge to kill.")] = 50,
    repeats: Annotated[int, typer.Option(metavar="N", help="Judgements that must all be the same.")] = 100,
    seed: Annotated[int, typer.Option(metavar="N")] = 0,
    *,
    out: OutOption = None,
) -> int:
    """Kill processes of the judge, take away space and compiler: no fault may become a wrong verdict."""
    from lab import faults as runs

    words = ["--kills", str(kills), "--repeats", str(repeats), "--seed", str(seed)]
    return _run("faults", words, lambda say, _: runs.run(kills, repeats, seed, say), out, packages=())


@app.command()
def fuzz(
    seconds: Annotated[float, typer.Option(metavar="S")] = 600.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the first round; a failure names its own.")] = 0,
    only: Annotated[str, typer.Option(metavar="KIND", help="programs or parser. Default: both.")] = "",
    *,
    out: OutOption = None,
) -> int:
    """Random programs against a scalar evaluator, and damaged PTX, which may raise typed errors only."""
    from lab import fuzz as runs

    if only not in ("", "programs", "parser"):
        raise UserError(f"--only takes programs or parser, not {only!r}")
    words = ["--seconds", f"{seconds:g}", "--seed", str(seed), *(["--only", only] if only else [])]
    return _run("fuzz", words, lambda say, _: runs.run(seconds, seed, only, say), out)


@app.command()
def suites(
    indigo: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A checkout of HiRace's artifact (HiRace-Artifact-SC24).")
    ] = None,
    scor: Annotated[Path | None, typer.Option(metavar="PATH", help="A checkout of ScoR.")] = None,
    every: Annotated[int, typer.Option(metavar="N", min=1, help="One code of Indigo in N.")] = 1,
    *,
    out: OutOption = None,
) -> int:
    """Run the race checks on public suites of labelled GPU races, from checkouts of them."""
    from lab import suites as runs

    words = [f"--{name} {name}" for name, path in (("indigo", indigo), ("scor", scor)) if path is not None]
    words += ["--every", str(every)] if every > 1 else []
    return _run("suites", words, lambda say, _: runs.run(indigo, scor, every, say), out, packages=runs.PACKAGES)


@app.command()
def words(
    checkout: Annotated[Path, typer.Argument(metavar="CHECKOUT", help="A checkout of MATLAB-tensor-core.")],
    *,
    out: OutOption = None,
) -> int:
    """Compare the simulator's sums with published results of real tensor cores, bit for bit."""
    from lab import words as runs

    return _run("words", [checkout.name], lambda say, _: runs.run(checkout, say), out, packages=runs.PACKAGES)


def _run(
    name: str,
    words: Sequence[str],
    run: Callable[[Say, Callable[[Content], None]], CampaignResult],
    out: Path | None,
    *,
    packages: Sequence[str] = ("numpy",),
    folder: str = "campaigns",
) -> int:
    """Run a campaign, print its lines, write its record; 1 if it is not good."""
    from sdpalab.evidence.campaign import Campaign

    console = console_and_subject(None, name)
    command = " ".join(["python -m lab", name, *words])
    ran = Campaign(name, command, sources=("packages", "lab"), packages=packages)
    path = ran.place(out, folder=folder)

    def say(line: str) -> None:
        console.print(line, soft_wrap=True)

    def keep(content: Content) -> None:
        ran.write(ran.record(**content), path)

    result = run(say, keep)
    content = ran.record(**result.content)
    ran.write(content, path)
    conclude(console, verdict_text(result.good, f"{result.summary}; {content['seconds']} s"))
    console.print(f"record {path}", soft_wrap=True)
    return 0 if result.good else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; ``arguments`` are by default those of the process."""
    return run_app(app, Tool("lab", __version__), arguments)


for _registered in app.registered_commands:
    assert _registered.callback is not None
    _registered.callback = with_output_options(_registered.callback)

if __name__ == "__main__":
    sys.exit(main())
