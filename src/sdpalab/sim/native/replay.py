"""Events that native code has recorded (:mod:`.trace`), given to the checks, which report the launch's hazards.

A machine of one CTA stands in for each that has left events: it executes nothing, and has the threads, the barriers and
the spaces that the checks ask for. In lockstep, neighbouring accesses of several warps by one instruction are one step.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from sdpalab.sim.native.decoded import Decoded
from sdpalab.sim.observer import Access
from sdpalab.sim.selection import WARP, Array, Indices, Mask, Selection, subset

__all__ = ["machine_of_one", "replay", "replay_faults"]

_SPACES = {layout.IN_SHARED: "shared", layout.IN_GLOBAL: "global", layout.IN_LOCAL: "local"}
_FAULTS = {layout.MISALIGNED: "misaligned", layout.OUT_OF_BOUNDS: "out-of-bounds"}
_MISSING = {
    layout.PARTIAL_WARP: PARTIAL_WARP,
    layout.NAMES_ABSENT: f"{MEMBER_MASK} {NAMES_ABSENT}",
    layout.LEAVES_OUT: f"{MEMBER_MASK} {LEAVES_OUT}",
}
_NOWHERE: Indices = np.empty(0, np.int64)
_STEPS = (layout.TRACE_ACCESS, layout.TRACE_ARRIVAL, layout.TRACE_MEETING, layout.TRACE_FENCE, layout.TRACE_EXIT)
"""Events of several warps that are one step in lockstep."""


@dataclass(slots=True)
class _TracedAccess(Access):
    """An access that has been made: which writes changed anything is part of it."""

    changed: Mask

    def changes(self, words: Array) -> Mask:
        """Of writes of ``words``, which changed anything."""
        return self.changed


def machine_of_one(setup: Setup, space: Space) -> Machine:
    """A machine of one CTA."""
    return Machine(
        *(setup.module, setup.entry, setup.program, setup.geometry, 1, setup.symbols, space, setup.params),
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
    machine = machine_of_one(setup, space)
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
        Whether warps ran in lockstep.
    stuck : bool
        Whether nothing could run any more in the end.

    Raises
    ------
    Deadlock
        If threads wait at a barrier then.
    KernelTrap
        If the last event is a trap.
    """
    _Replay(setup, space, log).run(_steps(events, together=together), stuck=stuck)


def _lanes(warp: int, mask: int) -> Indices:
    """Lanes of a machine of one CTA."""
    return WARP * warp + np.flatnonzero(mask >> np.arange(WARP) & 1)


def _steps(events: Array, *, together: bool) -> Iterator[list[Array]]:
    """Events that are one step each: neighbours of one kind and place by different warps."""
    place, step = 0, list[Array]()
    while place < len(events):
        event = events[place : place + int(events[place + layout.EV_WORDS])]
        place += len(event)
        if step and not (together and _joins(step, event)):
            yield step
            step = []
        step.append(event)
    if step:
        yield step


def _joins(step: list[Array], event: Array) -> bool:
    """Whether an event belongs to a step that has begun."""
    first = step[0]
    alike = (layout.EV_KIND, layout.EV_PLACE, layout.EV_NAME, layout.EV_THREADS)
    if event[layout.EV_KIND] not in _STEPS or (first[list(alike)] != event[list(alike)]).any():
        return False
    return all(each[layout.EV_WARP] < event[layout.EV_WARP] for each in step[-1:])


class _Replay:
    """A machine on which events happen once more."""

    def __init__(self, setup: Setup, space: Space, log: HazardLog) -> None:
        self.machine = machine_of_one(setup, space)
        history = GlobalHistory(setup.entry, len(space.data), setup.geometry.ctas)
        self.machine.observers += race_observers(setup, self.machine, log, history)
        self.barriers = Barriers(self.machine)
        self.machine.units["bar"] = self.barriers
        self.copies: dict[int, tuple[Indices, list[Array | None]]] = {}
        """Copies in flight, by number: the lanes of their step, and what each observer gave."""
        self.began = False

    def run(self, steps: Iterator[list[Array]], *, stuck: bool) -> None:
        """Let everything happen."""
        for step in steps:
            self._happens(step)
        if stuck:
            self.barriers.check_drained()
        else:
            self._finish()

    def _finish(self) -> None:
        if self.began:
            for observer in self.machine.observers:
                observer.finish()

    def _happens(self, step: list[Array]) -> None:
        first, machine = step[0], self.machine
        kind, place = int(first[layout.EV_KIND]), int(first[layout.EV_PLACE])
        if kind == layout.TRACE_CLUSTER:
            self._finish()
            self.began = True
            self.copies.clear()
            machine.reset(np.array([place]))
            return
        lanes = np.concatenate([_lanes(int(each[layout.EV_WARP]), int(each[layout.EV_MASK])) for each in step])
        sel = subset(lanes, np.ones(len(lanes), np.bool_))
        if kind == layout.TRACE_ACCESS:
            self._access(step, lanes, sel, machine.entry.instructions[place])
        elif kind == layout.TRACE_ARRIVAL:
            end = machine.program.blocks[place].end
            assert end is not None
            name, threads = int(first[layout.EV_NAME]), int(first[layout.EV_THREADS])
            self.barriers.arrive(sel, name, threads, place + 1, end, waits=bool(first[layout.EV_WAITS]))
        elif kind == layout.TRACE_EXIT:
            machine.live[sel] = False
            self.barriers.exited()
        elif kind == layout.TRACE_TRAP:
            end = machine.program.blocks[place].end
            assert end is not None
            raise trapped(machine, end, int(lanes[0]))
        elif kind == layout.TRACE_LANDING:
            self._land(int(first[layout.EV_COPY]), lanes)
        else:
            for observer in machine.observers:
                if kind == layout.TRACE_MEETING:
                    observer.warp_sync(sel)
                else:
                    observer.fence(sel, machine.entry.instructions[place])

    def _access(self, step: list[Array], lanes: Indices, sel: Selection, instruction: Instruction) -> None:
        first = step[0]
        space, width = self.machine.spaces[_SPACES[int(first[layout.EV_SPACE])]], int(first[layout.EV_WIDTH])
        there = [np.flatnonzero(int(each[layout.EV_MASK]) >> np.arange(WARP) & 1) for each in step]
        offset = np.concatenate([each[layout.EV_OFFSETS :][mine] for each, mine in zip(step, there, strict=True)])
        changed = np.concatenate(
            [int(each[layout.EV_CHANGES]) >> mine & 1 for each, mine in zip(step, there, strict=True)]
        ).astype(np.bool_)
        access = _TracedAccess(space, offset, offset, width, sel, instruction, changed)
        does = int(first[layout.EV_DOES])
        if does == layout.COPIES_TO_IT:
            tickets = [observer.issue(access, writes=True) for observer in self.machine.observers]
            self.copies.update((int(each[layout.EV_NUMBER]), (lanes, tickets)) for each in step)
            return
        words = None
        if first[layout.EV_VALUED]:
            values = [
                each[layout.EV_VALUES :][: 2 * WARP].view(np.uint8).reshape(WARP, 16)[mine, :width]
                for each, mine in zip(step, there, strict=True)
            ]
            words = np.ascontiguousarray(np.concatenate(values)).view(WORDS[width])[:, 0]
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
