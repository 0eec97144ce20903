"""The order of warps in a replay, for the fences of tensor maps.

Races are found by machine code (:mod:`warpsan.engine.watch`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from warpsan.checks.arrivals import Arrivals
from warpsan.checks.clocks import Clocks
from warpsan.checks.orders import BARRIER, SAME_CLUSTER, MemoryOrder, fence_order, memory_order
from warpsan.checks.scopes import ReleaseChain, Synchronisation
from warpsan.engine.machine import Machine
from warpsan.engine.observer import Access, CompletionBarrier, Observer
from warpsan.engine.selection import Array, Indices, Mask, Selection
from warpsan.ptx.ir import Instruction
from warpsan.ptx.opcodes import opcode_of
from warpsan.report.hazard_log import HazardLog

__all__ = ["USUALLY_IN_FLIGHT", "USUALLY_PROXY", "RaceCheck"]

USUALLY_IN_FLIGHT = "usually a missing wait for the copy, or a missing barrier after that wait"
USUALLY_PROXY = "usually a missing fence.proxy.async between the write and the barrier after it"


class RaceCheck(Observer):
    """Follows the order of the warps of a cluster and their asynchronous operations."""

    def __init__(
        self,
        machine: Machine,
        log: HazardLog,
        *,
        default_scope_is_cta: bool = False,
        volatile_is_data: bool = False,
        chains: dict[int, ReleaseChain] | None = None,
    ) -> None:
        self.machine, self.log = machine, log
        self.volatile_is_data = volatile_is_data
        """Whether volatile accesses race like weak accesses."""
        self.clocks = Clocks(machine)
        self.sync = Synchronisation(machine, self.clocks, {} if chains is None else chains)
        self.arrivals = Arrivals(machine, self.clocks, self.sync, default_scope_is_cta=default_scope_is_cta)
        machine.on_reset.append(self.reset)

    def reset(self) -> None:
        """A new chunk of CTAs: no accesses yet."""
        self.clocks.reset()
        self.sync.reset()
        self.arrivals.reset()

    # ---- accesses ---------------------------------------------------------------------------------------------------

    def load(self, access: Access) -> None:
        """Reads of shared memory may order threads."""
        if access.space.name != "shared":
            return
        self.clocks.tick(access.instruction)
        order = memory_order(access.instruction)
        if order.volatile and self.volatile_is_data:
            self.sync.excuse(access.sel)
        if order.strong:
            self.sync.read(access, order)

    def store(self, access: Access, words: Array | None) -> None:
        """Writes to shared memory may order threads."""
        if access.space.name != "shared":
            return
        self.clocks.tick(access.instruction)
        order = memory_order(access.instruction)
        if not order.strong or (order.volatile and self.volatile_is_data):
            self.sync.overwritten(access)
        if order.strong:
            self.sync.write(access, order)

    def atomic(self, access: Access) -> None:
        """Updates of shared memory may order threads."""
        if access.space.name != "shared":
            return
        self.clocks.tick(access.instruction)
        if opcode_of(access.instruction).memory == "update":
            order = memory_order(access.instruction)
            self.sync.update(access, order, returns=access.instruction.opcode == "atom")

    def issue(self, access: Access, *, writes: bool, barrier: CompletionBarrier | None = None) -> Array | None:
        """An asynchronous access belongs to its issuer's twin, or to the mbarrier on which it completes."""
        if access.space.name != "shared":
            return None
        self.clocks.tick(access.instruction)
        return self.clocks.issue(access.sel, barrier if writes else None)

    def complete(self, ticket: Array, sel: Selection, barrier: CompletionBarrier | None = None) -> None:
        """See :meth:`Clocks.complete`."""
        self.clocks.complete(ticket, sel, barrier)

    def arrive(self, barrier: CompletionBarrier, sel: Selection, order: MemoryOrder) -> None:
        """See :meth:`Arrivals.arrive`."""
        self.arrivals.arrive(barrier, sel, order)

    def leave(self, barrier: CompletionBarrier, sel: Selection, order: MemoryOrder) -> None:
        """See :meth:`Arrivals.leave`."""
        self.arrivals.leave(barrier, sel, order)

    def release(self, key: Hashable, sel: Selection, home: Indices | None = None, order: MemoryOrder = BARRIER) -> None:
        """See :meth:`Clocks.release`."""
        if order.release:
            self.sync.post(key, sel, home)
            self.clocks.release(key, sel, home)
        else:
            self.sync.post(key, sel, home, fenced=SAME_CLUSTER)
            self.clocks.release(key, sel, home, fenced=self.clocks.fenced_at)

    def acquire(self, key: Hashable, sel: Selection, home: Indices | None = None) -> None:
        """See :meth:`Clocks.acquire`."""
        self.sync.collect(key, sel, home)
        self.clocks.acquire(key, sel, home)

    def publish(self, source: Hashable, target: Hashable, ctas: Mask) -> None:
        """See :meth:`Arrivals.publish`."""
        self.arrivals.publish(source, target, ctas)

    def fence(self, sel: Selection, instruction: Instruction) -> None:
        """See :meth:`Synchronisation.fence`; a relaxed arrival of a cluster releases the vector of the last fence of
        its scope. ``fence.mbarrier_init`` affects only this."""
        order = fence_order(instruction)
        if "mbarrier_init" not in instruction.mods:
            self.arrivals.fence(sel, order)
            self.sync.fence(sel, order)
        if order.release and order.level >= SAME_CLUSTER:
            self.clocks.fence(sel)

    def proxy_fence(self, sel: Selection, spaces: Sequence[str]) -> None:
        """See :meth:`Clocks.proxy_fence`."""
        self.clocks.proxy_fence(sel, spaces)

    def forget(self, key: Hashable, ctas: Mask) -> None:
        """See :meth:`Clocks.forget`."""
        self.sync.forget(key, ctas)
        self.clocks.forget(key, ctas)
