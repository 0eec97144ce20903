"""The events of a running machine: the interface of the checks and the counters."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from warpsan.checks.orders import BARRIER, MemoryOrder
from warpsan.engine.selection import Array, Indices, Mask, Selection, indices, subset
from warpsan.host.memory import Space
from warpsan.ptx.ir import Instruction

__all__ = ["Access", "CompletionBarrier", "Observer"]


@dataclass(slots=True)
class Access:
    """Accesses of the lanes of one step to one memory space.

    Attributes
    ----------
    space : Space
    offset : ndarray of int64 [lanes of sel]
        Start of each access, relative to the CTA (shared), the lane (local) or the arena (global).
    index : ndarray of int64 [lanes of sel]
        The same as a byte index into the space's data.
    width : int
        Bytes of each access.
    sel : Selection
        The lanes; a lane that accesses several places occurs once for each.
    instruction : Instruction
    """

    space: Space
    offset: Indices
    index: Indices
    width: int
    sel: Selection
    instruction: Instruction

    def only(self, mask: Mask) -> Access:
        """The accesses of some of its lanes."""
        return Access(
            self.space, self.offset[mask], self.index[mask], self.width, subset(self.sel, mask), self.instruction
        )

    def at(self, rows: Indices) -> Access:
        """The accesses in these places, in that order."""
        lanes = indices(self.sel)[rows]
        return Access(self.space, self.offset[rows], self.index[rows], self.width, lanes, self.instruction)

    def changes(self, words: Array) -> Mask:
        """Which writes of ``words`` change the stored value; the others are benign in a race."""
        before = self.space.load(self.index, self.width).view(np.uint8).reshape(-1, self.width)
        changed: Mask = (before != words.view(np.uint8).reshape(-1, self.width)).any(axis=1)
        return changed


@dataclass(frozen=True)
class CompletionBarrier:
    """The mbarriers on which an operation completes: one address, in the CTAs ``home`` of the chunk.

    ``home`` has one value for each access of the operation.
    """

    offset: int
    home: Indices

    @property
    def key(self) -> Hashable:
        """The key to which arrivals at this mbarrier release."""
        return "mbarrier", self.offset


class Observer:
    """Base of the checks: a method for each event of a running machine. Each check overrides the methods it needs."""

    def load(self, access: Access) -> None:
        """Accesses about to be read."""

    def store(self, access: Access, words: Array | None) -> None:
        """Accesses about to be written; ``words`` are the values, in the order of the lanes, or None if they are
        unknown."""

    def atomic(self, access: Access) -> None:
        """Words about to be read and written in one atomic operation."""

    def issue(self, access: Access, *, writes: bool, barrier: CompletionBarrier | None = None) -> Array | None:
        """Asynchronous operations of these lanes will read or write these bytes until they complete.

        Their destination is undefined until then. With a ``barrier``, the operations complete on that mbarrier, and not
        in the issuer's groups. Returns a ticket for :meth:`complete`, or None.
        """
        return None

    def copy_reads(self, access: Access, barrier: CompletionBarrier) -> Array | None:
        """Copies of these lanes will read global memory until they complete on these mbarriers, one each.

        Returns a ticket for :meth:`complete`, or None.
        """
        self.load(access)
        return None

    def complete(self, ticket: Array, sel: Selection, barrier: CompletionBarrier | None = None) -> None:
        """Operations that these lanes issued have completed: ``ticket`` has one value for each lane.

        The lanes have waited for them, or, with a ``barrier``, the mbarrier has counted them.
        """

    def warp_sync(self, sel: Selection, groups: Array | None) -> None:
        """Lanes have converged at a ``bar.warp.sync``: those of each warp, or for each lane the lanes whose bits are
        in ``groups``."""

    def arrive(self, barrier: CompletionBarrier, sel: Selection, order: MemoryOrder) -> None:
        """These lanes arrive at mbarriers, one each."""

    def leave(self, barrier: CompletionBarrier, sel: Selection, order: MemoryOrder) -> None:
        """The phases that these lanes have waited for, each of its mbarrier, are complete."""

    def release(self, key: Hashable, sel: Selection, home: Indices | None = None, order: MemoryOrder = BARRIER) -> None:
        """The lanes' accesses so far become visible to lanes that acquire from ``key`` later (a barrier's arrival).

        ``home`` is the CTA of the chunk with each lane's barrier, by default its own. A relaxed ``order`` releases only
        the accesses before the lanes' last fence.
        """

    def acquire(self, key: Hashable, sel: Selection, home: Indices | None = None) -> None:
        """These lanes acquire from ``key`` (the end of a barrier's wait)."""

    def publish(self, source: Hashable, target: Hashable, ctas: Mask) -> None:
        """A phase is complete in these CTAs: releases to ``source`` can be acquired from ``target``."""

    def fence(self, sel: Selection, instruction: Instruction) -> None:
        """These lanes have executed a fence, other than one between proxies."""

    def proxy_fence(self, sel: Selection, spaces: Sequence[str]) -> None:
        """These lanes have executed a fence between the generic proxy and the async proxy, for ``shared`` memory,
        ``global`` memory or both."""

    def tensor_map_fence(self, sel: Selection, instruction: Instruction, maps: Access | None) -> None:
        """These lanes have executed a fence between the generic proxy and the tensor map proxy: a release, or an
        acquire of ``maps``."""

    def tensor_map_use(self, maps: Access) -> None:
        """Copies are about to read the tensor maps at these addresses."""

    def forget(self, key: Hashable, ctas: Mask) -> None:
        """A barrier's phase is complete for these CTAs of the chunk: ``key`` is reset."""

    def finish(self) -> None:
        """A chunk of CTAs has run to its end."""
