"""The check of programmatic dependent launches: machine code. The rules are those of
:mod:`warpsan.checks.prerequisites`."""

from __future__ import annotations

from warpsan.engine.clocks import begin_time, vector_of, warps_of_cluster
from warpsan.engine.context import Context
from warpsan.engine.layout import (
    EARLY_ACCESS,
    IN_GLOBAL,
    SCRATCH_PLACES,
)
from warpsan.engine.memory import Record
from warpsan.engine.suspects import suspect
from warpsan.engine.words import load64

__all__ = ["access_in_time", "wait_for_grids"]


def wait_for_grids(registers: int, record: Record, mask: int, context: Context) -> int:
    """``griddepcontrol.wait``: later accesses of the current warp come after the grids before."""
    if context.prerequisites != 0:
        warp = context.current
        waited = context.waited.at(warp)
        begin_time(context, warp)
        if waited[0] == 0:
            waited[0] = context.clocks[warp]
    return 0


def comes_after_wait(context: Context) -> int:
    """Whether the current warp comes after a wait of its cluster, or needs none."""
    if context.prerequisites == 0:
        return 1
    warp, waited = context.current, context.waited
    for other in range(warps_of_cluster(context)):
        time = waited[other]
        if time != 0 and (other == warp or time <= vector_of(context, warp)[other]):
            return 1
    return 0


def access_in_time(context: Context, mask: int, width: int, writes: int) -> int:
    """Lanes access places in the scratch. Places that conflict with the kernel before are suspicious before the
    wait. Returns a status."""
    if comes_after_wait(context):
        return 0
    places, shift = context.scratch + SCRATCH_PLACES, context.global_shift
    for lane in range(32):
        if mask >> lane & 1:
            offset = load64(places + 8 * lane)
            for k in range(context.prerequisite_count):
                row = context.prerequisites.at(3 * k)
                if offset < row[1] and offset + width > row[0] and (writes or row[2]):
                    status = suspect(context, IN_GLOBAL, offset >> shift, EARLY_ACCESS)
                    if status != 0:
                        return status
                    break
    return 0
