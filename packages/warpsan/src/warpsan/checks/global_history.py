"""The last writes to each place of global memory, for the fences of tensor maps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from warpsan.checks.scopes import ReleaseChain
from warpsan.checks.shadow import Shadow, granule_of
from warpsan.engine.selection import Indices
from warpsan.ptx.ir import Entry

__all__ = ["GlobalHistory", "Marks"]


@dataclass
class Marks:
    """The last access to each granule: block + 1 (0: none), the tag of the warp, and the instruction."""

    owner: Shadow
    tag: Shadow
    pc: Shadow

    @staticmethod
    def of(size: int, granule: int) -> Marks:
        """Reset: no access yet."""
        return Marks(*(Shadow(size, granule) for _ in range(3)))


class GlobalHistory:
    """Writes to global memory by all chunks of a launch.

    Parameters
    ----------
    entry : Entry
    size : int
        Bytes of the arena.
    ctas : int
        Blocks of the grid.

    Attributes
    ----------
    writes, strong : Marks
        The last weak and the last strong write of each granule.
    chains : dict
        The releases of strong writes, by place.
    """

    def __init__(self, entry: Entry, size: int, ctas: int) -> None:
        granule = granule_of(entry, ("global",))
        self.writes, self.strong = (Marks.of(size, granule) for _ in range(2))
        self.chains: dict[int, ReleaseChain] = {}
        self.cluster_of: Indices = np.arange(ctas)
        """For each block that has begun, the first block of its cluster."""
