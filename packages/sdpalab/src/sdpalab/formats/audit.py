"""Judges submissions, and compares each verdict with that of the format's own check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from math import inf, isfinite
from threading import Lock
from typing import Any

from sdpalab.errors import MachineError, UserError
from sdpalab.formats.candidate import FormatCandidate
from sdpalab.formats.submission import Submission
from sdpalab.judge.cases import CaseSpec, quick_cases
from sdpalab.judge.interrupt import Interrupt, wait_for
from sdpalab.judge.provenance import provenance_of
from sdpalab.judge.sandbox.isolation import CandidateBuildError
from sdpalab.judge.sandbox.stating import facts_of
from sdpalab.judge.session import judge_candidate
from sdpalab.judge.small_cases import normal_case, probes, small_version
from sdpalab.judge.strides import Strides
from sdpalab.judge.verdict import Verdict
from sdpalab.problem import Problem
from sdpalab.status import Status
from warpsan.host import usable_cpus

__all__ = ["REFUSED", "Audited", "audit"]

REFUSED = "REFUSED"
"""Status of a submission that is not judged: its task is not attention, or it needs more than Python and Triton."""
_ENDED = (Status.HAZARD, Status.CRASHED, Status.TIMED_OUT, Status.INFRA_ERROR)
"""Statuses of a case without an output."""
_ERRORS = ("absolute_error", "relative_error")
_EDGES = (16, 64)
"""Tiles whose edges are judged."""
_LONG = 617
"""Keys of the longest case: more than a checker's usual 512, and a multiple of no tile."""


@dataclass(frozen=True)
class Audited:
    """One row of an audit.

    Attributes
    ----------
    submission : str
        Its path.
    format : str
    problem : str
        Label of the judged problem, or empty.
    status : str
        Status of the verdict, or REFUSED.
    reason : str
    cases : int
        Judged cases; the first failure ends the judgement.
    hazard : str
        The first hazard, or empty.
    coverage : str
        Executed and all basic blocks of each kernel, such as ``attend 31/33``.
    provenance : str
        See :func:`sdpalab.judge.provenance.provenance_of`; ``torch`` for a submission without kernels.
    own : str
        Verdict of the format's own check at one small shape: ``accepts``, ``rejects``, or the reason for none.
    check : str
        Name of that check.
    absolute_error, relative_error : float, optional
        Largest errors of the output in that check, if it states them.
    axes : tuple of (str, int)
        Sizes of that check's inputs, by the names of the definition.
    unjudged : tuple of str
        Code that no case executed (:attr:`sdpalab.judge.unjudged.EntryCode.sentences`).
    """

    submission: str
    format: str
    problem: str
    status: str
    reason: str
    cases: int = 0
    hazard: str = ""
    coverage: str = ""
    provenance: str = ""
    own: str = ""
    check: str = ""
    absolute_error: float | None = None
    relative_error: float | None = None
    axes: tuple[tuple[str, int], ...] = ()
    unjudged: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the verdict is PASSED."""
        return self.status == Status.PASSED.value

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def audit(
    submissions: Sequence[Submission], *, timeout: float = 60.0, progress: Callable[[Audited], None] | None = None
) -> list[Audited]:
    """Judge submissions, one on each CPU; each failure costs only its own row.

    Parameters
    ----------
    submissions : sequence of Submission
        See :func:`sdpalab.formats.submissions_in`.
    timeout : float
        Most seconds of one case.
    progress : callable, optional
        Called with each row, in the order of the submissions.

    Returns
    -------
    list of Audited
        In the order of the submissions.

    Raises
    ------
    MachineError
        If no process can be started.
    """
    interrupt, tasks, rows = Interrupt(), _Tasks(), []
    with interrupt.installed(), ThreadPoolExecutor(usable_cpus()) as pool:
        jobs = [pool.submit(_audited, submission, tasks, timeout, interrupt) for submission in submissions]
        with interrupt.on_interrupt(lambda: pool.shutdown(wait=False, cancel_futures=True)):
            for job in jobs:
                wait_for(job)
                if interrupt.happened:
                    raise KeyboardInterrupt
                rows.append(job.result())
                if progress is not None:
                    progress(rows[-1])
    return rows


class _Tasks:
    """Facts of tasks, each read once; a text is the reason for refusing one."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Future[Mapping[str, Any] | str]] = {}
        self._lock = Lock()

    def of(self, submission: Submission) -> Mapping[str, Any] | str:
        """The facts of a submission's task."""
        key = submission.format, *sorted(submission.task.items()), str(submission.facts.get("definition"))
        with self._lock:
            first = key not in self._known
            known = self._known.setdefault(key, Future())
        if first:
            try:
                known.set_result(_task(submission))
            except BaseException as error:
                known.set_exception(error)
        return known.result()


