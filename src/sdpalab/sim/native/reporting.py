"""Hazards reported by native code.

A launch in which native code suspects a hazard is run again, on one thread, and goes on behind each suspicion: illegal
accesses and suspicious places are noted (:mod:`.suspects`). If there are such places, it is run once more in the same
order, and records what happens to them (:mod:`.trace`); the checks are given those events, and report (:mod:`.replay`).
So the rules, the texts and the conflicting accesses are those of :mod:`sdpalab.sim.checks`.

Under ``schedule="lockstep"`` both runs are in lockstep: all warps of a cluster that are in front of the lowest block
run it; blocks end behind each access to memory, and the same lanes go on. Clusters run one after the other, whereas the
reference engine has several in lockstep.

What is suspected may be more than what is wrong (a write of the value that is there already, a neighbour in the same 16
bytes). If an instruction at which there was a suspicion is no part of any hazard, or if there is no hazard at all, the
reference engine decides.
"""

from __future__ import annotations

import weakref
from dataclasses import replace

import numpy as np

from sdpalab.sim.checks.orders import is_memory_fence, memory_order
from sdpalab.sim.checks.shadow import granule_of
from sdpalab.sim.chunks import Setup
from sdpalab.sim.hazard_log import HazardLog
from sdpalab.sim.ir import Instruction
from sdpalab.sim.memory import Space
from sdpalab.sim.native import layout
from sdpalab.sim.native.assembler import NotNative
from sdpalab.sim.native.communication import ctas_together
from sdpalab.sim.native.engine import NativeCode, accesses_of
from sdpalab.sim.native.replay import replay, replay_faults
from sdpalab.sim.native.suspicions import Suspicions
from sdpalab.sim.opcodes import in_async_proxy, opcode_of
from sdpalab.sim.polling import polling_loops
from sdpalab.sim.program import Program, build_program
from sdpalab.sim.selection import Array
from sdpalab.sim.tally import Tally
from sdpalab.sim.touched import Touched

__all__ = ["REPORTED", "Suspicions", "note_suspicions", "report_suspicions"]

_CHUNK = 16
_CLUSTERS_OF_ARRIVALS = 8
"""Of the clusters in which a rule of barriers may be broken, those whose events are all recorded."""
_WITHOUT_EVENTS = {"tensormap", "discard"}
_UNITS = ("wgmma", "cluster")
"""Kinds of hazards of which it is not noted at which instruction they are suspected."""
_fine: dict[int, tuple[weakref.ref[Program], Program]] = {}


