"""The synchronisation that is missing between two accesses that race: machine code (:mod:`~warpsan.engine.translate`).

A run that reports hazards keeps what it needs to tell: arrivals and waits whose order or scope is too weak, and the
strong writes of each place with the fences before them (links), which warps have read.
"""

from __future__ import annotations

from warpsan.checks.orders import SAME_CTA, SAME_GPU
from warpsan.engine.clocks import begin_time, relation_together
from warpsan.engine.context import Context
from warpsan.engine.layout import ACQUIRES, CONTINUES, RELEASES, SCOPE_SHIFT
from warpsan.engine.memory import Link
from warpsan.engine.rules import (
    EARLY_FENCE,
    FENCE_TOO_NARROW,
    LINK_TOO_NARROW,
    NO_FENCE_AFTER,
    NO_FENCE_BEFORE,
    NOT_COVERED,
    READ_TOO_NARROW,
    RELEASED,
    WAIT_FENCE_TOO_NARROW,
    WEAK_ARRIVALS,
)
from warpsan.engine.structs import Ptr, i64

__all__ = [
    "forget_links",
    "has_fenced",
    "missing",
    "note_arrival",
    "note_fence",
    "note_read",
    "note_wait",
    "note_write",
    "weak_wait",
]


def note_arrival(context: Context, warp: int, home: int, kind: int) -> None:
    """A warp has arrived at an mbarrier, or the barrier of its cluster, of a CTA; ``kind`` is the qualifier that the
    arrival lacks, or RELEASED."""
    if context.weak_arrivals != 0:
        cta = warp // context.warp_count
        context.weak_arrivals[WEAK_ARRIVALS * (context.cta_count * cta + home) + kind - 1] = context.time
        begin_time(context, warp)  # later accesses are not released


def has_fenced(context: Context, warp: int, remote: int) -> int:
    """Whether a warp has executed a fence whose scope contains its CTA, or its cluster (``remote``); it is known in a
    run that keeps parties."""
    return context.readers_of_links != 0 and context.readers_of_links[warp].fence > remote


def note_wait(context: Context, warp: int, kind: int) -> None:
    """A wait of a warp lacks a qualifier."""
    if context.weak_waits != 0:
        context.weak_waits[warp] = kind


def weak_wait(context: Context, warp: int) -> int:
    """The qualifier that the last wait of a warp, or of another of its CTA, lacked; 0 if none."""
    if context.weak_waits == 0:
        return 0
    first, kind = warp // context.warp_count * context.warp_count, context.weak_waits[warp]
    for other in range(first, first + context.warp_count):
        if kind == 0:
            kind = context.weak_waits[other]
    return kind


def missing(context: Context, warp: int, cta: int, near: int, time: int) -> int:
    """The number of what is missing between the accesses at a time of the CTA with a linear index and a warp; 0 if that
    is unknown. ``near`` is the number of that CTA among the resident ones, or -1."""
    own, early = warp // context.warp_count, 0
    if near >= 0 and context.weak_arrivals != 0:
        lacks = context.weak_arrivals.at(WEAK_ARRIVALS * (context.cta_count * near + own))
        for kind in range(1, EARLY_FENCE):
            if lacks[kind - 1] >= time:
                return kind
        early = EARLY_FENCE if lacks[EARLY_FENCE - 1] >= time else 0
        if lacks[RELEASED - 1] >= time and weak_wait(context, warp):
            return weak_wait(context, warp)
    if early == 0 and context.link_room != 0:
        first = warp - warp % context.warp_count
        for k in range(-1, context.warp_count):
            early = missing_link(context, warp if k < 0 else first + k, cta, near == own, time)
            if early:
                return early
    return early


# ---- strong writes and their readers ---------------------------------------------------------------------------------


def new_link(context: Context) -> Link:
    """Another link; 0 if there is no space."""
    if context.link_count == context.link_room:
        return Link(0)
    context.link_count += 1
    return context.links[context.link_count - 1]


def note_write(context: Context, warp: int, place: Ptr[i64], does: int) -> None:
    """A warp writes a place with a list of links strongly; with CONTINUES, it extends the list."""
    if context.link_room == 0:
        return
    link, fence = new_link(context), context.readers_of_links[warp].fence
    before = Link(place[0] if does & CONTINUES else 0)
    place[0] = link.address
    if link != 0:
        scope = does >> SCOPE_SHIFT
        link.before = before
        link.warp = warp
        link.cta = context.warps[warp].linear_cta
        link.time = context.time
        link.scope = scope
        link.fence = max(fence, scope + 1) if does & RELEASES else fence
        begin_time(context, warp)


def forget_links(context: Context, place: Ptr[i64]) -> None:
    """A place is written weakly."""
    if context.link_room != 0:
        place[0] = 0


def note_read(context: Context, warp: int, place: Ptr[i64], does: int) -> None:
    """A warp reads a place with a list of links strongly."""
    if context.link_room == 0 or place[0] == 0:
        return
    reader, scope = context.readers_of_links[warp], does >> SCOPE_SHIFT
    reader.acquired = scope + 1 if does & ACQUIRES else 0
    last = reader.seen
    if last != 0 and last.links == place[0] and last.scope == scope:
        return
    if context.seen_count < context.link_room:
        seen = context.seen_links[context.seen_count]
        context.seen_count += 1
        seen.links = Link(place[0])
        seen.scope = scope
        seen.before = last
        reader.seen = seen


def note_fence(context: Context, warp: int, acquires: int, releases: int, scope: int) -> None:
    """A warp executes a fence."""
    if context.link_room == 0:
        return
    reader = context.readers_of_links[warp]
    if acquires:
        reader.acquired = max(reader.acquired, scope + 1)
    if releases:
        reader.fence = max(reader.fence, scope + 1)


def missing_link(context: Context, reader: int, cta: int, own: int, time: int) -> int:
    """Missing synchronisation between a strong write of a CTA after a time and a warp that has read it; 0 if it has
    read none."""
    state = context.readers_of_links[reader]
    seen, actual, scope = state.seen, Link(0), 0
    while seen != 0:
        link = seen.links
        while link != 0:
            if link.cta == cta and link.time >= time and (own == 0 or link.warp != reader):
                actual, scope = link, seen.scope
            link = link.before
        seen = seen.before
    if actual == 0:
        return 0
    relation = SAME_GPU
    if own:
        relation = SAME_CTA
    elif context.warps[actual.warp].linear_cta == cta:
        relation = relation_together(context, actual.warp // context.warp_count, reader // context.warp_count)
    if actual.scope < relation:
        return lack(LINK_TOO_NARROW, relation, actual.scope)
    if scope < relation:
        return lack(READ_TOO_NARROW, relation, scope)
    if actual.fence == 0:
        return lack(NO_FENCE_BEFORE, relation, 0)
    if actual.fence - 1 < relation:
        return lack(FENCE_TOO_NARROW, relation, actual.fence - 1)
    if state.acquired == 0:
        return lack(NO_FENCE_AFTER, relation, 0)
    if state.acquired - 1 < relation:
        return lack(WAIT_FENCE_TOO_NARROW, relation, state.acquired - 1)
    return NOT_COVERED


def lack(kind: int, relation: int, scope: int) -> int:
    """The number of a lack with the relation of the two threads, and a scope that is too narrow."""
    return kind | relation << 8 | scope << 12
