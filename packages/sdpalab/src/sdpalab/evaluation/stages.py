"""Stages of rising cost, on one candidate."""

from __future__ import annotations

import hashlib
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sdpalab.errors import UserError
from sdpalab.evaluation.vector import Evaluation, vector_of
from sdpalab.judge.cases import cases_for
from sdpalab.judge.interrupt import Interrupt
from sdpalab.judge.sandbox.candidate import Candidate
from sdpalab.judge.session import (
    BuildFailure,
    FirstBuild,
    JudgingInterrupted,
    UnsupportedTask,
    build_problem,
    judge_candidate,
)
from sdpalab.judge.small_cases import CaseSpec, normal_case, small_version
from sdpalab.judge.verdict import Verdict
from sdpalab.measure.speed_of_light import binding_floor
from sdpalab.model.evaluated import modelled_us
from sdpalab.problem import MISSION, Problem
from sdpalab.status import Status
from warpsan.gpus import Gpu, gpu_named

__all__ = ["STAGES", "evaluate"]

STAGES = ("compile", "tiny", "quick", "full")
"""Stages, the cheapest first: the build; one small ragged case with all checks; the levels of the judge."""


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
    return vector_of(status, reason, statuses, verdicts, modelled, time.monotonic() - begin)


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
