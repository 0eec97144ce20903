"""Rules of the barriers of a CTA (PTX ISA, "bar, barrier"): machine code (:mod:`~warpsan.engine.translate`).

Besides the undefined cases of PTX (a count that is not a multiple of a warp, reductions beside other uses, a warp's
threads at different aligned instructions), these are contradictions: counts that differ within a phase, and threads
that arrive twice or in excess. A warp that arrives and then waits at one barrier in one phase is counted twice,
possibly by intention: it is reported if the count is never reached and a warp waits forever
(:mod:`warpsan.report.deadlock`). (A mere arrival that is left over at the end is not evidence of this: warps that take
turns, each by its arrival, leave the last one.)

``bar.sync 0`` without a count is the code of ``__syncthreads()``, which may be in conditional code only if the
condition is the same for the whole block (CUDA C++ Programming Guide, "Synchronization Functions"). Its phase is
therefore also checked for threads that arrive by another such instruction, and for threads that have exited: from sm_70
on, the barrier does not wait for these, and does not order their accesses before later ones.
"""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.hazards import add_hazard, hazard_row
from warpsan.engine.layout import END_ARRIVE, END_BARRIER, END_REDUCE, MOST_DOUBLED, NO_BARRIER
from warpsan.engine.memory import MOST_WARPS, BarrierState, Block, HazardRow
from warpsan.engine.rules import (
    ARRIVAL_WITHOUT_COUNT,
    ARRIVES_AGAIN,
    COUNT_BEYOND_BLOCK,
    COUNTS_DIFFER,
    NO_SUCH_BARRIER,
    ONE_IS_A_REDUCTION,
    PART_OF_WARP_COUNTED,
    PARTS_OF_BLOCK,
    PARTS_OF_WARP,
    THREADS_EXITED,
    TOO_MANY_ARRIVED,
)
from warpsan.engine.structs import Ptr, i32
from warpsan.engine.suspects import first_lane
from warpsan.engine.words import copy

__all__ = ["check_arrival", "check_completion", "rule_of_operands"]


def rule_of_operands(context: Context, name: int, given: int, end: int) -> int:
    """The rule that an arrival breaks by itself, or -1; 0 ``given`` threads are the whole CTA."""
    if name >= NO_BARRIER:
        return NO_SUCH_BARRIER
    if end == END_ARRIVE and given == 0:
        return ARRIVAL_WITHOUT_COUNT
    if given % 32 != 0:
        return PART_OF_WARP_COUNTED
    return COUNT_BEYOND_BLOCK if given > 32 * context.warp_count else -1


def check_arrival(
    context: Context, barrier: BarrierState, block: Block, name: int, given: int, taken: int, broken: int
) -> int:
    """Lanes of the current warp arrive by the end of a block; ``broken`` is the rule that this breaks by itself.
    Returns a status."""
    whole, status = 32 * context.warp_count, 0
    if broken >= 0:
        row = row_of(context, block, broken, taken, name)
        row.expected = whole
        row.actual = given
        status = add_hazard(context, row)
    if status == 0 and barrier.arrived > 0:
        status = check_beside(context, barrier, block, name, given if given else whole, taken)
    if status != 0:
        return status
    if is_syncthreads(block, name):
        barrier.syncthreads = 1
    came = arrivals_of(context, barrier, context.current_warp.number)
    for lane in range(32):
        if taken >> lane & 1:
            came[lane] = (block - context.blocks) // Block.byte_size
    return 0


def check_beside(context: Context, barrier: BarrierState, block: Block, name: int, given: int, taken: int) -> int:
    """The arrival beside earlier ones of its phase. Returns a status."""
    warp, before = context.current_warp.number, barrier.given if barrier.given else 32 * context.warp_count
    if before != given:
        row = row_of(context, block, COUNTS_DIFFER, taken, name)
        row.expected = before
        row.actual = given
        status = add_hazard(context, beside(context, row, barrier, first_warp(barrier), 0))
        if status != 0:
            return status
    again = barrier.came[warp] & taken
    if again != 0:
        row = beside(context, row_of(context, block, ARRIVES_AGAIN, again, name), barrier, warp, again)
        if block.end == END_ARRIVE or arrived_at(context, barrier, warp, first_lane(again)).end != END_ARRIVE:
            status = add_hazard(context, row)
            if status != 0:
                return status
        elif context.hazard_room != 0:
            note_doubled(context, barrier, row)
    elif block.end_token:
        status = check_paths(context, barrier, block, name, taken)
        if status != 0:
            return status
    if (first_arrival(context, barrier).end == END_REDUCE) != (block.end == END_REDUCE):
        row = row_of(context, block, ONE_IS_A_REDUCTION, taken, name)
        return add_hazard(context, beside(context, row, barrier, first_warp(barrier), 0))
    return 0


def check_paths(context: Context, barrier: BarrierState, block: Block, name: int, taken: int) -> int:
    """The lanes of a warp must not arrive at an aligned barrier by different instructions, nor the threads of a block
    at ``__syncthreads()``. Returns a status."""
    warp, elsewhere = context.current_warp.number, 0
    for lane in range(32):
        if barrier.came[warp] >> lane & 1 and arrived_at(context, barrier, warp, lane) != block:
            elsewhere |= 1 << lane
    if elsewhere != 0:
        row = row_of(context, block, PARTS_OF_WARP, taken, name)
        status = add_hazard(context, beside(context, row, barrier, warp, elsewhere))
        if status != 0:
            return status
    earlier = first_arrival(context, barrier)
    if earlier != block and is_syncthreads(earlier, name) and is_syncthreads(block, name):
        row = row_of(context, block, PARTS_OF_BLOCK, taken, name)
        return add_hazard(context, beside(context, row, barrier, first_warp(barrier), 0))
    return 0


