"""Evaluation of a candidate by stages of rising cost, and of many candidates at once, for programs that write kernels.

The answer is a vector of observations. Nothing here combines them into one number.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any

from sdpalab.errors import MachineError, UserError
from sdpalab.jobs import Executor, JobOutcome, run_jobs
from sdpalab.jobs.calling import jobs_of
from sdpalab.judge.algebra.outcome import AlgebraStatus
from sdpalab.judge.cases import cases_for
from sdpalab.judge.interrupt import Interrupt
from sdpalab.judge.provenance import provenance_of
from sdpalab.judge.sandbox.candidate import Candidate
from sdpalab.judge.sandbox.guarded import copies_for
from sdpalab.judge.session import (
    BuildFailure,
    FirstBuild,
    JudgingInterrupted,
    UnsupportedTask,
    build_problem,
    judge_candidate,
)
from sdpalab.judge.small_cases import CaseSpec, normal_case, small_version
from sdpalab.judge.verdict import Case, Verdict
from sdpalab.measure.speed_of_light import binding_floor
from sdpalab.model.evaluated import modelled_us
from sdpalab.problem import MISSION, Problem
from sdpalab.record import RECORD, JsonRecord, dataclass
from sdpalab.status import Status
from warpsan.gpus import Gpu, gpu_named
from warpsan.host import usable_cpus

__all__ = ["GRACE_SECONDS", "STAGES", "Evaluation", "evaluate", "evaluate_alone", "evaluate_job", "judge_many"]

STAGES = ("compile", "tiny", "quick", "full")
"""Stages, the cheapest first: the build; one small ragged case with all checks; the levels of the judge."""
GRACE_SECONDS = 60.0
"""Seconds beyond its budget after which an item of :func:`judge_many` on an executor has no result."""


@dataclass(frozen=True, config=RECORD)
class Evaluation(JsonRecord):
    """Results of the stages of one candidate.

    Attributes
    ----------
    status : Status
        That of the first stage that failed; PASSED if each requested stage passed; INTERRUPTED if the budget ended
        first, without a failure.
    reason : str
        Reason for another status than PASSED.
    stages : mapping of str to str
        Status of each stage that ran, in order.
    compiled, ran : bool
        Whether a build succeeded, and whether a case had an output.
    hazards : mapping of str to int
        Hazards by kind.
    families : mapping of str to tuple
        Passed and judged cases: ``normal`` inputs, ``probes``, ``edges``, ``relations``, ``claims``, and ``code``.
    log10_error : float, optional
        Decimal logarithm of the largest share of a limit; None without an output.
    algebraic : mapping of str to int
        Problems in exact arithmetic, by status.
    blocks : tuple of int
        Executed and all basic blocks, over all entries; zeros if they are unknown.
    unjudged : tuple of str
        Code that no case executed.
    provenance : str
        Origin of the output of a function with kernels.
    gpu : str
        GPU of the next two; empty if none was asked for.
    modelled_us : float, optional
        Modelled time of one call at the task's size in microseconds, with inputs in L2, of a kernel that passed.
    floor_us : float, optional
        Least time of any kernel there in microseconds: the largest floor, with inputs in L2.
    not_modelled : str
        Reason for a missing modelled time.
    seconds : float
        Wall-clock time.
    """

    status: Status
    reason: str = ""
    stages: Mapping[str, str] = field(default_factory=dict)
    compiled: bool = False
    ran: bool = False
    hazards: Mapping[str, int] = field(default_factory=dict)
    families: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    log10_error: float | None = None
    algebraic: Mapping[str, int] = field(default_factory=dict)
    blocks: tuple[int, int] = (0, 0)
    unjudged: tuple[str, ...] = ()
    provenance: str = ""
    gpu: str = ""
    modelled_us: float | None = None
    floor_us: float | None = None
    not_modelled: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether each requested stage passed."""
        return self.status is Status.PASSED

    def text(self, most: int = 500) -> str:
        """The evaluation in words, of at most ``most`` characters."""
        stage = ("compile", *self.stages)[-1]
        parts = [f"{self.status.value} at {stage}", self.reason, *self.unjudged]
        shown = "; ".join(filter(None, parts))
        return shown if len(shown) <= most else f"{shown[: most - 4]} ..."


