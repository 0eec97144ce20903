"""Which engine runs a launch. Nothing of the native one is imported before it is wanted."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sdpalab.sim.checks.global_history import GlobalHistory
from sdpalab.sim.chunks import Setup
from sdpalab.sim.errors import LaunchError
from sdpalab.sim.hazard_log import HazardLog
from sdpalab.sim.memory import Space
from sdpalab.sim.selection import Indices
from sdpalab.sim.tally import Tally
from sdpalab.sim.touched import Touched

if TYPE_CHECKING:
    from sdpalab.sim.native.reporting import Suspicions

__all__ = [
    "ENGINES",
    "STUCK",
    "UNWRITTEN",
    "all_resident",
    "history_of",
    "note_suspicions",
    "report_suspicions",
    "run_native",
    "wanted_engine",
]

ENGINES = ("reference", "native")
UNWRITTEN = "uninitialised"
"""Why a launch is left to the reference engine in which shared memory is read that nobody wrote."""
STUCK = "nothing can run"
"""Why one is in which all threads wait, most likely for each other or for blocks that have not begun."""
_VARIABLE = "SDPALAB_SIM_ENGINE"


def wanted_engine() -> str:
    """The engine that ``SDPALAB_SIM_ENGINE`` names; the native one by default.

    Raises
    ------
    LaunchError
        If there is no such engine.
    """
    chosen = os.environ.get(_VARIABLE) or "native"
    if chosen not in ENGINES:
        raise LaunchError(f"{_VARIABLE} is one of {', '.join(ENGINES)}, not {chosen!r}")
    return chosen


def run_native(
    setup: Setup,
    space: Space,
    tally: Tally,
    workers: int | None = None,
    touched: list[Touched] | None = None,
    printed: list[str] | None = None,
) -> str:
    """Run all CTAs of a launch in native code.

    Parameters
    ----------
    setup : Setup
    space : Space
        Global memory. After a launch that is left to the reference engine its content means nothing.
    tally : Tally
        Counts are added here if the launch ran to its end.
    workers : int, optional
        Threads that may share the clusters. Default: one for each CPU where the launch is long enough to pay for them.
    touched : list of Touched, optional
        What the launch has accessed in global memory is appended here, if it ran to its end with checks.
    printed : list of str, optional
        What printf wrote is appended here, if the launch ran to its end.

    Returns
    -------
    str
        Why the launch is left to the reference engine; empty if it ran, and no check has anything to report.
    """
    try:
        from sdpalab.sim.native.engine import run
    except ImportError as missing:
        return f"llvmlite is not installed ({missing})"
    return run(setup, space, tally, workers, touched, printed)


def all_resident(setup: Setup) -> Setup | None:
    """See :func:`sdpalab.sim.native.communication.all_resident`."""
    from sdpalab.sim.native import communication

    return communication.all_resident(setup)


def history_of(setup: Setup, space: Space, places: Indices) -> GlobalHistory:
    """See :func:`sdpalab.sim.native.histories.history_of`."""
    from sdpalab.sim.native import histories

    return histories.history_of(setup, space, places)


def note_suspicions(
    setup: Setup,
    space: Space,
    tally: Tally,
    log: HazardLog,
    why: str,
    touched: list[Touched] | None = None,
    printed: list[str] | None = None,
) -> Suspicions | None:
    """See :func:`sdpalab.sim.native.reporting.note_suspicions`."""
    try:
        from sdpalab.sim.native import reporting
    except ImportError:
        return None
    return reporting.note_suspicions(setup, space, tally, log, why, touched, printed)


def report_suspicions(setup: Setup, space: Space, log: HazardLog, suspicions: Suspicions) -> bool:
    """See :func:`sdpalab.sim.native.reporting.report_suspicions`."""
    from sdpalab.sim.native import reporting

    return reporting.report_suspicions(setup, space, log, suspicions)
