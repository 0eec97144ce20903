"""Releases and acquires through memory: machine code.

A release pattern on a place is a release operation, or a fence and a later strong write; an acquire pattern is an
acquire operation, or a strong read and a later fence. If the read observes the write, directly or through later
read-modify-writes (a release sequence), and the writes, read and fences are morally strong, all accesses before the
release come before all accesses after the acquire ("Release and Acquire Patterns", "Synchronizes-With", "Causality
Order"). A ``fence.sc`` need not be of the writing or the reading thread (:mod:`.fence_order`).

Within a cluster, the vectors of :mod:`~warpsan.engine.clocks` hold the order. Each warp of the cluster also has a row:
the time up to which the accesses of every warp of the grid come before its own. A release is a record of the warp's
vector and row at that time. The releases of a place, in the order of its strong writes, are a list, the last one first:
a strong write starts a new list, with the warp's own last release there; a read-modify-write continues it, a weak write
ends it. A warp that acquires from a place joins all of them. At a barrier, warps merge the rows of the warps that have
arrived there.
"""

from __future__ import annotations

from warpsan.checks.orders import SAME_GPU
from warpsan.engine.clocks import begin_time, relation_together, set_floors, vector_of, warps_of_cluster
from warpsan.engine.context import Context
from warpsan.engine.lane_order import arrive_lanes, leave_lanes
from warpsan.engine.layout import (
    ACQUIRES,
    CONTINUES,
    FULL,
    OBSERVES,
    OF_FENCES,
    RELEASES,
    SCOPE_SHIFT,
)
from warpsan.engine.memory import Record, Release, ReleaseList, Row, RowCopy
from warpsan.engine.missing import note_fence, note_read, note_write
from warpsan.engine.structs import Ptr, i64
from warpsan.engine.suspects import is_status
from warpsan.engine.watch.fence_order import observe_fences, of_others, take_fences
from warpsan.engine.watch.lists import has_item, new_node, row_state, take_room, use_items
from warpsan.engine.words import copy, fill

__all__ = [
    "begin_rows",
    "fence_memory",
    "linear_of",
    "observe",
    "release_to_place",
    "row_of",
    "take_rows",
]


AT_ANY_TIME = (1 << 62) - 1

# ---- rows ------------------------------------------------------------------------------------------------------------


def linear_of(context: Context, warp: int) -> int:
    """The linear index in the grid of the CTA of a warp of the cluster."""
    return context.warps[warp].linear_cta


def row_of(context: Context, warp: int) -> Ptr[i64]:
    """A warp's row."""
    return context.grid_rows.at(context.grid_warps * warp)


def begin_rows(context: Context) -> None:
    """A cluster begins: no access of other clusters comes before it."""
    if context.row_states == 0:
        return
    warps = warps_of_cluster(context)
    for warp in range(warps):
        state = row_state(context, warp)
        if state.version != 0 and context.grid_rows != 0:
            fill(row_of(context, warp), 0, 8 * context.grid_warps)
        fill(state, 0, Row.byte_size)
    fill(context.row_pairs, 0, 16 * warps * warps)


def grow_row(context: Context, warp: int, place: int, many: int, times: Ptr[i64]) -> int:
    """From ``place`` on, a number of times of a warp's row increase. Returns whether any did."""
    row = row_of(context, warp).at(place)
    grown = 0
    for k in range(many):
        if row[k] < times[k]:
            row[k] = times[k]
            grown = 1
    if grown:
        state = row_state(context, warp)
        state.version += 1
        state.snapshot = RowCopy(0)
    return grown


