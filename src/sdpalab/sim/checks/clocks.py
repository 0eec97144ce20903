"""Happens-before: what each warp of a CTA knows of the others, as vector clocks (FastTrack, Flanagan and Freund 2009).

Each warp is an actor, and has a twin: the asynchronous operations that it issued. Time is one counter of observed
steps for all. A warp's vector holds, for every actor of its CTA, the time up to which that actor's accesses come
before the warp's next one. A release merges the vectors of those who arrive at a barrier into the barrier's; an
acquire merges the barrier's into those who leave. A twin's operations are known to its warp when it has waited for
them, and to others when they hear of that.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from sdpalab.sim.ir import Instruction
from sdpalab.sim.machine import Machine
from sdpalab.sim.selection import WARP, Array, Indices, Mask, Selection

__all__ = ["ACTOR_SHIFT", "TIME_MASK", "Clocks"]

ACTOR_SHIFT = np.uint32(24)
TIME_MASK = np.uint32((1 << 24) - 1)
"""A tag packs an actor (a warp, or as many further on its twin) and a time into a word; 0 is nobody."""


class Clocks:
    """Vector clocks of all warps of a machine.

    Attributes
    ----------
    warp : ndarray of int64 [lanes]
        Each lane's warp in its CTA.
    now : int
        The time of the current step.
    floor : int
        A time up to which everybody knows everything, so that most accesses need no closer look.
    """

    def __init__(self, machine: Machine) -> None:
        self.warps, self.n_cta = machine.warps, machine.n_cta
        self.actors = 2 * machine.warps
        lane = np.arange(machine.lanes)
        self.warp: Indices = lane // (WARP * machine.n_cta)
        self._seat: Indices = machine.cta * machine.warps + self.warp
        self._actor_bits = self.warp.astype(np.uint32) << ACTOR_SHIFT
        self._twin_bits = (self.warp + self.warps).astype(np.uint32) << ACTOR_SHIFT
        self._vectors = np.zeros((machine.n_cta * machine.warps, self.actors), dtype=np.uint32)
        self._own = np.arange(machine.n_cta * machine.warps) % machine.warps
        self._objects: dict[Hashable, Array] = {}
        self.reset()

    def reset(self) -> None:
        """Time begins. Everybody knows all of its own accesses, and all of twins that have issued nothing."""
        self.now, self.floor = 0, 0
        self.instructions: list[Instruction | None] = [None]
        self._vectors.fill(0)
        self._vectors[np.arange(len(self._own)), self._own] = TIME_MASK
        self._vectors[:, self.warps :] = TIME_MASK
        self._objects.clear()

    def tick(self, instruction: Instruction) -> None:
        """A step begins."""
        self.now += 1
        self.instructions.append(instruction)

    def tags(self, sel: Selection) -> Array:
        """What the lanes' warps leave on what they access now."""
        tags: Array = self._actor_bits[sel] | np.uint32(self.now)
        return tags

    def unordered(self, sel: Selection, tags: Array) -> Mask | None:
        """Which tags [lanes of sel, ...] are not known to come before what the lanes do now; None if all do."""
        times = tags & TIME_MASK
        if int(times.max()) <= self.floor:
            return None
        actors = (tags >> ACTOR_SHIFT).astype(np.int64)
        seats = (self._seat[sel] * self.actors).reshape(-1, *(1,) * (tags.ndim - 1))
        late: Mask = times > self._vectors.reshape(-1).take(seats + actors)
        return late if late.any() else None

    def in_flight(self, sel: Selection, tags: Array) -> Mask:
        """Which tags are of asynchronous operations that their own issuer (of the lane's CTA) has not waited for."""
        actors = (tags >> ACTOR_SHIFT).astype(np.int64)
        issuer = (self._seat[sel] - self.warp[sel])[:, None] + actors % self.warps
        flying: Mask = (actors >= self.warps) & (tags & TIME_MASK > self._vectors[issuer, actors])
        return flying

    def _seats(self, sel: Selection) -> Indices:
        """The warps that have a lane in ``sel``, each once."""
        present = np.zeros(len(self._own), dtype=np.bool_)
        present[self._seat[sel]] = True
        return np.flatnonzero(present)

    def _set_floor(self) -> None:
        self.floor = min(int(self._vectors.min()), self.now)

    def issue(self, sel: Selection) -> Array:
        """The lanes issue an asynchronous operation now: the tag of their twins, which nobody knows yet."""
        twins = self.warps + np.flatnonzero(np.bincount(self.warp[sel], minlength=self.warps))
        fresh = self._vectors[:, twins] == TIME_MASK
        if fresh.any():
            self._vectors[:, twins] = np.where(fresh, np.uint32(self.now - 1), self._vectors[:, twins])
            self._set_floor()
        tags: Array = self._twin_bits[sel] | np.uint32(self.now)
        return tags

    def complete(self, tags: Array, sel: Selection) -> None:
        """The lanes have waited for what they issued under ``tags``."""
        actors = (tags >> ACTOR_SHIFT).astype(np.int64)
        np.maximum.at(self._vectors, (self._seat[sel], actors), tags & TIME_MASK)
        self._set_floor()

    def release(self, key: Hashable, sel: Selection) -> None:
        """The lanes' warps arrive at ``key``: what they did until now is passed on."""
        seats = self._seats(sel)
        vector = self._objects.setdefault(key, np.zeros((self.n_cta, self.actors), dtype=np.uint32))
        passed = self._vectors[seats]
        passed[np.arange(len(seats)), self._own[seats]] = self.now
        np.maximum.at(vector, seats // self.warps, passed)

    def acquire(self, key: Hashable, sel: Selection) -> None:
        """The lanes' warps leave ``key``."""
        if key in self._objects:
            seats = self._seats(sel)
            self._vectors[seats] = np.maximum(self._vectors[seats], self._objects[key][seats // self.warps])
            self._set_floor()

    def forget(self, key: Hashable, ctas: Mask) -> None:
        """``key`` begins anew for these CTAs."""
        if key in self._objects:
            self._objects[key][ctas] = 0
