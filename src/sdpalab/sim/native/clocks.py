"""The order of the accesses of a cluster's warps: machine code (:mod:`~sdpalab.sim.native.translate`).

A release passes on up to which time accesses come before it, and begins a new time for the warp that makes it; an
acquire takes what was passed on. A warp's own entry is the time up to which its lanes come after each other, even if
they had diverged.
"""

from __future__ import annotations

from sdpalab.sim.native.layout import (
    ACTORS,
    BARRIER_COUNT,
    BEGAN,
    CHECKED,
    CLOCKS,
    CTA_COUNT,
    CURRENT,
    FLOORS,
    FLYING,
    GRANULES,
    PAGE_FLYING,
    PAGE_FULL,
    PAGES,
    PARTIAL_READS,
    RELEASED,
    TIME,
    VECTORS,
    WRITTEN,
    WRITTEN_BYTES,
)
from sdpalab.sim.native.words import fill, load64, store64

__all__ = ["acquire", "begin_clocks", "forget", "lanes_meet", "release_to"]


def begin_clocks(context: int) -> None:
    """A cluster begins: everything before it is ordered, and nothing is written."""
    if load64(context + 8 * CHECKED) == 0:
        return
    now = load64(context + 8 * TIME) + 1
    store64(context + 8 * TIME, now)
    store64(context + 8 * BEGAN, now)
    actors, ctas = load64(context + 8 * ACTORS), load64(context + 8 * CTA_COUNT)
    for warp in range(actors):
        store64(load64(context + 8 * CLOCKS) + 8 * warp, now)
        for other in range(actors):
            store64(load64(context + 8 * VECTORS) + 8 * (actors * warp + other), now - 1)
        store64(load64(context + 8 * FLOORS) + 8 * warp, now - 1)
    fill(load64(context + 8 * RELEASED), 0, 8 * actors * BARRIER_COUNT * ctas)
    fill(load64(context + 8 * WRITTEN), 0, load64(context + 8 * WRITTEN_BYTES) * ctas)
    fill(load64(context + 8 * PAGE_FULL), 0, 8 * load64(context + 8 * PAGES) * ctas)
    for page in range(load64(context + 8 * PAGES) * ctas):
        if load64(load64(context + 8 * PAGE_FLYING) + 8 * page) != 0:  # copies that nobody waited for
            fill(load64(context + 8 * FLYING), 0, 4 * load64(context + 8 * GRANULES) * ctas)
            break
    fill(load64(context + 8 * PAGE_FLYING), 0, 8 * load64(context + 8 * PAGES) * ctas)
    store64(context + 8 * PARTIAL_READS, 0)


def release_to(context: int, warp: int, vector: int) -> None:
    """What a warp did, and knows of, is passed on to a vector."""
    actors = load64(context + 8 * ACTORS)
    mine = load64(context + 8 * VECTORS) + 8 * actors * warp
    for other in range(actors):
        store64(vector + 8 * other, max(load64(vector + 8 * other), load64(mine + 8 * other)))
    clock = load64(context + 8 * CLOCKS) + 8 * warp
    store64(vector + 8 * warp, max(load64(vector + 8 * warp), load64(clock)))
    now = load64(context + 8 * TIME) + 1
    store64(context + 8 * TIME, now)
    store64(clock, now)


def acquire(context: int, warp: int, vector: int) -> None:
    """A warp comes after what was passed on to a vector, at the present time.

    Warps that leave a barrier together begin one time together, so that after the next barrier all that was done in it
    is known to be ordered by a look at one number (the floor).
    """
    actors = load64(context + 8 * ACTORS)
    mine = load64(context + 8 * VECTORS) + 8 * actors * warp
    floor = 1 << 60
    for other in range(actors):
        known = max(load64(mine + 8 * other), load64(vector + 8 * other))
        store64(mine + 8 * other, known)
        floor = min(floor, known)
    store64(load64(context + 8 * FLOORS) + 8 * warp, floor)
    store64(load64(context + 8 * CLOCKS) + 8 * warp, load64(context + 8 * TIME))


def lanes_meet(context: int) -> int:
    """All lanes of the current warp have met: a new time begins for it."""
    warp = load64(context + 8 * CURRENT)
    clock = load64(context + 8 * CLOCKS) + 8 * warp
    store64(load64(context + 8 * VECTORS) + 8 * (load64(context + 8 * ACTORS) + 1) * warp, load64(clock))
    now = load64(context + 8 * TIME) + 1
    store64(context + 8 * TIME, now)
    store64(clock, now)
    return 0


def forget(context: int, vector: int) -> None:
    """A vector begins anew."""
    fill(vector, 0, 8 * load64(context + 8 * ACTORS))
