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

__all__ = ["LocalExecutor", "LocalWorker", "result_of"]

_WORKER = "sdpalab.jobs.worker"
_CPU_SECONDS = 7 * 24 * 3600
"""CPU seconds of a worker's whole life; each job has its own wall-clock limit."""


class LocalWorker:
    """One process that runs jobs, one after the other; a process that died or exceeded a limit is replaced.

    Parameters
    ----------
    gpu : bool
        Whether it may use a GPU.
    module : str, optional
        Module of the process, with the interface of the default, :mod:`sdpalab.jobs.worker`.
    """

    def __init__(self, *, gpu: bool = False, module: str = "") -> None:
        self._gpu, self._module, self._cache = gpu, module or _WORKER, str(Cache().root)
        self._process: GuardedProcess | None = None
        self._lock = threading.Lock()
        self._closed = False

    def run(self, job: Job) -> JobResult:
        """Run a job and wait for its result."""
        if job.fresh:
            self._end()
        try:
            process = self._started()
        except MachineError as error:
            return JobResult(job.number, JobOutcome.LOST, None, str(error))
        order = {"number": job.number, "kind": job.kind, "inputs": dict(job.inputs), "code": job.code}
        try:
            process.channel.send({**order, "cache": self._cache}, seconds=job.seconds)
            reply, _ = process.channel.receive(seconds=job.seconds, max_bytes=0)
        except WireTimeout:
            self._end()
            return JobResult(job.number, JobOutcome.TIMED_OUT, None, f"it took more than {job.seconds:g} s")
        except WireError:
            reason = f"{process.ending()}{process.quote()}"
            self._end()
            return JobResult(job.number, JobOutcome.LOST, None, reason)
        return result_of(job.number, reply)

    def kill(self) -> None:
        """End the process for good; safe from another thread, whose :meth:`run` then returns LOST."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """:meth:`kill`, and wait until no process is left."""
        self.kill()
        self._end()

    def _started(self) -> GuardedProcess:
        """The process; a new one if there is none."""
        with self._lock:
            if self._process is not None:
                return self._process
            if self._closed:
                raise MachineError("the executor is closed")
            process = GuardedProcess(self._module, Quota(cpu_seconds=_CPU_SECONDS), untrusted=False, gpu=self._gpu)
            self._process = process
        try:
            process.await_ready()
        except MachineError:
            self._end()
            raise
        return process

    def _end(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.close()


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

        self._workers = [LocalWorker(gpu=gpu) for _ in range(workers or (1 if gpu else usable_cpus()))]
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[JobResult] = queue.SimpleQueue()
        self._closed = False
        self._threads = [threading.Thread(target=self._serve, args=(each,), daemon=True) for each in self._workers]
        for thread in self._threads:
            thread.start()

    @property
    def capacity(self) -> int:
        """The number of workers."""
        return len(self._workers)

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
        self._closed = True
        for worker in self._workers:
            worker.kill()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self, worker: LocalWorker) -> None:
        """Take jobs until the queue is closed."""
        try:
            while (job := self._jobs.get()) is not None and not self._closed:
                self._results.put(worker.run(job))
        finally:
            worker.close()


def result_of(number: int, reply: Mapping[str, Any]) -> JobResult:
    """The result of a worker's reply (:func:`sdpalab.jobs.worker.answer`)."""
    if "value" in reply:
        return JobResult(number, JobOutcome.DONE, reply["value"])
    if "bad_input" in reply:
        return JobResult(number, JobOutcome.DONE, {"bad_input": plain(str(reply["bad_input"]))})
    return JobResult(number, JobOutcome.LOST, None, plain(str(reply.get("machine") or "its worker failed")))
