"""The ``race`` check for global memory: unordered accesses of different blocks, or of a block's warps.

Blocks of a grid run in any order, or at the same time. What orders them is a strong operation: an atomic, or an ld or
st that is volatile, relaxed, acquire or release. One that reads a place which another block wrote so orders that
block's accesses up to then before the reader's later ones; that a fence belongs in between is not checked. Steps in
which more than a thousand lanes do atomics (histograms, sums) order nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sdpalab.sim.checks.clocks import ACTOR_SHIFT, TIME_MASK, Clocks
from sdpalab.sim.checks.shadow import Shadow, granule_of
from sdpalab.sim.hazard_log import HazardLog, conflicting_access_of
from sdpalab.sim.ir import Entry
from sdpalab.sim.machine import Machine
from sdpalab.sim.observer import Access, Observer
from sdpalab.sim.selection import Array, Mask, indices

__all__ = ["STRONG", "GlobalHistory", "GlobalRaceCheck", "Marks"]

STRONG = frozenset({"volatile", "relaxed", "acquire", "release"})
"""Modifiers of an ld or st that blocks may synchronise with."""
_SEVERAL = np.uint32(0xFFFFFFFF)
"""In place of a block: more than one has read."""
_MOST_SYNCHRONISING = 1024
_FOREVER = int(TIME_MASK)


@dataclass
class Marks:
    """The last access to each granule: block + 1 (0: none), the tag of the warp, and the instruction."""

    owner: Shadow
    tag: Shadow
    pc: Shadow


class GlobalHistory:
    """Accesses to global memory by all chunks of a launch.

    Parameters
    ----------
    entry : Entry
    size : int
        Bytes of the arena.
    """

    def __init__(self, entry: Entry, size: int) -> None:
        granule = granule_of(entry, ("global",))
        self.writes, self.reads, self.strong = (
            Marks(Shadow(size, granule), Shadow(size, granule), Shadow(size, granule)) for _ in range(3)
        )
        self.ordered: dict[int, dict[int, int]] = {}
        """For a block, the blocks whose accesses it comes after, and up to which time of its chunk."""

    def chunk_begins(self) -> None:
        """Time begins anew: what was ordered before stays so."""
        for earlier in self.ordered.values():
            earlier.update(dict.fromkeys(earlier, _FOREVER))


class GlobalRaceCheck(Observer):
    """Races in global memory, with the vector clocks of the check for shared memory for warps of one block."""

    def __init__(self, machine: Machine, log: HazardLog, clocks: Clocks, history: GlobalHistory) -> None:
        self.machine, self.log, self.clocks, self.history = machine, log, clocks, history
        self.owner: Array = np.empty(0, np.uint32)
        """Each lane's block + 1."""
        machine.on_reset.append(self.reset)

    def reset(self) -> None:
        """A new chunk of CTAs."""
        self.owner = (self.machine.cta_ids + 1).astype(np.uint32)[self.machine.cta]
        self.history.chunk_begins()

    def load(self, access: Access) -> None:
        """A read must not meet another block's write."""
        if access.space.name != "global":
            return
        self.clocks.tick(access.instruction)
        if STRONG.isdisjoint(access.instruction.mods):
            self._check(access, self.history.writes, "reads what {other} wrote", None)
            self._mark_read(access)
        else:
            self._acquire(access)

    def store(self, access: Access, words: Array | None) -> None:
        """A write must not meet another block's access, unless it changes nothing."""
        if access.space.name != "global":
            return
        self.clocks.tick(access.instruction)
        if not STRONG.isdisjoint(access.instruction.mods):
            self._mark(access, self.history.strong)
            return
        changes = None if words is None else access.changes(words)
        self._check(access, self.history.writes, "overwrites what {other} wrote", changes)
        self._check(access, self.history.reads, "overwrites what {other} reads", changes)
        self._mark(access, self.history.writes)
        if words is not None:
            self._check_together(access, words)

    def atomic(self, access: Access) -> None:
        """Atomic operations race only with plain accesses of others, and order the accesses before and after them at
        one place."""
        if access.space.name != "global":
            return
        self.clocks.tick(access.instruction)
        self._check(access, self.history.writes, "updates what {other} wrote", None)
        self._check(access, self.history.reads, "updates what {other} reads", None)
        self._acquire(access, writes=True)
        self._mark(access, self.history.strong)

    # ---- rules ------------------------------------------------------------------------------------------------------

    def _check(self, access: Access, marks: Marks, what: str, matters: Mask | None) -> None:
        owners = marks.owner.gather(access.index, access.width)
        own = self.owner[access.sel][:, None]
        tags = marks.tag.gather(access.index, access.width)
        bad = (owners != 0) & (owners != own)
        within = self.clocks.unordered(access.sel, np.where(owners == own, tags, np.uint32(0)))
        if within is not None:
            bad |= within
        if matters is not None:
            bad &= matters[:, None]
        if not bad.any() or self.log.seen("race", access.instruction):
            return
        for lane, column in zip(*np.nonzero(bad), strict=True):
            owner, tag = int(owners[lane, column]), int(tags[lane, column])
            block = int(own[lane, 0])
            ordered = self.history.ordered.get(block, {})
            if ordered and owner == _SEVERAL:  # which of the readers it comes after is not kept
                continue
            if owner != block and ordered.get(owner, -1) >= tag & int(TIME_MASK):
                continue
            pc = int(marks.pc.gather(access.index[lane : lane + 1], access.width)[0, column])
            self._report(access, int(lane), what, owner, tag, pc)
            return

    def _check_together(self, access: Access, words: Array) -> None:
        """Lanes of different blocks or warps that wrote one place in this step, and not the same value."""
        tags = self.clocks.tags(access.sel)[:, None]
        left_tags = self.history.writes.tag.gather(access.index, access.width)
        left_owners = self.history.writes.owner.gather(access.index, access.width)
        for lane in np.flatnonzero(
            ((left_tags != tags) | (left_owners != self.owner[access.sel][:, None])).any(axis=1)
        ):
            rivals = words[access.index == access.index[lane]].view(np.uint8).reshape(-1, access.width)
            if (rivals != rivals[0]).any():
                what = "writes what {other} writes at the same time"
                owner, tag = int(left_owners[lane].max()), int(left_tags[lane].max())
                self._report(access, int(lane), what, owner, tag, access.instruction.pc)
                return

    def _mark(self, access: Access, marks: Marks) -> None:
        marks.owner.scatter(access.index, access.width, self.owner[access.sel])
        marks.tag.scatter(access.index, access.width, self.clocks.tags(access.sel))
        marks.pc.scatter(access.index, access.width, np.full(len(access.index), access.instruction.pc, dtype=np.uint32))

    def _mark_read(self, access: Access) -> None:
        own, owner = self.owner[access.sel][:, None], self.history.reads.owner
        before = owner.gather(access.index, access.width)
        self._mark(access, self.history.reads)
        together = owner.gather(access.index, access.width) != own
        others = ((before != 0) & (before != own) | together).any(axis=1)
        if others.any():
            owner.scatter(access.index[others], access.width, np.full(int(others.sum()), _SEVERAL, dtype=np.uint32))

    def _acquire(self, access: Access, *, writes: bool = False) -> None:
        """Each lane comes after what the last strong writer of its place did until then, and came after itself.

        Atomics of one step (``writes``) come one after the other, in the order of the lanes.
        """
        if len(access.index) > _MOST_SYNCHRONISING:
            return
        ordered = self.history.ordered
        owners = self.history.strong.owner.gather(access.index, access.width).max(axis=1)
        times = (self.history.strong.tag.gather(access.index, access.width) & TIME_MASK).max(axis=1)
        live = set((self.machine.cta_ids + 1).tolist())
        last = dict(zip(access.index.tolist(), zip(owners.tolist(), times.tolist(), strict=True), strict=True))
        for block, place in zip(self.owner[access.sel].tolist(), access.index.tolist(), strict=True):
            owner, time = last[place]
            if writes:
                last[place] = block, self.clocks.now
            if owner in (0, block):
                continue
            mine = ordered.setdefault(block, {})
            until = time if owner in live else _FOREVER
            for each, when in ((owner, until), *ordered.get(owner, {}).items()):
                mine[each] = max(mine.get(each, -1), when)

    def _report(self, access: Access, lane: int, what: str, owner: int, tag: int, pc: int) -> None:
        machine = self.machine
        several = owner == _SEVERAL
        other = conflicting_access_of(
            machine,
            machine.entry.instructions[pc],
            block=None if several else machine.block_of(owner - 1),
            warp=None if several else (tag >> int(ACTOR_SHIFT)) % machine.warps,
            note="in several blocks" if several else "",
        )
        extent = machine.spaces["global"].extent_near(int(access.index[lane]))
        place = f"byte {int(access.index[lane]) - extent.begin} of {extent.name}" if extent else "global memory"
        text = f"{what}, {access.width} bytes at {place}"
        usually = (
            "usually a missing barrier"
            if owner == int(self.owner[access.sel][lane])
            else "blocks run in any order: use an atomic, or give each its own part"
        )
        self.log.add(machine, "race", access.instruction, int(indices(access.sel)[lane]), text, usually, other)
