"""``sdpalab campaign NAME``: long runs over many kernels, cases or bugs, each of which leaves a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sdpalab.commands.option_groups import ExecutorOptions, RecordOptions
from sdpalab.errors import UserError
from warpsan.terminal.console import conclude, verdict_text
from warpsan.terminal.invocation import console_and_subject, write_document
from warpsan.terminal.output_options import with_output_options

if TYPE_CHECKING:
    from sdpalab.campaigns.campaign import CampaignResult, Content, Say
    from sdpalab.jobs import Executor

__all__ = ["campaign", "run_self_test"]

campaign = typer.Typer(
    name="campaign",
    help="Long runs over many kernels, cases or bugs; each leaves a record in evidence/.",
    add_completion=False,
    rich_markup_mode=None,
)

KernelsArgument = Annotated[list[str] | None, typer.Argument(metavar="KERNEL", help="Default: all.")]


@campaign.command()
def ladder(kernel: KernelsArgument = None, *, record: RecordOptions) -> int:
    """What each kernel uses, counts and could cost on the mission shape; the source of README's table."""
    from sdpalab.campaigns import ladder as runs

    if kernel and record.out is None:
        raise UserError("a record of some kernels is not the ladder's: say where it goes with --out FILE")
    names = kernel or []
    return _run("ladder", names, lambda say, _: runs.run(names, say), record, packages=runs.PACKAGES, folder="ladder")


@campaign.command()
def model(
    wheel: Annotated[
        Path, typer.Argument(metavar="WHEEL", help="The wheel of vllm-flash-attn 2.6.2, as pip download fetches it.")
    ],
    *,
    record: RecordOptions,
) -> int:
    """Modelled times of FlashAttention-2's own machine code, held against the published ones."""
    from sdpalab.campaigns import model as runs

    words = [wheel.name]
    return _run("model", words, lambda say, _: runs.run(wheel, say), record, packages=runs.PACKAGES)


@campaign.command()
def verdicts(
    kernel: KernelsArgument = None,
    *,
    jobs: ExecutorOptions,
    record: RecordOptions,
) -> int:
    """Judge kernels at level full on the simulator; the record is written after every kernel."""
    from sdpalab.campaigns import verdicts as runs

    names = kernel or []
    with jobs.open() as on:
        return _run("verdicts", names, lambda say, keep: runs.run(names, say, keep, on), record, packages=runs.PACKAGES)


@campaign.command()
def calibration(*, record: RecordOptions) -> int:
    """Correct implementations, none of which the judge may reject, and worse arithmetic, held against the rule."""
    from sdpalab.campaigns import calibration as runs

    packages, sources = runs.PACKAGES, runs.SOURCES
    return _run("calibration", (), lambda say, _: runs.run(say), record, packages=packages, sources=sources)


@campaign.command()
def algebra(
    kernel: KernelsArgument = None,
    copies: Annotated[
        int, typer.Option(metavar="N", min=0, help="Mutants of each source line and opcode, at most. Default: all.")
    ] = 0,
    *,
    record: RecordOptions,
) -> int:
    """Replace each floating-point instruction of a kernel in turn: exact arithmetic must notice; and planted bugs."""
    from sdpalab.campaigns import algebra as runs

    names, words = kernel or [], ["--copies", str(copies)] if copies else []
    return _run(
        *("algebra", [*names, *words], lambda say, keep: runs.run(names, copies, say, keep), record),
        packages=runs.PACKAGES,
    )


@campaign.command()
def deletion(
    kernel: KernelsArgument = None,
    *,
    jobs: ExecutorOptions,
    record: RecordOptions,
) -> int:
    """Delete each synchronisation instruction of a kernel in turn: the simulator must notice, or it is redundant."""
    from sdpalab.campaigns import deletion as runs

    names = kernel or []
    with jobs.open() as on:
        return _run("deletion", names, lambda say, _: runs.run(names, say, on), record)


