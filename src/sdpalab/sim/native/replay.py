"""Events that native code has recorded (:mod:`.trace`), given to the checks, which report the launch's hazards.

A machine stands in for the CTAs that have left events (:mod:`.still`): it has the threads, the barriers, the units and
the spaces that the checks ask for. In lockstep, accesses of several warps and CTAs by one instruction are one step.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sdpalab.sim.checks.global_history import GlobalHistory
from sdpalab.sim.checks.memory import MemoryCheck
from sdpalab.sim.checks.registers import report_unset
from sdpalab.sim.chunks import Setup, race_observers
from sdpalab.sim.collectives import LEAVES_OUT, MEMBER_MASK, NAMES_ABSENT, PARTIAL_WARP
from sdpalab.sim.flow import trapped
from sdpalab.sim.hazard_log import HazardLog
from sdpalab.sim.ir import Instruction
from sdpalab.sim.memory import RANK_SHIFT, WORDS, Space
from sdpalab.sim.native import layout
from sdpalab.sim.native.assembler import NotNative
from sdpalab.sim.native.decoded import Decoded
from sdpalab.sim.native.event_step import EventStep, TracedAccess, lanes_of
from sdpalab.sim.native.steps import step_registers
from sdpalab.sim.native.still import StillFlow, still_machine
from sdpalab.sim.observer import Access
from sdpalab.sim.selection import WARP, Array, Indices
from sdpalab.sim.tally import Tally

__all__ = ["replay", "replay_faults"]

_SPACES = {layout.IN_SHARED: "shared", layout.IN_GLOBAL: "global", layout.IN_LOCAL: "local"}
_FAULTS = {layout.MISALIGNED: "misaligned", layout.OUT_OF_BOUNDS: "out-of-bounds"}
_MISSING = {
    layout.PARTIAL_WARP: PARTIAL_WARP,
    layout.NAMES_ABSENT: f"{MEMBER_MASK} {NAMES_ABSENT}",
    layout.LEAVES_OUT: f"{MEMBER_MASK} {LEAVES_OUT}",
}
_BEHIND = (layout.TRACE_ARRIVAL, layout.TRACE_EXIT, layout.TRACE_LANDING, layout.TRACE_TRAP, layout.TRACE_ADVANCE)
"""Events at the end of a block, or behind it."""
_LAST = 1 << 62
_NOWHERE: Indices = np.empty(0, np.int64)


def replay_faults(setup: Setup, space: Space, log: HazardLog, faults: Array, decoded: Decoded) -> None:
    """Report illegal accesses, and uses of registers that were never set.

    Parameters
    ----------
    setup, space, log : as for every check
    faults : ndarray of int64 [rows, words]
        By the words of :mod:`~sdpalab.sim.native.layout`.
    decoded : Decoded
        What they are by.
    """
    if not len(faults):
        return
    size = setup.geometry.cluster_size
    machine = still_machine(setup, space, size)
    check = MemoryCheck(machine, log)
    for row in faults:
        machine.cta_ids[:] = row[layout.FA_LINEAR]
        lanes = lanes_of(int(row[layout.FA_WARP]) % machine.warps * size, int(row[layout.FA_MASK]))
        instruction = machine.entry.instructions[decoded.places[int(row[layout.FA_RECORD])]]
        if row[layout.FA_KIND] == layout.NEVER_SET:
            name, role = decoded.uses[int(row[layout.FA_RECORD])]
            report_unset(machine, log, instruction, int(lanes[0]), name, role)
            continue
        offsets = row[layout.FA_OFFSETS :][:WARP][lanes % WARP].copy()
        if row[layout.FA_KIND] in _MISSING:
            need, absent = _MISSING[int(row[layout.FA_KIND])], int(row[layout.FA_WIDTH])
            check.divergent(lanes, instruction, need.format(instruction.opcode, int(offsets[0]), absent))
            continue
        where, width = machine.spaces[_SPACES[int(row[layout.FA_SPACE])]], int(row[layout.FA_WIDTH])
        check.fault(_FAULTS[int(row[layout.FA_KIND])], Access(where, offsets, _NOWHERE, width, lanes, instruction))


def replay(
    setup: Setup,
    space: Space,
    log: HazardLog,
    events: Array,
    watched: Mapping[str, Array],
    *,
    together: bool,
    stuck: bool,
) -> None:
    """Report what the checks of races, copies and barriers say of recorded events.

    Parameters
    ----------
    setup, space, log : as for every check
    events : ndarray of int64
        One behind the other.
    watched : mapping of str to ndarray of uint8
        Of each granule of shared and of global memory, whether accesses to it are recorded.
    together : bool
        Whether warps ran in lockstep. Then the CTAs of each chunk of the launch are put in lockstep here.
    stuck : bool
        Whether nothing could run any more in the end.

    Raises
    ------
    Deadlock
        If threads wait for what can never come.
    KernelTrap
        If the last event is a trap.
    NotNative
        If it is a failed assertion.
    """
    by_cluster = _by_cluster(events)
    size = setup.geometry.cluster_size
    clusters = [[ctas for ctas in chunk.reshape(-1, size) if int(ctas[0]) in by_cluster] for chunk in setup.chunks]
    groups = clusters if together else [[ctas] for chunk in clusters for ctas in chunk]
    if not together:
        order = {cta: place for place, cta in enumerate(by_cluster)}
        groups.sort(key=lambda group: order[int(group[0][0])])
    history = GlobalHistory(setup.entry, len(space.data), setup.geometry.ctas)
    machines: dict[int, _Replay] = {}
    last = next(reversed(by_cluster), -1)
    for group in filter(None, groups):
        if len(group) not in machines:
            machines[len(group)] = _Replay(setup, space, log, history, len(group), watched)
        firsts = [int(ctas[0]) for ctas in group]
        machines[len(group)].run(
            *(np.concatenate(group), [by_cluster[cta] for cta in firsts]),
            together=together,
            stuck=stuck and last in firsts,
        )


def _by_cluster(events: Array) -> dict[int, list[Array]]:
    """The events of each cluster, by the linear index of its first CTA, without copies that land and touch no watched
    place."""
    by_cluster: dict[int, list[Array]] = {}
    copies: set[int] = set()
    place, mine = 0, list[Array]()
    while place < len(events):
        event = events[place : place + int(events[place + layout.EV_WORDS])]
        place += len(event)
        if event[layout.EV_KIND] == layout.TRACE_CLUSTER:
            mine = by_cluster.setdefault(int(event[layout.EV_PLACE]), [])
        elif event[layout.EV_KIND] != layout.TRACE_LANDING or int(event[layout.EV_COPY]) in copies:
            mine.append(event)
            if event[layout.EV_KIND] == layout.TRACE_ACCESS and event[layout.EV_DOES] == layout.COPIES_TO_IT:
                copies.add(int(event[layout.EV_NUMBER]))
    for mine in by_cluster.values():
        mine.sort(key=_in_turn)
    return by_cluster


def _in_turn(event: Array) -> tuple[int, int, int]:
    """The order in lockstep: what all warps do in a turn, one instruction after the other, and of one instruction first
    that it uses registers. Out of lockstep there is one turn only, and the order stays."""
    kind, turn = int(event[layout.EV_KIND]), int(event[layout.EV_TURN])
    return (turn, _LAST, 0) if kind in _BEHIND or turn == 0 else (turn, int(event[layout.EV_PLACE]), -kind)


class _Replay:
    """A machine on which events happen once more."""

    def __init__(
        self,
        setup: Setup,
        space: Space,
        log: HazardLog,
        history: GlobalHistory,
        clusters: int,
        watched: Mapping[str, Array],
    ) -> None:
        self.size = setup.geometry.cluster_size
        self.machine = still_machine(setup, space, clusters * self.size, watched)
        tally = Tally(setup.entry, setup.program, 0, clusters * self.size, self.machine.warps, traffic=False)
        self.machine.observers += race_observers(setup, self.machine, log, history, tally)
        self.flow = StillFlow(self.machine)
        self.copies: dict[int, tuple[Indices, list[Array | None]]] = {}
        """Copies in flight, by number: the lanes of their step, and what each observer gave."""

    def run(self, ctas: Indices, events: list[list[Array]], *, together: bool, stuck: bool) -> None:
        """Let everything happen to clusters: always at the lowest instruction of all that have an event left."""
        self.copies.clear()
        self.flow.reset(ctas)
        places = [0] * len(events)
        while any(place < len(mine) for place, mine in zip(places, events, strict=True)):
            heads = {k: events[k][place] for k, place in enumerate(places) if place < len(events[k])}
            low = min(heads, key=lambda k: (self._pc(heads[k]), k))
            step: list[tuple[int, Array]] = []
            for k in heads if together else [low]:
                warp, mine = -1, events[k][places[k]]
                while places[k] < len(events[k]) and _alike(heads[low], mine, event := events[k][places[k]]):
                    if event[layout.EV_WARP] <= warp:
                        break
                    step.append((k, event))
                    places[k] += 1
                    warp = int(event[layout.EV_WARP]) if together else self.machine.warps * self.size
            if heads[low][layout.EV_KIND] == layout.TRACE_ADVANCE:
                self.flow.land(low, int(heads[low][layout.EV_OPERATION]))
            else:
                self._happens(EventStep.of(self.machine, step, self.size), low)
        self.flow.finish(stuck=stuck)

    def _pc(self, event: Array) -> int:
        """The instruction of an event; what has no place in the code comes at once."""
        kind, place = int(event[layout.EV_KIND]), int(event[layout.EV_PLACE])
        if kind in (layout.TRACE_ARRIVAL, layout.TRACE_TRAP):
            return self._end(place).pc
        return -1 if kind in (layout.TRACE_EXIT, layout.TRACE_LANDING, layout.TRACE_ADVANCE) else place

    def _end(self, block: int) -> Instruction:
        end = self.machine.program.blocks[block].end
        assert end is not None
        return end

    def _happens(self, step: EventStep, cluster: int) -> None:
        machine, event, sel = self.machine, step.first, step.sel
        kind, place = int(event[layout.EV_KIND]), int(event[layout.EV_PLACE])
        if kind == layout.TRACE_ACCESS:
            self._access(step, machine.entry.instructions[place])
        elif kind == layout.TRACE_ARRIVAL:
            name, threads = int(event[layout.EV_NAME]), int(event[layout.EV_THREADS])
            waits = bool(event[layout.EV_WAITS])
            self.flow.barriers.arrive(sel, name, threads, place + 1, self._end(place), waits=waits)
        elif kind == layout.TRACE_STEP:
            instruction = machine.entry.instructions[place]
            many = len(step_registers(machine.entry, instruction))
            values = step.each_lane(lambda event: event[layout.EV_ROWS :][: WARP * many].reshape(many, WARP).T).T
            self.flow.execute(instruction, sel, step.lanes, values, cluster, int(event[layout.EV_OPERATION]))
        elif kind == layout.TRACE_REGISTERS:
            self.flow.use_registers(machine.entry.instructions[place], sel)
        elif kind == layout.TRACE_EXIT:
            self.flow.leave(sel)
        elif kind == layout.TRACE_TRAP:
            if self._end(place).opcode == "call":
                raise NotNative("the message of a failed assertion")
            raise trapped(machine, self._end(place), int(step.lanes[0]))
        elif kind == layout.TRACE_LANDING:
            self._land(int(event[layout.EV_COPY]), step.lanes)
        else:
            groups = step.each_lane(lambda event: event[layout.EV_GROUPS :][:WARP]).astype(np.uint32)
            for observer in machine.observers:
                observer.warp_sync(sel, None if (groups == 2**WARP - 1).all() else groups)

    def _access(self, step: EventStep, instruction: Instruction) -> None:
        space, width = self.machine.spaces[_SPACES[int(step.first[layout.EV_SPACE])]], int(step.first[layout.EV_WIDTH])
        offset = step.each_lane(lambda event: event[layout.EV_OFFSETS :][:WARP])
        changed = step.each_lane(lambda event: int(event[layout.EV_CHANGES]) >> np.arange(WARP) & 1).astype(np.bool_)
        index = offset
        if space.name == "shared":
            rank, offset = offset >> RANK_SHIFT, offset & (1 << RANK_SHIFT) - 1
            cta = self.machine.cta[step.sel]
            index = offset + np.where(rank == 0, cta, cta - cta % self.size + rank - 1) * self.machine.shared_stride
        access = TracedAccess(space, offset, index, width, step.sel, instruction, changed)
        does = int(step.first[layout.EV_DOES])
        if does == layout.COPIES_TO_IT:
            tickets = [observer.issue(access, writes=True) for observer in self.machine.observers]
            self.copies.update((int(event[layout.EV_NUMBER]), (step.lanes, tickets)) for event in step.events)
            return
        words = None
        if step.first[layout.EV_VALUED]:
            raw = step.each_lane(lambda event: event[layout.EV_VALUES :][: 2 * WARP].view(np.uint8).reshape(WARP, 16))
            words = np.ascontiguousarray(raw[:, :width]).view(WORDS[width])[:, 0]
        for observer in self.machine.observers:
            if does == layout.READS_IT:
                observer.load(access)
            elif does == layout.UPDATES_IT:
                observer.atomic(access)
            else:
                observer.store(access, words)

    def _land(self, number: int, lanes: Indices) -> None:
        """Lanes have waited for a copy."""
        issuers, tickets = self.copies[number]
        rows = np.isin(issuers, lanes)
        for observer, ticket in zip(self.machine.observers, tickets, strict=True):
            if ticket is not None:
                observer.complete(ticket[rows], issuers[rows])


def _alike(first: Array, mine: Array, event: Array) -> bool:
    """Whether an event may be of one step in lockstep with the first of another cluster, and of its own."""
    kind = int(first[layout.EV_KIND])
    if event is first:
        return True
    if kind in (layout.TRACE_LANDING, layout.TRACE_ADVANCE):
        return False
    words = [layout.EV_KIND, layout.EV_PLACE, layout.EV_NAME]
    if kind == layout.TRACE_STEP:
        return bool((first[words] == event[words]).all()) and mine[layout.EV_TURN] == event[layout.EV_TURN]
    return bool((first[[*words, layout.EV_THREADS]] == event[[*words, layout.EV_THREADS]]).all())
