"""The part of the ``strict`` check for mbarriers that bulk copies complete on: machine code
(:mod:`~warpsan.engine.translate`).

``mbarrier.init`` writes in the generic proxy. Between it and the barrier before the copies, its thread needs a
``fence.mbarrier_init`` or a stronger fence: ``fence.proxy.async``, or a fence of at least cluster scope (PTX ISA,
"membar, fence", "mbarrier.init"). Much working code has only ``__syncthreads()`` there, so the default checks do not
report this.
"""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.hazards import add_hazard, hazard_row
from warpsan.engine.layout import MOST_MBARRIERS
from warpsan.engine.memory import MbarrierState, Record
from warpsan.engine.rules import UNFENCED_MBARRIER

__all__ = ["check_fenced", "fence_mbarriers", "initialised_by"]


def initialised_by(context: Context, entry: MbarrierState, lane: int, pc: int) -> None:
    """A lane of the current warp has initialised an mbarrier, by the instruction at ``pc``."""
    entry.unfenced = 0
    entry.initialised_by = pc
    if context.needs_fence != 0:
        entry.unfenced = 32 * context.current + lane + 1
        context.unfenced += 1


def fence_mbarriers(registers: int, record: Record, mask: int, context: Context) -> int:
    """Lanes execute a fence: the mbarriers that they have initialised are visible in the async proxy."""
    if context.unfenced == 0:
        return 0
    first = 32 * context.current + 1
    for cta in range(context.cta_count):
        for k in range(MOST_MBARRIERS):
            entry = context.mbarriers[MOST_MBARRIERS * cta + k]
            if entry.valid == 0:
                break
            lane = entry.unfenced - first
            if lane >= 0 and lane < 32 and mask >> lane & 1:
                entry.unfenced = 0
                context.unfenced -= 1
    return 0


def check_fenced(context: Context, entry: MbarrierState, lanes: int) -> int:
    """Lanes of the current warp issue a copy that completes on an mbarrier. Returns a status."""
    if entry.unfenced == 0:
        return 0
    row, number = hazard_row(context, context.current_record, UNFENCED_MBARRIER, lanes), (entry.unfenced - 1) // 32
    row.offset = entry.offset
    row.other_pc = entry.initialised_by
    row.other_lanes = 1 << (entry.unfenced - 1) % 32
    row.other_warp = context.warps[number].number
    row.other_cta = context.warps[number].linear_cta
    return add_hazard(context, row)
