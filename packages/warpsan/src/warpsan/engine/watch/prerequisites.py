"""The check of launches with programmatic stream serialization: machine code.

The kernel before may still run. Accesses that conflict with it must come after a ``griddepcontrol.wait`` of the same
thread, or of one that it has synchronised with (PTX ISA, "Parallel Synchronization and Communication Instructions:
griddepcontrol"; CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization").
"""

from __future__ import annotations

from warpsan.engine.clocks import begin_time, vector_of, warps_of_cluster
from warpsan.engine.context import Context
from warpsan.engine.hazards import add_hazard, hazard_row
from warpsan.engine.layout import (
    IN_GLOBAL,
)
from warpsan.engine.memory import Record
from warpsan.engine.rules import EARLY_READ

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


def access_in_time(context: Context, mask: int, width: int, issuer: int, rule: int) -> int:
    """Lanes, or an issuer (otherwise -1), access places in the context. If they conflict with the kernel before, that
    breaks a rule before the wait. Returns a status."""
    if comes_after_wait(context):
        return 0
    places = context.places
    for number in range(32):
        if mask >> number & 1:
            offset = places[number]
            for k in range(context.prerequisite_count):
                row = context.prerequisites.at(3 * k)
                if offset < row[1] and offset + width > row[0] and (rule != EARLY_READ or row[2]):
                    lane = number if issuer < 0 else issuer
                    hazard = hazard_row(context, context.current_record, rule, 1 << lane)
                    hazard.space = IN_GLOBAL
                    hazard.offset = offset
                    hazard.width = width
                    return add_hazard(context, hazard)
    return 0
