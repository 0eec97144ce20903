"""Warm workers that run the queued jobs of a store, one at a time each; a crash or a hang costs its own slot only."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sdpalab.errors import MachineError
from sdpalab.evaluation import GRACE_SECONDS, Evaluation
from sdpalab.jobs.job import Job, JobOutcome, JobResult
from sdpalab.jobs.kinds import checked_value
from sdpalab.jobs.local import LocalWorker
from sdpalab.jobs.versions import code_version
from sdpalab.service.request import MachineValue
from sdpalab.service.store import JobStore, StoredJob
from sdpalab.status import Status

__all__ = ["Pool", "start_workers"]

_WORKER = "sdpalab.service.worker"
_CHECK_SECONDS = 600.0
"""Most seconds of a worker's first job, which may compile the simulator."""
_JOBS_OF_A_PROCESS = 2000
"""Jobs after which a worker gets a new process: caches grow by some ten KiB a job."""
_LOOK_SECONDS = 5.0
"""Seconds between two looks for jobs of servers that ended."""
_UNREPEATABLE = (Status.INFRA_ERROR, Status.INTERRUPTED, Status.TIMED_OUT)
"""Statuses that depend on the machine's load: they never answer another request."""


def start_workers(count: int) -> tuple[list[LocalWorker], MachineValue]:
    """Warm workers, each of which has judged a correct kernel; and the check of one.

    Raises
    ------
    MachineError
        If one does not judge it, with the reason.
    """
    workers = [LocalWorker(module=_WORKER) for _ in range(count)]
    checks: list[JobResult] = []

    def check(worker: LocalWorker) -> None:
        checks.append(worker.run(Job(0, "machine", {}, _CHECK_SECONDS, code_version())))

    threads = [threading.Thread(target=check, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
        for each in checks:
            if each.value is None or "bad_input" in each.value:
                raise MachineError(f"a worker does not start: {each.reason or (each.value or {}).get('bad_input')}")
            value = MachineValue.model_validate(each.value)
            if not value.evaluation.passed:
                raise MachineError(f"a worker does not judge the kernel scalar: {value.evaluation.text()}")
    except BaseException:
        for worker in workers:
            worker.close()
        raise
    return workers, value


class Pool:
    """Runs the jobs of a store.

    Parameters
    ----------
    store : JobStore
    workers : sequence of LocalWorker
    memory_bytes : int
        Most resident memory of a candidate's process.
    """

    def __init__(self, store: JobStore, workers: Sequence[LocalWorker], memory_bytes: int) -> None:
        self._store, self._workers, self.memory_bytes = store, workers, memory_bytes
        self._work = store.work / store.name
        self.on_end: Callable[[str], None] = lambda _: None
        """Called with the identifier of each job that has ended, in a worker's thread."""
        self._wake = threading.Condition()
        self._stopping = False
        self.running: dict[int, StoredJob] = {}
        """Current job of each worker, by its number."""
        self.failure = ""
        """Reason why a worker's thread has ended early."""
        self.ended: Counter[tuple[str, str]] = Counter()
        """Jobs that ended, by last stage and status."""
        self.cpu_seconds: Counter[str] = Counter()
        """CPU seconds by last stage."""
        self.waited_seconds = 0.0
        """Seconds between acceptance and begin, over all jobs."""
        self._threads = [
            threading.Thread(target=self._serve, args=each, daemon=True, name=f"worker {each[0]}")
            for each in enumerate(workers)
        ]

    def start(self) -> None:
        """Begin to take jobs."""
        work = self._work
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True, mode=0o700)
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """There are new jobs."""
        with self._wake:
            self._wake.notify_all()

    def stop(self, seconds: float) -> None:
        """Take no more jobs, let the running ones end within this time, and queue the others again."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for worker in self._workers:
            worker.kill()
        for thread in self._threads:
            thread.join()
        for worker in self._workers:
            worker.close()
        shutil.rmtree(self._work, ignore_errors=True)

    def _serve(self, number: int, worker: LocalWorker) -> None:
        judged = 0
        try:
            while not self._stopping:
                job = self._store.claim()
                if job is None:
                    if number == 0 and self._store.recover():
                        continue
                    with self._wake:
                        if not self._stopping:
                            self._wake.wait(_LOOK_SECONDS)
                    continue
                self.running[number] = job
                self.waited_seconds += (job.begun or job.accepted) - job.accepted
                try:
                    answered = self._run(number, worker, job)
                finally:
                    del self.running[number]
                judged += 1
                if not self._stopping and (not answered or judged % _JOBS_OF_A_PROCESS == 0):
                    # A new process, warm before the time of its next job begins.
                    worker.run(Job(number, "machine", {}, _CHECK_SECONDS, code_version(), fresh=True))
        except Exception as error:  # the store failed: the jobs stay where they are
            self.failure = f"{type(error).__name__}: {error}"

    def _run(self, number: int, worker: LocalWorker, job: StoredJob) -> bool:
        """Run a job, and store its result; returns whether the worker answered."""
        folder = self._work / job.id
        folder.mkdir(mode=0o700)
        begin = time.monotonic()
        try:
            seconds = float(job.request["budget_s"]) + GRACE_SECONDS
            inputs = {**job.request, "folder": str(folder), "memory_bytes": self.memory_bytes}
            outcome = worker.run(Job(number, "submission", inputs, seconds, code_version()))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if self._stopping and outcome.outcome is not JobOutcome.DONE:
            self._store.give_back(job)
            return False
        result = _result_of(outcome, time.monotonic() - begin)
        status = Status(result["evaluation"]["status"])
        if self._store.finish(job, result, repeatable=status not in _UNREPEATABLE):
            stage = ("none", *result["evaluation"]["stages"])[-1]
            self.ended[stage, status.value] += 1
            self.cpu_seconds[stage] += result["cpu_seconds"]
        with contextlib.suppress(RuntimeError):  # its event loop has ended
            self.on_end(job.id)
        self.wake()  # equal requests may have waited for this one
        return outcome.outcome is JobOutcome.DONE


def _result_of(outcome: JobResult, seconds: float) -> Mapping[str, Any]:
    """The value of a worker, or that of a job without one."""
    try:
        if outcome.value is not None and "bad_input" not in outcome.value:
            return checked_value("submission", outcome.value)
        reason = outcome.reason or str((outcome.value or {}).get("bad_input"))
    except ValueError as error:
        reason = f"the worker's answer is malformed: {error}"
    lost = Status.TIMED_OUT if outcome.outcome is JobOutcome.TIMED_OUT else Status.INFRA_ERROR
    evaluation = Evaluation(lost, reason, seconds=round(seconds, 3))
    return {"evaluation": evaluation.to_dict(), "confinement": "", "cpu_seconds": 0.0}
