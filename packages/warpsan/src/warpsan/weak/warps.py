"""The warps of a launch: who they are to each other, and what each has seen and released."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from warpsan.checks.orders import SAME_CLUSTER, SAME_CTA, SAME_GPU
from warpsan.engine.selection import WARP, Indices, Selection, indices
from warpsan.host.memory import Space
from warpsan.weak.views import View

__all__ = ["Threads", "WarpTable", "WarpViews", "warps_of"]


class Threads(Protocol):
    """The threads that run side by side: a machine's, or those of native code.

    Attributes
    ----------
    warps, n_cta, cluster_size : int
        Warps of a CTA, CTAs, and CTAs of a cluster, which are next to each other.
    thread, cta : ndarray of int64 [lanes]
        For each lane its thread in the CTA, and the number of its CTA among these.
    cta_ids : ndarray of int64 [CTAs]
        Their linear indices in the grid.
    spaces : mapping of str to Space
        ``global`` and ``shared``.
    """

    warps: int
    n_cta: int
    cluster_size: int
    thread: Indices
    cta: Indices
    cta_ids: Indices

    @property
    def spaces(self) -> Mapping[str, Space]:
        """Memory."""


class WarpViews:
    """What a warp has seen, what it has released by fences, and what it may still acquire."""

    def __init__(self, number: int, block: int, cluster: int) -> None:
        self.number, self.block, self.cluster = number, block, cluster
        self.view = View()
        self.fenced: list[View | None] = [None, None, None]
        """For each relation what came before the last fence that releases so far."""
        self.observed: list[View | None] = [None, None, None]
        """For each relation what strong reads have observed, for the next fence that acquires so far."""
        self.released_to: dict[tuple[str, int], list[View | None]] = {}
        """The same as ``fenced`` for the last release operation on each place."""
        self.observed_at: dict[tuple[str, int], list[View | None]] = {}
        """The same as ``observed`` for the reads of each place."""


class WarpTable:
    """The warps of a launch.

    Attributes
    ----------
    threads : Threads
        Those that run now.
    time : int
        Of the last write or fence.
    """

    def __init__(self) -> None:
        self.threads: Threads
        self.time = 0
        self._known: dict[int, WarpViews] = {}
        """By their numbers in the launch."""
        self._slots: list[WarpViews] = []
        """By their places among those that run side by side: those of each 32 lanes."""
        self._ctas: list[int] = []
        """Of each place, the CTA of those that run."""
        self._cluster_of: dict[int, int] = {}
        """For each block that has begun, the first block of its cluster."""

    def attach(self, threads: Threads) -> None:
        """These threads run from now on."""
        self.threads = threads
        first = np.arange(threads.n_cta) // threads.cluster_size * threads.cluster_size
        self._cluster_of.update(zip(threads.cta_ids.tolist(), threads.cta_ids[first].tolist(), strict=True))
        self._ctas = threads.cta[::WARP].tolist()
        numbers = threads.cta_ids[threads.cta[::WARP]] * threads.warps + threads.thread[::WARP] // WARP
        for number in numbers.tolist():
            if number not in self._known:
                block = number // threads.warps
                self._known[number] = WarpViews(number, block, self._cluster_of[block])
        self._slots = [self._known[number] for number in numbers.tolist()]

    def of_lane(self, lane: int) -> WarpViews:
        """The warp of a lane."""
        return self._slots[lane // WARP]

    def each(self, sel: Selection) -> list[WarpViews]:
        """The warps of lanes, each once."""
        return [self._slots[slot] for slot in sorted(warps_of(sel))]

    def arriving(self, sel: Selection, home: Indices | None) -> list[tuple[WarpViews, int]]:
        """(warp, CTA of those that run which has the barrier), each pair once; by default a lane's own CTA."""
        if home is None:
            return [(self._slots[slot], self._ctas[slot]) for slot in sorted(warps_of(sel))]
        pairs = dict.fromkeys(zip((indices(sel) // WARP).tolist(), home.tolist(), strict=True))
        return [(self._slots[slot], cta) for slot, cta in pairs]

    def relation(self, warp: WarpViews, block: int) -> int:
        """What a warp and a block have in common."""
        if block == warp.block:
            return SAME_CTA
        return SAME_CLUSTER if self._cluster_of[block] == warp.cluster else SAME_GPU

    def present(self, warp: WarpViews) -> View:
        """What comes before the warp's next operation, to be kept."""
        warp.view.clock[warp.number] = self.time
        return warp.view.copy()


def warps_of(sel: Selection) -> set[int]:
    """The warps of lanes, by their places among those that run side by side."""
    if isinstance(sel, slice):
        return set(range(sel.start // WARP, (sel.stop - 1) // WARP + 1))
    return set((sel // WARP).tolist())