def evaluate(
    source: Candidate,
    task: Problem | None = None,
    *,
    stages: Sequence[str] = STAGES[:3],
    budget_s: float = 60.0,
    secret: bytes | None = None,
    memory_bytes: int | None = None,
    gpu: str = "",
) -> Evaluation:
    """Judge a candidate by stages, and stop at the first that fails.

    Parameters
    ----------
    source
        As for :func:`sdpalab.judge.judge`, or the text of a Python file that defines one kernel or function.
    task : Problem, optional
        Default: the mission shape.
    stages : sequence of str
        Of :data:`STAGES`; they run in that order.
    budget_s : float
        Most wall-clock seconds; a case that has begun ends early.
    secret : bytes, optional
        Source of the hidden seeds; equal secrets give equal evaluations. Default: random bytes.
    memory_bytes : int, optional
        Most resident memory of a candidate's process. Default: 16 GiB.
    gpu : str, optional
        GPU for the modelled time of a kernel that passes, such as ``L4``. The model needs one more run, without checks,
        at the task's size.

    Raises
    ------
    UserError
        If a stage or the GPU is unknown, or the candidate does not support the task. A candidate that does not load or
        build has the status BUILD_FAILED.
    MachineError
        If no process can be started.
    """
    if unknown := [stage for stage in stages if stage not in STAGES]:
        raise UserError(f"there is no stage {unknown[0]!r}; the stages are {', '.join(STAGES)}")
    begin, problem = time.monotonic(), task or MISSION
    target = gpu_named(gpu) if gpu else None
    statuses: dict[str, str] = {}
    verdicts: list[Verdict] = []
    status, reason = Status.PASSED, ""
    with _candidate(source) as candidate:
        ordered = [each for each in STAGES if each in stages]
        for stage in ordered:
            left = begin + budget_s - time.monotonic()
            if left <= 0:
                status, reason = Status.INTERRUPTED, f"the budget of {budget_s:g} s ended before {stage}"
                break
            if stage == "compile" and len(ordered) > 1:
                continue  # in the processes of the next stage
            first = FirstBuild(problem) if ordered[:2] == ["compile", stage] else None
            try:
                limits = {"secret": secret, "memory_bytes": memory_bytes}
                status, reason, verdict = _stage(stage, candidate, problem, left, first, limits)
            except BuildFailure as failure:
                status, reason = failure.status, failure.reason
                statuses["compile"] = status.value
                break
            statuses |= {"compile": Status.PASSED.value} if first is not None and first.passed else {}
            statuses[stage] = status.value
            verdicts += [verdict] if verdict is not None else []
            if status is not Status.PASSED:
                break
        modelled = {}
        if target is not None:
            left = begin + budget_s - time.monotonic()
            modelled = _modelled(candidate, problem, target, left, memory_bytes, passed=status is Status.PASSED)
    return _vector(status, reason, statuses, verdicts, modelled, time.monotonic() - begin)


def judge_many(
    items: Sequence[tuple[Candidate, Problem | None]],
    *,
    workers: int | None = None,
    executor: Executor | None = None,
    finished: Callable[[int, Evaluation], None] | None = None,
    **options: Any,
) -> list[Evaluation]:
    """Evaluate many candidates; one that crashes, hangs or does not load costs only its own slot.

    Parameters
    ----------
    items : sequence of (candidate, Problem or None)
        As for :func:`evaluate`.
    workers : int, optional
        Concurrent evaluations in processes of this machine. Default: one for each CPU.
    executor : Executor, optional
        Runs each item as a job, on this machine or on others (:mod:`sdpalab.jobs`). A candidate is then a registry
        name, text, or a file that each worker has; workers of other machines are trusted.
    finished : callable, optional
        Called with the index of each item and its evaluation, in order of their ends.
    **options
        ``stages``, ``budget_s``, ``secret``, ``memory_bytes`` and ``gpu`` of :func:`evaluate`.

    Returns
    -------
    list of Evaluation
        In the order of the items.
    """
    lock = threading.Lock()

    def ended(number: int, evaluation: Evaluation) -> Evaluation:
        if finished is not None:
            with lock:
                finished(number, evaluation)
        return evaluation

    if executor is None:
        with copies_for(len(items)), ThreadPoolExecutor(workers or usable_cpus()) as pool:
            jobs = [
                pool.submit(lambda n, item: ended(n, evaluate_alone(*item, **options)), number, item)
                for number, item in enumerate(items)
            ]
            return [job.result() for job in jobs]
    if any(not isinstance(candidate, str) for candidate, _ in items):
        raise UserError("an executor takes candidates as names, files or text: objects cannot be sent as data")
    stated = {**options, **({"secret": options["secret"].hex()} if options.get("secret") else {})}
    inputs = [{"source": source, "task": task and task.to_dict(), **stated} for source, task in items]
    seconds = float(options.get("budget_s", 60.0)) + GRACE_SECONDS
    results = run_jobs(executor, jobs_of("evaluate", inputs, seconds))
    evaluations = []
    for number, result in enumerate(results):
        if result.outcome is JobOutcome.DONE and "bad_input" not in (result.value or {}):
            evaluation = Evaluation.from_dict(result.value or {})
        else:
            lost = Status.TIMED_OUT if result.outcome is JobOutcome.TIMED_OUT else Status.INFRA_ERROR
            evaluation = Evaluation(lost, result.reason or str((result.value or {}).get("bad_input")))
        evaluations.append(ended(number, evaluation))
    return evaluations


