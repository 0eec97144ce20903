"""``cp.async.mbarrier.arrive``: lanes arrive at an mbarrier after their copies so far have landed: machine code.

For the checks, the copies are operations that the mbarrier
signals: a wait for the phase is ordered after these copies only, and not after other accesses of their lanes.
"""

from __future__ import annotations

from warpsan.engine.clocks import operation_time
from warpsan.engine.context import Context
from warpsan.engine.copies import drop_landed, land_copy
from warpsan.engine.flights import copy_came, mark_copy
from warpsan.engine.layout import (
    ARRIVALS,
    LANDED,
    LEFT_OUT,
    MANY_COPIES,
    MOST_COPIES,
    PAGE_SHIFT,
)
from warpsan.engine.mbarriers import (
    actor_of,
    check_arrivals,
    count_arrivals,
    is_remote,
    landed_copy,
    mbarrier_instruction,
    named_mbarrier,
    use_mbarrier,
)
from warpsan.engine.memory import MbarrierState, Record, ThreadCopy, TransferEntry
from warpsan.engine.pages import page_of
from warpsan.engine.suspects import act_for, current_instruction, first_lane, is_status
from warpsan.engine.tags import shared_tag
from warpsan.engine.transfers.entries import lane_address, new_entry, next_serial
from warpsan.engine.watch.shared_memory import copies_still_fly, mark_flying
from warpsan.engine.watch.undefined_global import undefine_copies
from warpsan.engine.words import popcount

__all__ = ["arrive_behind_copies", "land_arrivals"]


def arrive_behind_copies(registers: int, record: Record, mask: int, context: Context) -> int:
    """Operands are the address's row and offset, whether the phase expects these arrivals, and the pc. Returns a
    status."""
    row, shift = record.operands[0], record.operands[1]
    mbarrier_instruction(context, registers, row, shift, mask, record.operands[3])
    context.transfer_serial = next_serial(context)
    left = mask
    while left != 0:
        mbarrier = MbarrierState(0)
        lanes = 0
        for lane in range(32):
            if left >> lane & 1 == 0:
                continue
            actual = named_mbarrier(context, lane, lane_address(registers, record, 0, lane))
            if is_status(actual):
                left = left & ~(1 << lane)
                if actual == LEFT_OUT:
                    continue
                return actual
            mbarrier = mbarrier if mbarrier else MbarrierState(actual)
            lanes |= 1 << lane if actual == mbarrier.address else 0
        if mbarrier == 0:
            continue
        left = left & ~lanes
        status = use_mbarrier(context, mbarrier, first_lane(lanes))
        if status != 0:
            return status
        if record.operands[2] == 0:
            mbarrier.pending += popcount(lanes)
        place = new_entry(context, ARRIVALS, 0, 0, context.copy_count, 0)
        if is_status(place):
            return place
        entry = TransferEntry(place)
        entry.mbarrier = mbarrier
        entry.data[0] = lanes
        entry.pc = record.operands[3]
        status = land_arrivals(context, entry) if context.early != 0 else 0
        if status != 0:
            return status
    return 0


def land_arrivals(context: Context, entry: TransferEntry) -> int:
    """The copies of some lanes land, and the lanes arrive. Returns a status."""
    warp, lanes, mbarrier = entry.warp, entry.data[0], entry.mbarrier
    state = context.warps[warp]
    act_for(context, warp)
    entry.kind = LANDED
    entry.mbarrier = MbarrierState(0)  # no bytes to count
    flying, late = state.copies_in_flight, context.early == 0
    first = MOST_COPIES * warp
    for k in range(flying):
        one = context.copies[first + k]
        here = one.mask
        due = here & lanes if one.number <= entry.offset else 0
        for lane in range(32):
            if due >> lane & 1 and late:
                land_copy(one, lane, one.width)
        if due != 0 and context.checked != 0:
            signalled(context, one, due, mbarrier)
        one.mask = here & ~due
    drop_landed(context, state, first, MANY_COPIES)
    if context.checked != 0:
        copies_still_fly(context, state.cta)
    many = popcount(lanes)
    current_instruction(context, entry.pc)
    status = check_arrivals(context, mbarrier, lanes, many, 0, 0, 1)
    count_arrivals(context, mbarrier, many)
    return status


def signalled(context: Context, one: ThreadCopy, due: int, mbarrier: MbarrierState) -> None:
    """Lanes' copies have landed, as an operation of an mbarrier."""
    cta, width = context.current_warp.cta, one.width
    shared = context.shared + cta * context.shared_stride
    places = context.places
    for lane in range(32):
        places[lane] = one.target[lane] - shared
    mark_flying(context, cta, due, width, 0)
    actor = actor_of(context, mbarrier)
    time = operation_time(context, actor)
    for lane in range(32):
        if due >> lane & 1:
            offset = places[lane]
            mark_copy(context, cta, offset, width, shared_tag(actor, time), -1)
            copy_came(context, cta, offset, width)
            page = context.page_generic.at(page_of(context, cta, offset >> PAGE_SHIFT))
            page[0] = max(page[0], time)
    mbarrier.generic = 1
    undefine_copies(context, one, cta, due)
    remote = is_remote(context, context.current, mbarrier)
    landed_copy(context, mbarrier, remote, time)
