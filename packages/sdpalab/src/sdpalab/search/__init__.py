"""Search for a kernel's fastest correct configuration.

The parts: a space of valid configurations (:mod:`~sdpalab.search.space`), a strategy that chooses from it
(:mod:`~sdpalab.search.strategy`), gates for each configuration, cheapest first (:mod:`~sdpalab.search.gates`), an
append-only log (:mod:`~sdpalab.search.log`), and an executor that runs the gates as jobs (:mod:`~sdpalab.jobs`).
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
    """Import a public name on first use."""
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
