"""The order of the accesses of a cluster's actors: machine code (:mod:`~warpsan.engine.translate`).

Actors are the warps. With asynchronous units, the operations of each warp and the copies that signal each mbarrier are
further actors, in this order. A vector has, for each actor, the time up to which its accesses come before; with
asynchronous units also the time up to which they have passed a proxy fence. A release passes a warp's vector on, and
begins a new time for the warp; an acquire merges the released vector (FastTrack, Flanagan and Freund 2009). A warp's
own entry is the time up to which its lanes come after each other, even after a divergence.
"""

from __future__ import annotations

from warpsan.checks.orders import SAME_CLUSTER, SAME_CTA, SAME_GPU
from warpsan.engine.context import Context
from warpsan.engine.layout import (
    BARRIER_COUNT,
    EVERY_LANE,
    FIRST_TIME,
)
from warpsan.engine.memory import Reader, Record
from warpsan.engine.rules import WEAK_ARRIVALS
from warpsan.engine.structs import Ptr, i64
from warpsan.engine.tags import actor_of_tag, time_of_tag
from warpsan.engine.words import copy, fill

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
    "relation_together",
    "release_fenced",
    "release_to",
    "set_floors",
    "vector_of",
    "warps_of_cluster",
]


def begin_clocks(context: Context) -> None:
    """A cluster begins: all earlier accesses are ordered, and no memory is written."""
    if context.checked == 0:
        return
    if context.time > context.time_limit >> 1:
        restart_clock(context)
    now = context.time + 1
    context.time = now
    actors, ctas = context.actors, context.cta_count
    warps = warps_of_cluster(context)
    for column in range(context.columns):
        context.clocks[column] = now if column < warps else now - 1
    for warp in range(warps):
        for other in range(actors):
            vector_of(context, warp)[other] = now - 1
        context.floors[warp] = now - 1
        context.fenced_floors[warp] = now - 1
    fill(context.released, 0, 8 * actors * BARRIER_COUNT * ctas)
    fill(context.written, 0, context.written_bytes * ctas)
    fill(context.page_full, 0, 8 * context.pages * ctas)
    if context.origins != 0:
        fill(context.origins, 0, context.shared_stride * ctas)
    for page in range(context.pages * ctas):
        flying = context.page_flying[page]
        if flying != 0 or context.page_reading[page] != 0:  # without waits for these
            fill(context.flying, 0, 4 * context.granules * ctas)
            break
    fill(context.page_flying, 0, 8 * context.pages * ctas)
    fill(context.page_reading, 0, 8 * context.pages * ctas)
    context.partial_reads = 0
    if context.remote != 0:
        fill(context.remote, 0, 8 * context.columns * ctas)
    if context.cluster_vectors != 0:
        fill(context.cluster_vectors, 0, 16 * actors * (ctas // context.cluster_size))
    if context.fenced_at != 0:
        fill(context.fenced_at, 0, 16 * actors * warps)
    if context.shared_chains != 0:
        fill(context.shared_chains, 0, 8 * context.granules * ctas)
    if context.weak_arrivals != 0:
        fill(context.weak_arrivals, 0, 8 * WEAK_ARRIVALS * ctas * ctas)
        fill(context.weak_waits, 0, 8 * warps)
    if context.readers_of_links != 0:
        fill(context.readers_of_links, 0, Reader.byte_size * warps)
    if context.shared_links != 0:
        fill(context.shared_links, 0, 8 * context.granules * ctas)
    if context.waited != 0:
        fill(context.waited, 0, 8 * warps)
    if context.observed_at != 0:
        fill(context.observed_at, 0, 16 * actors * warps)


def restart_clock(context: Context) -> None:
    """Restart the time, between two clusters.

    Global memory keeps the times of other clusters: they are compared only with times that the same CTA released.
    """
    for k in range(context.timed_count):
        row = context.timed.at(2 * k)
        fill(row[0], 0, row[1])
    context.time = FIRST_TIME


def warps_of_cluster(context: Context) -> int:
    """The number of warps of a cluster; they are the first actors."""
    return context.warp_count * context.cta_count


def first_of_cluster(context: Context, cta: int) -> int:
    """The first CTA of the cluster of one of the CTAs that run together."""
    return cta - cta % context.cluster_size


def relation_together(context: Context, one: int, other: int) -> int:
    """The relation of threads of two resident CTAs, by their numbers among these."""
    if one == other:
        return SAME_CTA
    return SAME_CLUSTER if first_of_cluster(context, one) == first_of_cluster(context, other) else SAME_GPU


def vector_of(context: Context, warp: int) -> Ptr[i64]:
    """The vector of a warp."""
    return context.vectors.at(context.actors * warp)


def comes_before(context: Context, warp: int, tag: int) -> int:
    """Whether the access of a tag of shared memory comes before a warp's next one."""
    actor = actor_of_tag(tag)
    if actor == warp:
        return 1
    return 1 if time_of_tag(tag) <= vector_of(context, warp)[actor] else 0


def lanes_there(context: Context, present: int) -> int:
    """The lanes that come after an instruction of these lanes, or their exit, in program order; 0 if each lane comes
    after itself alone."""
    if context.strict != 0:
        return 0
    return present | (EVERY_LANE ^ context.current_live)


def lanes_with(there: int, lane: int) -> int:
    """The lanes that come after a lane's access with those lanes present (:func:`lanes_there`)."""
    return there if there != 0 else 1 << lane


def release_to(context: Context, warp: int, vector: Ptr[i64]) -> None:
    """A warp's accesses and their past are released to a vector."""
    actors = context.actors
    mine = vector_of(context, warp)
    for other in range(actors):
        vector[other] = max(vector[other], mine[other])
    clock = context.clocks.at(warp)
    vector[warp] = max(vector[warp], clock[0])
    begin_time(context, warp)


def begin_time(context: Context, warp: int) -> None:
    """The next accesses of a warp have a time of their own."""
    now = context.time + 1
    context.time = now
    context.clocks[warp] = now


def acquire(context: Context, warp: int, vector: Ptr[i64]) -> None:
    """A warp acquires a vector, at the present time.

    Warps that leave a barrier together begin one time together: after the next barrier, one number (the floor) shows
    that all their accesses in between are ordered.
    """
    actors = context.actors
    mine = vector_of(context, warp)
    for other in range(actors):
        mine[other] = max(mine[other], vector[other])
    set_floors(context, warp)
    context.clocks[warp] = context.time


def set_floors(context: Context, warp: int) -> None:
    """Set the times up to which the accesses of all actors come before a warp's, and have passed a proxy fence.

    An actor whose last operation comes before may have a later time, including future times.
    """
    columns, warps = context.columns, warps_of_cluster(context)
    mine, clocks = vector_of(context, warp), context.clocks
    floor = context.time
    for other in range(context.shared_columns):
        known = mine[other]
        if other < warps or known < clocks[other]:
            floor = min(floor, known)
    context.floors[warp] = floor
    if columns > warps:
        floor = context.time
        for other in range(warps):
            floor = min(floor, mine[columns + other])
        context.fenced_floors[warp] = floor


def lanes_meet(context: Context) -> int:
    """All lanes of the current warp have converged: a new time begins for it."""
    warp = context.current
    vector_of(context, warp)[warp] = context.clocks[warp]
    begin_time(context, warp)
    return 0


def forget(context: Context, vector: Ptr[i64]) -> None:
    """Reset a vector."""
    fill(vector, 0, 8 * context.actors)


def publish(context: Context, vectors: Ptr[i64]) -> None:
    """A phase is complete: its vector can be acquired, and the next phase begins.

    The vector of all earlier phases lies after the vector of the phase.
    """
    actors = context.actors
    public = vectors.at(actors)
    for other in range(actors):
        public[other] = max(public[other], vectors[other])
    forget(context, vectors)


# ---- fences ----------------------------------------------------------------------------------------------------------


def fence_warp(registers: int, record: Record, mask: int, context: Context) -> int:
    """A releasing fence: later relaxed arrivals of the current warp release its present vector. Operands are whether
    the scope contains the cluster, and whether it is a fence of memory."""
    warp = context.current
    actors = context.actors
    for remote in range(1 + record.operands[0]):
        fenced = fenced_vector(context, warp, remote)
        copy(fenced, vector_of(context, warp), 8 * actors)
        fenced[warp] = context.clocks[warp]
    if record.operands[1] and context.readers_of_links != 0:
        reader = context.readers_of_links[warp]
        reader.fence = max(reader.fence, record.operands[0] + 1)
    begin_time(context, warp)
    return 0


def fenced_vector(context: Context, warp: int, remote: int) -> Ptr[i64]:
    """The vector at a warp's last fence whose scope contains its CTA, or its cluster (``remote``)."""
    return context.fenced_at.at(context.actors * (2 * warp + remote))


def observed_vector(context: Context, warp: int, remote: int) -> Ptr[i64]:
    """The observations of a warp's relaxed waits since its last fence: of its own CTA, or of others."""
    return context.observed_at.at(context.actors * (2 * warp + remote))


def join_vector(context: Context, vector: Ptr[i64], more: Ptr[i64]) -> None:
    """Merge a vector into another: the later time of each actor."""
    for other in range(context.actors):
        vector[other] = max(vector[other], more[other])


def release_fenced(context: Context, warp: int, vector: Ptr[i64], remote: int) -> None:
    """A relaxed arrival: the vector of the warp's last fence is released."""
    join_vector(context, vector, fenced_vector(context, warp, remote))


def fence_proxies(registers: int, record: Record, mask: int, context: Context) -> int:
    """A fence.proxy.async: accesses in the current warp's past to shared memory, global memory or both (operands 0 and
    1) have passed a fence between the proxies."""
    warp = context.current
    columns = context.columns
    mine = vector_of(context, warp)
    for part in range(1, context.actors // columns):
        if record.operands[part - 1]:
            for other in range(columns):
                place = mine.at(part * columns + other)
                place[0] = max(place[0], mine[other])
            mine[part * columns + warp] = context.clocks[warp]
    begin_time(context, warp)
    set_floors(context, warp)
    return 0


# ---- asynchronous operations -----------------------------------------------------------------------------------------


def operation_time(context: Context, actor: int) -> int:
    """An actor other than a warp begins an operation. Returns its time, which is not yet ordered before any access."""
    now = context.time + 1
    context.time = now
    context.clocks[actor] = now
    return now


def completed(context: Context, warp: int, actor: int, time: int) -> None:
    """A warp has waited for an operation."""
    place = vector_of(context, warp).at(actor)
    place[0] = max(place[0], time)
