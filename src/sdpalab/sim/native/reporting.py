"""Hazards reported by native code.

A launch in which native code suspects a hazard is run again, on one thread, and goes on behind each suspicion: illegal
accesses and suspicious places are noted (:mod:`.suspects`). If there are such places, it is run once more in the same
order, and records what happens to them (:mod:`.trace`); the checks are given those events, and report (:mod:`.replay`).
So the rules, the texts and the conflicting accesses are those of :mod:`sdpalab.sim.checks`.

Under ``schedule="lockstep"`` both runs are in lockstep: all warps of a cluster that are in front of the lowest block
run it; blocks end behind each access to memory, and the same lanes go on. Clusters run one after the other, whereas the
reference engine has several in lockstep (:mod:`.event_order`). Where threads poll, warps take turns instead.

What is suspected may be more than what is wrong (a write of the value that is there already, a neighbour in the same 16
bytes). If an instruction at which there was a suspicion is no part of any hazard, or if there is no hazard at all, all
of its places are looked at, in another such run; if they are too many to be noted, the reference engine decides.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sdpalab.sim.checks.shadow import granule_of
from sdpalab.sim.chunks import Setup
from sdpalab.sim.errors import StepLimit
from sdpalab.sim.flow import too_many_steps
from sdpalab.sim.hazard_log import HazardLog
from sdpalab.sim.ir import Instruction
from sdpalab.sim.memory import Space
from sdpalab.sim.native import layout
from sdpalab.sim.native.assembler import NotNative
from sdpalab.sim.native.communication import all_resident, ctas_together, orders_blocks
from sdpalab.sim.native.engine import NativeCode, accesses_of
from sdpalab.sim.native.parts import lowest_ready, take
from sdpalab.sim.native.replay import replay, replay_faults
from sdpalab.sim.native.state import State
from sdpalab.sim.native.suspicions import Suspicions
from sdpalab.sim.opcodes import in_async_proxy
from sdpalab.sim.polling import polling_loops
from sdpalab.sim.program import Program, build_program
from sdpalab.sim.selection import Array
from sdpalab.sim.tally import Tally
from sdpalab.sim.touched import Touched

__all__ = ["REPORTED", "Suspicions", "note_suspicions", "report_suspicions"]

_CHUNK = 16
_OF_FAULTS = {"out-of-bounds", "misaligned", "uninitialised", "divergent"}
"""Kinds of hazards that the first run notes."""
_fine: dict[int, tuple[weakref.ref[Program], Program]] = {}


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
        Counts are added here if the launch ran to its end.
    log : HazardLog
        Illegal accesses are recorded here.
    why : str
        Why native code has left the launch to the reference engine.
    touched : list of Touched, optional
    printed : list of str, optional
        As in :func:`~sdpalab.sim.native.choice.run_native`.

    Returns
    -------
    Suspicions, optional
        None if the reference engine must report.
    """
    if why not in REPORTED:
        return None
    followed = "race" in setup.checks
    if "memory" not in setup.checks or not (followed or why in _NOTED):
        return None
    fine, order = _in_order(setup)
    try:
        code = NativeCode(fine, space)
    except NotNative:
        return None
    records = len(code.decoded.records) + len(fine.entry.instructions)
    suspects = np.zeros((layout.MOST_SUSPECTS, layout.SUSPECT_WORDS), np.int64)
    arrivals = np.zeros(len(fine.program.blocks), np.int32)
    counts, faults_of = np.zeros((2, records), np.int32)
    faults = np.zeros((layout.MOST_FAULTS, layout.FAULT_WORDS), np.int64)
    words = order | {layout.FAULTS: _address(faults), layout.FAULTS_OF: _address(faults_of)}
    if followed:
        words |= {
            layout.SUSPECTS: _address(suspects),
            layout.SUSPECTS_OF: _address(counts),
            layout.ARRIVALS_OF: _address(arrivals),
        }
    state = code.state(words)
    status = code.run(state, 0, code.clusters)
    faults = faults[: int(state.context[layout.FAULT_COUNT])]
    unwritten = bool(np.isin(faults[:, layout.FA_KIND], (layout.UNWRITTEN_READ, layout.STORED_UNSET)).any())
    stuck = status == layout.STUCK and all_resident(setup) is None
    ends = followed and (stuck or status in (layout.TRAP, layout.STEPS))
    if (status and not ends) or state.host.error is not None:
        return None
    if touched is not None:
        touched.append(accesses_of([state]))
    if printed is not None:
        printed += state.host.printed
    _add_counts(setup, fine, tally, state.counted, int(state.context[layout.STEPS_TAKEN]))
    replay_faults(setup, space, log, faults, code.decoded)
    rows = suspects[: int(state.context[layout.SUSPECT_COUNT])]
    in_shared = rows[:, layout.SU_SPACE] == layout.IN_SHARED
    rows[in_shared, layout.SU_GRANULE] %= max(int(state.context[layout.GRANULES]), 1)  # of its CTA
    return Suspicions(rows, code.decoded.places, status, int(state.context[layout.CLUSTER]), unwritten)


