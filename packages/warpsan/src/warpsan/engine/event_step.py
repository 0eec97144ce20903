"""Groups of events of several warps that are one step of a machine (:mod:`.replay`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from warpsan.engine import layout
from warpsan.engine.machine import Machine
from warpsan.engine.observer import Access
from warpsan.engine.selection import WARP, Array, Indices, Mask, Selection, subset

__all__ = ["EventStep", "TracedAccess", "lanes_of"]


@dataclass(slots=True)
class TracedAccess(Access):
    """An access in the past, with the writes that changed a value."""

    changed: Mask

    def changes(self, words: Array) -> Mask:
        """The writes of ``words`` that changed a value."""
        return self.changed


def lanes_of(slot: int, mask: int) -> Indices:
    """Lanes of a machine: all lanes of some warps, in the order of the machine."""
    return WARP * slot + np.flatnonzero(mask >> np.arange(WARP) & 1)


@dataclass(frozen=True)
class EventStep:
    """Events of several warps at one place, and their lanes in the machine, in order."""

    events: list[Array]
    lanes: Indices
    warp_of: Indices
    """For each lane, the number of its event."""
    sel: Selection

    @staticmethod
    def of(machine: Machine, events: Sequence[tuple[int, Array]], size: int) -> EventStep:
        """``events``, each of a warp; ``clusters`` has their numbers, each of so many CTAs in the machine."""
        clusters = np.array([cluster for cluster, _ in events])
        words = np.stack([event[: layout.EVENT_WORDS] for _, event in events])
        rank, warp = np.divmod(words[:, layout.EV_WARP], machine.warps)
        slots: Indices = warp * machine.n_cta + clusters * size + rank
        order = np.argsort(slots, kind="stable")
        numbers, lanes = np.nonzero(words[order, layout.EV_MASK, None] >> np.arange(WARP) & 1)
        lanes += WARP * slots[order][numbers]
        sel = subset(lanes, np.ones(len(lanes), np.bool_))
        return EventStep([events[k][1] for k in order], lanes, numbers, sel)

    @property
    def first(self) -> Array:
        """The first event."""
        return self.events[0]

    def each_lane(self, rows: Callable[[Array], Array]) -> Array:
        """The value of each lane, from the values of the 32 lanes of each event."""
        whole: Array = np.stack([rows(event) for event in self.events])
        return whole[self.warp_of, self.lanes % WARP]
