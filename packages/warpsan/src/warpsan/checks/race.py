"""The ``race`` check for shared memory: two unordered accesses to the same bytes, at least one a write.

For every granule of shared memory, the check keeps the last writer and the time of each actor's last read and last
atomic update, as tags of :mod:`~warpsan.checks.clocks`. An access is compared with its warp's vector clock, and with
the clocks of diverged lanes of its warp (:mod:`~warpsan.checks.lanes`). Lanes that execute one instruction together are
compared by the values they write. A write of the stored value is benign. :mod:`~warpsan.checks.scopes` has the order of
strong accesses and fences.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import numpy as np

from warpsan.checks.arrivals import Arrivals
from warpsan.checks.clocks import ACTOR_SHIFT, TIME_MASK, Clocks
from warpsan.checks.lanes import Changes, LaneOrder, LaneRaces, SameStep
from warpsan.checks.orders import BARRIER, SAME_CLUSTER, MemoryOrder, fence_order, memory_order
from warpsan.checks.scopes import ReleaseChain, Synchronisation
from warpsan.checks.shadow import Planes, Shadow, granule_of
from warpsan.engine.machine import Machine
from warpsan.engine.observer import Access, CompletionBarrier, Observer
from warpsan.engine.selection import WARP, Array, Indices, Mask, Selection, indices
from warpsan.ptx.ir import Instruction
from warpsan.ptx.opcodes import in_async_proxy, opcode_of
from warpsan.report.hazard_log import HazardLog, conflicting_access_at, conflicting_access_of
from warpsan.report.hazards import ConflictingAccess

__all__ = ["USUALLY_IN_FLIGHT", "USUALLY_PROXY", "RaceCheck"]

_USUALLY = "usually a missing barrier between them"
USUALLY_IN_FLIGHT = "usually a missing wait for the copy, or a missing barrier after that wait"
_USUALLY_EXIT = "usually a missing barrier.cluster at the end of the kernel"
USUALLY_PROXY = "usually a missing fence.proxy.async between the write and the barrier after it"

_Matters = Callable[[], Mask]


class RaceCheck(Observer):
    """Reports races in shared memory between the warps of a cluster and their asynchronous operations."""

    def __init__(
        self,
        machine: Machine,
        log: HazardLog,
        *,
        in_flight: bool,
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
        self.in_flight = in_flight
        """Whether conflicts with operations in flight are reported here; otherwise the ``async`` check reports them."""
        self.clocks = Clocks(machine)
        self.lane_order = LaneOrder(machine, self.clocks, strict=strict)
        self.sync = Synchronisation(machine, self.clocks, self.lane_order, {} if chains is None else chains)
        self.arrivals = Arrivals(
            machine, self.clocks, self.sync, self.lane_order, default_scope_is_cta=default_scope_is_cta
        )
        size, granule = len(machine.spaces["shared"].data), granule_of(machine.entry, ("shared",))
        self.writer = Shadow(size, granule)
        self.readers = Planes(size, granule, self.clocks.actors)
        self.planes = self.clocks.warp * self.readers.plane_bytes
        """The start of the plane of each lane's warp."""
        self.plain: Shadow | None = None
        """The last plain write, which all atomic operations must follow."""
        self.updaters: Planes | None = None
        """Atomic updates, each of which must be ordered before a plain access."""
        self.watchers: Planes | None = None
        """Strong reads, which race with plain writes only."""
        self.lanes = LaneRaces(machine, log, self.lane_order, "shared", granule)
        self.same_step = SameStep(machine, log, "shared", values=values)
        code = machine.entry.instructions
        strong = [
            each for each in code if opcode_of(each).memory in ("load", "store") and self._strong(each) is not None
        ]
        if strong or any(each.opcode == "mbarrier" or opcode_of(each).memory == "update" for each in code):
            self.plain = Shadow(size, granule)
        if any(map(_updates_shared, code)) or any(each.opcode == "st" for each in strong):
            self.updaters = Planes(size, granule, self.clocks.warps)
        if any(each.opcode == "ld" for each in strong):
            self.watchers = Planes(size, granule, self.clocks.warps)
        shape = self.clocks.known_to_cta().shape if machine.cluster_size > 1 else (0, 0)
        self.remote = np.zeros(shape, dtype=np.uint32)
        """Time of each actor's last access to the shared memory of each other CTA; a copy counts for its mbarrier."""
        self.copier = np.empty(size // 4, dtype=np.int64)
        """For the copies of a step, the last one to write each place; copies have at least 4 bytes."""
        self.issuers: dict[int, Indices] = {}
        """By time, the lanes that issued copies which signal an mbarrier."""
        machine.on_reset.append(self.reset)

    def reset(self) -> None:
        """A new chunk of CTAs: no accesses yet."""
        self.remote.fill(0)
        self.clocks.reset()
        self.lane_order.reset()
        self.lanes.reset()
        self.sync.reset()
        self.arrivals.reset()
        self.issuers.clear()
        for shadow in (self.writer, self.readers, self.plain, self.updaters, self.watchers):
            if shadow is not None:
                shadow.clear()

    # ---- accesses ---------------------------------------------------------------------------------------------------

    def load(self, access: Access) -> None:
        """A weak read must come after the last write, a strong one after the last weak write."""
        if access.space.name != "shared":
            return
        self._begin(access)
        order = memory_order(access.instruction)
        planes, actors = self.planes[access.sel], self.clocks.warp[access.sel]
        if order.volatile and self.volatile_is_data:
            self.sync.excuse(access.sel)
        if self._strong(access.instruction) is not None and self.plain is not None and self.watchers is not None:
            self._check(access, self.plain.gather(access.index, access.width), "reads what {other} wrote")
            self.lanes.access(access, "watches", "reads", ("wrote",), None)
            self.watchers.mark(access.index, access.width, planes, actors, self.clocks.now)
        else:
            self._check_writer(access, "reads what {other} wrote")
            self._check_updaters(access, "reads what {other} updates")
            self.lanes.access(access, "reads", "reads", ("wrote", "updates"), None)
            self.readers.mark(access.index, access.width, planes, actors, self.clocks.now)
        if order.strong:
            self.sync.read(access, order)

    def store(self, access: Access, words: Array | None) -> None:
        """A weak write must come after the last write and all reads, a strong write after weak accesses."""
        if access.space.name != "shared":
            return
        self._begin(access)
        matters = None if words is None else Changes(access, words, always=self.values)
        order = memory_order(access.instruction)
        tags = self.clocks.tags(access.sel)
        self._check_readers(access, "overwrites what {other} reads", matters)
        if self._strong(access.instruction) is not None and self.plain is not None:
            self._check(access, self.plain.gather(access.index, access.width), "overwrites what {other} wrote", matters)
            self.lanes.access(access, "updates", "overwrites", ("wrote", "reads"), matters)
            self._mark_update(access, tags)
        else:
            self._check_writer(access, "overwrites what {other} wrote", matters)
            self._check_updaters(access, "overwrites what {other} updates", matters)
            self._check_watchers(access, "overwrites what {other} reads", matters)
            self.lanes.access(access, "wrote", "overwrites", ("wrote", "reads", "updates", "watches"), matters)
            self._mark_write(access, tags)
            self.sync.overwritten(access)
            if words is not None:
                self.same_step.check(access, words)
        if order.strong:
            self.sync.write(access, order)

    def atomic(self, access: Access) -> None:
        """Atomic operations race with all other accesses, but not with each other."""
        if access.space.name != "shared" or self.plain is None:
            return
        self._begin(access)
        self._check(access, self.plain.gather(access.index, access.width), "updates what {other} wrote")
        self._check_readers(access, "updates what {other} reads")
        self._mark_update(access, self.clocks.tags(access.sel))
        if opcode_of(access.instruction).memory == "update":
            self.lanes.access(access, "updates", "updates", ("wrote", "reads"), None)
            order = memory_order(access.instruction)
            self.sync.update(access, order, returns=access.instruction.opcode == "atom")

    def issue(self, access: Access, *, writes: bool, barrier: CompletionBarrier | None = None) -> Array | None:
        """An asynchronous access belongs to its issuer's twin: other accesses are ordered after it once they are
        ordered after its completion."""
        if access.space.name != "shared":
            return None
        self.clocks.tick(access.instruction)
        does = "overwrites" if writes else "reads"
        self._check_writer(access, f"{does} what {{other}} wrote")
        self._check_updaters(access, f"{does} what {{other}} updates")
        if writes:
            self._check_readers(access, "overwrites what {other} reads")
        if in_async_proxy(access.instruction):
            self._check_proxy(access, does)
        if barrier is not None and self.plain is not None:
            offset = np.full(len(access.index), barrier.offset)
            arrival = replace(access, offset=offset, index=self._of(barrier), width=8)
            self._check(arrival, self.plain.gather(arrival.index, 8), "signals what {other} wrote")
        tags = self.clocks.issue(access.sel, barrier if writes else None)
        if writes:
            self._mark_write(access, tags)
        else:
            twins = self.clocks.warp[access.sel] + self.clocks.warps
            self.readers.mark(access.index, access.width, twins * self.readers.plane_bytes, twins, self.clocks.now)
        if writes and barrier is not None:
            lanes = indices(access.sel)  # the accesses of a lane are next to each other
            self.issuers[self.clocks.now] = lanes[np.flatnonzero(np.diff(lanes, prepend=-1))]
            if not access.instruction.opcode.startswith("red"):
                self._check_copies(access, tags)
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

    def _of(self, barrier: CompletionBarrier) -> Indices:
        """Byte indices of the mbarriers."""
        place: Indices = barrier.home * self.machine.shared_stride + barrier.offset
        return place

    # ---- rules ------------------------------------------------------------------------------------------------------

    def _begin(self, access: Access) -> None:
        """Begin a step of accesses by warps; note accesses to another CTA's shared memory."""
        self.clocks.tick(access.instruction)
        self._note_remote(access, self.clocks.warp[access.sel])

    def _check_copies(self, access: Access, tags: Array) -> None:
        """Report copies of several lanes to one place in one step: the result is undefined."""
        place, lanes = access.index // access.width, indices(access.sel)
        self.copier[place] = np.arange(len(place))
        last = self.copier[place]
        for row in np.flatnonzero(lanes[last] != lanes)[:1]:
            self._report(access, int(row), "overwrites what {other} writes at the same time", int(tags[last[row]]))

    def _note_remote(self, access: Access, actors: Indices) -> None:
        """Note accesses to another CTA's shared memory."""
        if len(self.remote):
            target = access.index // self.machine.shared_stride
            away = target != self.machine.cta[access.sel]
            if away.any():
                self.remote[target[away], actors[away]] = self.clocks.now

    def _check_writer(self, access: Access, what: str, matters: _Matters | None = None) -> None:
        self._check(access, self.writer.gather(access.index, access.width), what, matters)

    def _check_readers(self, access: Access, what: str, matters: _Matters | None = None) -> None:
        for actor, times in self.readers.times(access.index, access.width):
            self._check(access, times | np.uint32(actor) << ACTOR_SHIFT, what, matters)

    def _check_watchers(self, access: Access, what: str, matters: _Matters | None = None) -> None:
        for actor, times in () if self.watchers is None else self.watchers.times(access.index, access.width):
            self._check(access, times | np.uint32(actor) << ACTOR_SHIFT, what, matters)

    def _check_updaters(self, access: Access, what: str, matters: _Matters | None = None) -> None:
        """A plain access must come after all atomic operations since the last plain write, not only the last one."""
        if self.updaters is None or self.plain is None or not self.updaters.actors:
            return
        updated = self.writer.gather(access.index, access.width) != self.plain.gather(access.index, access.width)
        if updated.any():
            for actor, times in self.updaters.times(access.index, access.width):
                tags = times | np.uint32(actor) << ACTOR_SHIFT
                self._check(access, np.where(updated, tags, np.uint32(0)), what, matters)

    def _check_proxy(self, access: Access, does: str) -> None:
        """An access in the async proxy to data written in the generic proxy needs a fence between the proxies."""
        tags = self.writer.gather(access.index, access.width)
        bad = self.clocks.unfenced(access.sel, tags, "shared")
        unordered = self.clocks.unordered(access.sel, tags)
        if unordered is not None:
            bad &= ~unordered  # the race is reported instead
        if not bad.any():
            return
        lane, column = (int(place[0]) for place in np.nonzero(bad))
        what = f"{does} in the async proxy what {{other}} wrote in the generic proxy"
        self._report(access, lane, what, int(tags[lane, column]), "proxy")

    def _check(self, access: Access, tags: Array, what: str, matters: _Matters | None = None) -> None:
        """Report the first access that is not ordered after the accesses with these ``tags``."""
        unordered = self.clocks.unordered(access.sel, tags)
        if unordered is None or self.log.seen("race", access.instruction):
            return
        if not self.in_flight:
            unordered &= ~self.clocks.in_flight(access.sel, tags)
        if matters is not None:
            unordered &= matters()[:, None]
        if not unordered.any():
            return
        lane, column = (int(place[0]) for place in np.nonzero(unordered))
        self._report(access, lane, what, int(tags[lane, column]))

    def _mark_write(self, access: Access, tags: Array) -> None:
        self.writer.scatter(access.index, access.width, tags)
        if self.plain is not None:
            self.plain.scatter(access.index, access.width, tags)

    def _mark_update(self, access: Access, tags: Array) -> None:
        self.writer.scatter(access.index, access.width, tags)
        if self.updaters is not None:
            planes, actors = self.planes[access.sel], self.clocks.warp[access.sel]
            self.updaters.mark(access.index, access.width, planes, actors, self.clocks.now)

    def _strong(self, instruction: Instruction) -> MemoryOrder | None:
        """The order of a strong access; None for a weak one."""
        order = memory_order(instruction)
        return order if order.strong and not (order.volatile and self.volatile_is_data) else None

    def _report(self, access: Access, lane: int, what: str, tag: int, kind: str = "race") -> None:
        lane_of_machine = int(indices(access.sel)[lane])
        other = self.access_behind(lane_of_machine, tag)
        seat = int(self.clocks.seat[lane_of_machine])
        usually = USUALLY_PROXY if kind == "proxy" else ""
        if not usually and tag >> int(ACTOR_SHIFT) >= self.clocks.warps:
            usually = self.wait_advice(seat) or USUALLY_IN_FLIGHT
        if not usually:
            cta, size = int(self.machine.cta[lane_of_machine]), self.machine.cluster_size
            block = int(self.machine.cta_ids[cta - cta % size + (tag >> int(ACTOR_SHIFT)) // self.machine.warps])
            usually = self.advice(seat, block, tag & int(TIME_MASK)) or _USUALLY
        text = f"{what}, {access.width} bytes of shared memory at offset {int(access.offset[lane])}"
        self.log.add(self.machine, kind, access.instruction, lane_of_machine, text, usually, other)

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


def _updates_shared(instruction: Instruction) -> bool:
    """Whether an instruction may update shared memory atomically, without being an mbarrier instruction."""
    return opcode_of(instruction).memory == "update" and "global" not in instruction.mods