def take_rows(context: Context, warp: int, vector: Ptr[i64], meeting: int) -> None:
    """A warp has waited at a barrier: it merges the rows of warps that come before it by a vector.

    A row is its warp's present row, and so it is merged only if all of it comes before: that warp's joins, and the rows
    that it has merged, earlier or at this barrier. Converging warps pass the vector of their barrier and the time of
    their convergence; others pass their own, and 0.
    """
    if context.row_states == 0:
        return
    take_fences(context, warp, vector, meeting)
    if context.grid_rows == 0:
        return
    warps = warps_of_cluster(context)
    pairs = context.row_pairs.at(warps * warp)
    for other in range(warps):
        state = row_state(context, other)
        version, known = state.version, vector[other]
        if other == warp or version == pairs[other] or state.joined > known:
            continue
        merged = state.merged
        if merged > known and merged != meeting:
            continue
        if grow_row(context, warp, 0, context.grid_warps, row_of(context, other)):
            now = context.clocks[warp]
            row_state(context, warp).merged = meeting if meeting else now
        pairs[other] = version


# ---- releases --------------------------------------------------------------------------------------------------------


def vector_in(context: Context, release: Release) -> Ptr[i64]:
    """The address of the vector of a release."""
    return release.linear_ctas.at(context.cta_count)


