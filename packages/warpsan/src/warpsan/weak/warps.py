"""The warps of a launch: their relations, observations and releases."""

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
    """The resident threads of a machine or of native code.

    Attributes
    ----------
    warps, n_cta, cluster_size : int
        Warps of a CTA, CTAs, and CTAs of a cluster, which are next to each other.
    thread, cta : ndarray of int64 [lanes]
        For each lane, its thread in the CTA, and the number of its CTA among the resident ones.
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
        """The spaces of memory."""


class WarpViews:
    """The observations of a warp, its releases by fences, and the views that it may still acquire."""

    def __init__(self, number: int, block: int, cluster: int) -> None:
        self.number, self.block, self.cluster = number, block, cluster
        self.view = View()
        self.fenced: list[View | None] = [None, None, None]
        """For each relation, the past of the last releasing fence with that scope."""
        self.observed: list[View | None] = [None, None, None]
        """For each relation, the observations of strong reads, for the next acquiring fence with that scope."""
        self.released_to: dict[tuple[str, int], list[View | None]] = {}
        """The same as ``fenced`` for the last release operation on each place."""
        self.observed_at: dict[tuple[str, int], list[View | None]] = {}
        """The same as ``observed`` for the reads of each place."""


class WarpTable:
    """The warps of a launch.

    Attributes
    ----------
    threads : Threads
        The resident threads.
    time : int
        The time of the last write or fence.
    """

    def __init__(self) -> None:
        self.threads: Threads
        self.time = 0
        self._known: dict[int, WarpViews] = {}
        """The warps, by their numbers in the launch."""
        self._slots: list[WarpViews] = []
        """The warps, by their places among the resident ones: 32 lanes each."""
        self._ctas: list[int] = []
        """For each place, the CTA among the resident ones."""
        self._cluster_of: dict[int, int] = {}
        """For each block that has begun, the first block of its cluster."""

    def attach(self, threads: Threads) -> None:
        """Switch to these threads."""
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
        """The warps of lanes, without duplicates."""
        return [self._slots[slot] for slot in sorted(warps_of(sel))]

    def arriving(self, sel: Selection, home: Indices | None) -> list[tuple[WarpViews, int]]:
        """(warp, resident CTA with the barrier), without duplicates; by default a lane's own CTA."""
        if home is None:
            return [(self._slots[slot], self._ctas[slot]) for slot in sorted(warps_of(sel))]
        pairs = dict.fromkeys(zip((indices(sel) // WARP).tolist(), home.tolist(), strict=True))
        return [(self._slots[slot], cta) for slot, cta in pairs]

    def relation(self, warp: WarpViews, block: int) -> int:
        """The relation of a warp and a block."""
        if block == warp.block:
            return SAME_CTA
        return SAME_CLUSTER if self._cluster_of[block] == warp.cluster else SAME_GPU

    def present(self, warp: WarpViews) -> View:
        """The past of the warp's next operation, as a copy."""
        warp.view.clock[warp.number] = self.time
        return warp.view.copy()


def warps_of(sel: Selection) -> set[int]:
    """The warps of lanes, by their places among the resident ones."""
    if isinstance(sel, slice):
        return set(range(sel.start // WARP, (sel.stop - 1) // WARP + 1))
    return set((sel // WARP).tolist())
