"""Part of the ``strict`` check: an mbarrier that a bulk copy completes on must be initialised for the async proxy.

``mbarrier.init`` writes in the generic proxy. Between it and the barrier before the copies, its thread needs a
``fence.mbarrier_init`` or a stronger fence: ``fence.proxy.async``, or a fence of at least cluster scope (PTX ISA,
"membar, fence", "mbarrier.init"). Much working code has only ``__syncthreads()`` there, so the default checks do not
report this.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from warpsan.checks.orders import SAME_CLUSTER, fence_order
from warpsan.engine.machine import Machine
from warpsan.engine.observer import Access, CompletionBarrier, Observer
from warpsan.engine.selection import Array, Selection, indices
from warpsan.ptx.ir import Instruction
from warpsan.report.hazard_log import HazardLog, conflicting_access_at

__all__ = ["MbarrierInitCheck"]

_USUALLY = "usually a missing fence.mbarrier_init.release.cluster behind mbarrier.init"


class MbarrierInitCheck(Observer):
    """The mbarriers without a fence of their thread since their initialisation."""

    def __init__(self, machine: Machine, log: HazardLog) -> None:
        self.machine, self.log = machine, log
        self._open: dict[int, tuple[int, Instruction]] = {}
        """The initialising lane and its instruction, by byte index in shared memory."""
        machine.on_reset.append(self._open.clear)

    def store(self, access: Access, words: Array | None) -> None:
        """Lanes initialise mbarriers."""
        instruction = access.instruction
        if instruction.opcode == "mbarrier" and instruction.mods[:1] == ("init",):
            for place, lane in zip(access.index.tolist(), indices(access.sel).tolist(), strict=True):
                self._open[place] = lane, instruction

    def fence(self, sel: Selection, instruction: Instruction) -> None:
        """Lanes have executed a fence."""
        order = fence_order(instruction)
        if "mbarrier_init" in instruction.mods or (order.release and order.level >= SAME_CLUSTER):
            self.proxy_fence(sel, ("shared",))

    def proxy_fence(self, sel: Selection, spaces: Sequence[str]) -> None:
        """The mbarriers that these lanes have initialised are visible."""
        if self._open and "shared" in spaces:
            lanes = set(indices(sel).tolist())
            self._open = {place: each for place, each in self._open.items() if each[0] not in lanes}

    def issue(self, access: Access, *, writes: bool, barrier: CompletionBarrier | None = None) -> Array | None:
        """Copies that complete on mbarriers are issued."""
        if barrier is None or not self._open or "bulk" not in access.instruction.mods:
            return None
        places = barrier.home * self.machine.shared_stride + barrier.offset
        for row in np.flatnonzero(np.isin(places, list(self._open)))[:1].tolist():
            lane, instruction = self._open[int(places[row])]
            other = conflicting_access_at(self.machine, instruction, lane)
            what = f"completes on the mbarrier at offset {barrier.offset}, which {{other}} initialised without a fence"
            self.log.add(
                self.machine, "mbarrier", access.instruction, int(indices(access.sel)[row]), what, _USUALLY, other
            )
        return None
