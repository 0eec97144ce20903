"""The order of warps and lanes in a replay, for the ``race`` check of global memory.

Races in shared memory are found by machine code (:mod:`warpsan.engine.watch`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from warpsan.checks.arrivals import Arrivals
from warpsan.checks.clocks import ACTOR_SHIFT, TIME_MASK, Clocks
from warpsan.checks.lanes import LaneOrder
from warpsan.checks.orders import BARRIER, SAME_CLUSTER, MemoryOrder, fence_order, memory_order
from warpsan.checks.scopes import ReleaseChain, Synchronisation
from warpsan.engine.machine import Machine
from warpsan.engine.observer import Access, CompletionBarrier, Observer
from warpsan.engine.selection import WARP, Array, Indices, Mask, Selection, indices
from warpsan.ptx.ir import Instruction
from warpsan.ptx.opcodes import opcode_of
from warpsan.report.hazard_log import HazardLog, conflicting_access_at, conflicting_access_of
from warpsan.report.hazards import ConflictingAccess

__all__ = ["USUALLY_IN_FLIGHT", "USUALLY_PROXY", "RaceCheck"]

USUALLY_IN_FLIGHT = "usually a missing wait for the copy, or a missing barrier after that wait"
_USUALLY_EXIT = "usually a missing barrier.cluster at the end of the kernel"
USUALLY_PROXY = "usually a missing fence.proxy.async between the write and the barrier after it"


class RaceCheck(Observer):
    """Follows the order of the warps of a cluster, their lanes and their asynchronous operations. Reports accesses to
    the shared memory of other CTAs that may have exited."""

    def __init__(
        self,
        machine: Machine,
        log: HazardLog,
        *,
        strict: bool = False,
        default_scope_is_cta: bool = False,
        values: bool = False,
        volatile_is_data: bool = False,
        chains: dict[int, ReleaseChain] | None = None,
    ) -> None:
        self.machine, self.log = machine, log
        self.values = values
        """Whether a write of the stored value counts as a write."""
        self.volatile_is_data = volatile_is_data
        """Whether volatile accesses race like weak accesses."""
        self.clocks = Clocks(machine)
        self.lane_order = LaneOrder(machine, self.clocks, strict=strict)
        self.sync = Synchronisation(machine, self.clocks, self.lane_order, {} if chains is None else chains)
        self.arrivals = Arrivals(
            machine, self.clocks, self.sync, self.lane_order, default_scope_is_cta=default_scope_is_cta
        )
        shape = self.clocks.known_to_cta().shape if machine.cluster_size > 1 else (0, 0)
        self.remote = np.zeros(shape, dtype=np.uint32)
        """Time of each actor's last access to the shared memory of each other CTA; a copy counts for its mbarrier."""
        self.issuers: dict[int, Indices] = {}
        """By time, the lanes that issued copies which signal an mbarrier."""
        machine.on_reset.append(self.reset)

    def reset(self) -> None:
        """A new chunk of CTAs: no accesses yet."""
        self.remote.fill(0)
        self.clocks.reset()
        self.lane_order.reset()
        self.sync.reset()
        self.arrivals.reset()
        self.issuers.clear()

    # ---- accesses ---------------------------------------------------------------------------------------------------

    def load(self, access: Access) -> None:
        """Reads of shared memory may order threads."""
        if access.space.name != "shared":
            return
        self._begin(access)
        order = memory_order(access.instruction)
        if order.volatile and self.volatile_is_data:
            self.sync.excuse(access.sel)
        if order.strong:
            self.sync.read(access, order)

    def store(self, access: Access, words: Array | None) -> None:
        """Writes to shared memory may order threads."""
        if access.space.name != "shared":
            return
        self._begin(access)
        order = memory_order(access.instruction)
        if not order.strong or (order.volatile and self.volatile_is_data):
            self.sync.overwritten(access)
        if order.strong:
            self.sync.write(access, order)

    def atomic(self, access: Access) -> None:
        """Updates of shared memory may order threads."""
        if access.space.name != "shared":
            return
        self._begin(access)
        if opcode_of(access.instruction).memory == "update":
            order = memory_order(access.instruction)
            self.sync.update(access, order, returns=access.instruction.opcode == "atom")

    def issue(self, access: Access, *, writes: bool, barrier: CompletionBarrier | None = None) -> Array | None:
        """An asynchronous access belongs to its issuer's twin, or to the mbarrier on which it completes."""
        if access.space.name != "shared":
            return None
        self.clocks.tick(access.instruction)
        tags = self.clocks.issue(access.sel, barrier if writes else None)
        if writes and barrier is not None:
            lanes = indices(access.sel)  # the accesses of a lane are next to each other
            self.issuers[self.clocks.now] = lanes[np.flatnonzero(np.diff(lanes, prepend=-1))]
            self._note_remote(access, tags >> ACTOR_SHIFT)
        return tags

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
        self.lane_order.arrive(sel)
        if order.release:
            self.sync.post(key, sel, home)
            self.clocks.release(key, sel, home)
        else:
            self.arrivals.arrive_in_cluster(sel)
            self.sync.post(key, sel, home, fenced=SAME_CLUSTER)
            self.clocks.release(key, sel, home, fenced=self.clocks.fenced_at)

    def acquire(self, key: Hashable, sel: Selection, home: Indices | None = None) -> None:
        """See :meth:`Clocks.acquire`."""
        self.lane_order.leave(sel)
        self.sync.collect(key, sel, home)
        self.clocks.acquire(key, sel, home)

    def publish(self, source: Hashable, target: Hashable, ctas: Mask) -> None:
        """See :meth:`Arrivals.publish`."""
        self.arrivals.publish(source, target, ctas)

    def warp_sync(self, sel: Selection, groups: Array | None) -> None:
        """See :meth:`LaneOrder.meet`."""
        self.lane_order.meet(sel, groups)

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

    def finish(self) -> None:
        """A CTA's shared memory lasts until its last thread exits: accesses of other CTAs must be ordered before one
        of its warps."""
        if not self.remote.any():
            return
        machine = self.machine
        for cta, actor in zip(*np.nonzero(self.remote > self.clocks.known_to_cta()), strict=True):
            time = int(self.remote[cta, actor])
            instruction = self.clocks.instructions[time]
            assert instruction is not None
            first = cta - cta % machine.cluster_size
            if actor < self.clocks.actors:
                lane = int((actor % machine.warps * machine.n_cta + first + actor // machine.warps) * WARP)
            else:  # a copy: its issuer
                lanes = self.issuers[time]
                lanes = lanes[machine.cta[lanes] // machine.cluster_size == cta // machine.cluster_size]
                lane = int(lanes[machine.cta[lanes] != cta][0])
            what = (
                f"accesses the shared memory of CTA {cta % machine.cluster_size} of its cluster, which may have exited"
            )
            self.log.add(machine, "cluster", instruction, lane, what, _USUALLY_EXIT)

    # ---- rules ------------------------------------------------------------------------------------------------------

    def _begin(self, access: Access) -> None:
        """Begin a step of accesses by warps; note accesses to another CTA's shared memory."""
        self.clocks.tick(access.instruction)
        self._note_remote(access, self.clocks.warp[access.sel])

    def _note_remote(self, access: Access, actors: Indices) -> None:
        """Note accesses to another CTA's shared memory."""
        if len(self.remote):
            target = access.index // self.machine.shared_stride
            away = target != self.machine.cta[access.sel]
            if away.any():
                self.remote[target[away], actors[away]] = self.clocks.now

    def wait_advice(self, seat: int) -> str:
        """See :meth:`Arrivals.wait_advice`."""
        return self.arrivals.wait_advice(seat)

    def advice(self, seat: int, block: int, time: int) -> str:
        """The missing synchronisation between the accesses of ``block`` at a time and a warp; empty if unknown."""
        return self.arrivals.advice(seat, block, time) or self.sync.advice(seat, block, time)

    def access_behind(self, lane: int, tag: int) -> ConflictingAccess:
        """The access of a tag, as a lane of the same cluster."""
        machine, clocks = self.machine, self.clocks
        actor, time = tag >> int(ACTOR_SHIFT), tag & int(TIME_MASK)
        instruction = clocks.instructions[time]
        assert instruction is not None
        note = "" if actor < clocks.warps else "asynchronously"
        first = machine.cta[lane] - machine.cta[lane] % machine.cluster_size
        if actor < clocks.actors:
            warp = actor % clocks.warps
            leader = int((warp % machine.warps * machine.n_cta + first + warp // machine.warps) * WARP)
            block, _ = machine.where(leader)
            return conflicting_access_of(machine, instruction, block=block, warp=warp % machine.warps, note=note)
        lanes = self.issuers[time]
        lanes = lanes[machine.cta[lanes] // machine.cluster_size == first // machine.cluster_size]
        if len(lanes) == 1:
            return conflicting_access_at(machine, instruction, int(lanes[0]), note)
        return conflicting_access_of(machine, instruction, note=note)
