"""Jobs as data: kind, inputs, limits, and the version of the code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

__all__ = ["Executor", "Job", "JobOutcome", "JobResult", "is_remote"]


@dataclass(frozen=True)
class Job:
    """One piece of work, sent without pickle: a kernel is sent by name, and the worker loads it.

    Attributes
    ----------
    number : int
        Unique among the jobs of an executor.
    kind : str
        A kind of :data:`sdpalab.jobs.kinds.KINDS`.
    inputs : mapping
        Plain JSON values.
    seconds : float
        Wall-clock limit, after which the job is TIMED_OUT and its process ended.
    code : str
        Version of the lab and of the judge. A worker of another version rejects the job.
    fresh : bool
        Whether it needs a new process.
    """

    number: int
    kind: str
    inputs: Mapping[str, Any]
    seconds: float
    code: str
    fresh: bool = False


class JobOutcome(str, Enum):
    """Outcome of a job."""

    DONE = "DONE"
    """The job has a value, which may be a failed verdict."""
    LOST = "LOST"
    """Unknown result: the worker died, the machine failed, or no answer arrived. Never a verdict on the kernel."""
    TIMED_OUT = "TIMED_OUT"
    """The job exceeded its limit."""


@dataclass(frozen=True)
class JobResult:
    """Result of a job: a ``value`` of plain JSON values if it is DONE, otherwise a ``reason``."""

    number: int
    outcome: JobOutcome
    value: Mapping[str, Any] | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        done = self.outcome is JobOutcome.DONE
        if done != (self.value is not None) or done == bool(self.reason):
            raise ValueError(f"job {self.number}: a value if DONE, otherwise a reason")


class Executor(Protocol):
    """Runs jobs in any order. It may lose a job or report it twice; :func:`~.dispatch.run_jobs` handles both.

    An executor with workers on other machines has an attribute ``remote`` that is true (:func:`is_remote`): deciding
    verdicts of its jobs are derived again on this machine.
    """

    @property
    def capacity(self) -> int:
        """Number of jobs that it runs concurrently."""
        ...

    def submit(self, job: Job) -> None:
        """Submit a job; returns at once."""
        ...

    def completed(self, seconds: float) -> Sequence[JobResult]:
        """Results not fetched yet, as soon as there is one, or an empty sequence after ``seconds``."""
        ...

    def close(self) -> None:
        """End all workers and their jobs."""
        ...


def is_remote(executor: Executor) -> bool:
    """Whether its workers run on other machines, which are not trusted."""
    return bool(getattr(executor, "remote", False))
