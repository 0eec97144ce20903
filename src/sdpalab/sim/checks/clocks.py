"""Happens-before: what each warp of a CTA knows of the others, as vector clocks (FastTrack, Flanagan and Freund 2009).

Each warp is an actor with a clock, and has a twin: the asynchronous operations that it issued. A warp's vector holds, for every actor of
its CTA, the clock up to which that actor's accesses come before the warp's next one. Barriers pass vectors on: a release merges the
vectors of those who arrive into the barrier's, and moves their clocks on; an acquire merges the barrier's into those who leave.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from sdpalab.sim.machine import Machine
from sdpalab.sim.selection import WARP, Array, Indices, Mask, Selection

__all__ = ["ACTOR_SHIFT", "CLOCK_MASK", "Clocks"]

ACTOR_SHIFT = np.uint32(24)
CLOCK_MASK = np.uint32((1 << 24) - 1)
"""A tag packs an actor and its clock into a word; 0 is nobody."""


class Clocks:
    """Vector clocks of all warps of a machine.

    Attributes
    ----------
    actors : int
        Warps of a CTA, and as many twins.
    seat : ndarray of int64 [lanes]
        Each lane's warp among all warps of the machine: CTA * warps + warp.
    warp : ndarray of int64 [lanes]
        Each lane's warp in its CTA.
    """

    def __init__(self, machine: Machine) -> None:
        self.warps = machine.warps
        self.actors = 2 * machine.warps
        self.n_cta = machine.n_cta
        lane = np.arange(machine.lanes)
        self.warp: Indices = lane // (WARP * machine.n_cta)
        self.seat: Indices = machine.cta * machine.warps + self.warp
        self.vectors = np.zeros((machine.n_cta * machine.warps, self.actors), dtype=np.uint32)
        self.issued = np.zeros(machine.n_cta * machine.warps, dtype=np.uint32)
        """The clock of each warp's twin: asynchronous operations issued so far."""
        self._own = np.arange(machine.n_cta * machine.warps) % machine.warps
        self._objects: dict[Hashable, Array] = {}
        self.readers: set[int] = set()
        """Actors that have read anything."""

    def reset(self) -> None:
        """Nobody knows of anybody; every warp's own clock is 1."""
        self.vectors.fill(0)
        self.vectors[np.arange(len(self._own)), self._own] = 1
        self.issued.fill(0)
        self._objects.clear()
        self.readers.clear()

    def tags(self, sel: Selection) -> Array:
        """What the lanes' warps leave on what they access now."""
        seats = self.seat[sel]
        actor = self.warp[sel].astype(np.uint32) << ACTOR_SHIFT
        tags: Array = actor | self.vectors[seats, self.warp[sel]]
        return tags

    def known(self, sel: Selection, actors: Array) -> Array:
        """Clocks up to which the lanes' warps know ``actors`` (shape (lanes of sel, ...))."""
        seats = self.seat[sel] * self.actors
        known: Array = self.vectors.reshape(-1).take(seats.reshape(-1, *(1,) * (actors.ndim - 1)) + actors)
        return known

    def _seats(self, sel: Selection) -> Indices:
        """The warps that have a lane in ``sel``, each once."""
        present = np.zeros(len(self._own), dtype=np.bool_)
        present[self.seat[sel]] = True
        return np.flatnonzero(present)

    def issue(self, sel: Selection) -> Array:
        """The lanes issue an asynchronous operation together: the twin's tag for each lane."""
        seats = self._seats(sel)
        self.issued[seats] += 1
        actor = (self.warp[sel] + self.warps).astype(np.uint32) << ACTOR_SHIFT
        tags: Array = actor | self.issued[self.seat[sel]]
        return tags

    def complete(self, tags: Array, sel: Selection) -> None:
        """The lanes have waited for what they issued under ``tags``."""
        actors = (tags >> ACTOR_SHIFT).astype(np.int64)
        np.maximum.at(self.vectors, (self.seat[sel], actors), tags & CLOCK_MASK)

    def release(self, key: Hashable, sel: Selection) -> None:
        """The lanes' warps arrive at ``key``."""
        seats = self._seats(sel)
        vector = self._objects.setdefault(key, np.zeros((self.n_cta, self.actors), dtype=np.uint32))
        np.maximum.at(vector, seats // self.warps, self.vectors[seats])
        self.vectors[seats, self._own[seats]] += 1

    def acquire(self, key: Hashable, sel: Selection) -> None:
        """The lanes' warps leave ``key``."""
        if key in self._objects:
            seats = self._seats(sel)
            self.vectors[seats] = np.maximum(self.vectors[seats], self._objects[key][seats // self.warps])

    def forget(self, key: Hashable, ctas: Mask) -> None:
        """``key`` begins anew for these CTAs."""
        if key in self._objects:
            self._objects[key][ctas] = 0
