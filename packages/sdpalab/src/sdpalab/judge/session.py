"""Judging one candidate: the request, and the processes that run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from sdpalab.errors import UserError
from sdpalab.judge.cases import CaseSpec
from sdpalab.judge.judgement import JudgeRun, JudgingInterrupted, Start
from sdpalab.judge.options import CASE_SECONDS, GPU_CASE_SECONDS, JudgeOptions, Store
from sdpalab.judge.recorded import RecordedRuns, Recording
from sdpalab.judge.sandbox.candidate import Candidate, CandidateSpec, prepare
from sdpalab.judge.sandbox.isolation import CandidateDied, CandidateProcesses
from sdpalab.judge.selection import NoCaseSuits, suitable_cases
from sdpalab.judge.small_cases import normal_case
from sdpalab.judge.verdict import Verdict
from sdpalab.problem import Problem
from sdpalab.status import Status

__all__ = [
    "CASE_SECONDS",
    "GPU_CASE_SECONDS",
    "BuildFailure",
    "FirstBuild",
    "JudgingInterrupted",
    "NoCaseSuits",
    "Store",
    "UnsupportedTask",
    "build_problem",
    "described",
    "judge_candidate",
    "judge_recorded",
]


def judge_candidate(
    candidate: Candidate,
    specs: Sequence[CaseSpec],
    *,
    recording: Recording | None = None,
    build: FirstBuild | None = None,
    **options: Any,
) -> Verdict:
    """:func:`sdpalab.judge.judge` on chosen cases, with every option.

    Parameters
    ----------
    candidate
        As for :func:`sdpalab.judge.judge`.
    specs : sequence of CaseSpec
        See :mod:`sdpalab.judge.cases`.
    recording : Recording, optional
        Records the answers of the candidate's processes for :func:`judge_recorded`.
    build : FirstBuild, optional
        The processes first build the launch plan for its problem, as :func:`build_problem`.
    **options
        Fields of :class:`sdpalab.judge.options.JudgeOptions`.

    Raises
    ------
    UserError, MachineError
        As :func:`sdpalab.judge.judge`.
    JudgingInterrupted
        On Ctrl-C, if a case was finished: with the verdict so far.
    BuildFailure, UnsupportedTask
        If the build for ``build`` failed.
    """
    chosen = JudgeOptions(**options)
    if not specs:
        raise UserError("there is no problem to judge")
    chosen.check_device()
    spec = prepare(candidate)
    start: Start = partial(CandidateProcesses, spec) if build is None else partial(_started, spec, build)
    if recording is not None:
        start = recording.start(spec)
    return JudgeRun(start, specs, chosen).run()


def judge_recorded(
    answers: Sequence[Any], about: Mapping[str, Any], specs: Sequence[CaseSpec], *, secret: bytes, **options: Any
) -> Verdict:
    """The verdict of :func:`judge_candidate` with one worker, from recorded answers; the kernel is not run.

    Parameters
    ----------
    answers : sequence of dict
        Answers of a :class:`~sdpalab.judge.recorded.Recording` from an untrusted worker.
    about : mapping
        The candidate's description from :func:`described`, with one entry of ``rejects`` for each of ``specs``.
    specs, secret, **options
        As for :func:`judge_candidate`.

    Raises
    ------
    UserError, MachineError
        As :func:`judge_candidate`; MachineError also if the answers are malformed or belong to other cases.
    """
    options |= {"secret": secret, "workers": 1}
    return JudgeRun(RecordedRuns(answers, about).start, specs, JudgeOptions(**options)).run()


def build_problem(candidate: Candidate, problem: Problem, **options: Any) -> tuple[Status, str]:
    """Load a candidate, and build its launch plan for a problem, without running it: PASSED, or the status and reason.

    ``options`` are fields of :class:`sdpalab.judge.options.JudgeOptions`.

    Raises
    ------
    UnsupportedTask
        If it does not support the problem.
    MachineError
        If no process can be started.
    """
    try:
        _started(prepare(candidate), FirstBuild(problem), (), JudgeOptions(**options)).close()
    except BuildFailure as failure:
        return failure.status, failure.reason
    return Status.PASSED, ""


@dataclass
class FirstBuild:
    """A problem whose launch plan a candidate's processes build before they run; ``passed`` is true afterwards."""

    problem: Problem
    passed: bool = False


class BuildFailure(Exception):
    """A candidate did not load or build: the status, and the reason."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class UnsupportedTask(UserError):
    """A candidate does not support its task."""


def _started(
    spec: CandidateSpec, first: FirstBuild, problems: tuple[Problem, ...], options: JudgeOptions
) -> CandidateProcesses:
    """The processes of a candidate for some problems, which have built its launch plan for one."""
    built = first.problem
    try:
        processes = CandidateProcesses(spec, (*problems, built), options)
    except UserError as error:
        raise BuildFailure(Status.BUILD_FAILED, str(error)) from None
    try:
        rejects = processes.about["rejects"]
        processes.about["rejects"] = rejects[: len(problems)]
        try:
            suitable_cases([normal_case(built)], {**processes.about, "rejects": rejects[len(problems) :]}, "auto")
        except UserError as error:
            raise UnsupportedTask(str(error)) from None
        status, reason = processes.build(built)
        if status is not Status.PASSED:
            raise BuildFailure(status, reason)
        first.passed = True
    except BaseException as error:
        processes.close()
        if isinstance(error, CandidateDied):
            raise BuildFailure(error.status, error.reason) from None
        raise
    return processes


def described(candidate: Candidate, problems: Sequence[Problem], options: JudgeOptions) -> Mapping[str, Any]:
    """A candidate's description from a process of this machine, which loads it without running ``problems``.

    Raises
    ------
    UserError, MachineError
        As :class:`~sdpalab.judge.sandbox.isolation.CandidateProcesses`.
    """
    with closing(CandidateProcesses(prepare(candidate), tuple(problems), options)) as processes:
        return processes.about