def evaluate_job(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """An item of :func:`judge_many` on a worker: the evaluation as plain JSON values."""
    options = {name: value for name, value in inputs.items() if name not in ("source", "task")}
    if "secret" in options:
        options["secret"] = bytes.fromhex(options["secret"])
    task = None if inputs["task"] is None else Problem(**inputs["task"])
    return evaluate_alone(inputs["source"], task, **options).to_dict()


def evaluate_alone(source: Candidate, task: Problem | None, **options: Any) -> Evaluation:
    """:func:`evaluate`, with a failure as its result."""
    try:
        return evaluate(source, task, **options)
    except UserError as error:
        return Evaluation(Status.UNSUPPORTED, str(error))
    except MachineError as error:
        return Evaluation(Status.INFRA_ERROR, str(error))


@contextmanager
def _candidate(source: Candidate) -> Iterator[Candidate]:
    """The candidate; a text becomes a file of a folder of its own."""
    if not isinstance(source, str) or "\n" not in source:
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="sdpalab-evaluate-") as folder:
        path = Path(folder, f"candidate_{hashlib.sha256(source.encode()).hexdigest()[:12]}.py")
        path.write_text(source)
        yield str(path)


def _stage(
    stage: str,
    candidate: Candidate,
    problem: Problem,
    seconds: float,
    first: FirstBuild | None,
    limits: Mapping[str, Any],
) -> tuple[Status, str, Verdict | None]:
    """Status, reason and verdict of one stage, with this much time; ``first``: its processes do the compile stage."""
    if stage == "compile":
        return *build_problem(candidate, problem, timeout=seconds, memory_bytes=limits["memory_bytes"]), None
    interrupt = Interrupt()
    timer = threading.Timer(seconds, interrupt.now)
    timer.start()
    try:
        tiny = stage == "tiny"
        verdict = judge_candidate(
            candidate,
            [_tiny(problem)] if tiny else cases_for(stage, [problem]),
            level=stage,
            build=first,
            workers=1,
            until_failure=True,
            algebra=not tiny,
            coverage=not tiny,
            interrupt=interrupt,
            **limits,
        )
    except JudgingInterrupted as stop:
        verdict = stop.verdict
    except KeyboardInterrupt:
        if not interrupt.happened:
            raise
        return Status.INTERRUPTED, f"the budget ended in {stage}", None
    except UnsupportedTask:
        raise
    except UserError as error:
        return Status.BUILD_FAILED, str(error), None
    finally:
        timer.cancel()
    return verdict.status, verdict.reason, verdict


def _tiny(problem: Problem) -> CaseSpec:
    """One ragged case of the problem."""
    small = small_version(problem)
    lengths = problem.kv_lengths or problem.q_lengths
    sizes = {} if lengths else {"seq_q": min(small.seq_q, 37), "seq_kv": min(small.seq_kv, 77)}
    return normal_case(small.with_(**sizes))


def _modelled(
    candidate: Candidate, problem: Problem, gpu: Gpu, seconds: float, memory_bytes: int | None, *, passed: bool
) -> dict[str, Any]:
    """Fields of the modelled time."""
    floor = round(binding_floor(problem, gpu, cold=False).microseconds, 3)
    microseconds, reason = None, "" if passed else "only the time of a kernel that passed is modelled"
    if passed and not isinstance(candidate, str):
        reason = "only the time of a named kernel or a file is modelled"
    elif passed:
        microseconds, reason = modelled_us(
            str(candidate), problem, gpu, seconds=max(1.0, seconds), memory_bytes=memory_bytes
        )
    return {"gpu": gpu.name, "modelled_us": microseconds, "floor_us": floor, "not_modelled": reason}


def _vector(
    status: Status,
    reason: str,
    stages: Mapping[str, str],
    verdicts: Sequence[Verdict],
    modelled: Mapping[str, Any],
    seconds: float,
) -> Evaluation:
    cases = [case for verdict in verdicts for case in verdict.cases]
    last = verdicts[-1] if verdicts else None
    families: dict[str, tuple[int, int]] = {}
    hazards: dict[str, int] = {}
    for case in cases:
        passed, judged = families.get(_family(case), (0, 0))
        families[_family(case)] = passed + case.passed, judged + 1
        for each in case.run.get("hazards", ()):
            hazards[each["kind"]] = hazards.get(each["kind"], 0) + 1
    shares = [max(case.shares.values()) for case in cases if case.shares]
    algebraic = [each.status for each in (last.algebra if last else ())]
    stated = [case.run["provenance"] for case in cases if case.run.get("provenance")]
    code = last.code if last else ()
    return Evaluation(
        status=status,
        reason=reason,
        stages=stages,
        compiled=stages.get("compile") == Status.PASSED.value or any(case.errors for case in cases),
        ran=any(case.errors for case in cases),
        hazards=hazards,
        families=families,
        log10_error=math.log10(max(*shares, 1e-12)) if shares else None,
        algebraic={kind.value: algebraic.count(kind) for kind in AlgebraStatus if kind in algebraic},
        blocks=(sum(each.executed for each in code), sum(each.blocks for each in code)),
        unjudged=tuple(sentence for each in code for sentence in each.sentences),
        provenance=provenance_of(stated[-1]) if stated else "",
        **modelled,
        seconds=round(seconds, 3),
    )


def _family(case: Case) -> str:
    if case.run.get("claim"):
        return "claims"
    if case.run.get("relation"):
        return "relations"
    if case.name.endswith(("reaches further code", "hidden length")):
        return "code"
    if "edge of" in case.name:
        return "edges"
    return "normal" if case.inputs == "normal" else "probes"