def note_suspicions(
    setup: Setup, space: Space, tally: Tally, log: HazardLog, why: str, touched: list[Touched] | None = None
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
        As in :func:`~sdpalab.sim.native.choice.run_native`.

    Returns
    -------
    Suspicions, optional
        None if the reference engine must report.
    """
    if why not in REPORTED or setup.counters or setup.watchers or setup.heap is not None:
        return None
    alone = ctas_together(setup) == setup.geometry.cluster_size  # clusters that take turns are traced in another order
    followed = "race" in setup.checks and alone and _has_events(setup)
    if "memory" not in setup.checks or not (followed or why in _NOTED):
        return None
    fine, order = _in_order(setup)
    try:
        code = NativeCode(fine, space)
    except NotNative:
        return None
    if code.decoded.host_calls:  # which have effects of their own
        return None
    records = len(code.decoded.records)
    suspects = np.zeros((layout.MOST_SUSPECTS, layout.SUSPECT_WORDS), np.int64)
    arrivals = np.zeros(len(fine.program.blocks), np.int32)
    counts = np.zeros(records + len(setup.entry.instructions), np.int32)
    faults = np.zeros((layout.MOST_FAULTS, layout.FAULT_WORDS), np.int64)
    words = order | {layout.FAULTS: _address(faults)}
    if followed:
        words |= {
            layout.SUSPECTS: _address(suspects),
            layout.SUSPECTS_OF: _address(counts),
            layout.ARRIVALS_OF: _address(arrivals),
        }
    state = code.state(words)
    status = code.run(state, 0, code.clusters)
    faults = faults[: int(state.context[layout.FAULT_COUNT])]
    used = (faults[:, layout.FA_KIND] == layout.NEVER_SET).any()
    ends = followed and (status == layout.TRAP or (status == layout.STUCK and not _polls(setup)))
    if (status and not ends) or (setup.tracking and used):
        return None  # where undefined bytes are followed, what is used may be one of them
    if touched is not None:
        touched.append(accesses_of([state]))
    _add_counts(setup, fine, tally, state.counted, int(state.context[layout.STEPS_TAKEN]))
    replay_faults(setup, space, log, faults, code.decoded)
    rows = suspects[: int(state.context[layout.SUSPECT_COUNT])]
    in_shared = rows[:, layout.SU_SPACE] == layout.IN_SHARED
    rows[in_shared, layout.SU_GRANULE] %= max(int(state.context[layout.GRANULES]), 1)  # of its CTA
    if status == layout.STUCK and (rows[:, layout.SU_SPACE] == layout.AT_ARRIVAL).any():
        return None  # warps that come to a barrier together may be let through it where one after the other are not
    suspicions = Suspicions(rows, code.decoded.places, status, int(state.context[layout.CLUSTER]))
    return suspicions if log.hazards() or not suspicions.complete else None


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
    Deadlock, KernelTrap
        If the launch ends so.
    """
    # Early accesses, which leave no event, end the run before this one.
    fine, order = _in_order(replace(setup, prerequisites=None))
    try:
        code = NativeCode(replace(fine, checks=()), space, traced=True)
    except NotNative:
        return False
    clusters = np.zeros(code.clusters, np.uint8)
    marks, shifts = {}, {}
    for number, name, size in (
        (layout.IN_SHARED, "shared", setup.symbols.shared_bytes),
        (layout.IN_GLOBAL, "global", len(space.data)),
    ):
        granule = granule_of(setup.entry, (name,))
        marks[number], shifts[number] = np.zeros(size // granule + 16, np.uint8), granule.bit_length() - 1
    clusters[suspicions.clusters[:_CLUSTERS_OF_ARRIVALS]] = 2
    clusters[suspicions.ruled] = 2
    if suspicions.status:
        clusters[suspicions.last] = 2
    for row in suspicions.watched():
        marks[int(row[layout.SU_SPACE])][row[layout.SU_GRANULE]] = 1
        if row[layout.SU_SPACE] == layout.IN_SHARED:
            clusters[row[layout.SU_CLUSTER]] |= 1
    if any(map(in_async_proxy, setup.entry.instructions)):  # which access whole chunks
        for number, shift in shifts.items():
            _widen(marks[number], _CHUNK >> shift)
    events = np.empty(layout.TRACE_WORDS, np.int64)
    faults = np.zeros((layout.MOST_FAULTS, layout.FAULT_WORDS), np.int64)
    words = {
        layout.FAULTS: _address(faults),
        layout.TRACE: _address(events),
        layout.GRANULE_SHIFT: shifts[layout.IN_SHARED],
        layout.GLOBAL_SHIFT: shifts[layout.IN_GLOBAL],
        layout.WATCHED_SHARED: _address(marks[layout.IN_SHARED]),
        layout.WATCHED_GLOBAL: _address(marks[layout.IN_GLOBAL]),
        layout.WATCHED_CLUSTERS: _address(clusters),
    }
    state = code.state(order | words)
    status, end = code.run(state, 0, code.clusters), int(state.context[layout.TRACE_END])
    if status != suspicions.status or end > layout.TRACE_WORDS:
        return False
    together = int(state.context[layout.ORDER]) == layout.TOGETHER
    try:
        with log.attach_to_errors():
            watched = {"shared": marks[layout.IN_SHARED], "global": marks[layout.IN_GLOBAL]}
            replay(fine, space, log, events[:end], watched, together=together, stuck=status == layout.STUCK)
    except NotNative:
        return False
    if status:  # threads wait for what is no barrier
        return False
    hazards = log.hazards()
    if len(suspicions.clusters) > _CLUSTERS_OF_ARRIVALS and not any(each.kind == "barrier" for each in hazards):
        return False
    if suspicions.beside and not any(each.kind in _UNITS for each in hazards):
        return False
    parties = {each.pc for each in hazards} | {each.other.pc for each in hazards if each.other is not None}
    return bool(hazards) and suspicions.pcs <= parties


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


def _has_events(setup: Setup) -> bool:
    """Whether all that orders the threads of a launch leaves an event, in an order that can be repeated: blocks that
    pass something on through memory are traced in another order than the reference engine's."""
    code = setup.entry.instructions
    if setup.workspace or any(map(_is_without_events, code)):
        return False
    orders = [memory_order(each) for each in code if opcode_of(each).memory]
    fences = any(map(is_memory_fence, code))
    return not any(each.acquire or each.release or (fences and each.strong) for each in orders)


def _is_without_events(instruction: Instruction) -> bool:
    opcode, mods = instruction.opcode, set(instruction.mods)
    return opcode in _WITHOUT_EVENTS or (opcode == "wmma" and "store" in mods)


_NOTED = {
    layout.WHY[status - layout.GIVE_UP] for status in (layout.ILLEGAL, layout.UNSET, layout.DIVERGENT, layout.STUCK)
}
"""Reasons to leave a launch to the reference engine which are reported as they are noted."""
REPORTED = {
    layout.WHY[status - layout.GIVE_UP]
    for status in (
        *(layout.ILLEGAL, layout.UNSET, layout.DIVERGENT, layout.STUCK),
        *(layout.RACE, layout.ASYNC, layout.UNDEFINED, layout.BARRIER_RULE, layout.TRAP),
        *(layout.MBARRIER_RULE, layout.WGMMA_RULE, layout.CLUSTER_RULE),
    )
}
"""Reasons to leave a launch to the reference engine that may be a hazard which is reported here."""
