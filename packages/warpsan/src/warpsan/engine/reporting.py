"""Hazards reported by native code.

A launch with a hazard is run again, on one thread, and continues after each hazard, which is a row
(:mod:`.hazards`, :mod:`warpsan.report.rows`). The shadows of this run also have the instruction and the threads of each
access (:mod:`.races`), so that the rules are exact. Its first run may have ended at a suspicion that turns out to be
none: an access of lanes that had diverged, or a write of the stored value.

Under ``schedule="lockstep"``, this run is in lockstep: all warps of a cluster at the lowest block run it; blocks end
after each access to memory, and the same lanes continue. Clusters run one after the other. If threads poll, warps take
turns instead. The same run follows for launches that end with an exception, and for launches whose counters depend on
the order in which lanes of a warp leave an mbarrier: the order is then that of this run.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace

from warpsan.analysis.polling import polling_loops
from warpsan.analysis.program import Program, build_program
from warpsan.engine import layout, rules
from warpsan.engine.assembler import NotNative
from warpsan.engine.communication import all_resident
from warpsan.engine.engine import NativeCode, accesses_of
from warpsan.engine.row_space import RowSpace
from warpsan.engine.touched import Touched
from warpsan.errors import IllegalAccess, SimError
from warpsan.host.memory import Space
from warpsan.host.setup import Setup
from warpsan.profile.tally import Tally
from warpsan.report.hazard_log import HazardLog
from warpsan.report.rows import report_rows
from warpsan.report.run_ends import ending_of

__all__ = ["REPORTED", "Reported", "in_order", "report", "row_space"]

_fine: dict[int, tuple[weakref.ref[Program], Program]] = {}


@dataclass(frozen=True)
class Reported:
    """A launch whose hazards are in the log.

    Attributes
    ----------
    status : int
        0, or the status of the run's end: a trap, or a deadlock.
    unwritten : bool
        Whether undefined bytes of shared memory were read.
    ending : SimError, optional
        The exception with which the launch ends.
    """

    status: int
    unwritten: bool
    ending: SimError | None


def row_space(setup: Setup, code: NativeCode) -> RowSpace:
    """Space for the hazards of a run that continues after them."""
    return RowSpace(len(code.decoded.records) + len(setup.entry.instructions))


def report(
    setup: Setup,
    space: Space,
    tally: Tally,
    log: HazardLog,
    why: str,
    touched: list[Touched] | None = None,
    printed: list[str] | None = None,
) -> Reported | None:
    """Run a launch that may have hazards to its end.

    Parameters
    ----------
    setup : Setup
    space : Space
        Global memory, as it was before the launch.
    tally : Tally
        Receives the counts, if the launch ran to its end.
    log : HazardLog
        Receives the hazards.
    why : str
        The reason of the first run's end.
    touched : list of Touched, optional
    printed : list of str, optional
        As in :func:`~warpsan.engine.engine.run`.

    Returns
    -------
    Reported, optional
        None if a report is not possible.

    Raises
    ------
    IllegalAccess
        For an illegal access in a launch without checks.
    """
    if why not in REPORTED:
        return None
    fine, order = in_order(setup)
    try:
        code = NativeCode(fine, space)
    except NotNative:
        return None
    hazards = row_space(fine, code)
    ends_illegally = bool(setup.checks) and "memory" not in setup.checks
    state = code.state(order | hazards.words | {"illegal_ends": int(ends_illegally)})
    status = code.run(state, 0, code.clusters)
    actual = hazards.rows(state.context.hazard_count)
    unwritten = any(each.rule in (rules.UNWRITTEN_READ, rules.STORED_UNSET) for each in actual)
    stuck = status == layout.STUCK and all_resident(setup) is None
    ends = stuck or status in (
        layout.TRAP,
        layout.STEPS,
        layout.TOO_DEEP,
        layout.INDEX,
        layout.REFUSED,
        layout.UNMODELLED,
    )
    ends = ends or (status == layout.ILLEGAL and ends_illegally)
    if (status and not ends) or state.host.error is not None:
        return None
    if touched is not None:
        touched.append(accesses_of([state]))
    if printed is not None:
        printed += state.host.printed
    _add_counts(setup, fine, tally, state.counted, state.context.steps_taken)
    ending: SimError | None = None
    try:
        report_rows(setup, space, log, actual, code.decoded)
    except IllegalAccess as error:
        if not setup.checks:
            raise
        ending = error  # raised with the hazards so far
    ending = ending or ending_of(code, state, status, log)
    return None if status and ending is None else Reported(status, unwritten, ending)


def in_order(setup: Setup) -> tuple[Setup, dict[str, int]]:
    """A lockstep launch has blocks that end after each access, and its own order; polling needs turns."""
    if setup.schedule != "lockstep" or _polls(setup):
        return setup, {}
    key = id(setup.program)
    known = _fine.get(key)
    if known is None or known[0]() is not setup.program:
        program = build_program(setup.entry, lockstep=True)
        known = _fine[key] = weakref.ref(setup.program, lambda _: _fine.pop(key, None)), program
    return replace(setup, program=known[1]), {"order": layout.TOGETHER}


def _polls(setup: Setup) -> bool:
    """Whether threads may wait for others without a barrier."""
    return bool(polling_loops(setup.entry, setup.program).blocks)


def _add_counts(setup: Setup, fine: Setup, tally: Tally, counted: Tally, steps: int) -> None:
    """Add the counts of a launch's blocks; a block has run as often as its first part."""
    part = {block.first: number for number, block in enumerate(fine.program.blocks)}
    parts = [part[block.first] for block in setup.program.blocks]
    tally.lanes += counted.lanes[parts]
    tally.warps += counted.warps[parts]
    tally.unwaited += counted.unwaited
    tally.steps += steps
    if setup.counters:
        tally.sectors += counted.sectors
        tally.wavefronts += counted.wavefronts
        tally.touched |= counted.touched
        tally.issued += counted.issued
        tally.by_warp += counted.by_warp[:, parts]


REPORTED = {
    layout.WHY[status - layout.GIVE_UP]
    for status in (
        *(layout.ILLEGAL, layout.UNSET, layout.DIVERGENT, layout.STUCK),
        *(layout.RACE, layout.ASYNC, layout.UNDEFINED, layout.BROKEN_RULE, layout.TRAP, layout.STEPS),
        *(layout.UNMODELLED, layout.TENSOR_MAP),
        *(layout.INDEX, layout.TOO_DEEP, layout.APART, layout.REFUSED),
    )
}
"""Reasons of a run's end that may be a hazard reported here."""
