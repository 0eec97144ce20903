"""The barrier of a cluster (PTX ISA, "barrier.cluster").

All live threads of a cluster take part in its barrier. Arriving and waiting are two instructions; a thread waits for
the phase in which it arrived.
"""

from __future__ import annotations

import numpy as np

from warpsan.checks.orders import MemoryOrder, arrival_order
from warpsan.engine.machine import AsyncUnit, Machine
from warpsan.engine.selection import Selection, subset
from warpsan.ptx.grammar import form_of
from warpsan.ptx.ir import Instruction
from warpsan.ptx.synchronising import ClusterAction
from warpsan.replay.decoder import Decoder, Step, opcode

__all__: list[str] = []

_ARRIVED, _COMPLETE = ("cluster", "arrived"), ("cluster", "complete")


class _ClusterBarrier(AsyncUnit):
    """The barrier of every cluster of a machine: the arrivals of this phase, and the lanes that wait for its end."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        clusters = machine.n_cta // machine.cluster_size
        self.cluster = machine.cta // machine.cluster_size
        self.arrived = np.zeros(clusters, dtype=np.int64)
        self.phase = np.zeros(clusters, dtype=np.int64)
        self.arrivals = np.zeros(machine.lanes, dtype=np.int64)
        self.waiting: list[Selection] = []

    @staticmethod
    def of(machine: Machine) -> _ClusterBarrier:
        """The machine's barriers, made on first use."""
        unit = machine.units.get("barrier.cluster")
        if not isinstance(unit, _ClusterBarrier):
            unit = machine.units["barrier.cluster"] = _ClusterBarrier(machine)
        return unit

    def reset(self) -> None:
        """Reset: no arrivals."""
        for counts in (self.arrived, self.phase, self.arrivals):
            counts.fill(0)
        self.waiting.clear()

    def arrive(self, sel: Selection, order: MemoryOrder) -> None:
        """Lanes arrive."""
        home = self.cluster[sel] * self.machine.cluster_size
        for observer in self.machine.observers:
            observer.release(_ARRIVED, sel, home, order)
        self.arrivals[sel] += 1
        self.arrived += np.bincount(self.cluster[sel], minlength=len(self.arrived))
        self.exited()

    def wait(self, sel: Selection) -> None:
        """Lanes wait for the end of the phase in which they arrived."""
        self.waiting.append(sel)
        self._release()

    def exited(self) -> None:
        """Clusters whose threads have all arrived or exited begin the next phase."""
        machine = self.machine
        alive = np.bincount(self.cluster[machine.live], minlength=len(self.arrived))
        done = (self.arrived >= alive) & (self.arrived > 0)
        if not done.any():
            return
        self.phase[done] += 1
        self.arrived[done] = 0
        first = np.zeros(machine.n_cta, dtype=np.bool_)
        first[np.flatnonzero(done) * machine.cluster_size] = True
        for observer in machine.observers:
            observer.publish(_ARRIVED, _COMPLETE, first)
        self._release()

    def _release(self) -> None:
        """Remove the lanes whose phase is complete from the waiting lanes."""
        waiting: list[Selection] = []
        for sel in self.waiting:
            over = self.phase[self.cluster[sel]] >= self.arrivals[sel]
            if over.any():
                free = sel if over.all() else subset(sel, over)
                for observer in self.machine.observers:
                    observer.acquire(_COMPLETE, free, self.cluster[free] * self.machine.cluster_size)
            if not over.all():
                waiting.append(subset(sel, ~over))
        self.waiting = waiting


@opcode("barrier.cluster")
def _barrier_cluster(decoder: Decoder, instruction: Instruction) -> Step:
    unit = _ClusterBarrier.of(decoder.machine)
    if form_of(instruction, ClusterAction).action == "wait":
        return unit.wait
    order = arrival_order(instruction)
    return lambda sel: unit.arrive(sel, order)
