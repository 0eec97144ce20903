"""``sdpalab campaign NAME``: mutation tests of a kernel's synchronisation and of the judge; each leaves a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sdpalab.commands.option_groups import ExecutorOptions, RecordOptions
from warpsan.terminal.console import conclude, verdict_text
from warpsan.terminal.invocation import console_and_subject, write_document
from warpsan.terminal.output_options import with_output_options

if TYPE_CHECKING:
    from sdpalab.campaigns.campaign import CampaignResult, Say
    from sdpalab.jobs import Executor

__all__ = ["campaign", "run_self_test"]

campaign = typer.Typer(
    name="campaign",
    help="Long runs over many mutants or bugs; each leaves a record in evidence/.",
    add_completion=False,
    rich_markup_mode=None,
)


@campaign.command()
def deletion(
    kernel: Annotated[
        list[str] | None,
        typer.Argument(metavar="KERNEL", help="A shipped kernel, FILE.py[:NAME] or FILE.ptx. Default: all shipped."),
    ] = None,
    *,
    jobs: ExecutorOptions,
    record: RecordOptions,
) -> int:
    """Delete each synchronisation instruction of a kernel in turn: the simulator must report it, or it is redundant."""
    from sdpalab.campaigns import deletion as runs

    names = kernel or []
    with jobs.open() as on:
        return _run("deletion", names, lambda say: runs.run(names, say, on), record)


@campaign.command("self-test")
def self_test(
    only: Annotated[str, typer.Option(metavar="WORDS", help="Only bugs whose id has these words in it.")] = "",
    since: Annotated[
        Path | None, typer.Option(metavar="RECORD", help="Keep the right results of this record; judge the other bugs.")
    ] = None,
    *,
    jobs: ExecutorOptions,
    record: RecordOptions,
) -> int:
    """Judge the planted bugs of the catalogue: each must be rejected, for the right reason.

    The record of some bugs is kept only with --out FILE.
    """
    with jobs.open() as on:
        in_evidence = not only or record.out is not None
        return run_self_test(record, on, only=only, since=since, in_evidence=in_evidence)


def run_self_test(
    record: RecordOptions,
    executor: Executor,
    *,
    only: str = "",
    since: Path | None = None,
    in_evidence: bool = False,
) -> int:
    """The campaign ``self-test``; as ``judge --self-test``, it writes its record only to the file of ``--json``."""
    from sdpalab.campaigns import self_test as runs

    words = [*(["--only", only] if only else []), *(["--since", since.name] if since is not None else [])]
    return _run(
        "self-test",
        words,
        lambda say: runs.run(only, say, executor, since),
        record,
        packages=runs.PACKAGES,
        in_evidence=in_evidence,
    )


def _run(
    name: str,
    words: Sequence[str],
    run: Callable[[Say], CampaignResult],
    record: RecordOptions,
    *,
    packages: Sequence[str] = ("numpy",),
    in_evidence: bool = True,
) -> int:
    """Run a campaign, print its lines, write its record; returns 1 if it is not good."""
    from sdpalab.evidence.campaign import Campaign

    console = console_and_subject(record.json, name)
    ran = Campaign(name, " ".join(["sdpalab", "campaign", name, *words]), packages=packages)

    def say(line: str) -> None:
        console.print(line, soft_wrap=True)

    path = ran.place(record.out) if in_evidence else None
    result = run(say)
    content = ran.record(**result.content)
    if path:
        ran.write(content, path)
    write_document(record.json, {"record": content}, status="PASSED" if result.good else "FAILED")
    conclude(console, verdict_text(result.good, f"{result.summary}; {content['seconds']} s"))
    if path:
        console.print(f"record {path}", soft_wrap=True)
    return 0 if result.good else 1


for _registered in campaign.registered_commands:
    assert _registered.callback is not None
    _registered.callback = with_output_options(_registered.callback)
