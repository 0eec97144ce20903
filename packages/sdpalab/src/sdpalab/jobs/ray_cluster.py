"""The executor of a Ray cluster (extra ``ray``): one actor per worker, and one GPU per actor if GPUs are used.

Ray does not repeat the job of an actor that dies (``max_task_retries=0``): the job is LOST, and
:func:`~sdpalab.jobs.dispatch.run_jobs` may resubmit it. A new actor replaces the old one. After a CUDA error that makes
its GPU unusable the actor's process exits by ``os._exit``, so the new actor starts with a working GPU.

An answer is JSON in the cluster's key-value store, under a random key. The return values and errors of actors are never
fetched: ``ray.get`` would unpickle them here, and so run code of a compromised worker.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sdpalab.errors import UserError
from sdpalab.installation import IMPORT_FOLDERS
from sdpalab.jobs.job import Job, JobOutcome, JobResult
from sdpalab.jobs.local import result_of

__all__ = ["RayExecutor"]

_NAMESPACE = b"sdpalab"
"""Ray namespace of the keys of answers."""
MOST_BYTES = 1 << 30
"""Most bytes of an answer."""
_CONNECT_SECONDS = 5.0
"""Seconds to connect to a cluster; Ray itself would try for minutes."""


class RayExecutor:
    """Runs jobs on actors of a Ray cluster.

    Parameters
    ----------
    address : str, optional
        Address of the cluster; by default Ray starts workers on this machine, which end with the executor.
    workers : int, optional
        Number of actors. Default: one per GPU of the cluster if ``gpu``, otherwise one per CPU.
    gpu : bool
        Whether each actor has a GPU of its own.

    Raises
    ------
    UserError
        If Ray is not installed, no cluster answers at the address, or the cluster has no GPU for an actor.
    """

    def __init__(self, address: str | None = None, workers: int | None = None, *, gpu: bool = False) -> None:
        self._ray = ray = _connected(address, workers)
        self._own = address is None
        resources = ray.cluster_resources()
        most = int(resources.get("GPU" if gpu else "CPU", 0))
        if gpu and not most:
            if self._own:
                ray.shutdown()
            raise UserError("the Ray cluster has no GPU; without one a search uses the model: --gpu L4 or H200")
        self._workers = workers or max(1, most)
        options = {"num_cpus": 1, "num_gpus": int(gpu), "max_restarts": 0, "max_task_retries": 0}
        self._actor = ray.remote(**options)(_Actor)
        self._free = [self._actor.remote() for _ in range(self._workers)]
        self._starting: dict[Any, tuple[Any, Job]] = {}
        self._flying: dict[Any, tuple[Any, Job, float, bytes]] = {}

    remote = True
    """True: the workers are on other machines (:func:`sdpalab.jobs.job.is_remote`)."""

    @property
    def capacity(self) -> int:
        """The number of actors."""
        return self._workers

    def submit(self, job: Job) -> None:
        """Submit a job to a free actor, which exists while at most ``capacity`` jobs run.

        The job's limit begins when the actor has answered, because the actor may still be starting before.
        """
        actor = self._free.pop()
        if job.fresh:
            actor = self._replaced(actor)
        self._starting[actor.ready.remote()] = actor, job

    def completed(self, seconds: float) -> Sequence[JobResult]:
        """As :meth:`sdpalab.jobs.job.Executor.completed`."""
        waiting = [*self._starting, *self._flying]
        if not waiting:
            return []
        ready, _ = self._ray.wait(waiting, num_returns=1, timeout=seconds, fetch_local=False)
        results = []
        for reference in ready:
            if reference in self._starting:
                self._start(reference)
            else:
                results.append(self._result(reference))
        for reference, (actor, job, deadline, key) in list(self._flying.items()):
            if time.monotonic() >= deadline:
                del self._flying[reference]
                self._free.append(self._replaced(actor))
                _taken(key)
                reason = f"it took more than {job.seconds:g} s"
                results.append(JobResult(job.number, JobOutcome.TIMED_OUT, None, reason))
        return results

    def close(self) -> None:
        """End the actors, and the cluster if this executor started it."""
        busy = [actor for actor, *_ in (*self._starting.values(), *self._flying.values())]
        for actor in (*self._free, *busy):
            self._ray.kill(actor)
        self._free, self._starting, self._flying = [], {}, {}
        if self._own:
            self._ray.shutdown()

    def _start(self, reference: Any) -> None:
        """Send its job to an actor that has answered or has died; a dead actor leaves the job without an answer."""
        actor, job = self._starting.pop(reference)
        key = secrets.token_bytes(16)
        sent = actor.run.remote(key, job.kind, dict(job.inputs), job.code)
        self._flying[sent] = actor, job, time.monotonic() + job.seconds, key

    def _result(self, reference: Any) -> JobResult:
        actor, job, _, key = self._flying.pop(reference)
        text = _taken(key)
        try:
            reply = json.loads(text) if text is not None and len(text) <= MOST_BYTES else None
        except (ValueError, RecursionError):
            reply = None
        if not isinstance(reply, dict):
            self._free.append(self._replaced(actor))
            reason = "its actor died" if text is None else "its actor answered what is no JSON object"
            return JobResult(job.number, JobOutcome.LOST, None, reason)
        self._free.append(actor)
        return result_of(job.number, reply)

    def _replaced(self, actor: Any) -> Any:
        """A new actor in place of an old one: calls to a new actor wait for its start, calls to a restarting actor
        fail."""
        self._ray.kill(actor)
        return self._actor.remote()


class _Actor:
    """A worker in a Ray cluster. It receives names and numbers, and loads the named code."""

    def ready(self) -> None:
        """Return as soon as the process runs."""

    def run(self, key: bytes, kind: str, inputs: Mapping[str, Any], code: str) -> None:
        """Run a job and store its answer as JSON under ``key``."""
        from ray.experimental.internal_kv import _internal_kv_put

        from sdpalab.jobs.worker import answer

        _internal_kv_put(key, json.dumps(answer(kind, inputs, code)).encode(), namespace=_NAMESPACE)


def _taken(key: bytes) -> bytes | None:
    """Fetch and delete an actor's answer under ``key``; None if there is none."""
    from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get

    text: bytes | None = _internal_kv_get(key, namespace=_NAMESPACE)
    _internal_kv_del(key, namespace=_NAMESPACE)
    return text


def _connected(address: str | None, workers: int | None) -> Any:
    try:
        import ray
    except ImportError as error:
        raise UserError(f"the executor ray needs Ray: pip install 'sdpalab[ray]' ({error})") from None
    if address is not None:
        _check_reachable(address)
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "include_dashboard": False}
    if address is not None:
        quiet.pop("include_dashboard")
    else:
        here = {name: os.environ[name] for name in ("WARPSAN_CACHE_DIR",) if name in os.environ}
        path = os.pathsep.join(filter(None, (*IMPORT_FOLDERS, os.environ.get("PYTHONPATH"))))
        quiet |= {"num_cpus": workers, "runtime_env": {"env_vars": {**here, "PYTHONPATH": path}}}
    try:
        ray.init(address=address, **quiet)
    except Exception as error:  # various kinds, depending on the server
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"no Ray cluster answers at {address or 'this machine'}: {reason}") from None
    return ray


def _check_reachable(address: str) -> None:
    """Raise UserError if no server accepts connections at ``HOST:PORT`` or ``ray://HOST:PORT``."""
    if address == "auto":
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise UserError(f"the address of a Ray cluster is HOST:PORT, ray://HOST:PORT or auto, not {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(f"no Ray cluster answers at {address}: {error.strerror or error}") from None