@campaign.command()
def weakening(
    kernel: KernelsArgument = None,
    *,
    jobs: ExecutorOptions,
    record: RecordOptions,
) -> int:
    """Make each memory order and scope of a kernel weaker by one step in turn, as deletion does with instructions."""
    from sdpalab.campaigns import deletion as runs

    names = kernel or []
    with jobs.open() as on:
        return _run("weakening", names, lambda say, _: runs.run(names, say, on, weaken=True), record)


@campaign.command()
def diagnosis(
    only: Annotated[str, typer.Option(metavar="WORDS", help="Only bugs whose name has these words in it.")] = "",
    verbose: Annotated[bool, typer.Option("--verbose", help="Print every diagnosis, not only the wrong ones.")] = False,
    *,
    jobs: ExecutorOptions,
    record: RecordOptions,
) -> int:
    """How often the judge's diagnosis names the right class of a planted bug."""
    from sdpalab.campaigns import diagnosis as runs

    words = ["--only", only] if only else []
    with jobs.open() as on:
        return _run("diagnosis", words, lambda say, _: runs.run(only, verbose, say, on), record, packages=runs.PACKAGES)


@campaign.command()
def faults(
    kills: Annotated[int, typer.Option(metavar="N", help="Processes of the judge to kill.")] = 50,
    repeats: Annotated[int, typer.Option(metavar="N", help="Judgements that must all be the same.")] = 100,
    seed: Annotated[int, typer.Option(metavar="N")] = 0,
    *,
    record: RecordOptions,
) -> int:
    """Kill processes of the judge, take away space and compiler: no fault may become a wrong verdict."""
    from sdpalab.campaigns import faults as runs

    words = ["--kills", str(kills), "--repeats", str(repeats), "--seed", str(seed)]
    return _run("faults", words, lambda say, _: runs.run(kills, repeats, seed, say), record, packages=())


@campaign.command()
def fuzz(
    seconds: Annotated[float, typer.Option(metavar="S")] = 600.0,
    seed: Annotated[int, typer.Option(metavar="N", help="The first round's; a failure names its own.")] = 0,
    only: Annotated[str, typer.Option(metavar="KIND", help="programs or parser. Default: both.")] = "",
    *,
    record: RecordOptions,
) -> int:
    """Random programs against a scalar evaluator, and damaged PTX, which may raise typed errors only."""
    from sdpalab.campaigns import fuzz as runs

    if only not in ("", "programs", "parser"):
        raise UserError(f"--only takes programs or parser, not {only!r}")
    words = ["--seconds", f"{seconds:g}", "--seed", str(seed), *(["--only", only] if only else [])]
    return _run("fuzz", words, lambda say, _: runs.run(seconds, seed, only, say), record)


@campaign.command("self-test")
def self_test(
    only: Annotated[str, typer.Option(metavar="WORDS", help="Only bugs whose id has these words in it.")] = "",
    *,
    jobs: ExecutorOptions,
    record: RecordOptions,
) -> int:
    """Judge the planted bugs of the catalogue: each must be rejected, for the right reason.

    The record of some bugs is kept only with --out FILE.
    """
    with jobs.open() as on:
        return run_self_test(record, on, only=only, in_evidence=not only or record.out is not None)


@campaign.command()
def suites(
    indigo: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A checkout of HiRace's artifact (HiRace-Artifact-SC24).")
    ] = None,
    scor: Annotated[Path | None, typer.Option(metavar="PATH", help="A checkout of ScoR.")] = None,
    every: Annotated[int, typer.Option(metavar="N", min=1, help="One code of Indigo in N.")] = 1,
    *,
    record: RecordOptions,
) -> int:
    """The race checks on public suites of labelled GPU races, from checkouts of them."""
    from sdpalab.campaigns import suites as runs

    words = [f"--{name} {name}" for name, path in (("indigo", indigo), ("scor", scor)) if path is not None]
    words += ["--every", str(every)] if every > 1 else []
    return _run("suites", words, lambda say, _: runs.run(indigo, scor, every, say), record, packages=runs.PACKAGES)


