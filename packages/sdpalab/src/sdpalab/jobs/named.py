"""Executors by their command-line names."""

from __future__ import annotations

from sdpalab.errors import UserError
from sdpalab.jobs.job import Executor

__all__ = ["EXECUTORS", "executor_named"]

EXECUTORS = ("local", "ray")


def executor_named(name: str, *, address: str | None = None, workers: int | None = None, gpu: bool = False) -> Executor:
    """The executor of that name.

    Parameters
    ----------
    name : str
        ``local``: guarded processes on this machine; ``ray``: actors of a Ray cluster (extra ``ray``).
    address : str, optional
        Address of the Ray cluster, such as ``ray://head:10001``. Default: workers that Ray starts on this machine.
    workers : int, optional
        Default: one per core, or one per GPU.
    gpu : bool
        Whether each worker uses a GPU.

    Raises
    ------
    UserError
        If the executor is unknown, Ray is not installed, or no cluster answers at ``address``.
    """
    if name not in EXECUTORS:
        raise UserError(f"there is no executor {name!r}: the executors are {', '.join(EXECUTORS)}")
    if name == "ray":
        from sdpalab.jobs.ray_cluster import RayExecutor

        return RayExecutor(address, workers, gpu=gpu)
    if address is not None:
        raise UserError("--address is where a Ray cluster is: give --executor ray with it")
    from sdpalab.jobs.local import LocalExecutor

    return LocalExecutor(workers, gpu=gpu)
