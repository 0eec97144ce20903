"""Hazards reported by native code.

A launch with a possible hazard is run again, on one thread, and continues after each hazard: broken rules have rows
(:mod:`.hazards`), and suspicious places are noted (:mod:`.suspects`). If there are such places, it is run once more in
the same order, and records the events there (:mod:`.trace`); a replay passes them to the checks, which report
(:mod:`.replay`). The rules and texts of the order of accesses are therefore those of :mod:`warpsan.checks`.

Under ``schedule="lockstep"``, both runs are in lockstep: all warps of a cluster at the lowest block run it; blocks end
after each access to memory, and the same lanes continue. Clusters run one after the other; the report has those of a
chunk in lockstep (:mod:`.event_order`). If threads poll, warps take turns instead.

A suspicion may be false (a write of the stored value, a neighbour in the same 16 bytes). If an instruction with a
suspicion is not part of any hazard, or if there is no hazard at all, another such run records all of its places, one
part after the other if memory does not suffice for all their events. The same runs follow for launches that end with an
exception, and for launches whose counters depend on the order in which lanes of a warp leave an mbarrier: the order is
then that of these runs.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace

import numpy as np

from warpsan.analysis.polling import polling_loops
from warpsan.analysis.program import Program, build_program
from warpsan.engine import layout, rules
from warpsan.engine.assembler import NotNative
from warpsan.engine.communication import all_resident
from warpsan.engine.engine import NativeCode, accesses_of
from warpsan.engine.repeating import Repetition, TooManyEvents, address_of, marks_of
from warpsan.engine.row_space import RowSpace
from warpsan.engine.selection import Array
from warpsan.engine.suspicions import Suspicions
from warpsan.engine.touched import Touched
from warpsan.errors import IllegalAccess, SimError
from warpsan.host.memory import Space
from warpsan.host.setup import Setup
from warpsan.profile.tally import Tally
from warpsan.report.hazard_log import HazardLog
from warpsan.report.rows import report_rows
from warpsan.report.run_ends import ending_of

__all__ = ["REPORTED", "Notes", "Suspicions", "in_order", "note_suspicions", "report_suspicions", "space_for_notes"]

_fine: dict[int, tuple[weakref.ref[Program], Program]] = {}


@dataclass(frozen=True)
class Notes:
    """Space for the hazards and suspicions of a run that continues after them.

    Attributes
    ----------
    hazards : RowSpace
    suspects, counts : ndarray
        Rows of suspicions, and their number for each record.
    marks : dict of int to ndarray of uint8
        Further suspicious granules, by space.
    clusters : ndarray of uint8
        As in :class:`~warpsan.engine.suspicions.Suspicions`.
    """

    hazards: RowSpace
    suspects: Array
    counts: Array
    marks: dict[int, Array]
    clusters: Array

    @property
    def words(self) -> dict[str, int]:
        """The fields of the context."""
        arrays = {
            "suspects": self.suspects,
            "suspects_of": self.counts,
            "marked_shared": self.marks[layout.IN_SHARED],
            "marked_global": self.marks[layout.IN_GLOBAL],
            "marked_clusters": self.clusters,
        }
        return self.hazards.words | {name: address_of(array) for name, array in arrays.items()}


def space_for_notes(setup: Setup, code: NativeCode, space: Space) -> Notes:
    """Space for the notes of a run."""
    records = len(code.decoded.records) + len(setup.entry.instructions)
    rows = np.zeros((layout.MOST_SUSPECTS, layout.SUSPECT_WORDS), np.int64)
    clusters = np.zeros(code.clusters, np.uint8)
    return Notes(RowSpace(records), rows, np.zeros(records, np.int32), marks_of(setup, space), clusters)


def note_suspicions(
    setup: Setup,
    space: Space,
    tally: Tally,
    log: HazardLog,
    why: str,
    touched: list[Touched] | None = None,
    printed: list[str] | None = None,
) -> Suspicions | None:
    """Run a launch that may have hazards to its end.

    Parameters
    ----------
    setup : Setup
    space : Space
        Global memory, as it was before the launch.
    tally : Tally
        Receives the counts, if the launch ran to its end.
    log : HazardLog
        Receives the illegal accesses.
    why : str
        The reason of the first run's end.
    touched : list of Touched, optional
    printed : list of str, optional
        As in :func:`~warpsan.engine.engine.run`.

    Returns
    -------
    Suspicions, optional
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
    notes = space_for_notes(fine, code, space)
    ends_illegally = bool(setup.checks) and "memory" not in setup.checks
    words = order | notes.words | {"illegal_ends": int(ends_illegally)}
    state = code.state(words)
    status = code.run(state, 0, code.clusters)
    found = notes.hazards.rows(state.context.hazard_count)
    unwritten = any(each.rule in (rules.UNWRITTEN_READ, rules.STORED_UNSET) for each in found)
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
        report_rows(setup, space, log, found, code.decoded)
    except IllegalAccess as error:
        if not setup.checks:
            raise
        ending = error  # raised with the hazards so far
    illegal = ending is not None
    ending = ending or ending_of(code, state, status, log)
    if status and ending is None:
        return None
    rows = notes.suspects[: state.context.suspect_count]
    if not {"race", "async"} & set(setup.checks):  # no check needs these
        rows = rows[~np.isin(rows[:, layout.SU_SPACE], (layout.IN_SHARED, layout.IN_GLOBAL))]
    in_shared = rows[:, layout.SU_SPACE] == layout.IN_SHARED
    rows[in_shared, layout.SU_GRANULE] %= max(state.context.granules, 1)  # within its CTA
    last = state.context.cluster
    return Suspicions(rows, code.decoded.places, status, last, unwritten, notes.marks, notes.clusters, illegal, ending)


def report_suspicions(setup: Setup, space: Space, log: HazardLog, suspicions: Suspicions) -> bool:
    """Run a launch with suspicious places once more, and report its hazards.

    Parameters
    ----------
    setup, space : as for :func:`note_suspicions`
    log : HazardLog
        Receives the hazards.
    suspicions : Suspicions

    Returns
    -------
    bool
        Whether the report is complete.

    Raises
    ------
    Deadlock, IllegalAccess, KernelTrap, StepLimit, UnsupportedInstruction
        If the launch ends with it.
    """
    complete = suspicions.complete or _report(setup, space, log, suspicions)
    if suspicions.ending is not None:
        with log.attach_to_errors():
            raise suspicions.ending
    return complete


def _report(setup: Setup, space: Space, log: HazardLog, suspicions: Suspicions) -> bool:
    fine, order = in_order(replace(setup, tracking=False))
    try:
        code = NativeCode(replace(fine, checks=(), counters=False, watchers=()), space, traced=True)
    except NotNative:
        return False
    noted = {(each.kind, each.pc) for each in log.hazards()}
    launch = Repetition(fine, order, code, log, suspicions, noted, space.data.copy())
    try:
        if not launch.report(closely=False):
            return False
        # Suspicions may be false: all places without a hazard are recorded.
        return launch.explained or launch.report(closely=True)
    except TooManyEvents:
        return launch.in_parts()


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
