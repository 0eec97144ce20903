"""The order of a warp's lanes by mbarriers and through memory, where lanes arrive and wait apart: machine code.

A warp's own entry in its vector is the time up to which all its lanes come after each other. Lanes that arrive at an
mbarrier, execute a fence or release pass on what they themselves did; when all lanes of the warp have waited, or the
warp acquires that, they come after it (:class:`warpsan.checks.lanes.LaneOrder`). What a part of the warp waits for
at an mbarrier is not kept: that may suspect more.
"""

from __future__ import annotations

from warpsan.engine.clocks import acquire, set_floors, vector_of
from warpsan.engine.layout import CLOCKS, LANES_ARRIVED, LANES_SEEN, LIVE, WARP_WORDS, WARPS
from warpsan.engine.words import load64, store64

__all__ = ["acquire_by_lanes", "arrive_lanes", "lanes_before", "leave_lanes"]


def arrive_lanes(context: int, warp: int, mask: int) -> None:
    """Lanes release what they did."""
    now = load64(load64(context + 8 * CLOCKS) + 8 * warp)
    arrived = load64(context + 8 * LANES_ARRIVED) + 8 * 32 * warp
    for lane in range(32):
        if mask >> lane & 1:
            store64(arrived + 8 * lane, now)


def acquire_by_lanes(context: int, warp: int, vector: int, mask: int) -> None:
    """Lanes of a warp have waited: it comes after what was passed on to a vector, and all its lanes come after those of
    them that have arrived, if all have waited."""
    own = vector_of(context, warp) + 8 * warp
    least = load64(own)
    acquire(context, warp, vector)
    live = load64(load64(context + 8 * WARPS) + 8 * (WARP_WORDS * warp + LIVE))
    if mask == live:
        arrived = load64(context + 8 * LANES_ARRIVED) + 8 * 32 * warp
        seen = load64(context + 8 * LANES_SEEN) + 8 * 32 * warp
        common = load64(load64(context + 8 * CLOCKS) + 8 * warp)
        for lane in range(32):
            store64(seen + 8 * lane, max(load64(seen + 8 * lane), load64(arrived + 8 * lane)))
            if live >> lane & 1:
                common = min(common, load64(seen + 8 * lane))
        least = max(least, common)
    store64(own, least)
    set_floors(context, warp)


def leave_lanes(context: int, warp: int, until: int) -> None:
    """All lanes of a warp come after what others of them have released, for the last time at ``until``."""
    arrived = load64(context + 8 * LANES_ARRIVED) + 8 * 32 * warp
    seen = load64(context + 8 * LANES_SEEN) + 8 * 32 * warp
    for lane in range(32):
        time = load64(arrived + 8 * lane)
        if time <= until and time > load64(seen + 8 * lane):
            store64(seen + 8 * lane, time)


def lanes_before(context: int, warp: int, lanes: int, time: int) -> int:
    """Whether what these lanes of a warp did up to a time comes before what any of its lanes does now."""
    if load64(context + 8 * LANES_SEEN) == 0 or lanes == 0:
        return 0
    seen = load64(context + 8 * LANES_SEEN) + 8 * 32 * warp
    for lane in range(32):
        if lanes >> lane & 1 and load64(seen + 8 * lane) < time:
            return 0
    return 1