@campaign.command()
def litmus(
    only: Annotated[str, typer.Option(metavar="WORDS", help="Only tests whose name has these words in it.")] = "",
    instances: Annotated[int, typer.Option(metavar="N", min=1, help="Instances of each test.")] = 10_000,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the first launch of each test.")] = 0,
    *,
    record: RecordOptions,
) -> int:
    """Litmus tests with stale reads: no outcome that PTX's memory model forbids, and all that it allows."""
    from sdpalab.campaigns import litmus as runs

    words = [*(["--only", only] if only else []), "--instances", str(instances), "--seed", str(seed)]
    sources = ("packages",)
    return _run("litmus", words, lambda say, _: runs.run(only, instances, seed, say), record, sources=sources)


@campaign.command("triton-sweep")
def triton_sweep(
    arch: Annotated[list[str] | None, typer.Option(metavar="A", help="sm_80, sm_89 or sm_90. Default: all.")] = None,
    every: Annotated[int, typer.Option(metavar="N", min=1, help="One combination of the knobs in N.")] = 1,
    *,
    record: RecordOptions,
) -> int:
    """Triton's attention in every combination of its knobs, on the simulator against float64."""
    from sdpalab.campaigns import triton_sweep as runs

    words = [*(word for name in arch or () for word in ("--arch", name)), "--every", str(every)]
    return _run("triton", words, lambda say, _: runs.run(arch or [], every, say), record, packages=runs.PACKAGES)


@campaign.command()
def words(
    checkout: Annotated[Path, typer.Argument(metavar="CHECKOUT", help="A checkout of MATLAB-tensor-core.")],
    *,
    record: RecordOptions,
) -> int:
    """What real tensor cores computed, as others published it, against the simulator's sums, bit for bit."""
    from sdpalab.campaigns import words as runs

    return _run("words", [checkout.name], lambda say, _: runs.run(checkout, say), record, packages=runs.PACKAGES)


def run_self_test(record: RecordOptions, executor: Executor, *, only: str = "", in_evidence: bool = False) -> int:
    """The campaign ``self-test``; as ``judge --self-test``, it writes its record only where ``--json`` says."""
    from sdpalab.campaigns import self_test as runs

    words, packages = ["--only", only] if only else [], runs.PACKAGES
    return _run(
        "self-test",
        words,
        lambda say, _: runs.run(only, say, executor),
        record,
        packages=packages,
        in_evidence=in_evidence,
    )


def _run(
    name: str,
    words: Sequence[str],
    run: Callable[[Say, Callable[[Content], None]], CampaignResult],
    record: RecordOptions,
    *,
    packages: Sequence[str] = ("numpy",),
    sources: Sequence[str] = ("packages",),
    folder: str = "campaigns",
    in_evidence: bool = True,
) -> int:
    """Run a campaign, print its lines, write its record; 1 if it is not good."""
    from sdpalab.evidence.campaign import Campaign

    console = console_and_subject(record.json, name)
    ran = Campaign(name, " ".join(["sdpalab", "campaign", name, *words]), sources=sources, packages=packages)

    def say(line: str) -> None:
        console.print(line, soft_wrap=True)

    def keep(content: Content) -> None:
        ran.write(ran.record(**content), record.out, folder=folder)

    result = run(say, keep)
    content = ran.record(**result.content)
    path = ran.write(content, record.out, folder=folder) if in_evidence else None
    write_document(record.json, {"record": content}, status="PASSED" if result.good else "FAILED")
    conclude(console, verdict_text(result.good, f"{result.summary}; {content['seconds']} s"))
    if path:
        console.print(f"record {path}", soft_wrap=True)
    return 0 if result.good else 1


for _registered in campaign.registered_commands:
    assert _registered.callback is not None
    _registered.callback = with_output_options(_registered.callback)
