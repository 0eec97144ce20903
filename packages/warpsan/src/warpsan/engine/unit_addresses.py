"""Addresses that instructions of asynchronous units use, and the rules of these: machine code
(:mod:`~warpsan.engine.translate`).

A check returns 0 if a lane's address is legal. Otherwise the lane is left out: the check returns ``LEFT_OUT`` if the
hazard has a row, or the status that ends the run.
"""

from __future__ import annotations

from warpsan.engine.clocks import first_of_cluster
from warpsan.engine.context import Context
from warpsan.engine.hazards import add_hazard, break_rule, hazard_row
from warpsan.engine.layout import IN_GLOBAL, IN_SHARED, LEFT_OUT
from warpsan.engine.rules import MISALIGNED, OUT_OF_BOUNDS, REACHES_EXITED
from warpsan.host.memory import RANK_SHIFT

__all__ = ["check_global", "check_shared", "cta_alive", "cta_of", "offset_of", "within_extent"]

_LOW = (1 << RANK_SHIFT) - 1
_WINDOW = 1 << 32


def cta_of(context: Context, address: int) -> int:
    """The CTA whose shared memory contains an address of shared::cluster; -1 if there is none."""
    rank, own = address >> RANK_SHIFT, context.current_warp.cta
    if rank == 0:
        return own
    if rank < 0 or rank > context.cluster_size:
        return -1
    return first_of_cluster(context, own) + rank - 1


def offset_of(address: int) -> int:
    """The offset of an address of shared::cluster in its CTA."""
    return address & _LOW


def cta_alive(context: Context, cta: int) -> int:
    """Whether a CTA has threads that have not exited."""
    warps = context.warp_count
    for k in range(warps):
        if context.warps[warps * cta + k].live != 0:
            return 1
    return 0


def within_extent(context: Context, begin: int, size: int) -> int:
    """Whether so many bytes of global memory lie in one buffer."""
    for k in range(context.extent_count):
        extent = context.extents.at(2 * k)
        if begin >= extent[0] and begin + size <= extent[1]:
            return 1
    return 0


def check_shared(context: Context, lane: int, address: int, size: int, align: int) -> int:
    """A lane of the current warp uses so many bytes of a cluster's shared memory, at a multiple of ``align``."""
    cta = cta_of(context, address)
    offset = offset_of(address) if cta >= 0 else address
    if cta >= 0 and cta_alive(context, cta) == 0:
        status = break_rule(context, REACHES_EXITED, 1 << lane)
        if status != 0:
            return status
    elsewhere = address < 0 or address >= _WINDOW  # a generic address of another space
    if not elsewhere and offset & align - 1:
        return illegal(context, lane, MISALIGNED, IN_SHARED, offset, align)
    if cta < 0 or offset > context.shared_limit - size:
        return illegal(context, lane, OUT_OF_BOUNDS, IN_SHARED, offset, size)
    return 0


def check_global(context: Context, lane: int, offset: int, size: int, align: int) -> int:
    """A lane of the current warp uses so many bytes of global memory, at a multiple of ``align``."""
    if offset & align - 1:
        return illegal(context, lane, MISALIGNED, IN_GLOBAL, offset, align)
    if within_extent(context, offset, size) == 0:
        return illegal(context, lane, OUT_OF_BOUNDS, IN_GLOBAL, offset, size)
    return 0


def illegal(context: Context, lane: int, rule: int, space: int, offset: int, width: int) -> int:
    """A lane's address is illegal. Returns ``LEFT_OUT``, or the status that ends the run."""
    row = hazard_row(context, context.current_record, rule, 1 << lane)
    row.space = space
    row.offset = offset
    row.width = width
    status = add_hazard(context, row)
    return status if status != 0 else LEFT_OUT