def new_release(context: Context, warp: int, place: Release) -> Release:
    """Record a warp's past, including its own accesses, in ``place`` if that is not 0. Returns 0 if the pool is
    full. Later accesses of the warp have a later time."""
    actors, ctas = context.actors, context.cta_count
    release = place
    if place == 0:
        release = Release(take_room(context, Release.byte_size // 8 - 1 + ctas + actors))
    state, wide = row_state(context, warp), context.grid_warps
    snapshot = state.snapshot
    if snapshot == 0 and state.version != 0:
        snapshot = RowCopy(take_room(context, wide))
        if snapshot == 0:
            return Release(0)
        copy(snapshot, row_of(context, warp), 8 * wide)
        state.snapshot = snapshot
    if release == 0:
        return release
    now = context.clocks[warp]
    release.time = now
    release.warp = warp
    release.row = snapshot
    release.used = 0
    warps = context.warp_count
    for cta in range(ctas):
        release.linear_ctas[cta] = linear_of(context, warps * cta)
    copy(vector_in(context, release), vector_of(context, warp), 8 * actors)
    vector_in(context, release)[warp] = now
    begin_time(context, warp)
    return release


def release_for(context: Context, warp: int, releases: int) -> int:
    """The release of a strong write of a warp: its past now, or at the warp's last fence.

    Returns the record, 0 if there is none, or a status below 64.
    """
    if releases:
        release = new_release(context, warp, Release(0))
        return release.address if release != 0 else FULL
    fenced = row_state(context, warp).fenced
    if fenced != 0:
        fenced.used = 1
    return fenced.address


def release_to_place(
    context: Context, warp: int, lane: int, chain: Ptr[i64], links: Ptr[i64], does: int, release: int, narrow: int
) -> int:
    """A lane of a warp writes a place with lists of releases and links strongly.

    ``release`` is that of another lane of the same instruction, or 0; with ``narrow``, scopes of operations may exclude
    threads.

    Returns
    -------
    int
        The release, 0 if there is none, or a status below 64.
    """
    status = observe(context, warp, chain, links, does) if does & OBSERVES else 0
    note_write(context, warp, links, does)
    if does & RELEASES:
        arrive_lanes(context, warp, 1 << lane)
    if status == 0 and (release == 0 or does & ACQUIRES):
        release = release_for(context, warp, does & RELEASES)
        status = release if is_status(release) else 0
    if status != 0:
        return status
    before = ReleaseList(chain[0])
    if does & CONTINUES == 0:
        before = own_release(context, warp, before, does >> SCOPE_SHIFT)
    elif narrow:
        before = morally_strong(context, warp, before, does >> SCOPE_SHIFT)
    status = continue_chain(context, warp, chain, Release(release), before, does)
    return status if status != 0 else release


def own_release(context: Context, warp: int, chain: ReleaseList, scope: int) -> ReleaseList:
    """The last release of a warp in the list of a place, which covers its next strong write there too, as a list; 0 if
    there is none, or the pool is full."""
    node = chain
    while node != 0:
        if node.reach != OF_FENCES:
            release = Release(node.item)
            other, warps = release.warp, context.warp_count
            if other == warp and release.linear_ctas[other // warps] == linear_of(context, warp):
                return new_node(context, node.item, ReleaseList(0), scope, min(node.reach, node.scope))
        node = node.before
    return ReleaseList(0)


def continue_chain(
    context: Context, warp: int, chain: Ptr[i64], release: Release, before: ReleaseList, does: int
) -> int:
    """A strong write of a place by a warp, with its release (or 0), after the list of earlier ones. Returns a
    status."""
    scope, state = does >> SCOPE_SHIFT, row_state(context, warp)
    near = Release(0) if does & RELEASES else state.near
    node = before
    if scope >= SAME_GPU and of_others(context, warp):
        use_items(state.fences)
        node = new_node(context, state.fences.address, node, scope, OF_FENCES)
        if node == 0:
            return FULL
    if release != 0:
        node = new_node(context, release.address, node, scope, SAME_GPU)
        if node == 0:
            return FULL
    if near != 0:
        near.used = 1
        node = new_node(context, near.address, node, scope, state.reach)
        if node == 0:
            return FULL
    chain[0] = node.address
    return 0


def morally_strong(context: Context, warp: int, chain: ReleaseList, scope: int) -> ReleaseList:
    """The releases of a list that a read-modify-write of a warp with a scope continues: those whose scope and that one
    include the other thread. They are dropped if the pool is full."""
    node, left = chain, ReleaseList(0)
    while node != 0 and is_morally_strong(context, warp, node, scope):
        node = node.before
    if node == 0:
        return chain
    node = chain
    while node != 0:
        if is_morally_strong(context, warp, node, scope):
            longer = new_node(context, node.item, left, node.scope, node.reach)
            left = longer if longer != 0 else left
        node = node.before
    return left


def is_morally_strong(context: Context, warp: int, node: ReleaseList, scope: int) -> int:
    """Whether the scopes of an element of a list and of an operation of a warp include the other thread."""
    near = SAME_GPU  # the threads of the fences are not kept
    if node.reach != OF_FENCES:
        near = relation(context, warp, Release(node.item))
    return near <= min(scope, node.scope)


def relation(context: Context, warp: int, release: Release) -> int:
    """The relation of a release's thread to a warp's."""
    other, warps = release.warp, context.warp_count
    if release.linear_ctas[other // warps] != linear_of(context, other):
        return SAME_GPU
    return relation_together(context, other // warps, warp // warps)


# ---- acquires --------------------------------------------------------------------------------------------------------


def covered(context: Context, warp: int, release: Release) -> int:
    """Whether a release already comes before a warp."""
    other, time = release.warp, release.time
    warps = context.warp_count
    linear = release.linear_ctas[other // warps]
    if linear == linear_of(context, other):
        return 1 if other == warp or vector_of(context, warp)[other] >= time else 0
    return 1 if row_of(context, warp)[warps * linear + other % warps] >= time else 0


def join_lanes(context: Context, warp: int, release: Release) -> None:
    """The lanes of a warp come after its other lanes' releases before a release, which may be any warp's."""
    other, warps = release.warp, context.warp_count
    linear, row = release.linear_ctas[other // warps], release.row
    until = 0
    if linear == linear_of(context, other):
        until = AT_ANY_TIME if other == warp else vector_in(context, release)[warp]
    if row != 0:
        until = max(until, row.times[warps * linear_of(context, warp) + warp % warps])
    if until != 0:
        leave_lanes(context, warp, until)


def join(context: Context, warp: int, release: Release) -> None:
    """A warp comes after a release."""
    join_lanes(context, warp, release)
    if covered(context, warp, release):
        return
    other, warps = release.warp, context.warp_count
    vector, grown = vector_in(context, release), 0
    if release.linear_ctas[other // warps] == linear_of(context, other):
        mine = vector_of(context, warp)
        for actor in range(context.actors):
            if actor != warp:
                mine[actor] = max(mine[actor], vector[actor])
        set_floors(context, warp)
    else:
        for cta in range(context.cta_count):
            place = warps * release.linear_ctas[cta]
            if place < 0:  # no release
                continue
            grown |= grow_row(context, warp, place, warps, vector.at(warps * cta))
    row = release.row
    if row != 0:
        grown |= grow_row(context, warp, 0, context.grid_warps, row.times)
    if grown:
        now = context.clocks[warp]
        row_state(context, warp).joined = now


def join_all(context: Context, warp: int, node: ReleaseList, scope: int) -> None:
    """A warp comes after all releases of a list if their scopes and the warp's include the other thread; the last
    one is first, because it often comes after the others."""
    while node != 0:
        release = Release(node.item)
        reach = min(scope, min(node.scope, node.reach))
        if reach >= SAME_GPU or (reach != OF_FENCES and relation(context, warp, release) <= reach):
            join(context, warp, release)
        node = node.before


def observe(context: Context, warp: int, place: Ptr[i64], links: Ptr[i64], does: int) -> int:
    """A warp reads a place with lists of releases and links strongly: it comes after the releases now, or at its next
    fence. Returns a status."""
    note_read(context, warp, links, does)
    chain, scope = ReleaseList(place[0]), does >> SCOPE_SHIFT
    if chain == 0:
        return 0
    if scope >= SAME_GPU:
        observe_fences(context, warp, chain)
    if does & ACQUIRES:
        join_all(context, warp, chain, scope)
        return 0
    state = row_state(context, warp)
    seen = state.seen
    if seen != 0 and seen.item == chain and seen.scope >= scope:
        return 0
    node = new_node(context, chain.address, seen, scope, SAME_GPU)
    state.seen = node
    return 0 if node != 0 else FULL


def fence_memory(registers: int, record: Record, mask: int, context: Context) -> int:
    """A fence: operands are whether it acquires, whether it releases, its scope, and whether it is a ``fence.sc``.
    Returns a status."""
    warp, scope = context.current, record.operands[2]
    state = row_state(context, warp)
    sequential = scope >= SAME_GPU and record.operands[3] != 0
    note_fence(context, warp, record.operands[0], record.operands[1], scope)
    if record.operands[0]:
        seen = state.seen
        while seen != 0:
            join_all(context, warp, ReleaseList(seen.item), min(scope, seen.scope))
            seen = seen.before
        if scope >= SAME_GPU:  # a wider fence adds nothing
            state.seen = ReleaseList(0)
    if sequential:
        come_after_fences(context, warp)
    if record.operands[1]:
        arrive_lanes(context, warp, mask)
        last = state.fenced if scope >= SAME_GPU else state.near
        fences = state.fences
        if last != 0 and last.used != 0:
            last = Release(0)
        if last != 0 and sequential == 0 and has_item(fences, last.address):
            last = Release(0)
        release = new_release(context, warp, last)
        if release == 0:
            return FULL
        state.near = Release(0) if scope >= SAME_GPU else release
        if scope >= SAME_GPU:
            state.fenced = release
        state.reach = scope
        if sequential:
            if fences == 0 or last == 0 or of_others(context, warp):
                fences = new_node(context, release.address, ReleaseList(0), SAME_GPU, SAME_GPU)
            state.fences = fences
            state.fences_at = context.clocks[warp]
            if fences == 0:
                return FULL
    return 0


def come_after_fences(context: Context, warp: int) -> None:
    """A warp executes a ``fence.sc``: fences before its observations precede it in Fence-SC order."""
    state = row_state(context, warp)
    observed = state.observed
    while observed != 0:
        join_all(context, warp, ReleaseList(observed.item), SAME_GPU)
        observed = observed.before
    state.observed = ReleaseList(0)
