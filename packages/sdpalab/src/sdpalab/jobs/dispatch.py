"""Dispatch of jobs: results in job order, although an executor may lose, repeat or reorder them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from sdpalab.jobs.job import Executor, Job, JobOutcome, JobResult
from sdpalab.jobs.kinds import VALUES, checked_value
from sdpalab.judge.sandbox.messages import plain

__all__ = ["ATTEMPTS", "GRACE_SECONDS", "run_jobs"]

ATTEMPTS = 3
"""Attempts of a job whose worker is lost; then it is LOST."""
GRACE_SECONDS = 60.0
"""Seconds beyond a job's own limit until its result counts as lost, for the start of a worker and the transfer."""

_LEAST_SECONDS = 0.001
_numbers = count(1)


def run_jobs(
    executor: Executor,
    jobs: Sequence[Job],
    *,
    attempts: int = ATTEMPTS,
    grace: float = GRACE_SECONDS,
    deadline: float = math.inf,
    now: Callable[[], float] = time.monotonic,
    started: Callable[[Job], None] | None = None,
    finished: Callable[[JobResult], None] | None = None,
) -> list[JobResult]:
    """Run jobs, and return their results in order, each with the number of its job.

    A value that does not match the job's kind (:func:`sdpalab.jobs.kinds.checked_value`) counts as no answer. A job
    that is LOST, or without a result within its limit and ``grace``, is submitted again under a new number,
    ``attempts`` times in all. Results with an unexpected number (repeated or late) are ignored. At most
    ``executor.capacity`` jobs are submitted at a time, so a job's limit begins with its execution.

    Parameters
    ----------
    deadline : float
        Time on the clock ``now`` beyond which no job's limit extends.
    started : callable, optional
        Called with each job at every submission.
    finished : callable, optional
        Called with each result, once per job, in order of arrival.
    """
    results: dict[int, JobResult] = {}
    waiting = [(place, 1) for place in reversed(range(len(jobs)))]
    flying: dict[int, tuple[int, int, float]] = {}

    def ended(place: int, attempt: int, result: JobResult) -> None:
        result = _checked(jobs[place].kind, result)
        if result.outcome is JobOutcome.LOST and attempt < attempts:
            waiting.append((place, attempt + 1))
            return
        results[place] = replace(result, number=jobs[place].number)
        if finished is not None:
            finished(results[place])

    while waiting or flying:
        while waiting and len(flying) < executor.capacity:
            place, attempt = waiting.pop()
            number = next(_numbers)
            seconds = max(_LEAST_SECONDS, min(jobs[place].seconds, deadline - now()))
            flying[number] = place, attempt, now() + seconds + grace
            if started is not None:
                started(jobs[place])
            executor.submit(replace(jobs[place], number=number, seconds=seconds))
        nearest = min(silent for _, _, silent in flying.values())
        for result in executor.completed(max(0.0, min(1.0, nearest - now()))):
            if result.number in flying:
                place, attempt, _ = flying.pop(result.number)
                ended(place, attempt, result)
        for number, (place, attempt, silent) in list(flying.items()):
            if now() >= silent:
                del flying[number]
                ended(place, attempt, JobResult(number, JobOutcome.LOST, None, "no answer came from its worker"))
    return [results[place] for place in range(len(jobs))]


def _checked(kind: str, result: JobResult) -> JobResult:
    """The result if its value matches its kind, otherwise LOST. Kinds that no worker of the lab runs are not
    checked."""
    if result.value is None or kind not in VALUES:
        return result
    try:
        return replace(result, value=checked_value(kind, result.value))
    except ValueError as error:
        reason = plain(f"its worker answered what is no value of a job {kind} ({error})")
        return JobResult(result.number, JobOutcome.LOST, None, reason)
