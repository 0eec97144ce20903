"""The ``race`` check for global memory: conflicting accesses that are neither ordered nor morally strong.

Warps of one cluster are ordered by its vector clocks, those of different clusters by releases and acquires through
memory (:mod:`~warpsan.checks.scopes`), lanes of one warp by :mod:`~warpsan.checks.lanes`. Strong operations
(:mod:`~warpsan.checks.orders`) do not race with each other if their scopes include both threads. Steps in which
more than a thousand lanes do atomics (histograms, sums) order nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from warpsan.checks.clocks import ACTOR_SHIFT, TIME_MASK
from warpsan.checks.global_history import FIRST_GROUP, SEVERAL, GlobalHistory, GlobalOrder, Marks
from warpsan.checks.lanes import Changes, LaneRaces, SameStep, place_of
from warpsan.checks.orders import LEVELS, SAME_CLUSTER, SAME_CTA, SAME_GPU, MemoryOrder, memory_order
from warpsan.checks.race import USUALLY_IN_FLIGHT, USUALLY_PROXY, RaceCheck
from warpsan.checks.tensor_map_fences import MAP_CHUNK, TensorMapFences
from warpsan.engine.machine import Machine
from warpsan.engine.observer import Access, CompletionBarrier, Observer
from warpsan.engine.selection import Array, Mask, Selection, indices
from warpsan.ptx.ir import Instruction
from warpsan.ptx.opcodes import in_async_proxy, opcode_of
from warpsan.report.hazard_log import HazardLog, conflicting_access_at, conflicting_access_of

__all__ = ["GlobalRaceCheck"]

_USUALLY = "blocks run in any order: use an atomic, or give each its own part"
_USUALLY_BARRIER = "usually a missing barrier"
_USUALLY_SCOPE = "each of the two must include the other's thread in its scope: use .gpu"
_USUALLY_CONSTANT = "__ldg() and const __restrict__ are for memory that the kernel does not write"
_NOTE_VOLATILE = (
    "; volatile accesses count as data here (volatile=data), by the letter of PTX they are relaxed operations"
)


class GlobalRaceCheck(Observer):
    """Races in global memory.

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
        self.race, self.advice = race, race.advice
        self.values = race.values
        self.lanes = LaneRaces(machine, log, race.lane_order, "global", history.granule)
        self.same_step = SameStep(machine, log, "global", values=race.values)
        code = [each for each in machine.entry.instructions if opcode_of(each).memory]
        orders = [memory_order(each) for each in code if "shared" not in each.mods]
        self._strong = any(order.strong for order in orders)
        self._updates = np.array([each.opcode in ("atom", "red") for each in machine.entry.instructions], np.bool_)
        """Which instructions are atomic operations."""
        self._narrow = any(order.strong and order.level < SAME_GPU for order in orders)
        """Whether strong operations may race with each other."""
        self.maps = TensorMapFences(machine, log, race.clocks, race.sync, history)
        self.order = GlobalOrder(history, race.clocks, race.sync, len(machine.spaces["global"].data))
        self.owner: Array = np.empty(0, np.uint32)
        """Each lane's block + 1."""
        machine.on_reset.append(self.reset)

    def reset(self) -> None:
        """A new chunk of CTAs."""
        machine = self.machine
        self.owner = (machine.cta_ids + 1).astype(np.uint32)[machine.cta]
        first = np.arange(machine.n_cta) // machine.cluster_size * machine.cluster_size
        self.history.cluster_of[machine.cta_ids] = machine.cta_ids[first]
        self.lanes.reset()
        self.maps.reset()

    def load(self, access: Access) -> None:
        """A weak read must come after other threads' writes, a strong read after their weak writes."""
        if access.space.name != "global":
            return
        self.clocks.tick(access.instruction)
        order, history = memory_order(access.instruction), self.history
        data = order.volatile and self.volatile_is_data
        if data:
            self.sync.excuse(access.sel)
        self._check(access, history.writes, "reads what {other} wrote", None)
        if "nc" in access.instruction.mods:
            for marks in (history.writes, history.strong):
                self._check_constant(access, marks)
        if order.strong and not data:
            self._check_scopes(access, order, "reads what {other} updates", history.strong)
            self.lanes.access(access, "watches", "reads", ("wrote",), None)
            self._mark_read(access, history.watched)
        else:
            self._check_strong(access, "reads what {other} updates", None, reads=True)
            self.lanes.access(access, "reads", "reads", ("wrote", "updates"), None)
            self._mark_read(access, history.reads)
        if order.strong:
            self.sync.read(access, order)

    def copy_reads(self, access: Access, barrier: CompletionBarrier) -> Array | None:
        """A copy's reads are complete for threads that have waited for its mbarrier, and not for its issuer."""
        if access.space.name != "global":
            return None
        self.clocks.tick(access.instruction)
        history = self.history
        self._check(access, history.writes, "reads what {other} wrote", None)
        for marks in (history.writes, history.strong):
            self._check_proxy(access, marks)
        self._check_strong(access, "reads what {other} updates", None, reads=True)
        self.lanes.compare(access, "reads", ("wrote", "updates"))
        tags = self.clocks.issue(access.sel, barrier)
        lanes = indices(access.sel)
        self.race.issuers[self.clocks.now] = lanes[np.flatnonzero(np.diff(lanes, prepend=-1))]
        self._mark_read(access, history.reads, tags)
        return tags

    def complete(self, ticket: Array, sel: Selection, barrier: CompletionBarrier | None = None) -> None:
        """See :meth:`~warpsan.checks.clocks.Clocks.complete`."""
        self.clocks.complete(ticket, sel, barrier)

    def store(self, access: Access, words: Array | None) -> None:
        """A weak write must come after all accesses of other threads, unless it changes no value; a strong one after
        their weak accesses."""
        if access.space.name != "global":
            return
        self.clocks.tick(access.instruction)
        order, history = memory_order(access.instruction), self.history
        changes = None if words is None else Changes(access, words, always=self.values)
        self._check(access, history.writes, "overwrites what {other} wrote", changes)
        self._check(access, history.reads, "overwrites what {other} reads", changes)
        if order.strong and not (order.volatile and self.volatile_is_data):
            self._check_scopes(access, order, "overwrites what {other} updates", history.strong)
            self.lanes.access(access, "updates", "overwrites", ("wrote", "reads"), changes)
            self._mark_strong(access)
        else:
            self._check_strong(access, "overwrites what {other} updates", changes, reads=False)
            self.lanes.access(access, "wrote", "overwrites", ("wrote", "reads", "updates", "watches"), changes)
            self._mark(access, history.writes)
            self.sync.overwritten(access)
            if words is not None:
                self.same_step.check(access, words, _NOTE_VOLATILE if order.volatile else "")
        if order.strong:
            self.sync.write(access, order)

    def atomic(self, access: Access) -> None:
        """Atomic operations race with weak accesses, and with strong ones whose scopes do not include both threads."""
        if access.space.name != "global":
            return
        self.clocks.tick(access.instruction)
        order, history = memory_order(access.instruction), self.history
        self._check(access, history.writes, "updates what {other} wrote", None)
        self._check(access, history.reads, "updates what {other} reads", None)
        self._check_scopes(access, order, "updates what {other} updates", history.strong)
        self._check_scopes_together(access, order)
        self.lanes.access(access, "updates", "updates", ("wrote", "reads"), None)
        self.sync.update(access, order, returns=access.instruction.opcode == "atom")
        self._mark_strong(access)

    def tensor_map_fence(self, sel: Selection, instruction: Instruction, maps: Access | None) -> None:
        """See :meth:`.tensor_map_fences.TensorMapFences.fence`."""
        self.maps.fence(sel, instruction, maps)

    def tensor_map_use(self, maps: Access) -> None:
        """A map that this launch has written must be used after the write, and after a fence between the proxies."""
        if maps.space.name != "global":
            return
        self.clocks.tick(maps.instruction)
        for marks in (self.history.writes, self.history.strong):
            for begin in range(0, maps.width, MAP_CHUNK):
                part = (maps.offset + begin, maps.index + begin, MAP_CHUNK)
                self._check(
                    Access(maps.space, *part, maps.sel, maps.instruction),
                    marks,
                    "uses the tensor map that {other} wrote",
                    None,
                )
            if not self.log.seen("race", maps.instruction):
                self.maps.use(maps, marks)

    # ---- rules ------------------------------------------------------------------------------------------------------

    def _unordered(self, access: Access, marks: Marks) -> tuple[Mask, Array, Array]:
        """The last accesses that are not ordered before these, by granule; their owners and tags."""
        owners = marks.owner.gather(access.index, access.width)
        own = self.owner[access.sel][:, None]
        tags = marks.tag.gather(access.index, access.width)
        near = self._near(owners, own)
        bad: Mask = (owners != 0) & ~near
        within = self.clocks.unordered(access.sel, np.where(near, tags, np.uint32(0)))
        if within is not None:
            bad |= within
        if not bad.any():
            return bad, owners, tags
        seats = self.clocks.seat[access.sel]
        if self.sync.foreign:
            clusters = self.history.cluster_of
            for lane, column in zip(*np.nonzero(bad & ~near & ~_of_group(owners)), strict=True):
                owner, tag = int(owners[lane, column]), int(tags[lane, column])
                if owner == SEVERAL:  # the order of each one is not kept
                    bad[lane, column] = not self.sync.comes_after_any(int(seats[lane]))
                    continue
                cluster, actor = int(clusters[owner - 1]), tag >> int(ACTOR_SHIFT)
                if self.sync.comes_after(int(seats[lane]), cluster, actor, tag & int(TIME_MASK)):
                    bad[lane, column] = False
        lanes, columns = np.nonzero(_of_group(owners))
        if len(lanes):
            groups = owners[lanes, columns], tags[lanes, columns]
            late, one, its_tag = self.order.unordered_members(*groups, seats[lanes], own[lanes, 0])
            bad[lanes, columns] = late
            lanes, columns = lanes[late], columns[late]
            owners[lanes, columns], tags[lanes, columns] = one[late], its_tag[late]
        return bad, owners, tags

    def _near(self, owners: Array, own: Array) -> Mask:
        """Which owners are blocks of the accessing lanes' clusters."""
        if self.machine.cluster_size == 1:
            near: Mask = owners == own
            return near
        there = (owners != 0) & (owners < FIRST_GROUP)
        cluster_of = self.history.cluster_of
        same: Mask = there & (cluster_of[np.where(there, owners, 1) - 1] == cluster_of[own - 1])
        return same

    def _check(self, access: Access, marks: Marks, what: str, matters: Callable[[], Mask] | None) -> None:
        """Report the first access that does not come after the last access in ``marks``."""
        if self.log.seen("race", access.instruction):
            return
        bad, owners, tags = self._unordered(access, marks)
        if bad.any() and matters is not None:
            bad &= matters()[:, None]
        if bad.any():
            self._report(access, bad, owners, tags, marks, what)

    def _check_constant(self, access: Access, marks: Marks) -> None:
        """Report ``ld.global.nc`` of data that this launch has written: its cache is not coherent, and may miss the
        data in any order (PTX ISA, "ld.global.nc")."""
        owners = marks.owner.gather(access.index, access.width)
        bad = (owners != 0) & (owners < FIRST_GROUP)
        if bad.any() and not self.log.seen("race", access.instruction):
            tags = marks.tag.gather(access.index, access.width)
            what = "reads through a cache that is not coherent what {other} wrote in the same kernel"
            self._report(access, bad, owners, tags, marks, what, _USUALLY_CONSTANT)

    def _check_proxy(self, access: Access, marks: Marks) -> None:
        """A copy in the async proxy of data that this launch has written in the generic proxy needs a fence between
        the proxies, of a warp of the same cluster (fences of other clusters are not kept)."""
        if self.log.seen("proxy", access.instruction):
            return
        unordered, owners, tags = self._unordered(access, marks)
        near = self._near(owners, self.owner[access.sel][:, None])
        bad = near & ~unordered & self.clocks.unfenced(access.sel, np.where(near, tags, np.uint32(0)), "global")
        if bad.any():
            pcs = marks.pc.gather(access.index, access.width)
            code = self.machine.entry.instructions
            generic = [pc for pc in np.unique(pcs[bad]).tolist() if not in_async_proxy(code[pc])]
            bad &= np.isin(pcs, generic)
        if bad.any():
            what = "reads in the async proxy what {other} wrote in the generic proxy"
            self._report(access, bad, owners, tags, marks, what, USUALLY_PROXY, "proxy")

    def _check_strong(self, access: Access, what: str, matters: Callable[[], Mask] | None, *, reads: bool) -> None:
        """A weak access must come after strong accesses of other threads; reads do not conflict with reads."""
        if self._strong:
            self._check(access, self.history.strong, what, matters)
            self._check(access, self.history.earlier, what, lambda: self._behind_update(access, matters))
            if not reads:
                self._check(access, self.history.watched, "overwrites what {other} reads", matters)

    def _behind_update(self, access: Access, matters: Callable[[], Mask] | None) -> Mask:
        """Which relevant accesses may conflict with atomic operations of other threads.

        Accesses of a warp whose own atomic operation was the last on the place are excluded: the operation comes after
        all earlier ones in the place's coherence order, and the warp's next access to the place comes after the
        operation (PTX ISA, "Coherence"; the counter that the last block resets in the CUDA C++ Programming Guide,
        "Memory Fence Functions").
        """
        last = self.history.strong
        owners, tags, pcs = (each.gather(access.index, access.width) for each in (last.owner, last.tag, last.pc))
        own = owners == self.owner[access.sel][:, None]
        own &= tags >> ACTOR_SHIFT == (self.clocks.tags(access.sel) >> ACTOR_SHIFT)[:, None]
        others: Mask = ~(own & self._updates[pcs]).all(axis=1)
        return others if matters is None else others & matters()

    def _check_scopes(self, access: Access, order: MemoryOrder, what: str, marks: Marks) -> None:
        """The scopes of two unordered strong operations must include each other's thread."""
        if not self._narrow or self.log.seen("race", access.instruction):
            return
        bad, owners, tags = self._unordered(access, marks)
        if not bad.any():
            return
        own = self.owner[access.sel][:, None]
        relation = np.where(self._near(owners, own), SAME_CLUSTER, SAME_GPU)
        relation[owners == own] = SAME_CTA
        pcs = marks.pc.gather(access.index, access.width)
        levels = np.full(len(self.machine.entry.instructions), LEVELS["sys"])
        for pc in np.unique(pcs[bad]).tolist():
            levels[pc] = memory_order(self.machine.entry.instructions[pc]).level
        bad &= relation > np.minimum(levels[pcs], order.level)
        if bad.any():
            self._report(access, bad, owners, tags, marks, what, _USUALLY_SCOPE)

    def _check_scopes_together(self, access: Access, order: MemoryOrder) -> None:
        """The same check for atomic operations of different blocks in this step."""
        if order.level >= SAME_GPU or len(access.index) < 2:
            return
        place = access.index // access.width
        self.order.last[place] = rows = np.arange(len(access.index), dtype=np.int32)
        last = self.order.last[place]
        own = self.owner[access.sel]
        cluster = self.history.cluster_of[own - 1]
        relation = np.where(cluster[rows] == cluster[last], SAME_CLUSTER, SAME_GPU)
        relation[own == own[last]] = SAME_CTA
        bad = relation > order.level
        if bad.any():
            row = int(bad.argmax())
            lanes = indices(access.sel)
            other = conflicting_access_at(self.machine, access.instruction, int(lanes[last[row]]))
            text = f"updates what {{other}} updates at the same time, {place_of(self.machine, access, row)}"
            self.log.add(self.machine, "race", access.instruction, int(lanes[row]), text, _USUALLY_SCOPE, other)

    def _mark(self, access: Access, marks: Marks, tags: Array | None = None) -> None:
        marks.owner.scatter(access.index, access.width, self.owner[access.sel])
        marks.tag.scatter(access.index, access.width, self.clocks.tags(access.sel) if tags is None else tags)
        marks.pc.scatter(access.index, access.width, np.full(len(access.index), access.instruction.pc, dtype=np.uint32))

    def _mark_strong(self, access: Access) -> None:
        """Mark the last strong write of each place; of earlier ones, keep one that is not ordered before this."""
        last = self.history.strong
        bad, owners, tags = self._unordered(access, last)
        moved: Mask = np.asarray(bad.any(axis=1))
        if moved.any():
            pcs = last.pc.gather(access.index[moved], access.width).max(axis=1)
            self._mark_earlier(access, moved, owners[moved].max(axis=1), tags[moved].max(axis=1), pcs)
        self._mark(access, last)
        mine, own = self.clocks.tags(access.sel), self.owner[access.sel]
        owners, tags = (each.gather(access.index, access.width).max(axis=1) for each in (last.owner, last.tag))
        left: Mask = np.logical_or(owners != own, tags != mine, out=np.empty(len(own), np.bool_))
        if left.any():  # other threads did the same in this step
            pcs = np.full(int(left.sum()), access.instruction.pc, np.uint32)
            self._mark_earlier(access, left, own[left], mine[left], pcs)

    def _mark_earlier(self, access: Access, where: Mask, owners: Array, tags: Array, pcs: Array) -> None:
        accesses, seats = np.stack([owners, tags, pcs]), self.clocks.seat[access.sel][where]
        self.order.add(self.history.earlier, access.index[where], access.width, accesses, seats)

    def _mark_read(self, access: Access, marks: Marks, tags: Array | None = None) -> None:
        """Add a read to the unordered reads of the place. ``tags`` are those of the lanes, or of a copy."""
        own, seats = self.owner[access.sel], self.clocks.seat[access.sel]
        tags = self.clocks.tags(access.sel) if tags is None else tags
        owners, before = (each.gather(access.index, access.width) for each in (marks.owner, marks.tag))
        mine = (owners == own[:, None]) & (before >> ACTOR_SHIFT == (tags >> ACTOR_SHIFT)[:, None])
        joins: Mask = ~((owners == 0) | mine).all(axis=1)
        place = access.index // access.width
        self.order.last[place] = np.arange(len(place), dtype=np.int32)
        last = self.order.last[place]
        together = seats != seats[last]
        joins |= together
        joins[last[together]] = True
        if not joins.any():
            self._mark(access, marks, tags)
            return
        rows = np.flatnonzero(~joins)
        pcs = np.full(len(own), access.instruction.pc, np.uint32)
        for each, words in zip((marks.owner, marks.tag, marks.pc), (own, tags, pcs), strict=True):
            each.scatter(access.index[rows], access.width, words[rows])
        joins &= (owners != SEVERAL).any(axis=1)
        accesses = np.stack([own, tags, pcs])[:, joins]
        self.order.add(marks, access.index[joins], access.width, accesses, seats[joins])

    def _report(
        self,
        access: Access,
        bad: Mask,
        owners: Array,
        tags: Array,
        marks: Marks,
        what: str,
        usually: str = "",
        kind: str = "race",
    ) -> None:
        machine = self.machine
        row, column = (int(place[0]) for place in np.nonzero(bad))
        owner, tag = int(owners[row, column]), int(tags[row, column])
        words = (each.gather(access.index[row : row + 1], access.width) for each in (marks.owner, marks.tag, marks.pc))
        first, last, pc = (int(each[0, column]) for each in words)
        if owner != first:  # a member of a group
            pc = next(each.pc for each in self.history.members(first, last, pc) if each[:2] == (owner, tag))
        instruction, lane = machine.entry.instructions[pc], int(indices(access.sel)[row])
        several, near = owner == SEVERAL, bool(self._near(np.array([owner]), np.array([self.owner[lane]]))[0])
        other = conflicting_access_of(
            machine,
            instruction,
            block=None if several else machine.block_of(owner - 1),
            warp=None if several else (tag >> int(ACTOR_SHIFT)) % machine.warps,
            note="in several blocks" if several else "",
        )
        if near and tag >> int(ACTOR_SHIFT) >= self.clocks.actors:  # an access of a copy
            other = self.race.access_behind(lane, tag)
            usually = usually or self.race.wait_advice(int(self.clocks.seat[lane])) or USUALLY_IN_FLIGHT
        if not usually:
            advice = "" if several else self.advice(int(self.clocks.seat[lane]), owner - 1, tag & int(TIME_MASK))
            usually = advice or (_USUALLY_BARRIER if owner == int(self.owner[lane]) else _USUALLY)
        if self.volatile_is_data and any(memory_order(each).volatile for each in (access.instruction, instruction)):
            usually += _NOTE_VOLATILE
        text = f"{what}, {place_of(machine, access, row)}"
        self.log.add(machine, kind, access.instruction, lane, text, usually, other)


def _of_group(owners: Array) -> Mask:
    """Which owners of marks are groups."""
    groups: Mask = (owners >= FIRST_GROUP) & (owners != SEVERAL)
    return groups
