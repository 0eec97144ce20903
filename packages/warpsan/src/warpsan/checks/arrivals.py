"""Arrivals at mbarriers and waits for their phases, with their orders and scopes (PTX ISA, "mbarrier.arrive",
"mbarrier.test_wait, mbarrier.try_wait").

An arrival releases and a wait acquires by default. The two synchronise if the scope of each includes the other thread:
``.cta`` is enough in the CTA that has the mbarrier, an arrival from another CTA and the wait for it need ``.cluster``.
So each mbarrier has two vectors, of arrivals of its own CTA and of those of others. A relaxed arrival passes on what a
fence before it releases, and a relaxed wait acquires at a fence behind it ("Release and Acquire Patterns").

An instruction without a scope has ``.cta``, by the letter. Pipelines of a cluster write none (CUTLASS's
``ClusterBarrier`` is one), and so only the ``strict`` check holds that against them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np

from warpsan.checks.clocks import Clocks, far
from warpsan.checks.lanes import LaneOrder
from warpsan.checks.orders import SAME_CLUSTER, SAME_CTA, MemoryOrder, arrival_order
from warpsan.checks.scopes import Synchronisation
from warpsan.engine.machine import Machine
from warpsan.engine.observer import CompletionBarrier
from warpsan.engine.selection import Array, Indices, Mask, Selection, indices, subset
from warpsan.ptx.ir import Instruction

__all__ = ["Arrivals"]

_RELAXED_ARRIVAL = "the arrival at the mbarrier is .relaxed: use .release, or a fence before it"
_TOO_EARLY = "the arrival at the mbarrier is .relaxed, and the access is not before its fence: use .release"
_RELAXED_IN_CLUSTER = "the arrival at the barrier of the cluster is .relaxed: use .release, or a fence before it"
_NARROW_ARRIVAL = (
    "the arrival at the mbarrier is .cta, and the thread that waits is in another block of the cluster: use "
    ".release.cluster"
)
_RELAXED_WAIT = "the wait for the mbarrier is .relaxed: use .acquire, or a fence behind it"
_NARROW_WAIT = (
    "the wait for the mbarrier is .cta, and the other thread is in another block of the cluster: use .acquire.cluster"
)


class Arrivals:
    """What arrivals at mbarriers pass on to those who wait.

    Parameters
    ----------
    machine : Machine
    clocks : Clocks
    sync : Synchronisation
    lanes : LaneOrder
    letter : bool
        Whether an instruction without a scope has that of the CTA.
    """

    def __init__(
        self, machine: Machine, clocks: Clocks, sync: Synchronisation, lanes: LaneOrder, *, letter: bool
    ) -> None:
        self.machine, self.clocks, self.sync, self.lanes, self.letter = machine, clocks, sync, lanes, letter
        self._read: dict[int, list[tuple[int, Array, Hashable, int]]] = {}
        """For each warp what its relaxed waits have observed: the relation, what was released, and where."""
        self._lacking: dict[tuple[int, int, str], int] = {}
        """By the block that arrived, the CTA of the mbarrier, and what its arrival lacked: when it last did so."""
        self._waits: dict[int, str] = {}
        """What the last wait of each warp lacked."""
        self._released: dict[tuple[int, int], int] = {}
        """By the block that arrived and the CTA of the mbarrier, when it last released; kept if waits may lack."""
        self._any_waits = any(map(self._may_lack, machine.entry.instructions))

    def reset(self) -> None:
        """A new chunk of CTAs."""
        for table in (self._read, self._lacking, self._waits, self._released):
            table.clear()

    def _may_lack(self, instruction: Instruction) -> bool:
        """Whether it is a wait that does not acquire from all threads of a cluster."""
        if instruction.opcode != "mbarrier" or not {"test_wait", "try_wait"} & set(instruction.mods):
            return False
        order = arrival_order(instruction)
        return not order.acquire or (self.machine.cluster_size > 1 and self._level(order) < SAME_CLUSTER)

    def _level(self, order: MemoryOrder) -> int:
        return SAME_CLUSTER if order.implied and not self.letter else order.level

    # ---- events -----------------------------------------------------------------------------------------------------

    def arrive(self, barrier: CompletionBarrier, sel: Selection, order: MemoryOrder) -> None:
        """Lanes arrive."""
        for relation, lanes, home in self._by_relation(barrier, sel):
            key = barrier.key if relation == SAME_CTA else far(barrier.key)
            if self._level(order) < relation:
                self._lack(lanes, home, _NARROW_ARRIVAL)
                continue
            if order.release:
                self.lanes.arrive(lanes)
                self.sync.post(key, lanes, home)
                self.clocks.release(key, lanes, home)
            else:
                fenced = self.sync.fence_levels(self.clocks.seats(lanes)) >= relation
                self._lack(lanes, home, _TOO_EARLY if fenced.all() else _RELAXED_ARRIVAL)
                if self.sync.active:
                    self.sync.post(key, lanes, home, fenced=relation)
                    self.clocks.release(key, lanes, home, fenced=self.sync.fenced(relation))
            if self._any_waits:
                self._released |= dict.fromkeys(self._blocks(lanes, home), self.clocks.now)

    def arrive_in_cluster(self, sel: Selection) -> None:
        """Lanes arrive at the barrier of their cluster, relaxed: each CTA may lack what came behind their fences."""
        first = self.machine.cta[sel] // self.machine.cluster_size * self.machine.cluster_size
        for rank in range(self.machine.cluster_size):
            self._lack(sel, first + rank, _RELAXED_IN_CLUSTER)

    def leave(self, barrier: CompletionBarrier, sel: Selection, order: MemoryOrder) -> None:
        """The phase is over that lanes have waited for."""
        keys = [barrier.key, far(barrier.key)] if self.machine.cluster_size > 1 else [barrier.key]
        level = self._level(order)
        if len(keys) > level + 1 or not order.acquire:
            text = _NARROW_WAIT if order.acquire else _RELAXED_WAIT
            self._waits |= dict.fromkeys(self.clocks.seats(sel).tolist(), text)
        for relation, key in enumerate(keys[: level + 1]):
            target = (key, "complete")
            if order.acquire:
                self.lanes.leave(sel)
                self.sync.collect(target, sel, barrier.home)
                self.clocks.acquire(target, sel, barrier.home)
            else:
                self._observe(relation, target, sel, barrier.home)

    def _observe(self, relation: int, target: Hashable, sel: Selection, home: Indices) -> None:
        """Relaxed waits: what was released is kept for a fence."""
        for seat, cta in set(zip(self.clocks.seat[sel].tolist(), home.tolist(), strict=True)):
            rows = self.clocks.passed_on(target, cta)
            if rows is not None:
                self._read.setdefault(seat, []).append((relation, rows, target, cta))

    def publish(self, source: Hashable, target: Hashable, ctas: Mask) -> None:
        """A phase is over."""
        for one, other in ((source, target), (far(source), (far(source), "complete"))):
            self.sync.publish(one, other, ctas)
            self.clocks.publish(one, other, ctas)

    def fence(self, sel: Selection, order: MemoryOrder) -> None:
        """Lanes execute a fence: it acquires what relaxed waits have observed."""
        if not self._read or not order.acquire:
            return
        for seat in self.clocks.seats(sel).tolist():
            left = []
            for entry in self._read.pop(seat, []):
                relation, rows, target, cta = entry
                if relation > order.level:
                    left.append(entry)
                    continue
                self.clocks.join(seat, rows)
                self.sync.take(seat, target, cta)
                self.lanes.leave(sel)
            if left:
                self._read[seat] = left

    # ---- questions --------------------------------------------------------------------------------------------------

    def advice(self, seat: int, block: int, time: int) -> str:
        """What an arrival of ``block`` lacked, or the wait of this warp or of another of its CTA, so that the warp does
        not come after what the block did at a time; empty if there was none."""
        cta = seat // self.machine.warps
        lacks = [text for (*pair, text), last in self._lacking.items() if pair == [block, cta] and last >= time]
        for text in lacks:
            if text != _TOO_EARLY:
                return text
        released = self._released.get((block, cta), -1) >= time
        return (self.wait_advice(seat) if released else "") or next(iter(lacks), "")

    def wait_advice(self, seat: int) -> str:
        """What the last wait lacked, of this warp or of another of its CTA."""
        first = seat // self.machine.warps * self.machine.warps
        return next(
            (self._waits[each] for each in (seat, *range(first, first + self.machine.warps)) if each in self._waits), ""
        )

    # ---- who --------------------------------------------------------------------------------------------------------

    def _by_relation(self, barrier: CompletionBarrier, sel: Selection) -> Iterator[tuple[int, Selection, Indices]]:
        """(relation to the CTA of the mbarrier, lanes, their mbarriers' CTAs)."""
        if self.machine.cluster_size == 1:
            yield SAME_CTA, sel, barrier.home
            return
        near = self.machine.cta[sel] == barrier.home
        for relation, mask in ((SAME_CTA, near), (SAME_CLUSTER, ~near)):
            if mask.all():
                yield relation, sel, barrier.home
            elif mask.any():
                yield relation, subset(sel, mask), barrier.home[mask]

    def _lack(self, sel: Selection, home: Indices, text: str) -> None:
        for block, cta in self._blocks(sel, home):
            self._lacking[block, cta, text] = self.clocks.now

    def _blocks(self, sel: Selection, home: Indices) -> set[tuple[int, int]]:
        """(block of the lanes, CTA of the chunk that has their mbarrier)."""
        blocks = self.machine.cta_ids[self.machine.cta[indices(sel)]]
        return set(zip(blocks.tolist(), np.asarray(home).tolist(), strict=True))