def report_suspicions(setup: Setup, space: Space, log: HazardLog, suspicions: Suspicions) -> bool:
    """Run a launch with suspicious places once more, and report its hazards.

    Parameters
    ----------
    setup, space : as for :func:`note_suspicions`
    log : HazardLog
        Hazards are recorded here.
    suspicions : Suspicions

    Returns
    -------
    bool
        Whether that is all there is to report; else the reference engine must.

    Raises
    ------
    Deadlock, KernelTrap, StepLimit
        If the launch ends so.
    """
    # Early accesses, which leave no event, end the run before this one.
    fine, order = _in_order(replace(setup, prerequisites=None, tracking=False))
    try:
        code = NativeCode(replace(fine, checks=(), counters=False, watchers=()), space, traced=True)
    except NotNative:
        return False
    before = space.data.copy()
    if not _record_and_replay(fine, order, code, log, suspicions, closely=False):
        return False
    if _explains(log, suspicions):
        return True
    # What is suspected may be more than what is wrong: of places that no hazard explains, all are looked at.
    space.data[:] = before
    if not _record_and_replay(fine, order, code, log, suspicions, closely=True):
        return False
    return suspicions.all_noted(suspicions.pcs - _parties(log))


def _parties(log: HazardLog) -> set[int]:
    """The instructions of all hazards that events show, and of the accesses that they conflict with."""
    hazards = [each for each in log.hazards() if each.kind not in _OF_FAULTS]
    return {each.pc for each in hazards} | {each.other.pc for each in hazards if each.other is not None}


def _explains(log: HazardLog, suspicions: Suspicions) -> bool:
    """Whether there is a hazard for each suspicion."""
    kinds = {each.kind for each in log.hazards()} - _OF_FAULTS
    arrivals, beside = len(suspicions.arrivals(closely=True)), suspicions.beside
    if (arrivals and "barrier" not in kinds) or (beside and not kinds & {"wgmma", "cluster"}):
        return False
    return bool(kinds) and suspicions.pcs <= _parties(log)


