"""``sdpalab judge``: does a kernel compute attention?"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sdpalab.commands.bundling import JudgedEvidence
from sdpalab.commands.failures import print_failures, rows_of
from sdpalab.commands.option_groups import ConfinementOptions, RecordOptions, WorkerOptions
from sdpalab.commands.options import (
    KERNEL_HELP,
    ArchOption,
    IncludeOption,
    LevelOption,
    SeedOption,
    SetOption,
    SignOption,
    complete_kernel,
    include_dirs_of,
    parse_settings,
    shapes,
)
from sdpalab.commands.problem_options import ProblemOptions, problems_of
from sdpalab.commands.progress import CaseProgress, figures_of
from sdpalab.errors import MachineError, UserError
from sdpalab.judge.diagnose.summary import FailedArrays, summarise
from sdpalab.judge.junit import to_junit
from sdpalab.judge.last_failed import failed_cases, note_failed
from sdpalab.judge.peer_cases import CASE_SETS, LEFT_OUT, peer_cases
from sdpalab.judge.sandbox.guarded import describe
from sdpalab.judge.signatures import LAB, SIGNATURES, signature_of
from sdpalab.judge.verdict import ORIGINAL_CONTRACT, Status, Verdict
from warpsan.terminal.console import INTERRUPTED, conclude, console_for, print_set_aside, verdict_text, write_text
from warpsan.terminal.invocation import console_and_subject, write_document
from warpsan.terminal.options import JsonOption, MaxStepsOption, NumericsOption, at_least, checked_numerics
from warpsan.terminal.tables import show_table, table

__all__ = ["algebra_lines", "code_lines", "judge", "print_outcome"]


def judge(
    kernel: Annotated[
        str | None, typer.Argument(metavar="KERNEL", help=KERNEL_HELP, autocompletion=complete_kernel)
    ] = None,
    shape: Annotated[list[str] | None, shapes("Problem to judge", "the twelve cases")] = None,
    *,
    described: ProblemOptions,
    device: Annotated[str, typer.Option(metavar="D", help="auto, sim, cpu or gpu.")] = "auto",
    level: LevelOption = "quick",
    arch: ArchOption = None,
    settings: SetOption = None,
    include: IncludeOption = None,
    seed: SeedOption = 0,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="CASE", help="Only this case, or those with these words in their name; may be repeated."),
    ] = None,
    first_failure: Annotated[
        bool, typer.Option("-x", "--first-failure", help="Stop at the first case that fails.")
    ] = False,
    timeout: Annotated[
        float | None, typer.Option(metavar="S", help="Most seconds for one case. Default: 120; on a GPU 10.")
    ] = None,
    max_steps: MaxStepsOption = None,
    numerics: NumericsOption = None,
    bundle: Annotated[
        Path | None, typer.Option("--bundle", metavar="DIR", help="Leave a bundle of evidence and a report there.")
    ] = None,
    sign: SignOption = None,
    junit: Annotated[
        str | None, typer.Option("--junit", metavar="FILE", help="Write the cases as JUnit XML, for CI.")
    ] = None,
    claims: Annotated[
        bool,
        typer.Option("--claims/--no-claims", help="Also judge claims beyond the given problems, such as a mask."),
    ] = True,
    signature: Annotated[
        str | None,
        typer.Option(
            metavar="S",
            help=f"A function's interface: {', '.join(SIGNATURES)}, or {LAB} for the lab's own. Default: recognised.",
        ),
    ] = None,
    cases: Annotated[
        str | None,
        typer.Option(
            metavar="SET",
            help=f"Only the cases of a peer's own tests that suit the kernel: {' or '.join(CASE_SETS)}.",
        ),
    ] = None,
    rerun_failed: Annotated[
        bool, typer.Option("--rerun-failed", help="Only the cases that failed or were left when it was last judged.")
    ] = False,
    executor: Annotated[
        str | None,
        typer.Option(metavar="E", help="Judge in jobs of a few cases: local (processes of this machine) or ray."),
    ] = None,
    where: WorkerOptions,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Judge kernels with planted bugs, and print how many are rejected.")
    ] = False,
    confined: ConfinementOptions,
    json: JsonOption = None,
) -> int:
    """Run a kernel in a process of its own and compare its output with float64."""
    from sdpalab.jobs.judging import judge_by_jobs
    from sdpalab.judge.cases import cases_for, cases_named
    from sdpalab.judge.session import CASE_SECONDS, GPU_CASE_SECONDS, JudgingInterrupted, judge_candidate

    console_for(junit, option="--junit")
    console = console_and_subject("-" if junit == "-" else json, kernel or "")
    if self_test:
        from sdpalab.commands.campaign import run_self_test

        if kernel is not None:
            raise UserError(f"--self-test judges kernels of its own, and takes no KERNEL, not {kernel!r}")
        with where.on(executor or "local") as on:
            return run_self_test(RecordOptions(json=json), on)
    if json == junit == "-":
        raise UserError("--json and --junit cannot both be standard output")
    if kernel is None:
        raise UserError("judge needs a KERNEL: a shipped kernel's name, FILE.py[:NAME] or module:NAME; or --self-test")
    at_least("--seed", seed, 0)
    at_least("--max-steps", max_steps, 1)
    if timeout is not None and not 0 < timeout < float("inf"):
        raise UserError(f"--timeout takes a number of seconds above 0, not {timeout:g}")
    form = signature_of(kernel, signature)
    problems = problems_of(shape, described, default=None)
    if rerun_failed:
        if problems or described.given:
            raise UserError(
                "--rerun-failed takes the cases of the last time: leave out --shape, --dtype, --causal and --task"
            )
        specs = failed_cases(kernel)
    elif cases is not None:
        if problems or {*described.given} - {"task"}:
            raise UserError("--cases has problems of its own: leave out --shape and all that describe one but --task")
        specs = peer_cases(cases, described.task or "forward")
    else:
        dtype, task = described.dtype or "float16", described.task or "forward"
        asked: dict[str, Any] = {"dtype": dtype, "causal": described.causal, "task": task, "claims": claims}
        asked |= {"layout": described.layout} if described.layout else {}
        specs = cases_for(level, problems or None, seed=seed, signature=form, **asked)
    specs = cases_named(specs, only) if only else specs
    if executor is not None and bundle is not None:
        raise UserError("--bundle keeps the arrays of every case, and jobs leave them where they ran: drop --executor")
    if sign is not None and bundle is None:
        raise UserError("--sign signs a bundle: say where it goes with --bundle DIR")
    folders = include_dirs_of(include, kernel)
    if executor is None and where.given:
        raise UserError("--address and --workers are for --executor")

    start = time.monotonic()
    with ExitStack() as stack:
        evidence = stack.enter_context(JudgedEvidence(bundle, sign)) if bundle is not None else None
        interrupted = False
        failed = FailedArrays(evidence.arrays if evidence else None)
        seconds = timeout or (GPU_CASE_SECONDS if device == "gpu" else CASE_SECONDS)
        with CaseProgress(f"judging {kernel}", seconds=seconds) as progress:
            options: dict[str, Any] = {
                "device": device,
                "arch": arch,
                "config": parse_settings(settings) or None,
                "level": level,
                "seed": seed,
                "progress": failed.then(progress.finished),
                "timeout": timeout,
                "max_steps": max_steps,
                "numerics": checked_numerics(numerics),
                "until_failure": first_failure,
                "include_dirs": folders,
                "signature": form.name if form else "",
            }
            try:
                if executor is not None:
                    on = stack.enter_context(where.on(executor))
                    verdict = judge_by_jobs(
                        on, kernel, specs, on_start=progress.started, on_end=progress.ended, **options
                    )
                else:
                    verdict = judge_candidate(
                        kernel,
                        specs,
                        store=failed,
                        coverage=True,
                        on_start=progress.started,
                        on_plan=evidence.plans if evidence else None,
                        **options,
                    )
            except JudgingInterrupted as stop:
                verdict, interrupted = stop.verdict, True
        again = [*(["--arch", arch] if arch else []), *(part for each in settings or () for part in ("--set", each))]
        again += ["--signature", signature] if signature else []
        again += [part for each in include or () for part in ("--include", each)]
        summary = summarise(verdict, failed.of, kernel, again)
        _print_cases(console, verdict)
        if cases is not None:
            suit = len(verdict.cases) + len(verdict.unjudged)
            console.print(f"{cases}: {suit} of {len(specs)} cases suit {verdict.kernel}, {len(specs) - suit} do not")
            console.print(f"{cases} leaves out: {LEFT_OUT[cases]}", soft_wrap=True)
        _print_properties(console, verdict)
        print_failures(console, verdict, summary)
        written = evidence.write(console, kernel, verdict, folders) if evidence else None
    print_outcome(console, verdict, time.monotonic() - start)
    note_failed(kernel, specs, verdict)
    if junit is not None:
        write_text(junit, to_junit(verdict, time.monotonic() - start), option="--junit")
    places = {"bundle": str(written.tarball), "report": str(written.report)} if written else {}
    places |= {"junit": junit} if junit is not None else {}
    content = {name: value for name, value in verdict.to_dict().items() if name != "status"}
    content |= {"unjudged": list(verdict.unjudged), "diagnosis": summary.to_dict(), **places}
    error = None if interrupted or verdict.passed else _refusal(verdict)
    write_document(json, content, status=verdict.status.value, error=str(error or ""))
    if error is not None:
        raise error
    return INTERRUPTED if interrupted else 0 if verdict.passed else 1


def _refusal(verdict: Verdict) -> MachineError | UserError | None:
    """The failure of the machine, or the bad input, behind a verdict without a result for the kernel; otherwise
    None."""
    bad = {case.status for case in verdict.cases if not case.passed}
    if not bad and verdict.status is Status.INCORRECT:  # in exact arithmetic
        return None
    if bad <= {Status.INFRA_ERROR}:
        return MachineError(verdict.reason)
    return UserError(verdict.reason) if bad <= {Status.UNSUPPORTED, Status.BUILD_FAILED} else None


def _print_cases(console: Console, verdict: Verdict) -> None:
    """Print a row per case: status, and each error as a share of its limit."""
    title = " ".join(filter(None, (verdict.kernel, verdict.config)))
    heads = ("max error", "max/limit", "rel L2", "L2/limit", "rms/limit", "row/limit", "LSE/limit", "exact")
    spare = ("LSE/limit", "rms/limit", "rel L2", "max error", "exact", "row/limit")
    shown = table(f"{title} on {verdict.device}", ("case", "status", *heads), numeric=heads, spare=spare)
    rows, others = rows_of(verdict)
    for case in rows:
        shown.add_row(case.name, verdict_text(case.passed, case.status.value), *figures_of(case))
    show_table(console, shown)
    if others:
        console.print(others)


def _print_properties(console: Console, verdict: Verdict) -> None:
    """Print further properties of the cases, one line each."""
    from sdpalab.judge.agreement import Agreement
    from sdpalab.judge.rule.relations import RELATIONS

    print_set_aside(console, next((case.run["set_aside"] for case in verdict.cases if "set_aside" in case.run), ""))
    if verdict.confinement != "processes":  # shown beside the outcome otherwise
        console.print(confinement_line(verdict), soft_wrap=True)
    within_contract, judged = verdict.original_contract, sum(case.errors is not None for case in verdict.cases)
    contract = f"max error {ORIGINAL_CONTRACT['max_abs']:g}, relative L2 {ORIGINAL_CONTRACT['rel_l2']:g}"
    console.print(
        f"original contract ({contract}): met by {within_contract} of {judged} cases; not part of the verdict"
    )
    if verdict.fast_0 is not None:
        trials = sum(bool(case.run.get("trial")) for case in verdict.cases)
        console.print(f"trials: fast_0 = {verdict.fast_0:.2f} over {trials} hidden seeds (not timed, so no fast_1)")
    for relation in RELATIONS.values():
        differ = [
            related["elements_that_differ"]
            for case in verdict.cases
            if (related := case.run.get("relation")) and related["name"] == relation.name
        ]
        if differ:
            held = f"holds bit for bit in {differ.count(0)} of {len(differ)} cases"
            console.print(f"relation {relation.name}: {held} ({relation.says})", soft_wrap=True)
    for line in (*algebra_lines(verdict), *code_lines(verdict)):
        console.print(line, soft_wrap=True)
    for case in verdict.cases:
        if case.run.get("witnesses") and verdict.passed:
            for line in Agreement.from_dict(case.run["witnesses"]).lines(case.name):
                console.print(line, soft_wrap=True)


def algebra_lines(verdict: Verdict) -> list[str]:
    """Findings of the algebraic stage, one line per problem."""
    from sdpalab.judge.algebra.outcome import AlgebraStatus

    lines = []
    for each in verdict.algebra:
        says = each.reason
        if each.status is AlgebraStatus.EQUAL:
            says = f"all {each.compared} elements of O mod {each.prime}"
            says += ", and the log-sum-exp" if each.lse_unequal == 0 else ""
            says += f"; without the log-sum-exp: {each.lse_refusal}" if each.lse_refusal else ""
            if not each.scale_explained:
                says += f"; with {each.factor} for scale * log2 e mod {each.prime - 1}, not {each.expected_factor}"
        says += f"; with {each.config}" if each.config else ""
        lines.append(f"algebraic: {each.name}: {each.status.value} ({says})")
    return lines


def code_lines(verdict: Verdict) -> list[str]:
    """Executed basic blocks of each entry, and each piece of code that no case executed."""
    lines = []
    for each in verdict.code:
        builds = f"{each.builds} builds" if each.builds > 1 else "1 build"
        lines.append(f"code: {each.entry}: the cases executed {each.executed} of {each.blocks} blocks ({builds})")
        lines += [f"not judged: {sentence}" for sentence in each.sentences]
    return lines or [f"not judged: {sentence}" for sentence in verdict.not_covered]


def confinement_line(verdict: Verdict) -> str:
    """Confinement of the kernel's processes, and its consequence for the builds."""
    for case in verdict.cases:
        if case.run.get("confinement") == verdict.confinement != "":
            return f"confinement: {describe(verdict.confinement, case.run['confined_by'])}"
    return "confinement: unknown, because no case has run"


def print_outcome(console: Console, verdict: Verdict, seconds: float) -> None:
    """The verdict in one line."""
    passed = sum(case.passed for case in verdict.cases)
    left = f", {len(verdict.unjudged)} were not judged" if verdict.unjudged else ""
    outcome = f"{passed} of {len(verdict.cases)} cases passed{left} on {verdict.device} in {seconds:.1f} s"
    if verdict.covers:
        console.print(f"covers: {', '.join(verdict.covers)}", soft_wrap=True)
    if verdict.confinement == "processes":
        console.print(verdict_text(False, confinement_line(verdict)), soft_wrap=True)
    line = f"{verdict.status.value}: {verdict.kernel}, {outcome}"
    conclude(console, verdict_text(verdict.passed, line))
