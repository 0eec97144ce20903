"""The order of ``fence.sc``: machine code.

A ``fence.sc`` need not be of the writing or the reading thread (:mod:`.releases`). A ``fence.sc`` of
another thread before a strong write precedes, in Fence-SC order, a ``fence.sc`` after a read that observes the write.
Both have the scope of the GPU here, as the write and the read.
"""

from __future__ import annotations

from warpsan.checks.orders import SAME_GPU
from warpsan.engine.clocks import begin_time, warps_of_cluster
from warpsan.engine.context import Context
from warpsan.engine.layout import (
    OF_FENCES,
)
from warpsan.engine.memory import Release, ReleaseList
from warpsan.engine.structs import Ptr, i64
from warpsan.engine.watch.lists import add_items, has_item, new_node, row_state

__all__ = ["observe_fences", "of_others", "take_fences"]


def of_others(context: Context, warp: int) -> int:
    """Whether a ``fence.sc`` of another warp comes before a warp since its own last one."""
    fences = row_state(context, warp).fences
    if fences == 0:
        return 0
    return fences.before != 0 or Release(fences.item).warp != warp


def observe_fences(context: Context, warp: int, chain: ReleaseList) -> None:
    """A warp reads a place strongly: it observes the ``fence.sc`` before the writes of the list there."""
    state = row_state(context, warp)
    node = chain
    while node != 0:
        fences = node.item
        if node.reach == OF_FENCES and has_item(state.observed, fences) == 0:
            observed = new_node(context, fences, state.observed, SAME_GPU, SAME_GPU)
            if observed == 0:
                return
            state.observed = observed
            begin_time(context, warp)  # the change needs a time of its own
            state.fences_at = context.clocks[warp]
        node = node.before


def take_fences(context: Context, warp: int, vector: Ptr[i64], meeting: int) -> None:
    """A warp has waited at a barrier: the ``fence.sc`` before its predecessors come before it too, and it shares
    their observations. The rules are those of :func:`.releases.take_rows`."""
    warps, mine = warps_of_cluster(context), row_state(context, warp)
    pairs = context.row_pairs.at(warps * (warps + warp))
    changed = 0
    for other in range(warps):
        state = row_state(context, other)
        at, known = state.fences_at, vector[other]
        if other == warp or at == pairs[other] or (at > known and at != meeting):
            continue
        fences = add_items(context, mine.fences, state.fences, 1)
        observed = add_items(context, mine.observed, state.observed, 0)
        changed |= fences != mine.fences or observed != mine.observed
        mine.fences, mine.observed = fences, observed
        pairs[other] = at
    if changed:
        if meeting == 0:
            begin_time(context, warp)
        now = context.clocks[warp]
        mine.fences_at = meeting if meeting else now
