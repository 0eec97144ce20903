"""The ``race`` check for shared memory: two accesses to the same bytes, one of them a write, and nothing that orders them.

For every granule of shared memory it keeps who wrote it last and when each warp read it last, as tags of
:mod:`~sdpalab.sim.checks.clocks`, with the instruction. An access is compared with what its warp knows of the others. Lanes that
execute one instruction together are compared with each other by what is left after all of them have written. Writing the value that
is there already is benign.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from sdpalab.sim.checks.clocks import ACTOR_SHIFT, CLOCK_MASK, Clocks
from sdpalab.sim.checks.shadow import Shadow, granule_of
from sdpalab.sim.hazards import HazardLog
from sdpalab.sim.ir import Instruction
from sdpalab.sim.machine import Machine, Observer
from sdpalab.sim.memory import Space
from sdpalab.sim.selection import Array, Indices, Mask, Selection, indices

__all__ = ["RaceCheck"]

_USUALLY = "usually a missing barrier between them"
_USUALLY_ASYNC = "usually a missing wait for the copy, or a missing barrier after that wait"


class RaceCheck(Observer):
    """Races between the warps of a CTA, and with the asynchronous operations they issued, in shared memory."""

    def __init__(self, machine: Machine, log: HazardLog) -> None:
        self.machine, self.log = machine, log
        self.clocks = Clocks(machine)
        size, granule = len(machine.spaces["shared"].data), granule_of(machine.entry, ("shared",))
        self.writer = Shadow(size, granule)
        self.writer_pc = Shadow(size, granule)
        self.reader = Shadow(size, granule, self.clocks.actors)
        """The clock of each actor's last read, a plane for each actor."""
        self.reader_pc = Shadow(size, granule, self.clocks.actors)
        self.atomic_writer = Shadow(size, granule)
        machine.on_reset.append(self.reset)

    def reset(self) -> None:
        """A new chunk of CTAs: nobody has accessed anything."""
        self.clocks.reset()
        for shadow in (self.writer, self.writer_pc, self.reader, self.reader_pc, self.atomic_writer):
            shadow.clear()

    # ---- accesses ---------------------------------------------------------------------------------------------------

    def load(
        self, space: Space, offset: Indices, index: Indices, width: int, sel: Selection, instruction: Instruction
    ) -> None:
        """A read must come after the last write."""
        if space.name != "shared":
            return
        self._check_writer(space, offset, index, width, sel, instruction, None, "reads what {other} wrote")
        self._mark_read(index, width, sel, instruction, self.clocks.tags(sel))

    def store(
        self,
        space: Space,
        offset: Indices,
        index: Indices,
        width: int,
        sel: Selection,
        instruction: Instruction,
        words: Array | None,
    ) -> None:
        """A write must come after the last write and after all reads."""
        if space.name != "shared":
            return
        changes = None if words is None else self._changes(space, index, width, words)
        self._check_writer(space, offset, index, width, sel, instruction, changes, "overwrites what {other} wrote")
        self._check_readers(offset, index, width, sel, instruction, changes)
        tags = self.clocks.tags(sel)
        self._mark_write(index, width, instruction, tags)
        if words is not None:
            self._check_together(offset, index, width, sel, instruction, tags, words)

    def atomic(
        self, space: Space, offset: Indices, index: Indices, width: int, sel: Selection, instruction: Instruction
    ) -> None:
        """Atomic operations do not race with each other, but with everything else."""
        if space.name != "shared":
            return
        plain = self.atomic_writer.gather(index, width).max(axis=1) == 0
        self._check_writer(space, offset, index, width, sel, instruction, plain, "updates what {other} wrote")
        self._check_readers(offset, index, width, sel, instruction, None)
        self._mark_write(index, width, instruction, self.clocks.tags(sel))
        self.atomic_writer.scatter(index, width, np.ones(len(index), dtype=np.uint32))

    def issue(
        self,
        space: Space,
        offset: Indices,
        index: Indices,
        width: int,
        sel: Selection,
        instruction: Instruction,
        *,
        writes: bool,
    ) -> Array | None:
        """An asynchronous access is its issuer's twin's: others know of it when they know that it has completed."""
        if space.name != "shared":
            return None
        what = "overwrites what {other} wrote" if writes else "reads what {other} wrote"
        self._check_writer(space, offset, index, width, sel, instruction, None, what)
        tags = self.clocks.issue(sel)
        if writes:
            self._check_readers(offset, index, width, sel, instruction, None)
            self._mark_write(index, width, instruction, tags)
        else:
            self._mark_read(index, width, sel, instruction, tags)
        return tags

    def complete(self, ticket: Array, sel: Selection) -> None:
        """See :meth:`Clocks.complete`."""
        self.clocks.complete(ticket, sel)

    def release(self, key: Hashable, sel: Selection) -> None:
        """See :meth:`Clocks.release`."""
        self.clocks.release(key, sel)

    def acquire(self, key: Hashable, sel: Selection) -> None:
        """See :meth:`Clocks.acquire`."""
        self.clocks.acquire(key, sel)

    def forget(self, key: Hashable, ctas: Mask) -> None:
        """See :meth:`Clocks.forget`."""
        self.clocks.forget(key, ctas)

    # ---- rules ------------------------------------------------------------------------------------------------------

    def _check_writer(
        self,
        space: Space,
        offset: Indices,
        index: Indices,
        width: int,
        sel: Selection,
        instruction: Instruction,
        matters: Mask | None,
        what: str,
    ) -> None:
        tags = self.writer.gather(index, width)
        actors = tags >> ACTOR_SHIFT
        unordered = (tags & CLOCK_MASK) > self.clocks.known(sel, actors)
        if matters is not None:
            unordered &= matters[:, None]
        if unordered.any() and not self.log.seen("race", instruction):
            lane, column = (int(place[0]) for place in np.nonzero(unordered))
            pc = int(self.writer_pc.gather(index[lane : lane + 1], width)[0, column])
            self._report(sel, offset, lane, width, instruction, what, int(actors[lane, column]), pc)

    def _check_readers(
        self,
        offset: Indices,
        index: Indices,
        width: int,
        sel: Selection,
        instruction: Instruction,
        matters: Mask | None,
    ) -> None:
        for actor in self.clocks.readers:
            clocks = self.reader.gather(index, width, actor)
            known = self.clocks.known(sel, np.full(len(index), actor))
            unordered = clocks > known[:, None]
            if matters is not None:
                unordered &= matters[:, None]
            if unordered.any() and not self.log.seen("race", instruction):
                lane, column = (int(place[0]) for place in np.nonzero(unordered))
                pc = int(self.reader_pc.gather(index[lane : lane + 1], width, actor)[0, column])
                self._report(sel, offset, lane, width, instruction, "overwrites what {other} reads", actor, pc)

    def _check_together(
        self,
        offset: Indices,
        index: Indices,
        width: int,
        sel: Selection,
        instruction: Instruction,
        tags: Array,
        words: Array,
    ) -> None:
        """Lanes of different warps that wrote the same place in this very step, and not the same value."""
        left = self.writer.gather(index, width)
        lost = (left != tags[:, None]).any(axis=1)
        for lane in np.flatnonzero(lost):
            rivals = np.flatnonzero(index == index[lane])
            if (words[rivals].view(np.uint8) != np.tile(words[lane : lane + 1].view(np.uint8), len(rivals))).any():
                actor = int(left[lane].max() >> ACTOR_SHIFT)
                what = "writes what {other} writes at the same time"
                self._report(sel, offset, int(lane), width, instruction, what, actor, instruction.pc)
                return

    @staticmethod
    def _changes(space: Space, index: Indices, width: int, words: Array) -> Mask:
        """Which writes change anything: the others are benign."""
        before = space.load(index, width)
        if width <= 8:
            return before != words.view(before.dtype)
        pairs = before.view(np.uint64) != words.view(np.uint64)
        changed: Mask = pairs.reshape(len(index), -1).any(axis=1)
        return changed

    def _mark_write(self, index: Indices, width: int, instruction: Instruction, tags: Array) -> None:
        self.writer.scatter(index, width, tags)
        self.writer_pc.scatter(index, width, np.full(len(index), instruction.pc, dtype=np.uint32))
        self.atomic_writer.scatter(index, width, np.zeros(len(index), dtype=np.uint32))

    def _mark_read(self, index: Indices, width: int, sel: Selection, instruction: Instruction, tags: Array) -> None:
        planes = (tags >> ACTOR_SHIFT).astype(np.int64)
        self.clocks.readers.update(np.flatnonzero(np.bincount(planes)).tolist())
        self.reader.scatter(index, width, tags & CLOCK_MASK, planes)
        self.reader_pc.scatter(index, width, np.full(len(index), instruction.pc, dtype=np.uint32), planes)

    def _report(
        self,
        sel: Selection,
        offset: Indices,
        lane: int,
        width: int,
        instruction: Instruction,
        what: str,
        actor: int,
        other_pc: int,
    ) -> None:
        machine = self.machine
        other = machine.entry.instructions[other_pc]
        asynchronous = actor >= self.clocks.warps
        warp = actor - self.clocks.warps if asynchronous else actor
        source = machine.source(other)
        party = (
            f"{other.text} of warp {warp}{', in flight,' if asynchronous else ''} "
            f"at {f'{source}, ' if source else ''}PTX line {other.line}"
        )
        text = f"{what.format(other=party)}, {width} bytes of shared memory at offset {int(offset[lane])}"
        usually = _USUALLY_ASYNC if asynchronous else _USUALLY
        self.log.add(machine, "race", instruction, int(indices(sel)[lane]), text, usually)
