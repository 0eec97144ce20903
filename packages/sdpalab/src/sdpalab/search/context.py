"""The subject of one search, and the jobs of its gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sdpalab.errors import UserError
from sdpalab.jobs import Executor, Job, JobOutcome, JobResult, run_jobs
from sdpalab.jobs.versions import code_version
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.kernels.source import source_digest
from sdpalab.problem import Problem
from sdpalab.search.budget import BudgetClock
from sdpalab.search.draft import GateFailure
from sdpalab.search.log import SearchLog
from sdpalab.search.outcome import MODELLED, Standing
from sdpalab.search.space import ConfigSpace
from warpsan.gpus import Gpu
from warpsan.sanitize import Progress

__all__ = ["LIMITS_S", "SearchContext", "TimeUp", "Value"]

Value = Mapping[str, Any]
"""Result of a completed job."""

LIMITS_S: Mapping[str, float] = {
    "build": 300.0,
    "count": 600.0,
    "compare": 600.0,
    "prove": 900.0,
    "race": 900.0,
    "full": 4 * 3600.0,
    "held_out": 900.0,
}
"""Time limits of jobs by kind, wall clock; a configuration beyond its limit is TIMED_OUT."""
SLOWEST = {"count": (20.0, 60.0), "prove": (6.0, 60.0)}
"""Time limits of jobs relative to the default configuration's time, and the least limit in seconds."""


class TimeUp(Exception):
    """The time of the search is used up; interrupted work has no record."""


@dataclass(frozen=True)
class SearchContext:
    """A search: kernel, problems and GPUs, executor, and destination of its records.

    Attributes
    ----------
    spec : str
        Name of the kernel in jobs.
    kernel : Kernel
    problems : tuple of Problem
    gpus : tuple of Gpu
    space : ConfigSpace
    executor : Executor
    log : SearchLog
    clock : BudgetClock
    device : str
        Device of the judge: ``sim``, or ``gpu`` for measured costs.
    progress : callable
        Receives a line of progress.
    source : str
        Digest of the kernel's source; by default of the present one.
    include_dirs : tuple of str
        Folders for ``#include`` besides those of a user's kernel, absolute.
    here : Executor, optional
        Executor on this machine, if the executor's workers are on others: it repeats their results for finalists.
    """

    spec: str
    kernel: Kernel
    problems: tuple[Problem, ...]
    gpus: tuple[Gpu, ...]
    space: ConfigSpace
    executor: Executor
    log: SearchLog
    clock: BudgetClock
    device: str = "sim"
    progress: Progress = lambda line: None
    source: str = ""
    include_dirs: tuple[str, ...] = ()
    here: Executor | None = None
    limits_s: dict[str, float] = field(default_factory=lambda: dict(LIMITS_S))

    def __post_init__(self) -> None:
        if not self.source:
            object.__setattr__(self, "source", source_digest(self.kernel))

    @property
    def modelled(self) -> bool:
        """Whether costs are modelled."""
        return self.log.head.clock == MODELLED

    def job(self, kind: str, config: Config, problems: Sequence[Problem] | None = None, **more: Any) -> Job:
        """A job of the search on one configuration; ``more`` has further inputs of its gate."""
        inputs = {
            "kernel": self.spec,
            "source": self.source,
            "config": dict(config),
            "problems": [problem.to_dict() for problem in problems or self.problems],
            "gpus": [{"name": gpu.name, "arch": gpu.arch, "sms": gpu.sms} for gpu in self.gpus],
            "device": self.device,
            "include_dirs": list(self.include_dirs),
            **more,
        }
        return Job(0, kind, inputs, self.limits_s[kind], code_version(), fresh=kind == "held_out")

    def on_this_machine(self) -> SearchContext | None:
        """The same search with jobs on this machine; None if they already run here."""
        return replace(self, executor=self.here, here=None) if self.here is not None else None

    def took(self, kind: str, seconds: float) -> None:
        """Limit jobs of a kind by the default configuration's time: a hanging job must not use up the budget."""
        if kind in SLOWEST:
            times, least = SLOWEST[kind]
            self.limits_s[kind] = min(LIMITS_S[kind], max(least, times * seconds))

    def run(self, jobs: Sequence[Job]) -> list[Value | GateFailure]:
        """Run jobs; returns each value, or the failure. Jobs are limited to the remaining time of the search.

        Raises
        ------
        TimeUp
            If a job exceeds that time.
        UserError
            If a job cannot be submitted, for example after a change of the source.
        """
        left = self.clock.seconds_left
        if left <= 0:
            raise TimeUp
        results = run_jobs(self.executor, jobs, deadline=self.clock.now() + left, now=self.clock.now)
        if self.clock.seconds_left <= 0 and any(result.outcome is not JobOutcome.DONE for result in results):
            raise TimeUp
        return [_value(result) for result in results]


def _value(result: JobResult) -> Value | GateFailure:
    if result.value is None:
        if result.outcome is JobOutcome.LOST:
            return GateFailure(Standing.LOST, result.reason)
        # without the seconds, which depend on this run's time of the default: a record must not
        return GateFailure(Standing.TIMED_OUT, "a job of it took longer than its limit")
    if "bad_input" in result.value:
        raise UserError(str(result.value["bad_input"]))
    if "standing" in result.value and "identity" not in result.value:
        return GateFailure(Standing(result.value["standing"]), str(result.value["reason"]))
    return result.value
