"""Executors for tests: one that runs jobs in its own process, and one that loses, repeats and reorders answers."""

from __future__ import annotations

import random
from collections.abc import Callable

from sdpalab.jobs import Executor, Job, JobOutcome, JobResult
from sdpalab.jobs.local import result_of
from sdpalab.jobs.worker import answer


def answered(job: Job) -> JobResult:
    """Result of a worker for a job, in this process."""
    return result_of(job.number, answer(job.kind, job.inputs, job.code))


class InlineExecutor:
    """Runs each job in this process when it is submitted; by default as a worker does."""

    def __init__(self, run: Callable[[Job], JobResult] = answered, capacity: int = 4) -> None:
        self._run, self._capacity = run, capacity
        self._results: list[JobResult] = []

    @property
    def capacity(self) -> int:
        return self._capacity

    def submit(self, job: Job) -> None:
        self._results.append(self._run(job))

    def completed(self, seconds: float) -> list[JobResult]:
        found, self._results = self._results, []
        return found

    def close(self) -> None:
        self._results.clear()


class FaultyExecutor:
    """Another executor, of which it loses answers, repeats some, now or later, and shuffles all of them."""

    def __init__(self, inner: Executor, seed: int, share: float = 0.2) -> None:
        self._inner, self._draw, self._share = inner, random.Random(seed), share
        self._held: list[JobResult] = []
        self.lost = self.repeated = 0

    @property
    def capacity(self) -> int:
        return self._inner.capacity

    def submit(self, job: Job) -> None:
        self._inner.submit(job)

    def completed(self, seconds: float) -> list[JobResult]:
        found, self._held = [*self._inner.completed(seconds), *self._held], []
        given: list[JobResult] = []
        for result in found:
            chance = self._draw.random()
            if chance < self._share and result.outcome is JobOutcome.DONE:
                self.lost += 1
                given.append(JobResult(result.number, JobOutcome.LOST, None, "dropped"))
                self._held.append(result)  # and comes late, when nobody waits for it any more
                continue
            given.append(result)
            if chance > 1 - self._share:
                self.repeated += 1
                given.append(result)
                self._held.append(result)
        if len(self._held) > 20:
            self._held.clear()
        self._draw.shuffle(given)
        return given

    def close(self) -> None:
        self._inner.close()
