"""Events that native code has recorded (:mod:`.trace`), given to the checks, which report the launch's hazards.

A machine stands in for the CTAs that have left events: it executes nothing, and has the threads, the barriers and the
spaces that the checks ask for. In lockstep, accesses of several warps and CTAs by one instruction are one step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sdpalab.sim.barriers import Barriers
from sdpalab.sim.checks.global_history import GlobalHistory
from sdpalab.sim.checks.memory import MemoryCheck
from sdpalab.sim.checks.registers import report_unset
from sdpalab.sim.chunks import Setup, race_observers
from sdpalab.sim.collectives import LEAVES_OUT, MEMBER_MASK, NAMES_ABSENT, PARTIAL_WARP
from sdpalab.sim.flow import trapped
from sdpalab.sim.hazard_log import HazardLog
from sdpalab.sim.ir import Instruction
from sdpalab.sim.machine import Machine
from sdpalab.sim.memory import WORDS, Space
from sdpalab.sim.native import layout
from sdpalab.sim.native.assembler import NotNative
from sdpalab.sim.native.decoded import Decoded
from sdpalab.sim.observer import Access
from sdpalab.sim.selection import WARP, Array, Indices, Mask, Selection, subset
from sdpalab.sim.tally import Tally

__all__ = ["replay", "replay_faults"]

_SPACES = {layout.IN_SHARED: "shared", layout.IN_GLOBAL: "global", layout.IN_LOCAL: "local"}
_FAULTS = {layout.MISALIGNED: "misaligned", layout.OUT_OF_BOUNDS: "out-of-bounds"}
_MISSING = {
    layout.PARTIAL_WARP: PARTIAL_WARP,
    layout.NAMES_ABSENT: f"{MEMBER_MASK} {NAMES_ABSENT}",
    layout.LEAVES_OUT: f"{MEMBER_MASK} {LEAVES_OUT}",
}
_NOWHERE: Indices = np.empty(0, np.int64)


@dataclass(slots=True)
class _TracedAccess(Access):
    """An access that has been made: which writes changed anything is part of it."""

    changed: Mask

    def changes(self, words: Array) -> Mask:
        """Of writes of ``words``, which changed anything."""
        return self.changed


def _machine(setup: Setup, space: Space, ctas: int) -> Machine:
    """A machine of so many CTAs."""
    return Machine(
        *(setup.module, setup.entry, setup.program, setup.geometry, ctas, setup.symbols, space, setup.params),
        async_mode=setup.async_mode,
    )


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
    machine = _machine(setup, space, 1)
    check = MemoryCheck(machine, log)
    for row in faults:
        machine.cta_ids[:] = row[layout.FA_LINEAR]
        lanes = _lanes(int(row[layout.FA_WARP]) % machine.warps, int(row[layout.FA_MASK]))
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


def replay(setup: Setup, space: Space, log: HazardLog, events: Array, *, together: bool, stuck: bool) -> None:
    """Report what the checks of races, copies and barriers say of recorded events.

    Parameters
    ----------
    setup, space, log : as for every check
    events : ndarray of int64
        One behind the other.
    together : bool
        Whether warps ran in lockstep. Then the CTAs of each chunk of the launch are put in lockstep here.
    stuck : bool
        Whether nothing could run any more in the end.

    Raises
    ------
    Deadlock
        If threads wait at a barrier then.
    KernelTrap
        If the last event is a trap.
    NotNative
        If it is a failed assertion.
    """
    by_cta = _by_cta(events)
    groups = [[cta] for cta in by_cta]
    if together:
        groups = [mine for chunk in setup.chunks if (mine := [int(cta) for cta in chunk if int(cta) in by_cta])]
    history = GlobalHistory(setup.entry, len(space.data), setup.geometry.ctas)
    machines: dict[int, _Replay] = {}
    last = next(reversed(by_cta), -1)
    for group in groups:
        if len(group) not in machines:
            machines[len(group)] = _Replay(setup, space, log, history, len(group))
        machines[len(group)].run(
            group, [by_cta[cta] for cta in group], together=together, stuck=stuck and last in group
        )


def _lanes(warp: int, mask: int) -> Indices:
    """Lanes of a machine of one CTA."""
    return WARP * warp + np.flatnonzero(mask >> np.arange(WARP) & 1)


def _by_cta(events: Array) -> dict[int, list[Array]]:
    """The events of each CTA, by its linear index."""
    by_cta: dict[int, list[Array]] = {}
    place, mine = 0, list[Array]()
    while place < len(events):
        event = events[place : place + int(events[place + layout.EV_WORDS])]
        place += len(event)
        if event[layout.EV_KIND] == layout.TRACE_CLUSTER:
            mine = by_cta.setdefault(int(event[layout.EV_PLACE]), [])
        else:
            mine.append(event)
    return by_cta


class _Replay:
    """A machine on which events happen once more."""

    def __init__(self, setup: Setup, space: Space, log: HazardLog, history: GlobalHistory, ctas: int) -> None:
        self.machine = _machine(setup, space, ctas)
        tally = Tally(setup.entry, setup.program, 0, ctas, self.machine.warps, traffic=False)
        self.machine.observers += race_observers(setup, self.machine, log, history, tally)
        self.barriers = Barriers(self.machine)
        self.machine.units["bar"] = self.barriers
        self.copies: dict[int, tuple[Indices, list[Array | None]]] = {}
        """Copies in flight, by number: the lanes of their step, and what each observer gave."""

    def run(self, ctas: list[int], events: list[list[Array]], *, together: bool, stuck: bool) -> None:
        """Let everything happen to CTAs: always at the lowest instruction of all that have an event left."""
        self.copies.clear()
        self.machine.reset(np.array(ctas))
        places = [0] * len(events)
        while any(place < len(mine) for place, mine in zip(places, events, strict=True)):
            heads = {k: events[k][place] for k, place in enumerate(places) if place < len(events[k])}
            low = min(heads, key=lambda k: (self._pc(heads[k]), k))
            step: list[tuple[int, Array]] = []
            for k in heads if together else [low]:
                warp = -1
                while places[k] < len(events[k]) and _alike(heads[low], event := events[k][places[k]]):
                    if event[layout.EV_WARP] <= warp:
                        break
                    step.append((k, event))
                    places[k], warp = places[k] + 1, int(event[layout.EV_WARP]) if together else self.machine.warps
            self._happens(_EventStep.of(self.machine, step))
        if stuck:
            self.barriers.check_drained()
        else:
            for observer in self.machine.observers:
                observer.finish()

    def _pc(self, event: Array) -> int:
        """The instruction of an event; what has no place in the code comes at once."""
        kind, place = int(event[layout.EV_KIND]), int(event[layout.EV_PLACE])
        if kind in (layout.TRACE_ARRIVAL, layout.TRACE_TRAP):
            return self._end(place).pc
        return -1 if kind in (layout.TRACE_EXIT, layout.TRACE_LANDING) else place

    def _end(self, block: int) -> Instruction:
        end = self.machine.program.blocks[block].end
        assert end is not None
        return end

    def _happens(self, step: _EventStep) -> None:
        machine, event, sel = self.machine, step.first, step.sel
        kind, place = int(event[layout.EV_KIND]), int(event[layout.EV_PLACE])
        if kind == layout.TRACE_ACCESS:
            self._access(step, machine.entry.instructions[place])
        elif kind == layout.TRACE_ARRIVAL:
            name, threads = int(event[layout.EV_NAME]), int(event[layout.EV_THREADS])
            waits = bool(event[layout.EV_WAITS])
            self.barriers.arrive(sel, name, threads, place + 1, self._end(place), waits=waits)
        elif kind == layout.TRACE_EXIT:
            machine.live[sel] = False
            self.barriers.exited()
        elif kind == layout.TRACE_TRAP:
            if self._end(place).opcode == "call":
                raise NotNative("the message of a failed assertion")
            raise trapped(machine, self._end(place), int(step.lanes[0]))
        elif kind == layout.TRACE_LANDING:
            self._land(int(event[layout.EV_COPY]), step.lanes)
        elif kind == layout.TRACE_MEETING:
            groups = step.each_lane(lambda event: event[layout.EV_GROUPS :][:WARP]).astype(np.uint32)
            for observer in machine.observers:
                observer.warp_sync(sel, None if (groups == 2**WARP - 1).all() else groups)
        else:
            for observer in machine.observers:
                observer.fence(sel, machine.entry.instructions[place])

    def _access(self, step: _EventStep, instruction: Instruction) -> None:
        space, width = self.machine.spaces[_SPACES[int(step.first[layout.EV_SPACE])]], int(step.first[layout.EV_WIDTH])
        offset = step.each_lane(lambda event: event[layout.EV_OFFSETS :][:WARP])
        changed = step.each_lane(lambda event: int(event[layout.EV_CHANGES]) >> np.arange(WARP) & 1).astype(np.bool_)
        base = self.machine.bases[space.name]
        index = offset if base is None else offset + base[step.sel]
        access = _TracedAccess(space, offset, index, width, step.sel, instruction, changed)
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
        """Lanes have waited for a copy; one that touched no watched place is not there."""
        if number not in self.copies:
            return
        issuers, tickets = self.copies[number]
        rows = np.isin(issuers, lanes)
        for observer, ticket in zip(self.machine.observers, tickets, strict=True):
            if ticket is not None:
                observer.complete(ticket[rows], issuers[rows])


def _alike(first: Array, event: Array) -> bool:
    """Whether two events may be of one step in lockstep."""
    words = [layout.EV_KIND, layout.EV_PLACE, layout.EV_NAME, layout.EV_THREADS]
    return event is first or (
        int(event[layout.EV_KIND]) != layout.TRACE_LANDING and bool((first[words] == event[words]).all())
    )


@dataclass(frozen=True)
class _EventStep:
    """Events of several warps at one place, and their lanes in the machine, in order."""

    events: list[Array]
    lanes: Indices
    warp_of: Indices
    """For each lane, the number of its event."""
    sel: Selection

    @staticmethod
    def of(machine: Machine, events: Sequence[tuple[int, Array]]) -> _EventStep:
        """``events`` with the numbers of their CTAs in the machine, which have one warp each."""
        in_order = sorted(events, key=lambda each: (int(each[1][layout.EV_WARP]), each[0]))
        parts = [
            _lanes(int(event[layout.EV_WARP]) * machine.n_cta + cta, int(event[layout.EV_MASK]))
            for cta, event in in_order
        ]
        lanes = np.concatenate(parts)
        numbers = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        sel = subset(lanes, np.ones(len(lanes), np.bool_))
        return _EventStep([event for _, event in in_order], lanes, numbers, sel)

    @property
    def first(self) -> Array:
        """The first event."""
        return self.events[0]

    def each_lane(self, rows: Callable[[Array], Array]) -> Array:
        """What each lane has, from what the 32 lanes of each event have."""
        whole: Array = np.stack([rows(event) for event in self.events])
        return whole[self.warp_of, self.lanes % WARP]
