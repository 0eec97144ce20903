"""The executor of a Ray cluster (extra ``ray``): one actor a worker, and one GPU an actor where they use GPUs.

An actor that dies is restarted by Ray (``max_restarts=-1``), its job is not repeated there (``max_task_retries=0``):
that is LOST, and :func:`~sdpalab.search.executor.dispatch.run_jobs` decides. After a CUDA error that makes its GPU
unusable the actor's process leaves by ``os._exit``: ``ray.actor.exit_actor`` would not let it start again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sdpalab.errors import UserError
from sdpalab.search.executor.job import Job, JobOutcome, JobResult
from sdpalab.search.executor.local import result_of

__all__ = ["RayExecutor"]

_CONNECT_SECONDS = 30.0


class RayExecutor:
    """Runs jobs on actors of a Ray cluster.

    Parameters
    ----------
    address : str, optional
        Of the cluster; by default Ray starts workers on this machine, which end with the executor.
    workers : int, optional
        Actors. Default: one a GPU of the cluster if ``gpu``, otherwise one a CPU.
    gpu : bool
        Whether each actor has a GPU of its own.

    Raises
    ------
    UserError
        If Ray is not installed, nothing answers at the address, or the cluster has no GPU for an actor.
    """

    def __init__(self, address: str | None = None, workers: int | None = None, *, gpu: bool = False) -> None:
        self._ray = ray = _connected(address, workers)
        self._own = address is None
        resources = ray.cluster_resources()
        most = int(resources.get("GPU" if gpu else "CPU", 0))
        if gpu and not most:
            self.close()
            raise UserError("the Ray cluster has no GPU; without one a search uses the model: --gpu L4 or H200")
        self._workers = workers or max(1, most)
        options = {"num_cpus": 1, "num_gpus": int(gpu), "max_restarts": -1, "max_task_retries": 0}
        actor = ray.remote(**options)(_Actor)
        self._free = [actor.remote() for _ in range(self._workers)]
        self._flying: dict[Any, tuple[Any, Job, float]] = {}

    @property
    def capacity(self) -> int:
        """The number of actors."""
        return self._workers

    def submit(self, job: Job) -> None:
        """Send a job to a free actor; there is one as long as no more than ``capacity`` jobs run."""
        actor = self._free.pop()
        if job.fresh:
            self._ray.kill(actor, no_restart=False)
        reference = actor.run.remote(job.kind, dict(job.inputs), job.code)
        self._flying[reference] = actor, job, time.monotonic() + job.seconds

    def completed(self, seconds: float) -> Sequence[JobResult]:
        """As :meth:`sdpalab.search.executor.job.Executor.completed`."""
        if not self._flying:
            return []
        ready, _ = self._ray.wait(list(self._flying), num_returns=1, timeout=seconds)
        results = [self._result(reference) for reference in ready]
        for reference, (actor, job, deadline) in list(self._flying.items()):
            if time.monotonic() >= deadline:
                del self._flying[reference]
                self._ray.kill(actor, no_restart=False)
                self._free.append(actor)
                reason = f"it took more than {job.seconds:g} s"
                results.append(JobResult(job.number, JobOutcome.TIMED_OUT, None, reason))
        return results

    def close(self) -> None:
        """End the actors; the cluster, too, if this started it."""
        for actor in (*self.__dict__.get("_free", ()), *(actor for actor, _, _ in self._actors())):
            self._ray.kill(actor)
        if self._own:
            self._ray.shutdown()
        self.__dict__.update(_free=[], _flying={})

    def _actors(self) -> Sequence[tuple[Any, Job, float]]:
        return tuple(self.__dict__.get("_flying", {}).values())

    def _result(self, reference: Any) -> JobResult:
        actor, job, _ = self._flying.pop(reference)
        self._free.append(actor)
        try:
            return result_of(job.number, self._ray.get(reference))
        except self._ray.exceptions.RayError as error:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            return JobResult(job.number, JobOutcome.LOST, None, f"its actor died: {reason}")


class _Actor:
    """A worker in a Ray cluster. It gets names and numbers, and loads what they name."""

    def run(self, kind: str, inputs: Mapping[str, Any], code: str) -> dict[str, Any]:
        from sdpalab.search.executor.worker import answer

        return answer(kind, inputs, code)


def _connected(address: str | None, workers: int | None) -> Any:
    try:
        import ray
    except ImportError as error:
        raise UserError(f"the executor ray needs Ray: pip install 'sdpalab[ray]' ({error})") from None
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "include_dashboard": False}
    source = str(Path(__file__).resolve().parents[3])
    if address is not None:
        quiet.pop("include_dashboard")
    else:
        here = {name: os.environ[name] for name in ("SDPALAB_CACHE_DIR",) if name in os.environ}
        path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        quiet |= {"num_cpus": workers, "runtime_env": {"env_vars": {**here, "PYTHONPATH": path}}}
    try:
        ray.init(address=address, **quiet)
    except Exception as error:  # of many kinds, by what does not answer
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"no Ray cluster answers at {address or 'this machine'}: {reason}") from None
    return ray
