"""Search: find a kernel's best configuration, and never a wrong one.

A space of valid configurations (:mod:`~sdpalab.search.space`), a strategy that chooses from it
(:mod:`~sdpalab.search.strategy`), gates that each configuration has to pass, cheapest first
(:mod:`~sdpalab.search.gates`), an append-only log (:mod:`~sdpalab.search.log`), and an executor that runs the gates as
jobs (:mod:`~sdpalab.jobs`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sdpalab.jobs import Executor, Job, JobOutcome, JobResult
    from sdpalab.search.outcome import Finalist, Standing, Trial, TrialOutcome
    from sdpalab.search.space import ConfigSpace
    from sdpalab.search.strategy import STRATEGIES, Strategy
    from sdpalab.search.tuning import TuneResult, tune

__all__ = [
    "STRATEGIES",
    "ConfigSpace",
    "Executor",
    "Finalist",
    "Job",
    "JobOutcome",
    "JobResult",
    "Standing",
    "Strategy",
    "Trial",
    "TrialOutcome",
    "TuneResult",
    "tune",
]

_HOME = {
    "sdpalab.jobs": ("Executor", "Job", "JobOutcome", "JobResult"),
    "sdpalab.search.outcome": ("Finalist", "TrialOutcome", "Standing", "Trial"),
    "sdpalab.search.space": ("ConfigSpace",),
    "sdpalab.search.strategy": ("STRATEGIES", "Strategy"),
    "sdpalab.search.tuning": ("TuneResult", "tune"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
