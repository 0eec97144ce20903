"""Happens-before: the order of the accesses of a cluster's warps, as vector clocks (FastTrack, Flanagan and Freund
2009).

Each warp is an actor, and its asynchronous operations are a second actor, its twin. The copies that signal an mbarrier
are an actor too, independent of their issuer. Time is one counter of observed steps. A warp's vector holds, for every
actor of its cluster, the time up to which that actor's accesses come before the warp's next one. A release merges the
vectors of arriving warps into the barrier's vector; an acquire merges the barrier's vector into those of the leaving
warps. Operations of a twin come before its warp's accesses after a wait. Copies of an mbarrier come before accesses of
lanes that wait for the phase in which they complete. Later synchronisation orders them before other warps.

With instructions of the async proxy (bulk copies, wgmma), two more vectors hold the time up to which an actor's
accesses have also passed a fence.proxy.async, to shared and to global memory (PTX ISA, "Async proxy").
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from warpsan.engine.machine import Machine
from warpsan.engine.observer import CompletionBarrier
from warpsan.engine.selection import WARP, Array, Indices, Mask, Selection
from warpsan.errors import LaunchError, StepLimit
from warpsan.ptx.ir import Instruction
from warpsan.ptx.opcodes import in_async_proxy

__all__ = ["ACTOR_SHIFT", "TIME_MASK", "Clocks", "far"]

ACTOR_SHIFT = np.uint32(22)
TIME_MASK = np.uint32((1 << 22) - 1)
"""Bits of the time in a tag, which packs an actor (a warp; its twin; an mbarrier) and a time into a word; 0: no
actor."""
_MOST_ACTORS = 1 << 10
_PROXIED = {"shared": 1, "global": 2}
"""The plane of a warp's state with the accesses that have passed a proxy fence for a space."""
_SIGNALLED = 64
"""Most mbarriers with copies in a CTA."""


def far(key: Hashable) -> Hashable:
    """The key to which arrivals at an mbarrier from other CTAs release."""
    return "far", key


