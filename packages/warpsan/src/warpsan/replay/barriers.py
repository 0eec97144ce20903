"""CTA barriers (PTX ISA, "bar, barrier"): arrivals, waiting lanes and their release.

A barrier is complete for a CTA when as many threads have arrived as the instruction names, or all live threads if it
names no number.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from warpsan.engine.machine import AsyncUnit, Machine
from warpsan.engine.selection import WARP, Indices, Mask, Selection, count, indices, subset

__all__ = ["Barriers"]


@dataclass
class _Barrier:
    arrived: Indices
    expected: Indices
    """Threads that complete the barrier in each CTA; 0 means all live threads."""
    waiting: list[Selection] = field(default_factory=list)


class Barriers(AsyncUnit):
    """The 16 barriers of every CTA of a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.barriers: dict[int, _Barrier] = {}
        self.completed = 0

    def reset(self) -> None:
        """Clear all arrivals, for a new chunk of CTAs."""
        self.barriers.clear()

    def arrive(self, sel: Selection, name: int, threads: int, *, waits: bool = True) -> None:
        """Lanes arrive at barrier ``name`` (and wait). 0 ``threads`` is the whole CTA."""
        machine = self.machine
        for observer in machine.observers:
            observer.release(("bar", name), sel)
        whole = count(sel) == machine.lanes and threads in (0, machine.warps * WARP)
        if whole and name not in self.barriers and machine.live.all():
            self.completed += machine.n_cta
            self._pass_on(name, [sel], np.ones(machine.n_cta, dtype=np.bool_))
            return
        barrier = self.barriers.get(name)
        if barrier is None:
            zeros = np.zeros(machine.n_cta, dtype=np.int64)
            barrier = self.barriers[name] = _Barrier(zeros, zeros.copy())
        lanes = indices(sel)
        if threads:  # counted in warps: a warp's arrival counts for all its threads
            lanes_counted = np.unique(lanes // WARP) * WARP
            barrier.arrived += WARP * np.bincount(machine.cta[lanes_counted], minlength=machine.n_cta)
        else:
            barrier.arrived += np.bincount(machine.cta[lanes], minlength=machine.n_cta)
        barrier.expected[machine.cta[lanes]] = threads
        if waits:
            barrier.waiting.append(sel)
        self.release(name)

    def release(self, name: int) -> None:
        """Release the CTAs whose barrier ``name`` is complete."""
        machine, barrier = self.machine, self.barriers[name]
        alive = np.bincount(machine.cta[machine.live], minlength=machine.n_cta)
        need = np.where(barrier.expected > 0, barrier.expected, alive)
        done = (barrier.arrived >= need) & (barrier.arrived > 0)
        if not done.any():
            return
        self.completed += int(done.sum())
        freed: list[Selection] = []
        waiting: list[Selection] = []
        for sel in barrier.waiting:
            mask = done[machine.cta[sel]]
            if mask.any():
                freed.append(sel if mask.all() else subset(sel, mask))
            if not mask.all():
                waiting.append(subset(sel, ~mask))
        self._pass_on(name, freed, done)
        barrier.waiting = waiting
        barrier.arrived[done] = 0
        if not waiting and not barrier.arrived.any():
            del self.barriers[name]

    def _pass_on(self, name: int, freed: list[Selection], done: Mask) -> None:
        """Notify the observers of the released lanes, and of the barrier's next phase."""
        for observer in self.machine.observers:
            for sel in freed:
                observer.acquire(("bar", name), sel)
            observer.forget(("bar", name), done)

    def exited(self) -> None:
        """Some threads have exited: barriers that waited only for them are complete."""
        for name in list(self.barriers):
            self.release(name)
