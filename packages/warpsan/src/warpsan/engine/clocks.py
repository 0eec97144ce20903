"""The order of the accesses of a cluster's actors: machine code (:mod:`~warpsan.engine.translate`).

Actors are the warps. With asynchronous units, the operations of each warp and the copies that signal each mbarrier are
further actors, in this order. A vector has, for each actor, the time up to which its accesses come before; with
asynchronous units also the time up to which they have passed a proxy fence. A release passes a warp's vector on, and
begins a new time for the warp; an acquire merges the released vector. The rules are those of
:mod:`warpsan.checks.clocks`. A warp's own entry is the time up to which its lanes come after each other, even after a
divergence.
"""

from __future__ import annotations

from warpsan.engine.layout import (
    ACTORS,
    BARRIER_COUNT,
    CHECKED,
    CLOCKS,
    CLUSTER_VECTORS,
    COLUMNS,
    CTA_COUNT,
    CURRENT,
    CURRENT_LIVE,
    EVERY_LANE,
    FENCED_AT,
    FENCED_FLOORS,
    FIRST_TIME,
    FLOORS,
    FLYING,
    GRANULES,
    OBSERVED_AT,
    OPERANDS,
    ORIGINS,
    PAGE_FLYING,
    PAGE_FULL,
    PAGE_READING,
    PAGES,
    PARTIAL_READS,
    RANKS,
    RELEASED,
    REMOTE,
    SHARED_STRIDE,
    STRICT,
    TIME,
    TIME_LIMIT,
    TIMED,
    TIMED_COUNT,
    VECTORS,
    WAITED,
    WARP_COUNT,
    WRITTEN,
    WRITTEN_BYTES,
)
from warpsan.engine.words import copy, fill, load32, load64, store64

__all__ = [
    "acquire",
    "begin_clocks",
    "comes_before",
    "completed",
    "fence_proxies",
    "fence_warp",
    "first_of_cluster",
    "forget",
    "join_vector",
    "lanes_meet",
    "lanes_there",
    "lanes_with",
    "observed_vector",
    "operation_time",
    "publish",
    "release_fenced",
    "release_to",
    "set_floors",
    "vector_of",
    "warps_of_cluster",
]


