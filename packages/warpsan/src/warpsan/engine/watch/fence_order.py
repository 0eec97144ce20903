"""The order of ``fence.sc``: machine code.

A ``fence.sc`` need not be of the writing or the reading thread (:mod:`warpsan.checks.scopes`). A ``fence.sc`` of
another thread before a strong write precedes, in Fence-SC order, a ``fence.sc`` after a read that observes the write.
Both have the scope of the GPU here, as the write and the read.
"""

from __future__ import annotations

from warpsan.checks.orders import SAME_GPU
from warpsan.engine.clocks import begin_time, warps_of_cluster
from warpsan.engine.context import Context
from warpsan.engine.layout import (
    NODE_BEFORE,
    NODE_ITEM,
    NODE_REACH,
    OF_FENCES,
    RELEASE_WARP,
    ROW_FENCES,
    ROW_FENCES_AT,
    ROW_OBSERVED,
)
from warpsan.engine.structs import Ptr, i64
from warpsan.engine.watch.lists import add_items, has_item, new_node, row_state
from warpsan.engine.words import load64, store64

__all__ = ["observe_fences", "of_others", "take_fences"]


def of_others(context: Context, warp: int) -> int:
    """Whether a ``fence.sc`` of another warp comes before a warp since its own last one."""
    fences = load64(row_state(context, warp) + 8 * ROW_FENCES)
    if fences == 0:
        return 0
    return load64(fences + 8 * NODE_BEFORE) != 0 or load64(load64(fences + 8 * NODE_ITEM) + 8 * RELEASE_WARP) != warp


def observe_fences(context: Context, warp: int, chain: int) -> None:
    """A warp reads a place strongly: it observes the ``fence.sc`` before the writes of the list there."""
    state = row_state(context, warp)
    node = chain
    while node != 0:
        fences = load64(node + 8 * NODE_ITEM)
        if load64(node + 8 * NODE_REACH) == OF_FENCES and has_item(load64(state + 8 * ROW_OBSERVED), fences) == 0:
            observed = new_node(context, fences, load64(state + 8 * ROW_OBSERVED), SAME_GPU, SAME_GPU)
            if observed == 0:
                return
            store64(state + 8 * ROW_OBSERVED, observed)
            begin_time(context, warp)  # the change needs a time of its own
            store64(state + 8 * ROW_FENCES_AT, context.clocks[warp])
        node = load64(node + 8 * NODE_BEFORE)


def take_fences(context: Context, warp: int, vector: Ptr[i64], meeting: int) -> None:
    """A warp has waited at a barrier: the ``fence.sc`` before its predecessors come before it too, and it shares
    their observations. The rules are those of :func:`.releases.take_rows`."""
    warps, mine = warps_of_cluster(context), row_state(context, warp)
    pairs = context.row_pairs.at(warps * (warps + warp))
    changed = 0
    for other in range(warps):
        state = row_state(context, other)
        at, known = load64(state + 8 * ROW_FENCES_AT), vector[other]
        if other == warp or at == pairs[other] or (at > known and at != meeting):
            continue
        changed |= add_items(context, mine + 8 * ROW_FENCES, load64(state + 8 * ROW_FENCES), 1)
        changed |= add_items(context, mine + 8 * ROW_OBSERVED, load64(state + 8 * ROW_OBSERVED), 0)
        pairs[other] = at
    if changed:
        if meeting == 0:
            begin_time(context, warp)
        now = context.clocks[warp]
        store64(mine + 8 * ROW_FENCES_AT, meeting if meeting else now)
