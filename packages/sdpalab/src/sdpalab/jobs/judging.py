"""One judgement as many jobs of a few cases each, on any executor, with one verdict."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from sdpalab.errors import MachineError, UserError
from sdpalab.jobs.calling import jobs_of, value_of
from sdpalab.jobs.dispatch import run_jobs
from sdpalab.jobs.job import Executor, Job, JobResult, is_remote
from sdpalab.judge.cases import CaseSpec
from sdpalab.judge.options import CASE_SECONDS, JudgeOptions
from sdpalab.judge.recorded import Recorded, Recording
from sdpalab.judge.sandbox.candidate import source_of
from sdpalab.judge.session import NoCaseSuits, described, judge_candidate, judge_recorded
from sdpalab.judge.strides import Strides
from sdpalab.judge.verdict import Case, Status, Verdict
from sdpalab.kernels.userfile import absolute_spec
from sdpalab.problem import Problem
from sdpalab.record import RECORD

__all__ = ["CASES_OF_A_JOB", "JudgedCases", "include_dirs_in", "judge_by_jobs", "judge_job", "same_source", "source_of"]


class JudgedCases(BaseModel):
    """Value of a job: the ``verdict``, None if none of its cases suits the kernel's tiles or strides; or the
    ``answers`` of the candidate's processes, from which a caller that does not trust the worker derives the verdict."""

    model_config = RECORD

    verdict: Verdict | None
    answers: list[Recorded] | None = None


SENT = (
    "device",
    "arch",
    "sms",
    "config",
    "level",
    "seed",
    "timeout",
    "max_steps",
    "numerics",
    "until_failure",
    "signature",
)
"""Options that are sent to a worker as they are."""
CASES_OF_A_JOB = 8
"""Cases per job: the start of a candidate's processes takes about 2 s, and a case 0.1 to 0.5 s."""


def same_source(inputs: Mapping[str, Any]) -> str:
    """The kernel of a job; raises UserError if its source, including headers, differs from the submitted source."""
    spec, folders = str(inputs["kernel"]), include_dirs_in(inputs)
    missing = next((folder for folder in folders if not folder.is_dir()), None)
    if missing is not None:
        raise UserError(f"the worker has no folder {missing}, which --include names")
    if source_of(spec, folders) != inputs["source"]:
        raise UserError(f"the source of {spec} differs at the worker from where the job was submitted")
    return spec


def include_dirs_in(inputs: Mapping[str, Any]) -> tuple[Path, ...]:
    """Header folders of a job."""
    return tuple(Path(folder) for folder in inputs.get("include_dirs", ()))


