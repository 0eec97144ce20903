"""Replay of the events that native code has recorded (:mod:`.trace`) to the checks, which report the launch's hazards.

A machine stands in for the CTAs with events (:mod:`.still`): it has the threads, barriers, units and spaces that the
checks use. In lockstep, accesses of several warps and CTAs by one instruction are one step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from warpsan.checks.global_history import GlobalHistory
from warpsan.engine import layout
from warpsan.engine.assembler import NotNative
from warpsan.engine.communication import ctas_together
from warpsan.engine.event_order import EventOrder, in_turns
from warpsan.engine.event_step import EventStep, TracedAccess
from warpsan.engine.selection import WARP, Array, Indices
from warpsan.engine.steps import step_registers
from warpsan.engine.still import StillFlow, still_machine
from warpsan.errors import SimError
from warpsan.host.memory import RANK_SHIFT, WORDS, Space
from warpsan.host.setup import Setup, race_observers
from warpsan.ptx.ir import Instruction
from warpsan.report.hazard_log import HazardLog
from warpsan.report.progress import WorkProgress

__all__ = ["replay"]

_SPACES = {layout.IN_SHARED: "shared", layout.IN_GLOBAL: "global", layout.IN_LOCAL: "local"}


def replay(
    setup: Setup,
    space: Space,
    log: HazardLog,
    events: Array,
    watched: Mapping[str, Array],
    *,
    together: bool,
    ending: SimError | None = None,
) -> None:
    """Report the hazards of recorded events that the checks of races, copies and barriers find.

    Parameters
    ----------
    setup, space, log : as for every check
    events : ndarray of int64
        The consecutive events.
    watched : mapping of str to ndarray of uint8
        For each granule of shared and of global memory, whether accesses to it are recorded.
    together : bool
        Whether warps ran in lockstep. The CTAs of each chunk of the launch are then replayed in lockstep, unless
        several clusters ran together.
    ending : SimError, optional
        The exception with which the last cluster ends.

    Raises
    ------
    SimError
        The exception in ``ending``.
    """
    by_cluster = _by_cluster(events)
    size = ctas_together(setup)
    side_by_side = together and size == setup.geometry.cluster_size
    stretches = setup.chunks if side_by_side else [np.concatenate(setup.chunks)]
    clusters = [
        [chunk[first : first + size] for first in range(0, len(chunk), size) if int(chunk[first]) in by_cluster]
        for chunk in stretches
    ]
    groups = clusters if side_by_side else [[ctas] for chunk in clusters for ctas in chunk]
    history = None
    if "race" in setup.checks:
        history = GlobalHistory(setup.entry, len(space.data), setup.geometry.ctas)
    machines: dict[int, _Replay] = {}
    progress = WorkProgress("recorded events checked", sum(map(len, by_cluster.values())))
    last = next(reversed(by_cluster), -1)
    for group in filter(None, groups):
        ctas, firsts = np.concatenate(group), [int(each[0]) for each in group]
        if len(ctas) not in machines:
            machines[len(ctas)] = _Replay(setup, space, log, history, len(ctas), watched, progress)
        machines[len(ctas)].run(
            *(ctas, [by_cluster[first] for first in firsts]),
            together=together,
            ending=ending if last in firsts else None,
        )


def _by_cluster(events: Array) -> dict[int, list[Array]]:
    """The events of each cluster, by the linear index of its first CTA."""
    by_cluster: dict[int, list[Array]] = {}
    words, place, mine = events.data, 0, list[Array]()
    while place < len(events):
        event = events[place : place + words[place + layout.EV_WORDS]]
        if words[place + layout.EV_KIND] == layout.TRACE_CLUSTER:
            mine = by_cluster.setdefault(words[place + layout.EV_PLACE], [])
        else:
            mine.append(event)
        place += len(event)
    return {first: in_turns(mine) for first, mine in by_cluster.items()}


class _Replay:
    """A machine that replays events."""

    def __init__(
        self,
        setup: Setup,
        space: Space,
        log: HazardLog,
        history: GlobalHistory | None,
        ctas: int,
        watched: Mapping[str, Array],
        progress: WorkProgress,
    ) -> None:
        self.size, self.progress = ctas_together(setup), progress
        self.machine = still_machine(setup, space, ctas, watched)
        self.machine.observers += race_observers(setup, self.machine, log, history)
        self.flow = StillFlow(self.machine)
        self.copies: dict[int, tuple[Indices, list[Array | None]]] = {}
        """Copies in flight, by number: the lanes of their step, and the ticket of each observer."""
        self.maps: dict[int, int] = {}
        """The cluster that has read a tensor map, by its place."""

    def run(self, ctas: Indices, events: list[list[Array]], *, together: bool, ending: SimError | None) -> None:
        """Replay all events of some clusters."""
        self.copies.clear()
        self.maps.clear()
        self.flow.reset(ctas)
        machine = self.machine
        machine.descriptors.clear()
        for cluster, step in EventOrder(machine.entry, machine.program, events, together=together).steps():
            self.progress.advance(len(step))
            event = step[0][1]
            if event[layout.EV_KIND] == layout.TRACE_ADVANCE:
                self.flow.land(cluster, int(event[layout.EV_OPERATION]))
            else:
                self._happens(EventStep.of(machine, step, self.size), cluster)
        if ending is not None:
            raise ending
        self.flow.finish()

    def _happens(self, step: EventStep, cluster: int) -> None:
        machine, event, sel = self.machine, step.first, step.sel
        kind, place = int(event[layout.EV_KIND]), int(event[layout.EV_PLACE])
        if kind == layout.TRACE_ACCESS:
            self._access(step, machine.entry.instructions[place])
        elif kind == layout.TRACE_ARRIVAL:
            name, threads = int(event[layout.EV_NAME]), int(event[layout.EV_THREADS])
            waits = bool(event[layout.EV_WAITS])
            self.flow.barriers.arrive(sel, name, threads, waits=waits)
        elif kind == layout.TRACE_STEP:
            instruction = machine.entry.instructions[place]
            many = len(step_registers(machine.entry, instruction))
            values = step.each_lane(lambda event: event[layout.EV_ROWS :][: WARP * many].reshape(many, WARP).T).T
            self.flow.execute(instruction, sel, step.lanes, values, cluster, int(event[layout.EV_OPERATION]))
        elif kind == layout.TRACE_MAP:
            self._read_maps(step.events, cluster)
        elif kind == layout.TRACE_FENCE:
            for observer in machine.observers:
                observer.tensor_map_fence(sel, machine.entry.instructions[place], None)
        elif kind == layout.TRACE_EXIT:
            self.flow.leave(sel)
        elif kind == layout.TRACE_LANDING:
            self._land(int(event[layout.EV_COPY]), step.lanes)
        else:
            groups = step.each_lane(lambda event: event[layout.EV_GROUPS :][:WARP]).astype(np.uint32)
            for observer in machine.observers:
                observer.warp_sync(sel, None if (groups == 2**WARP - 1).all() else groups)

    def _read_maps(self, events: Sequence[Array], cluster: int) -> None:
        """A cluster reads tensor maps, which may have changed."""
        for event in events:
            place, held = int(event[layout.EV_MAP]), event[layout.EV_DESCRIPTOR :].tobytes()
            known = self.machine.descriptors.get(place, held)
            if known != held and self.maps[place] != cluster:
                raise NotNative("a tensor map that clusters change, one after the other")
            self.machine.descriptors[place], self.maps[place] = held, cluster

    def _access(self, step: EventStep, instruction: Instruction) -> None:
        space, width = self.machine.spaces[_SPACES[int(step.first[layout.EV_SPACE])]], int(step.first[layout.EV_WIDTH])
        offset = step.each_lane(lambda event: event[layout.EV_OFFSETS :][:WARP])
        changed = step.each_lane(lambda event: int(event[layout.EV_CHANGES]) >> np.arange(WARP) & 1).astype(np.bool_)
        index = offset
        if space.name == "shared":
            rank, offset = offset >> RANK_SHIFT, offset & (1 << RANK_SHIFT) - 1
            machine, cta = self.machine, self.machine.cta[step.sel]
            home = np.where(rank == 0, cta, cta - cta % machine.cluster_size + rank - 1)
            index = offset + home * machine.shared_stride
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