def begin_clocks(context: int) -> None:
    """A cluster begins: all earlier accesses are ordered, and no memory is written."""
    if load64(context + 8 * CHECKED) == 0:
        return
    if load64(context + 8 * TIME) > load64(context + 8 * TIME_LIMIT) >> 1:
        restart_clock(context)
    now = load64(context + 8 * TIME) + 1
    store64(context + 8 * TIME, now)
    actors, ctas = load64(context + 8 * ACTORS), load64(context + 8 * CTA_COUNT)
    warps = warps_of_cluster(context)
    for column in range(load64(context + 8 * COLUMNS)):
        store64(load64(context + 8 * CLOCKS) + 8 * column, now if column < warps else now - 1)
    for warp in range(warps):
        for other in range(actors):
            store64(vector_of(context, warp) + 8 * other, now - 1)
        store64(load64(context + 8 * FLOORS) + 8 * warp, now - 1)
        store64(load64(context + 8 * FENCED_FLOORS) + 8 * warp, now - 1)
    fill(load64(context + 8 * RELEASED), 0, 8 * actors * BARRIER_COUNT * ctas)
    fill(load64(context + 8 * WRITTEN), 0, load64(context + 8 * WRITTEN_BYTES) * ctas)
    fill(load64(context + 8 * PAGE_FULL), 0, 8 * load64(context + 8 * PAGES) * ctas)
    if load64(context + 8 * ORIGINS) != 0:
        fill(load64(context + 8 * ORIGINS), 0, load64(context + 8 * SHARED_STRIDE) * ctas)
    for page in range(load64(context + 8 * PAGES) * ctas):
        flying = load64(load64(context + 8 * PAGE_FLYING) + 8 * page)
        if flying != 0 or load64(load64(context + 8 * PAGE_READING) + 8 * page) != 0:  # without waits for these
            fill(load64(context + 8 * FLYING), 0, 4 * load64(context + 8 * GRANULES) * ctas)
            break
    fill(load64(context + 8 * PAGE_FLYING), 0, 8 * load64(context + 8 * PAGES) * ctas)
    fill(load64(context + 8 * PAGE_READING), 0, 8 * load64(context + 8 * PAGES) * ctas)
    store64(context + 8 * PARTIAL_READS, 0)
    if load64(context + 8 * REMOTE) != 0:
        fill(load64(context + 8 * REMOTE), 0, 8 * load64(context + 8 * COLUMNS) * ctas)
    if load64(context + 8 * CLUSTER_VECTORS) != 0:
        fill(load64(context + 8 * CLUSTER_VECTORS), 0, 16 * actors * (ctas // load64(context + 8 * RANKS)))
    if load64(context + 8 * FENCED_AT) != 0:
        fill(load64(context + 8 * FENCED_AT), 0, 16 * actors * warps)
    if load64(context + 8 * WAITED) != 0:
        fill(load64(context + 8 * WAITED), 0, 8 * warps)
    if load64(context + 8 * OBSERVED_AT) != 0:
        fill(load64(context + 8 * OBSERVED_AT), 0, 16 * actors * warps)


def restart_clock(context: int) -> None:
    """Restart the time, between two clusters.

    Global memory keeps the times of other clusters: they are compared only with times that the same CTA released.
    """
    for k in range(load64(context + 8 * TIMED_COUNT)):
        row = load64(context + 8 * TIMED) + 16 * k
        fill(load64(row), 0, load64(row + 8))
    store64(context + 8 * TIME, FIRST_TIME)


def warps_of_cluster(context: int) -> int:
    """The number of warps of a cluster; they are the first actors."""
    return load64(context + 8 * WARP_COUNT) * load64(context + 8 * CTA_COUNT)


def first_of_cluster(context: int, cta: int) -> int:
    """The first CTA of the cluster of one of the CTAs that run together."""
    return cta - cta % load64(context + 8 * RANKS)


def vector_of(context: int, warp: int) -> int:
    """The vector of a warp."""
    return load64(context + 8 * VECTORS) + 8 * load64(context + 8 * ACTORS) * warp


def comes_before(context: int, warp: int, tag: int) -> int:
    """Whether the access of a tag of shared memory comes before a warp's next one."""
    actor = tag & 0xFFFF
    if actor == warp:
        return 1
    return 1 if tag >> 16 <= load64(vector_of(context, warp) + 8 * actor) else 0


def lanes_there(context: int, present: int) -> int:
    """The lanes that come after an instruction of these lanes, or their exit, in program order; 0 if each lane comes
    after itself alone."""
    if load64(context + 8 * STRICT) != 0:
        return 0
    return present | (EVERY_LANE ^ load64(context + 8 * CURRENT_LIVE))


def lanes_with(there: int, lane: int) -> int:
    """The lanes that come after a lane's access with those lanes present (:func:`lanes_there`)."""
    return there if there != 0 else 1 << lane


def release_to(context: int, warp: int, vector: int) -> None:
    """A warp's accesses and their past are released to a vector."""
    actors = load64(context + 8 * ACTORS)
    mine = vector_of(context, warp)
    for other in range(actors):
        store64(vector + 8 * other, max(load64(vector + 8 * other), load64(mine + 8 * other)))
    clock = load64(context + 8 * CLOCKS) + 8 * warp
    store64(vector + 8 * warp, max(load64(vector + 8 * warp), load64(clock)))
    begin_time(context, warp)


def begin_time(context: int, warp: int) -> None:
    """The next accesses of a warp have a time of their own."""
    now = load64(context + 8 * TIME) + 1
    store64(context + 8 * TIME, now)
    store64(load64(context + 8 * CLOCKS) + 8 * warp, now)


def acquire(context: int, warp: int, vector: int) -> None:
    """A warp acquires a vector, at the present time.

    Warps that leave a barrier together begin one time together: after the next barrier, one number (the floor) shows
    that all their accesses in between are ordered.
    """
    actors = load64(context + 8 * ACTORS)
    mine = vector_of(context, warp)
    for other in range(actors):
        store64(mine + 8 * other, max(load64(mine + 8 * other), load64(vector + 8 * other)))
    set_floors(context, warp)
    store64(load64(context + 8 * CLOCKS) + 8 * warp, load64(context + 8 * TIME))


def set_floors(context: int, warp: int) -> None:
    """Set the times up to which the accesses of all actors come before a warp's, and have passed a proxy fence.

    An actor whose last operation comes before may have a later time, including future times.
    """
    columns, warps = load64(context + 8 * COLUMNS), warps_of_cluster(context)
    mine, clocks = vector_of(context, warp), load64(context + 8 * CLOCKS)
    floor = load64(context + 8 * TIME)
    for other in range(columns):
        known = load64(mine + 8 * other)
        if other < warps or known < load64(clocks + 8 * other):
            floor = min(floor, known)
    store64(load64(context + 8 * FLOORS) + 8 * warp, floor)
    if columns > warps:
        floor = load64(context + 8 * TIME)
        for other in range(warps):
            floor = min(floor, load64(mine + 8 * (columns + other)))
        store64(load64(context + 8 * FENCED_FLOORS) + 8 * warp, floor)


def lanes_meet(context: int) -> int:
    """All lanes of the current warp have converged: a new time begins for it."""
    warp = load64(context + 8 * CURRENT)
    store64(vector_of(context, warp) + 8 * warp, load64(load64(context + 8 * CLOCKS) + 8 * warp))
    begin_time(context, warp)
    return 0


def forget(context: int, vector: int) -> None:
    """Reset a vector."""
    fill(vector, 0, 8 * load64(context + 8 * ACTORS))


def publish(context: int, vectors: int) -> None:
    """A phase is complete: its vector can be acquired, and the next phase begins.

    The vector of all earlier phases lies after the vector of the phase.
    """
    actors = load64(context + 8 * ACTORS)
    public = vectors + 8 * actors
    for other in range(actors):
        store64(public + 8 * other, max(load64(public + 8 * other), load64(vectors + 8 * other)))
    forget(context, vectors)


# ---- fences ----------------------------------------------------------------------------------------------------------


def fence_warp(registers: int, record: int, mask: int, context: int) -> int:
    """A releasing fence: later relaxed arrivals of the current warp release its present vector. The operand is
    whether the scope contains the cluster."""
    warp = load64(context + 8 * CURRENT)
    actors = load64(context + 8 * ACTORS)
    for far in range(1 + load32(record + 4 * OPERANDS)):
        fenced = fenced_vector(context, warp, far)
        copy(fenced, vector_of(context, warp), 8 * actors)
        store64(fenced + 8 * warp, load64(load64(context + 8 * CLOCKS) + 8 * warp))
    begin_time(context, warp)
    return 0


def fenced_vector(context: int, warp: int, far: int) -> int:
    """The vector at a warp's last fence whose scope contains its CTA, or its cluster (``far``)."""
    return load64(context + 8 * FENCED_AT) + 8 * load64(context + 8 * ACTORS) * (2 * warp + far)


def observed_vector(context: int, warp: int, far: int) -> int:
    """The observations of a warp's relaxed waits since its last fence: of its own CTA, or of others."""
    return load64(context + 8 * OBSERVED_AT) + 8 * load64(context + 8 * ACTORS) * (2 * warp + far)


def join_vector(context: int, vector: int, more: int) -> None:
    """Merge a vector into another: the later time of each actor."""
    for other in range(load64(context + 8 * ACTORS)):
        store64(vector + 8 * other, max(load64(vector + 8 * other), load64(more + 8 * other)))


def release_fenced(context: int, warp: int, vector: int, far: int) -> None:
    """A relaxed arrival: the vector of the warp's last fence is released."""
    join_vector(context, vector, fenced_vector(context, warp, far))


def fence_proxies(registers: int, record: int, mask: int, context: int) -> int:
    """A fence.proxy.async: accesses in the current warp's past have passed a fence between the proxies."""
    warp = load64(context + 8 * CURRENT)
    columns = load64(context + 8 * COLUMNS)
    mine = vector_of(context, warp)
    for other in range(columns):
        place = mine + 8 * (columns + other)
        store64(place, max(load64(place), load64(mine + 8 * other)))
    store64(mine + 8 * (columns + warp), load64(load64(context + 8 * CLOCKS) + 8 * warp))
    begin_time(context, warp)
    set_floors(context, warp)
    return 0


# ---- asynchronous operations -----------------------------------------------------------------------------------------


def operation_time(context: int, actor: int) -> int:
    """An actor other than a warp begins an operation. Returns its time, which is not yet ordered before any access."""
    now = load64(context + 8 * TIME) + 1
    store64(context + 8 * TIME, now)
    store64(load64(context + 8 * CLOCKS) + 8 * actor, now)
    return now


def completed(context: int, warp: int, actor: int, time: int) -> None:
    """A warp has waited for an operation."""
    place = vector_of(context, warp) + 8 * actor
    store64(place, max(load64(place), time))
