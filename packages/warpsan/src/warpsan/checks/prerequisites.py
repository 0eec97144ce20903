"""The ``race`` check of programmatic dependent launches: accesses that may conflict with the kernel before.

A launch with programmatic stream serialization may begin while the kernel before it in the stream runs. Accesses that
conflict with that kernel must come after a ``griddepcontrol.wait`` of the same thread, or of one that it has
synchronised with (PTX ISA, "Parallel Synchronization and Communication Instructions: griddepcontrol"; CUDA C++
Programming Guide, "Programmatic Dependent Launch and Synchronization"). The order is that of the warps of a cluster
(:mod:`~warpsan.checks.clocks`): a wait orders its whole warp; order through memory between clusters does not count.
"""

from __future__ import annotations

import numpy as np

from warpsan.checks.clocks import Clocks
from warpsan.checks.lanes import place_of
from warpsan.engine.machine import Machine
from warpsan.engine.observer import Access, Observer
from warpsan.engine.selection import Array, Indices, Mask, Selection, indices
from warpsan.ptx.ir import Instruction
from warpsan.report.hazard_log import HazardLog

__all__ = ["PrerequisiteCheck"]

_USUALLY = (
    "launched with programmatic stream serialization, the kernel before it may still run: usually a missing "
    "griddepcontrol.wait (cudaGridDependencySynchronize()) before the access"
)


class PrerequisiteCheck(Observer):
    """Reports conflicting accesses to global memory that come after no ``griddepcontrol.wait``.

    Parameters
    ----------
    machine, log : as for every check
    clocks : Clocks
        The clocks of the race check.
    prerequisites : ndarray of int64 [n, 3]
        The accesses of the kernel before: bytes of global memory from and to, and whether it writes them.
    """

    def __init__(self, machine: Machine, log: HazardLog, clocks: Clocks, prerequisites: Indices) -> None:
        self.machine, self.log, self.clocks, self.prerequisites = machine, log, clocks, prerequisites
        self.waited: Array = np.zeros(machine.n_cta * machine.warps, np.uint32)
        """The time at which each warp has waited; 0: no wait yet."""
        machine.on_reset.append(self.reset)

    def reset(self) -> None:
        """A new chunk of CTAs."""
        self.waited.fill(0)

    def grid_wait(self, sel: Selection, instruction: Instruction) -> None:
        """Later accesses of these warps come after the wait."""
        self.clocks.tick(instruction)
        seats = self.clocks.seats(sel)
        self.waited[seats] = np.where(self.waited[seats] > 0, self.waited[seats], self.clocks.now)

    def load(self, access: Access) -> None:
        """A read conflicts with writes of the kernel before."""
        self._check(access, "reads what the kernel before it may still write", self.prerequisites[:, 2] > 0)

    def store(self, access: Access, words: Array | None) -> None:
        """A write conflicts with all accesses of the kernel before."""
        self._check(access, "writes what the kernel before it may still access", None)

    def atomic(self, access: Access) -> None:
        """An update conflicts with all accesses of the kernel before."""
        self._check(access, "updates what the kernel before it may still access", None)

    def _check(self, access: Access, what: str, which: Mask | None) -> None:
        if access.space.name != "global" or self.log.seen("race", access.instruction):
            return
        seats = self.clocks.seat[access.sel]
        early = ~self.clocks.comes_after_any(seats, self.waited)
        if not early.any():
            return
        rows = self.prerequisites if which is None else self.prerequisites[which]
        begins = access.index[:, None]
        met = ((begins < rows[:, 1]) & (begins + access.width > rows[:, 0])).any(axis=1) & early
        if met.any():
            row = int(met.argmax())
            text = f"{what}, {place_of(self.machine, access, row)}"
            lane = int(indices(access.sel)[row])
            self.log.add(self.machine, "race", access.instruction, lane, text, _USUALLY)