def check_completion(context: Context, cta: int, barrier: BarrierState, name: int, need: int, alive: int) -> int:
    """The phase of a barrier is complete in a CTA, which needed so many threads. Returns a status."""
    warps = context.warp_count
    short = barrier.syncthreads and alive < context.threads
    barrier.syncthreads = 0
    for thread in range(32 * warps if short else 0):
        warp, lane = thread // 32, thread % 32
        came = barrier.came[warp] >> lane & 1
        if short and came and is_syncthreads(arrived_at(context, barrier, warp, lane), name):
            short = 0
            row = row_at(context, cta, barrier, THREADS_EXITED, warp, lane, name)
            row.expected = context.threads
            row.actual = context.threads - alive
            status = add_hazard(context, row)
            if status != 0:
                return status
    if barrier.arrived > need:
        warp, lane = last_warp(barrier), 31
        while barrier.came[warp] >> lane & 1 == 0:
            lane -= 1
        row = row_at(context, cta, barrier, TOO_MANY_ARRIVED, warp, lane, name)
        row.expected = need
        row.actual = barrier.arrived
        status = add_hazard(context, row)
        if status != 0:
            return status
    for k in range(context.doubled_count):
        doubled = context.doubled[k]
        if doubled.barrier == number_of(context, barrier) and not doubled.complete:
            doubled.complete = 1
            copy(doubled.there, barrier.came, 8 * warps)
    return 0


def note_doubled(context: Context, barrier: BarrierState, row: HazardRow) -> None:
    """A warp waits at a barrier at which it has arrived: one row for each barrier and instruction."""
    count = context.doubled_count
    for k in range(count):
        known = context.doubled[k]
        if known.barrier == number_of(context, barrier) and known.row[0].record == row.record:
            return
    if count < MOST_DOUBLED:
        doubled = context.doubled[count]
        copy(doubled.row, row, HazardRow.byte_size)
        doubled.barrier = number_of(context, barrier)
        doubled.complete = 0
        context.doubled_count = count + 1


# ---- rows ------------------------------------------------------------------------------------------------------------


def row_of(context: Context, block: Block, rule: int, lanes: int, name: int) -> HazardRow:
    """A row for lanes of the current warp at the end of a block."""
    row = hazard_row(context, context.records[context.record_count + block.end_pc], rule, lanes)
    row.space = name
    return row


def row_at(context: Context, cta: int, barrier: BarrierState, rule: int, warp: int, lane: int, name: int) -> HazardRow:
    """A row for a thread that has arrived in this phase."""
    pc = arrived_at(context, barrier, warp, lane).end_pc
    row = hazard_row(context, context.records[context.record_count + pc], rule, 1 << lane)
    row.space = name
    row.warp = warp
    row.cta = context.warps[context.warp_count * cta].linear_cta
    return row


def beside(context: Context, row: HazardRow, barrier: BarrierState, warp: int, lanes: int) -> HazardRow:
    """The row, with the arrival of the first of some lanes of a warp in this phase as the other; 0: of any lane."""
    lane = first_lane(lanes if lanes else barrier.came[warp])
    row.other_pc = arrived_at(context, barrier, warp, lane).end_pc
    row.other_lanes = 1 << lane
    row.other_warp = warp
    row.other_cta = row.cta
    return row


# ---- arrivals --------------------------------------------------------------------------------------------------------


def number_of(context: Context, barrier: BarrierState) -> int:
    """The number of a barrier among those of all CTAs that run together."""
    return (barrier - context.barriers) // BarrierState.byte_size


def arrivals_of(context: Context, barrier: BarrierState, warp: int) -> Ptr[i32]:
    """The block at whose end each lane of a warp has arrived in this phase, if it has."""
    return context.arrived_by.at(32 * (context.warp_count * number_of(context, barrier) + warp))


def arrived_at(context: Context, barrier: BarrierState, warp: int, lane: int) -> Block:
    """The block at whose end a lane has arrived in this phase."""
    return context.blocks[arrivals_of(context, barrier, warp)[lane]]


def first_warp(barrier: BarrierState) -> int:
    """The first warp that has arrived in this phase."""
    warp = 0
    while barrier.came[warp] == 0:
        warp += 1
    return warp


def last_warp(barrier: BarrierState) -> int:
    """The last warp that has arrived in this phase."""
    warp = MOST_WARPS - 1
    while barrier.came[warp] == 0:
        warp -= 1
    return warp


def first_arrival(context: Context, barrier: BarrierState) -> Block:
    """The block at whose end the first thread that has arrived in this phase did so."""
    warp = first_warp(barrier)
    return arrived_at(context, barrier, warp, first_lane(barrier.came[warp]))


def is_syncthreads(block: Block, name: int) -> int:
    """Whether an arrival at barrier ``name`` by the end of a block is the code of ``__syncthreads()``."""
    return name == 0 and block.end == END_BARRIER and block.end_c == 1
