"""``sdpalab judge``: does a kernel compute attention?"""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Console

from sdpalab.commands.common import (
    CausalOption,
    DtypeOption,
    JsonOption,
    SetOption,
    console_for,
    one_thread_each,
    parse_settings,
    problem_of,
    progress_console,
    table,
    verdict_text,
    write_json,
)
from sdpalab.commands.failures import print_failures, rows_of
from sdpalab.commands.progress import CaseProgress, figures_of
from sdpalab.errors import MachineError, UserError
from sdpalab.judge.diagnose.summary import FailedArrays, summarise
from sdpalab.judge.sandbox.guarded import describe
from sdpalab.judge.verdict import ORIGINAL_CONTRACT, Status, Verdict

__all__ = ["judge", "print_outcome"]


def judge(
    kernel: Annotated[
        str | None,
        typer.Argument(metavar="KERNEL", help="A shipped kernel's name, or your own as FILE.py or FILE.py:NAME."),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="B,H,S,D",
            help="What to judge it on, or a name such as mission; may be repeated. Default: the twelve cases.",
        ),
    ] = None,
    dtype: DtypeOption = None,
    causal: CausalOption = False,
    device: Annotated[str, typer.Option(metavar="D", help="auto, sim, cpu or gpu.")] = "auto",
    level: Annotated[str, typer.Option(metavar="L", help="quick (a minute) or full (many minutes).")] = "quick",
    arch: Annotated[
        str | None, typer.Option(metavar="A", help="What to build for and simulate. Default: the kernel's own.")
    ] = None,
    kv_heads: Annotated[int | None, typer.Option(metavar="N", help="Heads of K and V; with --shape.")] = None,
    seq_kv: Annotated[int | None, typer.Option(metavar="N", help="Length of K and V; with --shape.")] = None,
    settings: SetOption = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the inputs for --shape.")] = 0,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Judge kernels with planted bugs, and print how many are rejected.")
    ] = False,
    json: JsonOption = None,
) -> int:
    """Run a kernel in a process of its own and compare its output with float64."""
    one_thread_each()
    from sdpalab.judge.cases import cases_for
    from sdpalab.judge.session import judge_candidate

    console = console_for(json)
    if self_test:
        from sdpalab.commands.campaign import run_self_test

        if kernel is not None:
            raise UserError(f"--self-test judges kernels of its own, and takes no KERNEL, not {kernel!r}")
        return run_self_test(json)
    if kernel is None:
        raise UserError("judge needs a KERNEL: a shipped kernel's name, FILE.py or FILE.py:NAME; or --self-test")
    if seed < 0:
        raise UserError(f"--seed takes a number from 0 up, not {seed}")
    if shape:
        problems = [problem_of(text, dtype=dtype, causal=causal, kv_heads=kv_heads, seq_kv=seq_kv) for text in shape]
        specs = cases_for(level, problems, seed=seed)
    elif kv_heads is not None or seq_kv is not None:
        raise UserError("--kv-heads and --seq-kv need a --shape: the twelve cases have their own")
    else:
        specs = cases_for(level, dtype=dtype or "float16", causal=causal)

    start = time.monotonic()
    failed = FailedArrays()
    with CaseProgress(progress_console(), f"judging {kernel}", len(specs)) as progress:
        verdict = judge_candidate(
            kernel,
            specs,
            device=device,
            arch=arch,
            config=parse_settings(settings) or None,
            level=level,
            seed=seed,
            store=failed,
            progress=failed.then(progress.finished),
        )
    again = [*(["--arch", arch] if arch else []), *(part for each in settings or () for part in ("--set", each))]
    summary = summarise(verdict, failed.of, kernel, again)
    _print_cases(console, verdict)
    _print_properties(console, verdict)
    print_failures(console, verdict, summary)
    print_outcome(console, verdict, time.monotonic() - start)
    write_json(json, {**verdict.to_dict(), "diagnosis": summary.to_dict()})
    bad = {case.status for case in verdict.cases if not case.passed}
    if not verdict.passed and bad <= {Status.INFRA_ERROR}:
        raise MachineError(verdict.reason)
    if not verdict.passed and bad <= {Status.UNSUPPORTED, Status.BUILD_FAILED}:
        raise UserError(verdict.reason)
    return 0 if verdict.passed else 1


def _print_cases(console: Console, verdict: Verdict) -> None:
    """A row a case: status, and each error as a share of its limit."""
    title = " ".join(filter(None, (verdict.kernel, verdict.config)))
    heads = ("max error", "of limit", "rel L2", "of limit ", "rms row", "worst row", "LSE", "exact")
    shown = table(f"{title} on {verdict.device}", ("case", "status", *heads), numeric=heads)
    rows, others = rows_of(verdict)
    for case in rows:
        shown.add_row(case.name, verdict_text(case.passed, case.status.value), *figures_of(case))
    console.print(shown)
    if others:
        console.print(others)


def _print_properties(console: Console, verdict: Verdict) -> None:
    """Print further properties of the cases, a line each."""
    from sdpalab.judge.agreement import Agreement
    from sdpalab.judge.rule.relations import RELATIONS
    from sdpalab.judge.trials import fast_p

    console.print(confinement_line(verdict), soft_wrap=True)
    within_contract, judged = verdict.original_contract, sum(case.errors is not None for case in verdict.cases)
    contract = f"max error {ORIGINAL_CONTRACT['max_abs']:g}, relative L2 {ORIGINAL_CONTRACT['rel_l2']:g}"
    console.print(
        f"original contract ({contract}): met by {within_contract} of {judged} cases; not part of the verdict"
    )
    share = fast_p(verdict.cases)
    if share is not None:
        trials = sum(bool(case.run.get("trial")) for case in verdict.cases)
        console.print(f"trials: fast_0 = {share:.2f} over {trials} hidden seeds (not timed, so no fast_1)")
    for relation in RELATIONS.values():
        differ = [
            related["elements_that_differ"]
            for case in verdict.cases
            if (related := case.run.get("relation")) and related["name"] == relation.name
        ]
        if differ:
            held = f"holds bit for bit in {differ.count(0)} of {len(differ)} cases"
            console.print(f"relation {relation.name}: {held} ({relation.says})", soft_wrap=True)
    for case in verdict.cases:
        if case.run.get("witnesses") and verdict.passed:
            for line in Agreement.from_dict(case.run["witnesses"]).lines(case.name):
                console.print(line, soft_wrap=True)


def confinement_line(verdict: Verdict) -> str:
    """How the kernel's processes were confined, and what follows from that for its builds."""
    for case in verdict.cases:
        if "confinement" in case.run:
            return f"confinement: {describe(case.run['confinement'], case.run['confined_by'])}"
    return "confinement: unknown, because no case has run"


def print_outcome(console: Console, verdict: Verdict, seconds: float) -> None:
    """The verdict in one line."""
    passed = sum(case.passed for case in verdict.cases)
    outcome = f"{passed} of {len(verdict.cases)} cases passed on {verdict.device} in {seconds:.1f} s"
    line = f"{verdict.status.value}: {verdict.kernel}, {outcome}"
    console.print(verdict_text(verdict.passed, line), soft_wrap=True)