def judge_by_jobs(
    executor: Executor,
    kernel: str,
    specs: Sequence[CaseSpec],
    *,
    on_end: Callable[[str], None] | None = None,
    **options: Any,
) -> Verdict:
    """:func:`sdpalab.judge.session.judge_candidate` on an executor's workers.

    Parameters
    ----------
    kernel : str
        A registry name, or ``FILE.py[:NAME]`` under a path that each worker has, with the same content.
    on_end : callable, optional
        Called with a job's description at its end.
    **options
        The options of :data:`SENT`, ``include_dirs``, ``progress`` and ``on_start`` of
        :class:`sdpalab.judge.options.JudgeOptions`. Each worker has the folders of ``include_dirs`` under the same
        absolute paths, with the same content. ``until_failure`` stops each job at its first case that fails;
        ``progress`` is called in the order of the jobs' ends, and ``on_start`` with a job's description at its
        submission.

    Returns
    -------
    Verdict
        The cases are in the order of ``specs``. With workers on other machines the verdict is derived here, from the
        answers of the candidate's processes (:mod:`sdpalab.judge.recorded`). Cases of a job that was lost, or did not
        end, are INFRA_ERROR: neither a pass nor a failure.

    Raises
    ------
    UserError
        As for the judge; also if a worker has another source or another version of the lab.
    MachineError
        If no job ended.
    """
    chosen = JudgeOptions(**options)
    if not specs:
        raise UserError("there is no problem to judge")
    shared = {
        **{name: getattr(chosen, name) for name in SENT},
        "config": dict(chosen.config) if chosen.config else None,
        "kernel": absolute_spec(kernel),
        "source": source_of(kernel, chosen.include_dirs),
        "include_dirs": [str(folder) for folder in chosen.include_dirs],
    }
    shares = [specs[first : first + CASES_OF_A_JOB] for first in range(0, len(specs), CASES_OF_A_JOB)]
    inputs: list[dict[str, Any]] = [
        {
            **shared,
            "algebra": number == 0,
            "cases": [_as_data(spec) for spec in share],
            "secret": secrets.token_hex(16) if is_remote(executor) else "",
        }
        for number, share in enumerate(shares)
    ]
    about: Mapping[str, Any] | None = None
    if is_remote(executor):
        about = described(kernel, [spec.problem for spec in specs], replace(chosen, device="auto", timeout=None))
    verdicts: dict[int, Verdict] = {}
    lost: dict[int, list[Case]] = {}

    def name_of(number: int) -> str:
        more = len(shares[number]) - 1
        return f"job {number + 1} of {len(shares)} ({shares[number][0].name}{f' and {more} more' if more else ''})"

    def started(job: Job) -> None:
        if chosen.on_start is not None:
            chosen.on_start(name_of(job.number), len(specs))

    def derived(number: int, answers: Sequence[Any] | None) -> Verdict | None:
        """The verdict derived from the recorded answers of a worker; None if none of the cases suits the kernel."""
        assert about is not None
        if answers is None:
            raise MachineError("the worker sent no answers of the candidate's processes")
        first = sum(map(len, shares[:number]))
        mine = {**about, "rejects": about["rejects"][first : first + len(shares[number])]}
        asked = {name: inputs[number][name] for name in ("device", "level", "seed", "until_failure", "algebra")}
        secret = bytes.fromhex(inputs[number]["secret"])
        try:
            return judge_recorded(answers, mine, shares[number], secret=secret, **asked)
        except NoCaseSuits:
            return None

    def ended(result: JobResult) -> None:
        if on_end is not None:
            on_end(name_of(result.number))
        if about is None:
            finished(result)

    def finished(result: JobResult) -> None:
        try:
            value = value_of(result)
            part = derived(result.number, value.get("answers")) if about else value["verdict"]
        except MachineError as error:
            cases = lost[result.number] = [_not_judged(spec, str(error)) for spec in shares[result.number]]
        else:
            if part is None:
                return
            verdicts[result.number] = part if isinstance(part, Verdict) else Verdict.from_dict(part)
            cases = list(verdicts[result.number].cases)
        for case in cases if chosen.progress else ():
            assert chosen.progress is not None
            chosen.progress(case)

    seconds = 60.0 + (chosen.timeout or CASE_SECONDS) * CASES_OF_A_JOB
    results = run_jobs(executor, jobs_of("judge", inputs, seconds), started=started, finished=ended)
    if about is not None:  # last: this process receives no answers while it judges
        for result in results:
            finished(result)
    if not verdicts:
        if lost:
            raise MachineError(next(iter(lost.values()))[0].reason)
        raise NoCaseSuits(kernel)
    first = next(iter(verdicts.values()))
    by_job = {**lost, **{number: list(verdict.cases) for number, verdict in verdicts.items()}}
    cases = [case for number in sorted(by_job) for case in by_job[number]]
    unjudged = tuple(name for number in sorted(verdicts) for name in verdicts[number].unjudged)
    algebra = tuple(each for number in sorted(verdicts) for each in verdicts[number].algebra)
    return replace(first, cases=tuple(_one_compared(cases)), unjudged=unjudged, algebra=algebra)


def judge_job(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Judge some cases (:class:`JudgedCases`)."""
    spec = same_source(inputs)
    specs = [_from_data(each) for each in inputs["cases"]]
    recording = Recording() if inputs["secret"] else None
    options = {**inputs, "include_dirs": include_dirs_in(inputs), "secret": bytes.fromhex(inputs["secret"])}
    options = {name: value for name, value in options.items() if name not in ("kernel", "source", "cases")}
    verdict = None
    with suppress(NoCaseSuits):
        verdict = judge_candidate(spec, specs, workers=1, recording=recording, **options).to_dict()
    return {"verdict": None, "answers": recording.answers} if recording else {"verdict": verdict}


def _as_data(spec: CaseSpec) -> dict[str, Any]:
    return {**vars(spec), "problem": spec.problem.to_dict(), "strides": spec.strides.value}


def _from_data(data: Mapping[str, Any]) -> CaseSpec:
    return CaseSpec(**{**data, "problem": Problem(**data["problem"]), "strides": Strides(data["strides"])})


def _not_judged(spec: CaseSpec, reason: str) -> Case:
    return Case(spec.name, spec.problem, spec.inputs, spec.seed or 0, Status.INFRA_ERROR, reason)


def _one_compared(cases: Sequence[Case]) -> list[Case]:
    """Keep the distances from torch backends of the largest problem only, as a judgement in one piece."""
    compared = [case for case in cases if case.run.get("witnesses")]
    chosen = max(compared, key=lambda case: case.problem.scores, default=None)
    return [
        replace(case, run={name: value for name, value in case.run.items() if name != "witnesses"})
        if case in compared and case is not chosen
        else case
        for case in cases
    ]
