"""Judging one candidate: the request, and the processes that run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from sdpalab.errors import UserError
from sdpalab.judge.cases import CaseSpec
from sdpalab.judge.judgement import JudgeRun, JudgingInterrupted
from sdpalab.judge.options import CASE_SECONDS, GPU_CASE_SECONDS, JudgeOptions, Store
from sdpalab.judge.recorded import RecordedRuns, Recording
from sdpalab.judge.sandbox.candidate import Candidate, prepare
from sdpalab.judge.sandbox.isolation import CandidateDied, CandidateProcesses
from sdpalab.judge.selection import NoCaseSuits, suitable_cases
from sdpalab.judge.small_cases import normal_case
from sdpalab.judge.verdict import Verdict
from sdpalab.problem import Problem
from sdpalab.status import Status

__all__ = [
    "CASE_SECONDS",
    "GPU_CASE_SECONDS",
    "JudgingInterrupted",
    "NoCaseSuits",
    "Store",
    "build_problem",
    "described",
    "judge_candidate",
    "judge_recorded",
]


def judge_candidate(
    candidate: Candidate, specs: Sequence[CaseSpec], *, recording: Recording | None = None, **options: Any
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
    **options
        Fields of :class:`sdpalab.judge.options.JudgeOptions`.

    Raises
    ------
    UserError, MachineError
        As :func:`sdpalab.judge.judge`.
    JudgingInterrupted
        On Ctrl-C, if a case was finished: with the verdict so far.
    """
    chosen = JudgeOptions(**options)
    if not specs:
        raise UserError("there is no problem to judge")
    chosen.check_device()
    spec = prepare(candidate)
    start = recording.start(spec) if recording else partial(CandidateProcesses, spec)
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


def build_problem(candidate: Candidate, problem: Problem, seconds: float) -> tuple[Status, str]:
    """Load a candidate, and build its launch plan for a problem, without running it: PASSED, or the status and reason.

    Raises
    ------
    UserError
        If it does not support the problem.
    MachineError
        If no process can be started.
    """
    try:
        options = JudgeOptions(timeout=seconds)
        with closing(CandidateProcesses(prepare(candidate), (problem,), options)) as processes:
            suitable_cases([normal_case(problem)], processes.about, "auto")
            return processes.build(problem)
    except CandidateDied as death:
        return death.status, death.reason


def described(candidate: Candidate, problems: Sequence[Problem], options: JudgeOptions) -> Mapping[str, Any]:
    """A candidate's description from a process of this machine, which loads it without running ``problems``.

    Raises
    ------
    UserError, MachineError
        As :class:`~sdpalab.judge.sandbox.isolation.CandidateProcesses`.
    """
    with closing(CandidateProcesses(prepare(candidate), tuple(problems), options)) as processes:
        return processes.about
