"""The order of a warp's lanes through mbarriers and memory, if lanes arrive and wait separately: machine code.

A warp's own entry in its vector is the time up to which all its lanes come after each other. Lanes that arrive at an
mbarrier, execute a fence or release pass on their own accesses; when all lanes of the warp have waited, or the warp
acquires, it comes after these accesses. Waits of a part of the warp at an mbarrier count lane by lane in a run that
reports hazards; without them, the first run may end at a suspicion that is none.
"""

from __future__ import annotations

from warpsan.engine.clocks import acquire, set_floors, vector_of
from warpsan.engine.context import Context
from warpsan.engine.structs import Ptr, i64

__all__ = ["acquire_by_lanes", "arrive_lanes", "lanes_before", "leave_lanes"]


def arrive_lanes(context: Context, warp: int, mask: int) -> None:
    """Lanes release their accesses."""
    now = context.clocks[warp]
    arrived = context.lanes_arrived.at(32 * warp)
    for lane in range(32):
        if mask >> lane & 1:
            arrived[lane] = now


def acquire_by_lanes(context: Context, warp: int, vector: Ptr[i64], mask: int) -> None:
    """Lanes of a warp have waited: it acquires a vector; if all lanes have waited, all come after the lanes that
    have arrived."""
    own = vector_of(context, warp).at(warp)
    least = own[0]
    acquire(context, warp, vector)
    live = context.warps[warp].live
    if mask == live:
        arrived = context.lanes_arrived.at(32 * warp)
        seen = context.lanes_seen.at(32 * warp)
        common = context.clocks[warp]
        for lane in range(32):
            seen[lane] = max(seen[lane], arrived[lane])
            if live >> lane & 1:
                common = min(common, seen[lane])
        least = max(least, common)
    for lane in range(32 if context.lanes_known != 0 else 0):
        if mask >> lane & 1:
            known = context.lanes_known.at(32 * (32 * warp + lane))
            for other in range(32):
                known[other] = max(known[other], context.lanes_arrived[32 * warp + other])
    own[0] = least
    set_floors(context, warp)


def leave_lanes(context: Context, warp: int, until: int) -> None:
    """All lanes of a warp come after releases of its other lanes, the last one at ``until``."""
    arrived = context.lanes_arrived.at(32 * warp)
    seen = context.lanes_seen.at(32 * warp)
    for lane in range(32):
        time = arrived[lane]
        if time <= until and time > seen[lane]:
            seen[lane] = time


def lanes_before(context: Context, warp: int, lanes: int, time: int) -> int:
    """Whether accesses of these lanes of a warp up to a time come before the next access of every lane."""
    if context.lanes_seen == 0 or lanes == 0:
        return 0
    seen = context.lanes_seen.at(32 * warp)
    for lane in range(32):
        if lanes >> lane & 1 and seen[lane] < time:
            return 0
    return 1
