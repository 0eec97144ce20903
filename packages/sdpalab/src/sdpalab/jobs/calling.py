"""Jobs of one kind on many inputs: values in the order of the inputs, or the reason for their absence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sdpalab.errors import MachineError, UserError
from sdpalab.jobs.dispatch import run_jobs
from sdpalab.jobs.job import Executor, Job, JobOutcome, JobResult
from sdpalab.jobs.versions import code_version

__all__ = ["jobs_of", "value_of", "values"]


def jobs_of(kind: str, inputs: Sequence[Mapping[str, Any]], seconds: float) -> list[Job]:
    """One job of ``kind`` for each of ``inputs``, numbered in their order, each with a limit of ``seconds``."""
    return [Job(number, kind, each, seconds, code_version()) for number, each in enumerate(inputs)]


def value_of(result: JobResult) -> Mapping[str, Any]:
    """The value of a job that is DONE.

    Raises
    ------
    UserError
        If the job is invalid: an unknown kernel, or another version or source at the worker.
    MachineError
        If it was lost or took too long.
    """
    if result.value is None:
        lost = "was lost" if result.outcome is JobOutcome.LOST else "did not end"
        raise MachineError(f"job {result.number} {lost}: {result.reason}")
    if "bad_input" in result.value:
        raise UserError(str(result.value["bad_input"]))
    return result.value


def values(
    executor: Executor,
    kind: str,
    inputs: Sequence[Mapping[str, Any]],
    *,
    seconds: float,
    finished: Callable[[int, Mapping[str, Any]], None] | None = None,
) -> list[Mapping[str, Any]]:
    """Run a job for each of ``inputs``.

    Parameters
    ----------
    seconds : float
        Wall-clock limit of one job.
    finished : callable, optional
        Called at the end of each job with the index of its inputs and its value.

    Raises
    ------
    UserError, MachineError
        As :func:`value_of`; running jobs end with the executor's ``close``.
    """

    def ended(result: JobResult) -> None:
        value = value_of(result)
        if finished is not None:
            finished(result.number, value)

    return [value_of(result) for result in run_jobs(executor, jobs_of(kind, inputs, seconds), finished=ended)]
