"""The executor of this machine: guarded processes with the limits of their jobs; a process that dies is replaced."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from sdpalab.compile import Cache
from sdpalab.errors import MachineError
from sdpalab.jobs.job import Job, JobOutcome, JobResult
from sdpalab.judge.sandbox.guarded import GuardedProcess, Quota
from sdpalab.judge.sandbox.messages import plain
from sdpalab.judge.sandbox.wire import WireError, WireTimeout

__all__ = ["LocalExecutor", "result_of"]

_WORKER = "sdpalab.jobs.worker"
_CPU_SECONDS = 7 * 24 * 3600
"""CPU seconds of a worker's whole life; each job has its own wall-clock limit."""


class LocalExecutor:
    """Runs jobs in ``workers`` concurrent processes.

    Parameters
    ----------
    workers : int, optional
        Default: one per CPU core; on a GPU one, because a GPU runs one job at a time.
    gpu : bool
        Whether the workers may use a GPU.
    """

    def __init__(self, workers: int | None = None, *, gpu: bool = False) -> None:
        from warpsan.host import usable_cpus

        self._workers = workers or (1 if gpu else usable_cpus())
        self._gpu, self._cache = gpu, str(Cache().root)
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[JobResult] = queue.SimpleQueue()
        self._processes: dict[int, GuardedProcess] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._threads = [threading.Thread(target=self._serve, args=(n,), daemon=True) for n in range(self._workers)]
        for thread in self._threads:
            thread.start()

    @property
    def capacity(self) -> int:
        """The number of workers."""
        return self._workers

    def submit(self, job: Job) -> None:
        """Queue a job for the next free worker."""
        self._jobs.put(job)

    def completed(self, seconds: float) -> Sequence[JobResult]:
        """As :meth:`sdpalab.jobs.job.Executor.completed`."""
        results: list[JobResult] = []
        with contextlib.suppress(queue.Empty):
            results.append(self._results.get(timeout=seconds) if seconds > 0 else self._results.get_nowait())
            while True:
                results.append(self._results.get_nowait())
        return results

    def close(self) -> None:
        """End the workers and their children."""
        with self._lock:
            self._closed = True
            for process in self._processes.values():
                process.kill()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self, number: int) -> None:
        """One worker: take jobs until the queue is closed; a process that died is replaced."""
        try:
            while (job := self._jobs.get()) is not None and not self._closed:
                if job.fresh:
                    self._end(number)
                self._results.put(self._run(number, job))
        finally:
            self._end(number)

    def _run(self, number: int, job: Job) -> JobResult:
        try:
            process = self._process(number)
        except MachineError as error:
            return JobResult(job.number, JobOutcome.LOST, None, str(error))
        order = {"number": job.number, "kind": job.kind, "inputs": dict(job.inputs), "code": job.code}
        try:
            process.channel.send({**order, "cache": self._cache}, seconds=job.seconds)
            reply, _ = process.channel.receive(seconds=job.seconds, max_bytes=0)
        except WireTimeout:
            self._end(number)
            return JobResult(job.number, JobOutcome.TIMED_OUT, None, f"it took more than {job.seconds:g} s")
        except WireError:
            reason = f"{process.ending()}{process.quote()}"
            self._end(number)
            return JobResult(job.number, JobOutcome.LOST, None, reason)
        return result_of(job.number, reply)

    def _process(self, number: int) -> GuardedProcess:
        """The worker's process; a new one if it has none."""
        with self._lock:
            process = self._processes.get(number)
            if process is not None:
                return process
            if self._closed:
                raise MachineError("the executor is closed")
            process = GuardedProcess(_WORKER, Quota(cpu_seconds=_CPU_SECONDS), untrusted=False, gpu=self._gpu)
            self._processes[number] = process
        try:
            process.await_ready()
        except MachineError:
            self._end(number)
            raise
        return process

    def _end(self, number: int) -> None:
        with self._lock:
            process = self._processes.pop(number, None)
        if process is not None:
            process.close()


def result_of(number: int, reply: Mapping[str, Any]) -> JobResult:
    """The result of a worker's reply (:func:`sdpalab.jobs.worker.answer`)."""
    if "value" in reply:
        return JobResult(number, JobOutcome.DONE, reply["value"])
    if "bad_input" in reply:
        return JobResult(number, JobOutcome.DONE, {"bad_input": plain(str(reply["bad_input"]))})
    return JobResult(number, JobOutcome.LOST, None, plain(str(reply.get("machine") or "its worker failed")))