def cases_of(problem: Problem, *, all_heads: bool = False) -> list[CaseSpec]:
    """Cases of an audit: a small version of the problem with a public and a hidden seed and all probes, edges of
    tiles, and a long case. Inputs are contiguous, as in all the formats, and have as many rows as keys if the task's
    have; a window is the task's. ``all_heads``: so are the numbers of heads."""
    small = small_version(problem)
    small = small.with_(heads=problem.heads, kv_heads=problem.kv_heads) if all_heads else small
    if problem.window_size is not None:
        small = small.with_(window_size=problem.window_size)
    long = {"seq_kv": _LONG} if problem.seq_q == 1 or problem.kv_lengths else {"seq_q": _LONG, "seq_kv": _LONG}
    lengths = {"kv_lengths": (_LONG, _LONG // 2)[: problem.batch]} if problem.kv_lengths else {}
    specs = [normal_case(small, 0), normal_case(small), *probes(small)]
    specs += [each for each in quick_cases([small]) if each.tile in _EDGES and not problem.kv_lengths]
    specs.append(normal_case(small.with_(**long, **lengths)))
    same = problem.seq_q == problem.seq_kv and problem.kv_lengths is None
    judged = [spec for spec in specs if not spec.relation and spec.strides is Strides.CONTIGUOUS]
    judged = [spec for spec in judged if not same or spec.problem.seq_q == spec.problem.seq_kv]
    judged = [spec for spec in judged if spec.problem.window_size == problem.window_size]
    return list({spec.name: spec for spec in judged}.values())


def _audited(submission: Submission, tasks: _Tasks, timeout: float, interrupt: Interrupt) -> Audited:
    head = str(submission.path), submission.format
    if submission.refused:
        return Audited(*head, "", REFUSED, submission.refused)
    stated = tasks.of(submission)
    if isinstance(stated, str):
        return Audited(*head, "", REFUSED, stated)
    problem = Problem(**{**stated["problem"], **_tuples(stated["problem"])})
    candidate = FormatCandidate(submission, _features(problem), facts=stated)
    try:
        verdict = judge_candidate(
            candidate,
            cases_of(problem, all_heads=submission.format == "flashinfer"),
            level="audit",
            workers=1,
            until_failure=True,
            timeout=timeout,
            interrupt=interrupt,
        )
        row = _row(head, problem, verdict)
    except UserError as error:
        built = Status.BUILD_FAILED if isinstance(error, CandidateBuildError) else Status.CRASHED
        row = Audited(*head, problem.label, built.value, str(error))
    except MachineError as error:
        return Audited(*head, problem.label, Status.INFRA_ERROR.value, str(error))
    return Audited(**{**row.to_dict(), **_own(submission, stated)})


def _task(submission: Submission) -> Mapping[str, Any] | str:
    """The facts of a task, from a process without the submission; or the reason for refusing it."""
    try:
        stated = facts_of(FormatCandidate(submission, with_task=True, with_solution=False))
    except UserError as error:
        return f"the task does not load: {error}"
    if "problem" not in stated:
        return str(stated.get("refused", "the task states no problem"))
    try:
        Problem(**{**stated["problem"], **_tuples(stated["problem"])})
    except (TypeError, ValueError, UserError) as error:
        return f"the task is no problem of the lab: {error}"
    return stated


def _own(submission: Submission, stated: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict of the format's own check, which runs the submission beside the reference."""
    try:
        result = facts_of(FormatCandidate(submission, with_task=True, facts=stated))
    except (UserError, MachineError) as error:
        return {"own": f"fails: {error}"[:200], "check": ""}
    own = {"own": "accepts" if result.get("accepts") is True else "rejects", "check": str(result.get("own", ""))[:80]}
    errors = {name: float(result[name]) for name in _ERRORS if isfinite(result.get(name, inf))}
    return {**own, **errors, "axes": tuple((str(name), int(n)) for name, n in result.get("axes", {}).items())}


def _features(problem: Problem) -> list[str]:
    """Parameters of the adapter's function, so that the judge passes what the task has."""
    names = ["causal"] if problem.causal else []
    return [*names, "scale", "enable_gqa", *problem.features]


def _row(head: tuple[str, str], problem: Problem, verdict: Verdict) -> Audited:
    stated = next((each.run["provenance"] for each in reversed(verdict.cases) if "provenance" in each.run), None)
    return Audited(
        *head,
        problem.label,
        verdict.status.value,
        verdict.reason,
        len(verdict.cases),
        next((each.reason for each in verdict.cases if each.status is Status.HAZARD), ""),
        ", ".join(f"{each.entry} {each.executed}/{each.blocks}" for each in verdict.code),
        provenance_of(stated) or ("torch" if any(case.status not in _ENDED for case in verdict.cases) else ""),
        unjudged=tuple(sentence for each in verdict.code for sentence in each.sentences),
    )


def _tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
