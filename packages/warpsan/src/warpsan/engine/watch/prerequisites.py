"""The check of programmatic dependent launches: machine code. The rules are those of
:mod:`warpsan.checks.prerequisites`."""

from __future__ import annotations

from warpsan.engine.clocks import begin_time, vector_of, warps_of_cluster
from warpsan.engine.layout import (
    CLOCKS,
    CURRENT,
    EARLY_ACCESS,
    GLOBAL_SHIFT,
    IN_GLOBAL,
    PREREQUISITE_COUNT,
    PREREQUISITES,
    SCRATCH,
    SCRATCH_PLACES,
    WAITED,
)
from warpsan.engine.suspects import suspect
from warpsan.engine.words import load64, store64

__all__ = ["access_in_time", "wait_for_grids"]


def wait_for_grids(registers: int, record: int, mask: int, context: int) -> int:
    """``griddepcontrol.wait``: later accesses of the current warp come after the grids before."""
    if load64(context + 8 * PREREQUISITES) != 0:
        warp = load64(context + 8 * CURRENT)
        waited = load64(context + 8 * WAITED) + 8 * warp
        begin_time(context, warp)
        if load64(waited) == 0:
            store64(waited, load64(load64(context + 8 * CLOCKS) + 8 * warp))
    return 0


def comes_after_wait(context: int) -> int:
    """Whether the current warp comes after a wait of its cluster, or needs none."""
    if load64(context + 8 * PREREQUISITES) == 0:
        return 1
    warp, waited = load64(context + 8 * CURRENT), load64(context + 8 * WAITED)
    for other in range(warps_of_cluster(context)):
        time = load64(waited + 8 * other)
        if time != 0 and (other == warp or time <= load64(vector_of(context, warp) + 8 * other)):
            return 1
    return 0


def access_in_time(context: int, mask: int, width: int, writes: int) -> int:
    """Lanes access places in the scratch. Places that conflict with the kernel before are suspicious before the
    wait. Returns a status."""
    if comes_after_wait(context):
        return 0
    places, shift = load64(context + 8 * SCRATCH) + SCRATCH_PLACES, load64(context + 8 * GLOBAL_SHIFT)
    for lane in range(32):
        if mask >> lane & 1:
            offset = load64(places + 8 * lane)
            for k in range(load64(context + 8 * PREREQUISITE_COUNT)):
                row = load64(context + 8 * PREREQUISITES) + 24 * k
                if offset < load64(row + 8) and offset + width > load64(row) and (writes or load64(row + 16)):
                    status = suspect(context, IN_GLOBAL, offset >> shift, EARLY_ACCESS)
                    if status != 0:
                        return status
                    break
    return 0
