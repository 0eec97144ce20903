"""Native execution of a launch up to its report: the first run, and those that its hazards need (:mod:`.reporting`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from warpsan.analysis.definedness import loads_shared
from warpsan.analysis.derived import derived
from warpsan.engine.communication import all_resident
from warpsan.engine.engine import run
from warpsan.engine.layout import NOTHING_CAN_RUN, UNWRITTEN
from warpsan.engine.reporting import report
from warpsan.engine.touched import Touched
from warpsan.errors import Deadlock, IllegalAccess, KernelTrap, SimError, StepLimit
from warpsan.host.arena import Arena, Before
from warpsan.host.memory import Space
from warpsan.host.setup import Setup
from warpsan.numerics.choices import is_ring
from warpsan.profile.tally import Tally
from warpsan.ptx.ir import Entry
from warpsan.report.hazard_log import HazardLog

__all__ = ["Execution", "run_launch"]

_ENDS = {"illegal access": IllegalAccess, NOTHING_CAN_RUN: Deadlock, "too many steps": StepLimit, "trap": KernelTrap}
"""Exceptions of a launch in a ring, by the reason of native code's end."""


@dataclass(frozen=True)
class Execution:
    """A launch that has been run once.

    Attributes
    ----------
    setup : Setup
        The setup of the run.
    space : Space
        Global memory.
    log : HazardLog
    tally : Tally
    printed : list of str
        The output of printf.
    touched : list of Touched
        The accesses to global memory, if they were requested.
    """

    setup: Setup
    space: Space
    log: HazardLog
    tally: Tally
    printed: list[str] = field(default_factory=list)
    touched: list[Touched] = field(default_factory=list)


def run_launch(setup: Setup, arena: Arena, before: Before, workers: int | None, *, places: bool) -> Execution:
    """Run all CTAs of a launch.

    Parameters
    ----------
    setup : Setup
    arena : Arena
        Global memory.
    before : tuple
        The state before the launch (:meth:`Arena.snapshot`).
    workers : int, optional
        Most threads that share the clusters. Default: one for each CPU if the launch is long enough.
    places : bool
        Whether to return the accesses to global memory, with the ``race`` check.

    Returns
    -------
    Execution

    Raises
    ------
    SimError
        The exception with which the launch ends, with the hazards so far; or if there are too many hazards to examine.
    """
    wanted = places and "race" in setup.checks
    if is_ring(setup.numerics):
        execution = _execution(setup, arena)
        reason = _run_once(setup, execution, workers, wanted=False)
        if reason:
            raise _ENDS.get(reason, SimError)(f"numerics={setup.numerics!r}: {reason}")
        return execution
    follows = _follows(setup)
    execution = _execution(setup, arena)
    why = _run_once(setup, execution, workers, wanted=wanted)
    if not why:
        return execution
    arena.restore(before)  # drop its results so far
    together = all_resident(setup) if why == NOTHING_CAN_RUN else None
    if together is not None:
        setup, execution = together, _execution(setup, arena)
        why = _run_once(setup, execution, workers, wanted=wanted)
        if not why:
            return execution
        arena.restore(before)
    unwritten = follows and why == UNWRITTEN
    if unwritten:
        execution = _execution(setup, arena)
        if not _run_once(replace(setup, tracking=True), execution, workers, wanted=wanted):
            return execution  # undefined values had no effect
        arena.restore(before)
    for tracking in (unwritten, not unwritten) if follows else (False,):
        with setup.stopwatch.phase("report"):
            reported, other = _report(replace(setup, tracking=tracking), arena, before, why, wanted=wanted)
        if reported is not None:
            return reported
        arena.restore(before)
        if not other:
            break
    raise SimError(f"the launch cannot be run to its report: {why}")


def _report(setup: Setup, arena: Arena, before: Before, why: str, *, wanted: bool) -> tuple[Execution | None, bool]:
    """Run a launch with hazards, and report them. Returns None if that is not possible, and whether it may be with the
    other choice of ``setup.tracking``.

    Undefined bytes of memory are tracked if and only if any are read, and the launch runs to its end.
    """
    execution = _execution(setup, arena)
    reported = report(
        *(setup, execution.space, execution.tally, execution.log, why),
        *(execution.touched if wanted else None, execution.printed),
    )
    if reported is None:
        return None, False
    if _follows(setup) and setup.tracking != (reported.unwritten and not reported.status):
        return None, True
    if reported.ending is not None:
        with execution.log.attach_to_errors():
            raise reported.ending
    return execution, False


def _run_once(setup: Setup, execution: Execution, workers: int | None, *, wanted: bool) -> str:
    """Run a launch on as many threads as it justifies. Returns the reason to run it again, or an empty string."""
    touched = execution.touched if wanted else None
    return run(setup, execution.space, execution.tally, workers, touched, execution.printed)


def _execution(setup: Setup, arena: Arena) -> Execution:
    """The inputs and outputs of a run."""
    space, geometry = arena.marked_space(), setup.geometry
    size = len(space.data)
    tally = Tally(setup.entry, setup.program, size, geometry.ctas, geometry.warps, traffic=setup.counters)
    return Execution(setup, space, HazardLog(), tally)


def _follows(setup: Setup) -> bool:
    """Whether undefined bytes that a launch reads are tracked."""
    return "memory" in setup.checks and (setup.track_unwritten_global or _loads_shared(setup.entry))


@derived
def _loads_shared(entry: Entry) -> bool:
    return any(map(loads_shared, entry.instructions))
