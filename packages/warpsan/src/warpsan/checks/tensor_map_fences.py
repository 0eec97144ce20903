"""Part of the ``race`` check: a tensor map that this launch has written needs a fence between the proxies before use.

Copies of boxes read their tensor map in the tensor map proxy. A pair of fences orders a write in the generic proxy
(``tensormap.replace``, a store, ``tensormap.cp_fenceproxy``) before that read. The first is a
``fence.proxy.tensormap::generic.release`` after the write; the copy of ``tensormap.cp_fenceproxy`` is one. The second
is a ``fence.proxy.tensormap::generic.acquire`` on the 128 bytes of the map, after synchronisation with the first, and
before the use. The scope of each includes the thread of the other (PTX ISA, "Memory Consistency Model: Proxies",
"membar, fence", "tensormap.cp_fenceproxy").

Fences count for all lanes of their warp. Maps among a kernel's parameters are constant, and need none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from warpsan.checks.clocks import ACTOR_SHIFT, TIME_MASK, Clocks
from warpsan.checks.global_history import GlobalHistory, Marks
from warpsan.checks.orders import LEVELS, SAME_CLUSTER, SAME_CTA, SAME_GPU
from warpsan.checks.scopes import Synchronisation
from warpsan.engine.machine import Machine
from warpsan.engine.observer import Access
from warpsan.engine.selection import Array, Selection, indices
from warpsan.host.tensor_map import DESCRIPTOR_BYTES
from warpsan.ptx.ir import Instruction
from warpsan.ptx.opcodes import in_async_proxy
from warpsan.report.hazard_log import HazardLog, conflicting_access_of

__all__ = ["MAP_CHUNK", "TensorMapFences"]

MAP_CHUNK = 16
"""Bytes of a map in one lookup of last accesses."""
_SCOPES = {SAME_CTA: ".cta", SAME_CLUSTER: ".cluster", SAME_GPU: ".gpu"}
_ACQUIRE = (
    "usually a missing fence.proxy.tensormap::generic.acquire{scope} [map], 128 in the thread that issues the copy, "
    "behind what it waits for"
)
_RELEASE = (
    "usually a missing fence.proxy.tensormap::generic.release{scope} between the write and what announces it; "
    "tensormap.cp_fenceproxy is both a copy and such a fence"
)


@dataclass(frozen=True)
class _MapFence:
    """A fence of a warp: its block + 1, warp index, tag, scope and vector of its cluster; for an acquire, also the
    bytes of the map and the releases before it."""

    block: int
    seat: int
    tag: int
    level: int
    knows: Array
    begin: int = 0
    releases: tuple[_MapFence, ...] = field(default=(), repr=False)


class TensorMapFences:
    """Keeps the fences of the tensor map proxy, and reports maps that are used without them.

    Parameters
    ----------
    machine, log : as for every check
    clocks, sync, history
        Parts of the race check that this belongs to.
    """

    def __init__(
        self, machine: Machine, log: HazardLog, clocks: Clocks, sync: Synchronisation, history: GlobalHistory
    ) -> None:
        self.machine, self.log, self.clocks, self.sync, self.history = machine, log, clocks, sync, history
        self._releases: list[_MapFence] = []
        """The releases of this launch, including those of earlier chunks."""
        self._acquires: list[_MapFence] = []

    def reset(self) -> None:
        """Reset the acquires for a new chunk of blocks."""
        self._acquires.clear()

    def fence(self, sel: Selection, instruction: Instruction, access: Access | None) -> None:
        """Warps release earlier accesses, or acquire the map at the addresses of ``access``."""
        self.clocks.tick(instruction)
        level = min(next(LEVELS[name] for name in reversed(instruction.mods) if name in LEVELS), SAME_GPU)
        if access is None:
            self._releases += [self._fence(seat, level) for seat in self.clocks.seats(sel).tolist()]
            return
        places = zip(self.clocks.seat[access.sel].tolist(), access.index.tolist(), strict=True)
        for seat, begin in dict.fromkeys(places):
            before = tuple(each for each in self._releases if self._before(each, seat))
            self._acquires.append(self._fence(seat, level, begin, before))

    def use(self, access: Access, marks: Marks) -> None:
        """Copies of these lanes read the maps at these addresses; ``marks`` has their last writers."""
        if self.log.seen("proxy", access.instruction):
            return
        for row in range(len(access.index)):
            begin, lane = int(access.index[row]), int(indices(access.sel)[row])
            for owner, tag, pc in self._writes(marks, begin):
                what, advice = self._lack(lane, begin, owner, tag)
                if what:
                    self._report(access.instruction, lane, what, advice, (owner, tag, pc))
                    return

    def _writes(self, marks: Marks, begin: int) -> list[tuple[int, int, int]]:
        """The last writes in the generic proxy to the map at a place: block + 1, tag and pc, each once."""
        places = begin + np.arange(0, DESCRIPTOR_BYTES, MAP_CHUNK)
        words = (each.gather(places, MAP_CHUNK).ravel().tolist() for each in (marks.owner, marks.tag, marks.pc))
        code = self.machine.entry.instructions
        writes = dict.fromkeys(zip(*words, strict=True))
        return [each for each in writes if each[0] and not in_async_proxy(code[each[2]])]

    def _lack(self, lane: int, begin: int, owner: int, tag: int) -> tuple[str, str]:
        """The missing fence between a write and the use by a lane, and the remedy; empty if none is missing."""
        seat = int(self.clocks.seat[lane])
        relation = self._relation(owner, seat)
        scope = _SCOPES[relation]
        acquires = [each for each in self._acquires if each.begin == begin and self._before(each, seat)]
        if not acquires:
            return "uses the tensor map that {other} wrote, without an acquire of it", _ACQUIRE.format(scope=scope)
        wide = [each for each in acquires if each.level >= relation]
        if not wide:
            return (
                f"uses the tensor map that {{other}} wrote, and its acquire is {_SCOPES[acquires[-1].level]}",
                f"the writer is in another {'block' if relation == SAME_CLUSTER else 'cluster or block'}: use {scope}",
            )
        releases = [each for acquire in wide for each in acquire.releases if self._covers(each, owner, tag, seat)]
        if not releases:
            return (
                "uses the tensor map that {other} wrote, without a release of it that the acquire comes after",
                _RELEASE.format(scope=scope),
            )
        if not any(each.level >= relation for each in releases):
            return (
                f"uses the tensor map that {{other}} wrote, and its release is {_SCOPES[releases[-1].level]}",
                f"the copy is issued in another block: use {scope}",
            )
        return "", ""

    def _fence(self, seat: int, level: int, begin: int = 0, releases: tuple[_MapFence, ...] = ()) -> _MapFence:
        actor = seat % self.clocks.warps
        tag = actor << int(ACTOR_SHIFT) | self.clocks.now
        knows = self.clocks.present(np.array([seat]))[0, 0].copy()
        return _MapFence(self._block(seat), seat, tag, level, knows, begin, releases)

    def _before(self, fence: _MapFence, seat: int) -> bool:
        """Whether a fence comes before the next access of a warp."""
        if self._cluster(fence.block) == self._cluster(self._block(seat)):
            return self.clocks.comes_before(fence.tag, seat)
        actor, time = fence.tag >> int(ACTOR_SHIFT), fence.tag & int(TIME_MASK)
        return self.sync.comes_after(seat, self._cluster(fence.block), actor, time)

    def _covers(self, release: _MapFence, owner: int, tag: int, seat: int) -> bool:
        """Whether a write comes before a release; for another cluster's write, only whether its own cluster
        released."""
        if self._cluster(release.block) != self._cluster(owner):
            return False
        return tag & int(TIME_MASK) <= int(release.knows[tag >> int(ACTOR_SHIFT)])

    def _relation(self, owner: int, seat: int) -> int:
        block = self._block(seat)
        if owner == block:
            return SAME_CTA
        return SAME_CLUSTER if self._cluster(owner) == self._cluster(block) else SAME_GPU

    def _block(self, seat: int) -> int:
        """The block + 1 of a warp."""
        return int(self.machine.cta_ids[seat // self.machine.warps]) + 1

    def _cluster(self, block: int) -> int:
        """The first block of the cluster of a block + 1."""
        return int(self.history.cluster_of[block - 1])

    def _report(self, instruction: Instruction, lane: int, what: str, advice: str, write: tuple[int, int, int]) -> None:
        owner, tag, pc = write
        machine = self.machine
        other = conflicting_access_of(
            machine,
            machine.entry.instructions[pc],
            block=machine.block_of(owner - 1),
            warp=(tag >> int(ACTOR_SHIFT)) % machine.warps,
        )
        self.log.add(machine, "proxy", instruction, lane, what, advice, other)
