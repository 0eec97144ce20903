"""Which engine runs a launch. Nothing of the native one is imported before it is wanted."""

from __future__ import annotations

import os

from sdpalab.sim.chunks import Setup
from sdpalab.sim.errors import LaunchError
from sdpalab.sim.memory import Space
from sdpalab.sim.tally import Tally
from sdpalab.sim.touched import Touched

__all__ = ["ENGINES", "UNWRITTEN", "run_native", "wanted_engine"]

ENGINES = ("reference", "native")
UNWRITTEN = "uninitialised"
"""Why a launch is left to the reference engine in which shared memory is read that nobody wrote."""
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
