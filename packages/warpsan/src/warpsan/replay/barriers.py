"""CTA barriers (PTX ISA, "bar, barrier"): arrivals, waiting lanes and their release.

A barrier is complete for a CTA when as many threads have arrived as the instruction names, or all live threads if it
names no number.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from warpsan.engine.machine import AsyncUnit, Machine
from warpsan.engine.selection import WARP, Indices, Mask, Selection, count, indices, subset
from warpsan.errors import Deadlock
from warpsan.ptx.ir import Instruction
from warpsan.replay.barrier_rules import BarrierRules

__all__ = ["Barriers"]


@dataclass
class _BarrierWait:
    sel: Selection
    instruction: Instruction


@dataclass
class _Barrier:
    arrived: Indices
    expected: Indices
    """Threads that complete the barrier in each CTA; 0 means all live threads."""
    waiting: list[_BarrierWait] = field(default_factory=list)


class Barriers(AsyncUnit):
    """The 16 barriers of every CTA of a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.barriers: dict[int, _Barrier] = {}
        self.completed = 0
        self.rules = BarrierRules(machine) if machine.observers else None

    def reset(self) -> None:
        """Clear all arrivals, for a new chunk of CTAs."""
        self.barriers.clear()
        if self.rules is not None:
            self.rules.reset()

    def arrive(
        self,
        sel: Selection,
        name: int,
        threads: int,
        instruction: Instruction,
        *,
        waits: bool = True,
    ) -> None:
        """Lanes arrive at barrier ``name`` (and wait). 0 ``threads`` is the whole CTA."""
        machine = self.machine
        for observer in machine.observers:
            observer.release(("bar", name), sel)
        if self.rules is not None:
            self.rules.check_operands(sel, name, threads, instruction, waits)
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
        if self.rules is not None:
            self.rules.arrive(lanes, name, threads, instruction)
        if threads:  # counted in warps: a warp's arrival counts for all its threads
            lanes_counted = np.unique(lanes // WARP) * WARP
            barrier.arrived += WARP * np.bincount(machine.cta[lanes_counted], minlength=machine.n_cta)
        else:
            barrier.arrived += np.bincount(machine.cta[lanes], minlength=machine.n_cta)
        barrier.expected[machine.cta[lanes]] = threads
        if waits:
            barrier.waiting.append(_BarrierWait(sel, instruction))
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
        if self.rules is not None:
            self.rules.complete(name, done, barrier.arrived, need)
        freed: list[Selection] = []
        waiting: list[_BarrierWait] = []
        for entry in barrier.waiting:
            mask = done[machine.cta[entry.sel]]
            if mask.any():
                freed.append(entry.sel if mask.all() else subset(entry.sel, mask))
            if not mask.all():
                waiting.append(_BarrierWait(subset(entry.sel, ~mask), entry.instruction))
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

    def check_drained(self) -> None:
        """Raise Deadlock if lanes still wait when nothing else can run."""
        for name, barrier in self.barriers.items():
            if self.rules is not None and barrier.waiting:
                self.rules.drained(name, np.concatenate([indices(entry.sel) for entry in barrier.waiting]))
        for name, barrier in sorted(self.barriers.items()):
            for entry in barrier.waiting:
                lane = int(indices(entry.sel)[0])
                cta = int(self.machine.cta[lane])
                block, thread = self.machine.where(lane)
                need = int(barrier.expected[cta]) or int(
                    np.count_nonzero(self.machine.live & (self.machine.cta == cta))
                )
                source = self.machine.source(entry.instruction)
                raise Deadlock(
                    f"{entry.instruction.text} on barrier {name} at PTX line {entry.instruction.line}"
                    f"{f' ({source})' if source else ''}: block {block} has "
                    f"{int(barrier.arrived[cta])} of {need} threads there, "
                    f"and no thread that could still arrive (thread {thread} is among those waiting)"
                )