def _record_and_replay(
    fine: Setup, order: Mapping[int, int], code: NativeCode, log: HazardLog, suspicions: Suspicions, *, closely: bool
) -> bool:
    """Run a launch with a record of what happens to some of the suspicious places, or to all that nothing explains so
    far; the checks report that. Whether they could."""
    space = code.space
    clusters = np.zeros(code.clusters, np.uint8)
    marks, shifts = {}, {}
    for number, name, size in (
        (layout.IN_SHARED, "shared", fine.symbols.shared_bytes),
        (layout.IN_GLOBAL, "global", len(space.data)),
    ):
        granule = granule_of(fine.entry, (name,))
        marks[number], shifts[number] = np.zeros(size // granule + 16, np.uint8), granule.bit_length() - 1
    clusters[suspicions.arrivals(closely=closely)] = 2
    clusters[suspicions.ruled(closely=closely)] = 2
    if suspicions.status:
        clusters[suspicions.last] = 2
    if orders_blocks(fine.entry):  # what a cluster has passed on matters to all after it
        clusters |= 2
    for row in suspicions.watched(_parties(log), closely=closely):
        marks[int(row[layout.SU_SPACE])][row[layout.SU_GRANULE]] = 1
        if row[layout.SU_SPACE] == layout.IN_SHARED:
            clusters[row[layout.SU_CLUSTER]] |= 1
    if closely and suspicions.beside:  # any access may be the one
        marks[layout.IN_SHARED][:] = 1
        clusters[suspicions.ruled(closely=True)] |= 1
    if any(map(in_async_proxy, fine.entry.instructions)):  # which access whole chunks
        for number, shift in shifts.items():
            _widen(marks[number], _CHUNK >> shift)
    events = np.zeros(layout.TRACE_WORDS, np.int64)
    faults = np.zeros((layout.MOST_FAULTS, layout.FAULT_WORDS), np.int64)
    faults_of = np.zeros(len(code.decoded.records) + len(fine.entry.instructions), np.int32)
    words = {
        layout.FAULTS: _address(faults),
        layout.FAULTS_OF: _address(faults_of),
        layout.TRACE: _address(events),
        layout.GRANULE_SHIFT: shifts[layout.IN_SHARED],
        layout.GLOBAL_SHIFT: shifts[layout.IN_GLOBAL],
        layout.WATCHED_SHARED: _address(marks[layout.IN_SHARED]),
        layout.WATCHED_GLOBAL: _address(marks[layout.IN_GLOBAL]),
        layout.WATCHED_CLUSTERS: _address(clusters),
    }
    state = code.state({**order, **words})
    status, end = code.run(state, 0, code.clusters), int(state.context[layout.TRACE_END])
    limit = _limit(fine, state) if status == layout.STEPS else None
    if limit is not None and end > layout.TRACE_WORDS:  # a loop: what happens in it has happened before
        end = _end_of(events)
    if status != suspicions.status or end > layout.TRACE_WORDS or state.host.error is not None:
        return False
    together = int(state.context[layout.ORDER]) == layout.TOGETHER
    try:
        with log.attach_to_errors():
            watched = {"shared": marks[layout.IN_SHARED], "global": marks[layout.IN_GLOBAL]}
            polling = _still_polling(fine, state) if status == layout.STUCK else None
            replay(
                *(fine, space, log, events[:end], watched),
                together=together,
                stuck=status == layout.STUCK,
                polling=polling,
                limit=limit,
                failure=state.host.failure,
            )
    except NotNative:
        return False
    return not status  # else threads wait for what is no barrier


def _limit(setup: Setup, state: State) -> StepLimit:
    """The exception for a launch that has taken too many steps."""
    block = setup.program.blocks[int(state.context[layout.CURRENT_PC])]
    return too_many_steps(setup.max_steps, block.line)


def _end_of(events: Array) -> int:
    """Behind the last of the events that have found room."""
    end = 0
    while end < len(events) and events[end + layout.EV_WORDS]:
        end += int(events[end + layout.EV_WORDS])
    return end


def _in_order(setup: Setup) -> tuple[Setup, dict[int, int]]:
    """A launch in lockstep has blocks that end behind each access, and an order of its own; polling needs turns."""
    if setup.schedule != "lockstep" or _polls(setup):
        return setup, {}
    key = id(setup.program)
    known = _fine.get(key)
    if known is None or known[0]() is not setup.program:
        program = build_program(setup.entry, lockstep=True)
        known = _fine[key] = weakref.ref(setup.program, lambda _: _fine.pop(key, None)), program
    return replace(setup, program=known[1]), {layout.ORDER: layout.TOGETHER}


def _polls(setup: Setup) -> bool:
    """Whether threads may wait for others without a barrier."""
    return bool(polling_loops(setup.entry, setup.program).blocks)


def _still_polling(setup: Setup, state: State) -> tuple[int, int, Instruction] | None:
    """Where nothing can run any more, the first warp that polls: its number among those that ran together, its lanes as
    bits, and the instruction by which it waits."""
    endless = polling_loops(setup.entry, setup.program).endless
    for number in range(setup.geometry.warps * ctas_together(setup) if endless else 0):
        warp = int(state.context[layout.WARPS]) + 8 * layout.WARP_WORDS * number
        block = lowest_ready(warp)
        if block in endless:
            return number, take(warp, block), endless[block]
    return None


def _address(array: Array) -> int:
    return int(array.ctypes.data)


def _widen(marks: Array, many: int) -> None:
    """Watch all of each ``many`` granules, aligned, of which one is watched."""
    whole = marks[: len(marks) // many * many].reshape(-1, many)
    whole |= whole.max(axis=1, keepdims=True)


def _add_counts(setup: Setup, fine: Setup, tally: Tally, counted: Tally, steps: int) -> None:
    """Add what the blocks of a launch have counted; a block has run as often as its first part."""
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


_NOTED = {
    layout.WHY[status - layout.GIVE_UP]
    for status in (layout.ILLEGAL, layout.UNSET, layout.DIVERGENT, layout.STUCK, layout.UNDEFINED)
}
"""Reasons to leave a launch to the reference engine which are reported as they are noted."""
REPORTED = {
    layout.WHY[status - layout.GIVE_UP]
    for status in (
        *(layout.ILLEGAL, layout.UNSET, layout.DIVERGENT, layout.STUCK),
        *(layout.RACE, layout.ASYNC, layout.UNDEFINED, layout.BARRIER_RULE, layout.TRAP, layout.STEPS),
        *(layout.MBARRIER_RULE, layout.WGMMA_RULE, layout.CLUSTER_RULE, layout.REGISTER_RULE),
    )
}
"""Reasons to leave a launch to the reference engine that may be a hazard which is reported here."""