class Clocks:
    """Vector clocks of all warps of a machine.

    Attributes
    ----------
    warp : ndarray of int64 [lanes]
        Each lane's warp in its cluster, which is its number as an actor.
    warps : int
        Warps of a cluster.
    actors : int
        Warps and twins of a cluster.
    now : int
        The time of the current step.
    floor : int
        A time up to which all accesses are ordered for all actors, so that most accesses need no further check.
    """

    def __init__(self, machine: Machine) -> None:
        self.n_cta = machine.n_cta
        self._warps_of_cta, self._ctas = machine.warps, machine.cluster_size
        self.warps = machine.warps * machine.cluster_size
        self.actors = 2 * self.warps
        lane = np.arange(machine.lanes)
        self.seat: Indices = machine.cta * machine.warps + lane // (WARP * machine.n_cta)
        """The warp of each lane in the chunk: warps of a CTA are next to each other."""
        self.warp: Indices = self.seat % self.warps
        self._actor_bits = self.warp.astype(np.uint32) << ACTOR_SHIFT
        self._twin_bits = (self.warp + self.warps).astype(np.uint32) << ACTOR_SHIFT
        code = machine.entry.instructions
        signals = any("mbarrier::complete_tx::bytes" in instruction.mods for instruction in code)
        columns = self.actors + (_SIGNALLED * machine.cluster_size if signals else 0)
        seats = machine.n_cta * machine.warps
        planes = 1 + len(_PROXIED) if any(map(in_async_proxy, code)) else 1
        self._state = np.zeros((planes, seats, min(columns, _MOST_ACTORS)), dtype=np.uint32)
        """The vector of each warp; further planes hold the accesses that have passed a proxy fence."""
        self.fenced_at = np.zeros_like(self._state)
        """The vector of each warp at its last fence, which a relaxed arrival at the barrier of a cluster releases."""
        self._vectors = self._state[0]
        self._landed = np.zeros((machine.n_cta // machine.cluster_size, columns), dtype=np.uint32)
        """For each cluster, the latest copy of each actor that has landed and has signalled an mbarrier."""
        self._own = np.arange(seats) % self.warps
        self._objects: dict[Hashable, Array] = {}
        self._slots: dict[int, int] = {}
        self.reset()

    def reset(self) -> None:
        """Reset. Each actor's own accesses are ordered, and so are twins without operations."""
        self.now, self.floor = 0, 0
        self.instructions: list[Instruction | None] = [None]
        self._state.fill(0)
        self._vectors[np.arange(len(self._own)), self._own] = TIME_MASK
        self._vectors[:, self.warps :] = TIME_MASK
        self.fenced_at.fill(0)
        self._landed.fill(0)
        self._objects.clear()
        self._slots.clear()

    def tick(self, instruction: Instruction) -> None:
        """A step begins.

        Raises
        ------
        StepLimit
            If there are more steps than a tag can hold.
        """
        self.now += 1
        if self.now >= int(TIME_MASK):
            raise StepLimit(f"the race check follows at most {int(TIME_MASK) - 1} memory accesses of a chunk of blocks")
        self.instructions.append(instruction)

    def tags(self, sel: Selection) -> Array:
        """The tags of the lanes' warps for their current accesses."""
        tags: Array = self._actor_bits[sel] | np.uint32(self.now)
        return tags

    def unordered(self, sel: Selection, tags: Array) -> Mask | None:
        """The tags [lanes of sel, ...] that are not ordered before the lanes' current accesses; None if all are."""
        times = tags & TIME_MASK
        if int(times.max()) <= self.floor:
            return None
        late: Mask = times > self._known(0, sel, tags)
        return late if late.any() else None

    def comes_before(self, tag: int, seat: int) -> bool:
        """Whether the access with a tag in a warp's cluster comes before the warp's current access."""
        return tag & int(TIME_MASK) <= int(self._vectors[seat, tag >> int(ACTOR_SHIFT)])

    def comes_after_any(self, seats: Indices, times: Array) -> Mask:
        """The warps that come after the access of a warp of their cluster at its time in ``times``; time 0: no
        access."""
        theirs = times.reshape(-1, self.warps)[seats // self.warps]
        after: Mask = ((theirs > 0) & (theirs <= self._vectors[seats, : self.warps])).any(axis=1)
        return after

    def unfenced(self, sel: Selection, tags: Array, space: str) -> Mask:
        """The tags of accesses to a space in the generic proxy that no fence.proxy.async has passed on to these
        lanes."""
        unknown: Mask = (tags & TIME_MASK) > self._known(_PROXIED[space], sel, tags)
        unknown &= tags >> ACTOR_SHIFT < self.actors
        return unknown

    def _known(self, plane: int, sel: Selection, tags: Array) -> Array:
        """The time up to which each tag's actor is ordered before the lanes."""
        actors = (tags >> ACTOR_SHIFT).astype(np.int64)
        seats = (self.seat[sel] * self._state.shape[2]).reshape(-1, *(1,) * (tags.ndim - 1))
        known: Array = self._state[plane].reshape(-1).take(seats + actors)
        return known

    def in_flight(self, sel: Selection, tags: Array) -> Mask:
        """The tags of asynchronous operations of the lane's cluster that have not completed."""
        actors = (tags >> ACTOR_SHIFT).astype(np.int64)
        times = tags & TIME_MASK
        first = (self.seat[sel] - self.warp[sel])[:, None]
        issuer = first + actors % self.warps
        flying: Mask = (actors >= self.warps) & (times > self._vectors[issuer, actors])
        flying &= times > self._landed[first // self.warps, actors]
        return flying

    def seats(self, sel: Selection) -> Indices:
        """The warps that have a lane in ``sel``, each once."""
        present = np.zeros(len(self._own), dtype=np.bool_)
        present[self.seat[sel]] = True
        return np.flatnonzero(present)

    def _set_floor(self) -> None:
        self.floor = min(int(self._vectors.min()), self.now)

    def known_to_cta(self) -> Array:
        """The time up to which each actor is ordered before at least one warp of each CTA [CTAs, actors]."""
        known: Array = self._vectors.reshape(self.n_cta, self._warps_of_cta, -1).max(axis=1)
        return known

    # ---- asynchronous operations ------------------------------------------------------------------------------------

    def issue(self, sel: Selection, barrier: CompletionBarrier | None = None) -> Array:
        """The lanes issue an asynchronous operation now. Returns its tag (of their twins, or of the mbarriers that
        it signals), which is not ordered before any access yet."""
        if barrier is None:
            actors = self.warps + np.flatnonzero(np.bincount(self.warp[sel], minlength=self.warps))
            bits = self._twin_bits[sel]
        else:
            mine = self._actors_of(barrier)
            actors, bits = np.unique(mine), mine.astype(np.uint32) << ACTOR_SHIFT
        if (self._vectors[:, actors] == TIME_MASK).any():
            for known in (self._state, self.fenced_at, *self._objects.values()):
                known[:, :, actors] = np.minimum(known[:, :, actors], np.uint32(self.now - 1))
            self._set_floor()
        tags: Array = bits | np.uint32(self.now)
        return tags

    def _actors_of(self, barrier: CompletionBarrier) -> Indices:
        """The actor of each mbarrier of ``barrier``; an address in several CTAs of a cluster has an actor for each."""
        slot = self._slots.setdefault(barrier.offset, len(self._slots))
        actors: Indices = self.actors + slot * self._ctas + barrier.home % self._ctas
        if int(actors.max()) >= self._state.shape[2]:
            most = (self._state.shape[2] - self.actors) // self._ctas
            raise LaunchError(f"the race check follows at most {most} mbarriers with bulk copies in such a block")
        return actors

    def complete(self, tags: Array, sel: Selection, barrier: CompletionBarrier | None = None) -> None:
        """The lanes have waited for the operations with these ``tags``; or the operations have landed, and are
        released to the mbarriers."""
        actors, times = (tags >> ACTOR_SHIFT).astype(np.int64), tags & TIME_MASK
        if barrier is None:
            np.maximum.at(self._vectors, (self.seat[sel], actors), times)
            self._set_floor()
            return
        np.maximum.at(self._landed, (barrier.home // self._ctas, actors), times)
        away = self.seat[sel] // self._warps_of_cta != barrier.home
        for key, mask in ((barrier.key, ~away), (far(barrier.key), away)):
            if mask.any():
                np.maximum.at(self._object(key)[0], (barrier.home[mask], actors[mask]), times[mask])

    # ---- order ------------------------------------------------------------------------------------------------------

    def _object(self, key: Hashable) -> Array:
        shape = self._state.shape[0], self.n_cta, self._state.shape[2]
        return self._objects.setdefault(key, np.zeros(shape, dtype=np.uint32))

    def present(self, seats: Indices) -> Array:
        """The vectors of these warps now, including their own accesses up to now."""
        known = self._state[:, seats]
        known[0, np.arange(len(seats)), self._own[seats]] = self.now
        return known

    def blank(self, many: int) -> Array:
        """Allocate ``many`` vectors of each warp [many, planes, warps, actors], all zero."""
        return np.zeros((many, *self._state.shape), dtype=np.uint32)

    def join(self, seat: int, rows: Array) -> None:
        """A warp comes after ``rows`` [planes, actors] of its cluster."""
        mine = self._state[:, seat]
        grown = np.maximum(mine, rows)
        grown[0, self._own[seat]] = mine[0, self._own[seat]]
        if (grown != mine).any():
            self._state[:, seat] = grown
            self._set_floor()

    def _pairs(self, sel: Selection, home: Indices | None) -> tuple[Indices, Indices]:
        """(warp, CTA that has the object) of these lanes, without duplicates."""
        if home is None:
            seats = self.seats(sel)
            return seats, seats // self._warps_of_cta
        pairs = np.unique(self.seat[sel] * self.n_cta + home)
        return pairs // self.n_cta, pairs % self.n_cta

    def release(
        self, key: Hashable, sel: Selection, home: Indices | None = None, *, fenced: Array | None = None
    ) -> None:
        """The lanes' warps arrive at ``key``, and release their accesses so far, or their vectors in ``fenced``."""
        seats, homes = self._pairs(sel, home)
        passed = self.present(seats) if fenced is None else fenced[:, seats]
        vector = self._object(key)
        for mine, more in zip(vector, passed, strict=True):
            np.maximum.at(mine, homes, more)

    def acquire(self, key: Hashable, sel: Selection, home: Indices | None = None) -> None:
        """The lanes' warps leave ``key``."""
        if key in self._objects:
            seats, homes = self._pairs(sel, home)
            learnt = self._objects[key][:, homes]
            if home is None:  # each warp once
                self._state[:, seats] = np.maximum(self._state[:, seats], learnt)
            else:
                for mine, more in zip(self._state, learnt, strict=True):
                    np.maximum.at(mine, seats, more)
            self._set_floor()

    def passed_on(self, key: Hashable, cta: int) -> Array | None:
        """The vector that an acquire from ``key`` of a CTA merges now [planes, actors]; None if it is empty."""
        return self._objects[key][:, cta].copy() if key in self._objects else None

    def publish(self, source: Hashable, target: Hashable, ctas: Mask) -> None:
        """Vectors released to ``source`` of these CTAs can be acquired from ``target``; ``source`` is reset."""
        if source in self._objects:
            vector, public = self._object(source), self._object(target)
            public[:, ctas] = np.maximum(public[:, ctas], vector[:, ctas])
            vector[:, ctas] = 0

    def forget(self, key: Hashable, ctas: Mask) -> None:
        """Reset ``key`` for these CTAs."""
        if key in self._objects:
            self._objects[key][:, ctas] = 0

    def fence(self, sel: Selection) -> None:
        """A fence of the lanes' warps; their later relaxed arrivals release its vector."""
        seats = self.seats(sel)
        self.fenced_at[:, seats] = self.present(seats)

    def proxy_fence(self, sel: Selection, spaces: Sequence[str]) -> None:
        """The accesses to these spaces in the past of the lanes' warps have passed a fence.proxy.async."""
        if len(self._state) > 1:
            seats = self.seats(sel)
            for plane in (_PROXIED[space] for space in spaces):
                self._state[plane, seats] = np.maximum(self._state[plane, seats], self.present(seats)[0])
