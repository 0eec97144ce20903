"""Writes to global memory in a replay, for the fences of tensor maps that a kernel changes.

Races in global memory are found by machine code (:mod:`warpsan.engine.global_races`).
"""

from __future__ import annotations

import numpy as np

from warpsan.checks.global_history import GlobalHistory, Marks
from warpsan.checks.orders import memory_order
from warpsan.checks.race import RaceCheck
from warpsan.checks.tensor_map_fences import TensorMapFences
from warpsan.engine.machine import Machine
from warpsan.engine.observer import Access, CompletionBarrier, Observer
from warpsan.engine.selection import Array, Selection
from warpsan.ptx.ir import Instruction
from warpsan.report.hazard_log import HazardLog

__all__ = ["GlobalRaceCheck"]


class GlobalRaceCheck(Observer):
    """Keeps the last writes to each place of global memory, and the order that accesses there make.

    Parameters
    ----------
    machine, log : as for every check
    race : RaceCheck
        The race check with the clocks, lanes and synchronisation to use.
    history : GlobalHistory
    """

    def __init__(self, machine: Machine, log: HazardLog, race: RaceCheck, history: GlobalHistory) -> None:
        self.machine, self.log, self.history = machine, log, history
        self.clocks, self.sync, self.volatile_is_data = race.clocks, race.sync, race.volatile_is_data
        self.maps = TensorMapFences(machine, log, race.clocks, race.sync, history)
        self.owner: Array = np.empty(0, np.uint32)
        """Each lane's block + 1."""
        machine.on_reset.append(self.reset)

    def reset(self) -> None:
        """A new chunk of CTAs."""
        machine = self.machine
        self.owner = (machine.cta_ids + 1).astype(np.uint32)[machine.cta]
        first = np.arange(machine.n_cta) // machine.cluster_size * machine.cluster_size
        self.history.cluster_of[machine.cta_ids] = machine.cta_ids[first]
        self.maps.reset()

    def load(self, access: Access) -> None:
        """Strong reads may order threads."""
        if access.space.name != "global":
            return
        self.clocks.tick(access.instruction)
        order = memory_order(access.instruction)
        if order.volatile and self.volatile_is_data:
            self.sync.excuse(access.sel)
        if order.strong:
            self.sync.read(access, order)

    def copy_reads(self, access: Access, barrier: CompletionBarrier) -> Array | None:
        """A copy's reads are complete for threads that have waited for its mbarrier, and not for its issuer."""
        if access.space.name != "global":
            return None
        self.clocks.tick(access.instruction)
        return self.clocks.issue(access.sel, barrier)

    def complete(self, ticket: Array, sel: Selection, barrier: CompletionBarrier | None = None) -> None:
        """See :meth:`~warpsan.checks.clocks.Clocks.complete`."""
        self.clocks.complete(ticket, sel, barrier)

    def store(self, access: Access, words: Array | None) -> None:
        """A weak write ends the releases of its place; strong ones may order threads."""
        if access.space.name != "global":
            return
        self.clocks.tick(access.instruction)
        order = memory_order(access.instruction)
        strong = order.strong and not (order.volatile and self.volatile_is_data)
        self._mark(access, self.history.strong if strong else self.history.writes)
        if not strong:
            self.sync.overwritten(access)
        if order.strong:
            self.sync.write(access, order)

    def atomic(self, access: Access) -> None:
        """Atomic operations may order threads."""
        if access.space.name != "global":
            return
        self.clocks.tick(access.instruction)
        order = memory_order(access.instruction)
        self.sync.update(access, order, returns=access.instruction.opcode == "atom")
        self._mark(access, self.history.strong)

    def tensor_map_fence(self, sel: Selection, instruction: Instruction, maps: Access | None) -> None:
        """See :meth:`.tensor_map_fences.TensorMapFences.fence`."""
        self.maps.fence(sel, instruction, maps)

    def tensor_map_use(self, maps: Access) -> None:
        """A map that this launch has written must be used after a fence between the proxies."""
        if maps.space.name != "global":
            return
        self.clocks.tick(maps.instruction)
        for marks in (self.history.writes, self.history.strong):
            if not self.log.seen("race", maps.instruction):
                self.maps.use(maps, marks)

    def _mark(self, access: Access, marks: Marks) -> None:
        marks.owner.scatter(access.index, access.width, self.owner[access.sel])
        marks.tag.scatter(access.index, access.width, self.clocks.tags(access.sel))
        marks.pc.scatter(access.index, access.width, np.full(len(access.index), access.instruction.pc, dtype=np.uint32))
