"""The order of a warp's lanes through mbarriers and memory, if lanes arrive and wait separately: machine code.

A warp's own entry in its vector is the time up to which all its lanes come after each other. Lanes that arrive at an
mbarrier, execute a fence or release pass on their own accesses; when all lanes of the warp have waited, or the warp
acquires, it comes after these accesses (:class:`warpsan.checks.lanes.LaneOrder`). Waits of a part of the warp at an
mbarrier are not kept: this may cause false suspicions.
"""

from __future__ import annotations

from warpsan.engine.clocks import acquire, set_floors, vector_of
from warpsan.engine.layout import CLOCKS, LANES_ARRIVED, LANES_SEEN, LIVE, WARP_WORDS, WARPS
from warpsan.engine.words import load64, store64

__all__ = ["acquire_by_lanes", "arrive_lanes", "lanes_before", "leave_lanes"]


def arrive_lanes(context: int, warp: int, mask: int) -> None:
    """Lanes release their accesses."""
    now = load64(load64(context + 8 * CLOCKS) + 8 * warp)
    arrived = load64(context + 8 * LANES_ARRIVED) + 8 * 32 * warp
    for lane in range(32):
        if mask >> lane & 1:
            store64(arrived + 8 * lane, now)


def acquire_by_lanes(context: int, warp: int, vector: int, mask: int) -> None:
    """Lanes of a warp have waited: it acquires a vector; if all lanes have waited, all come after the lanes that
    have arrived."""
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
    """All lanes of a warp come after releases of its other lanes, the last one at ``until``."""
    arrived = load64(context + 8 * LANES_ARRIVED) + 8 * 32 * warp
    seen = load64(context + 8 * LANES_SEEN) + 8 * 32 * warp
    for lane in range(32):
        time = load64(arrived + 8 * lane)
        if time <= until and time > load64(seen + 8 * lane):
            store64(seen + 8 * lane, time)


def lanes_before(context: int, warp: int, lanes: int, time: int) -> int:
    """Whether accesses of these lanes of a warp up to a time come before the next access of every lane."""
    if load64(context + 8 * LANES_SEEN) == 0 or lanes == 0:
        return 0
    seen = load64(context + 8 * LANES_SEEN) + 8 * 32 * warp
    for lane in range(32):
        if lanes >> lane & 1 and load64(seen + 8 * lane) < time:
            return 0
    return 1
