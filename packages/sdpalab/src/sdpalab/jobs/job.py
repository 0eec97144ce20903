"""Jobs are data: what to do, with what, within which limits, and by which version of the code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

__all__ = ["Executor", "Job", "JobOutcome", "JobResult", "is_remote"]


@dataclass(frozen=True)
class Job:
    """One piece of work. Nothing of it is pickled: a kernel is named, and the worker loads it.

    Attributes
    ----------
    number : int
        Unique among the jobs of an executor.
    kind : str
        Of :data:`sdpalab.jobs.kinds.KINDS`.
    inputs : mapping
        Plain JSON values.
    seconds : float
        Wall clock, after which the job is TIMED_OUT and its process ended.
    code : str
        Version of the lab and of the judge. A worker of another version refuses the job.
    fresh : bool
        Whether it needs a process that has run nothing before.
    """

    number: int
    kind: str
    inputs: Mapping[str, Any]
    seconds: float
    code: str
    fresh: bool = False


class JobOutcome(str, Enum):
    """How a job ended."""

    DONE = "DONE"
    """It has a value, which may be a bad verdict."""
    LOST = "LOST"
    """Nobody knows: the worker died, the machine failed, or no answer came. Never a verdict on what was tried."""
    TIMED_OUT = "TIMED_OUT"
    """It took longer than its limit."""


@dataclass(frozen=True)
class JobResult:
    """The end of a job: a ``value`` of plain JSON values if it is DONE, otherwise a ``reason``."""

    number: int
    outcome: JobOutcome
    value: Mapping[str, Any] | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        done = self.outcome is JobOutcome.DONE
        if done != (self.value is not None) or done == bool(self.reason):
            raise ValueError(f"job {self.number}: a value if DONE, otherwise a reason")


class Executor(Protocol):
    """Runs jobs, in any order. It may lose one, and may report one twice: :func:`~.dispatch.run_jobs` copes.

    One whose workers are on other machines has an attribute ``remote`` that is true (:func:`is_remote`): a verdict of
    its jobs that decides something is derived again here.
    """

    @property
    def capacity(self) -> int:
        """Jobs that it runs at a time."""
        ...

    def submit(self, job: Job) -> None:
        """Take a job on; returns at once."""
        ...

    def completed(self, seconds: float) -> Sequence[JobResult]:
        """Results that nobody has fetched yet, as soon as there is one, after at most ``seconds``."""
        ...

    def close(self) -> None:
        """End all workers, and whatever they run."""
        ...


def is_remote(executor: Executor) -> bool:
    """Whether its workers run on other machines, which are not trusted."""
    return bool(getattr(executor, "remote", False))
