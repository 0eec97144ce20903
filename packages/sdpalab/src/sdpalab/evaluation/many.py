"""Many candidates at once, each with its own result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sdpalab.errors import MachineError, UserError
from sdpalab.evaluation.stages import evaluate
from sdpalab.evaluation.vector import Evaluation
from sdpalab.jobs import Executor, JobOutcome, run_jobs
from sdpalab.jobs.calling import jobs_of
from sdpalab.judge.sandbox.candidate import Candidate
from sdpalab.judge.sandbox.guarded import copies_for
from sdpalab.problem import Problem
from sdpalab.status import Status
from warpsan.host import usable_cpus

__all__ = ["GRACE_SECONDS", "evaluate_alone", "evaluate_job", "judge_many"]

GRACE_SECONDS = 60.0
"""Seconds beyond its budget after which an item of :func:`judge_many` on an executor has no result."""


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
