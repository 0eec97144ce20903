"""Barriers of a CTA (PTX ISA, "bar, barrier"): machine code (:mod:`~warpsan.engine.translate`).

A barrier is complete when as many threads have arrived as the instruction names, or all live threads if it names no
number. :mod:`.barrier_rules` has the rules of its arrivals.
"""

from __future__ import annotations

from warpsan.engine.barrier_rules import check_arrival, check_completion, rule_of_operands
from warpsan.engine.clocks import acquire, forget, release_to
from warpsan.engine.context import Context
from warpsan.engine.layout import (
    AT_BARRIER,
    BARRIER_COUNT,
    BROKEN_RULE,
    END_ARRIVE,
    END_REDUCE,
    NO_BARRIER,
    READY,
    TOGETHER,
)
from warpsan.engine.memory import BarrierState, Block, Warp
from warpsan.engine.parts import add_part, begin_wait
from warpsan.engine.structs import Ptr, i64
from warpsan.engine.suspects import first_lane
from warpsan.engine.watch.releases import take_rows
from warpsan.engine.words import load32, popcount, store32

__all__ = ["arrive", "release_all", "threads_left"]


def arrive(context: Context, state: Warp, registers: int, block: Block, at: int, taken: int, end: int) -> int:
    """Lanes arrive at barriers (and wait there); lanes at the same barrier arrive together (PTX ISA, "bar,
    barrier"). Returns a status."""
    names, left = registers + block.end_a, taken
    while left != 0:
        first, same = first_lane(left), 0
        for lane in range(first, 32):
            if left >> lane & 1 and load32(names + 4 * lane) == load32(names + 4 * first):
                same |= 1 << lane
        left &= ~same
        status = arrive_at_one(context, state, registers, block, at, same, end)
        if status != 0:
            return status
    return 0


def arrive_at_one(context: Context, state: Warp, registers: int, block: Block, at: int, taken: int, end: int) -> int:
    """Lanes arrive at one barrier. Returns a status."""
    first, given = first_lane(taken), 0
    name = load32(registers + block.end_a + 4 * first) & 0xFFFFFFFF
    if block.end_b >= 0:
        given = load32(registers + block.end_b + 4 * first) & 0xFFFFFFFF
    broken = rule_of_operands(context, name, given, end)
    cta, warp = state.cta, state.number
    barrier = context.barriers[BARRIER_COUNT * cta + min(name, NO_BARRIER)]
    kind = 2 if end == END_REDUCE else 1
    if context.checked != 0:
        status = check_arrival(context, barrier, block, name, given, taken, broken)
        if status == 0 and given != 0 and context.hazard_room == 0 and not follows(context, cta, barrier):
            status = BROKEN_RULE  # possibly, in the order of the run that reports
        if status != 0:
            return status
        clock = context.clocks[context.current]
        barrier.arrived_at[warp] = clock
        release_to(context, context.current, barrier_vector(context, cta, min(name, NO_BARRIER)))
    barrier.kind = kind if barrier.arrived == 0 or barrier.kind == kind else 2
    barrier.given = given
    barrier.came[warp] |= taken
    barrier.arrived += 32 if given else popcount(taken)
    part = add_part(state, at + 1, taken, READY)
    if end != END_ARRIVE:
        begin_wait(context, part, AT_BARRIER)
    part.info = min(name, NO_BARRIER)
    part.more = name
    part.came_from = block
    if context.order == TOGETHER:
        context.arrivals_pending = 1
        return 0
    return release(context, cta, barrier, min(name, NO_BARRIER))


def threads_left(context: Context, cta: int) -> int:
    """Threads of a CTA have exited: barriers that waited only for them complete. Returns a status."""
    if context.order == TOGETHER:
        context.arrivals_pending = 1
        return 0
    return release_barriers(context, cta)


def release_all(context: Context) -> int:
    """A lockstep turn ends in which warps have arrived at barriers, or exited. Returns a status."""
    context.arrivals_pending = 0
    for cta in range(context.cta_count):
        status = release_barriers(context, cta)
        if status != 0:
            return status
    return 0


def release_barriers(context: Context, cta: int) -> int:
    """Release the lanes that wait at complete barriers of a CTA. Returns a status."""
    for name in range(BARRIER_COUNT):
        barrier = context.barriers[BARRIER_COUNT * cta + name]
        if barrier.arrived > 0:
            status = release(context, cta, barrier, name)
            if status != 0:
                return status
    return 0


def follows(context: Context, cta: int, barrier: BarrierState) -> int:
    """Whether the current warp's arrival comes after the phase before; if not, it could have been part of that
    phase."""
    warps, current = context.warp_count, context.current
    vector = context.vectors.at(context.actors * current)
    for k in range(warps):
        other = warps * cta + k
        if other != current and barrier.before_at[k] > vector[other]:
            return 0
    return 1


def barrier_vector(context: Context, cta: int, name: int) -> Ptr[i64]:
    """The released vector of a barrier of a CTA (:mod:`~warpsan.engine.clocks`)."""
    return context.released.at(context.actors * (BARRIER_COUNT * cta + name))


def alive(context: Context, cta: int) -> int:
    """Threads of a CTA that have not exited."""
    warps = context.warp_count
    total = 0
    for k in range(warps):
        total += popcount(context.warps[warps * cta + k].live)
    return total


def release(context: Context, cta: int, barrier: BarrierState, name: int) -> int:
    """Release the lanes that wait at a barrier, if it is complete. Returns a status."""
    arrived, given = barrier.arrived, barrier.given
    need = given if given else alive(context, cta)
    if arrived < need:
        return 0
    if context.checked != 0:
        status = check_completion(context, cta, barrier, name, need, alive(context, cta))
        if status != 0:
            return status
    warps = context.warp_count
    if barrier.kind == 2:
        reduce(context, cta, name)
    vector = barrier_vector(context, cta, name)
    context.time += 1
    waited = 0
    for k in range(warps):
        came = barrier.came[k]
        barrier.before_at[k] = barrier.arrived_at[k] if came else 0
        barrier.came[k] = 0
        state = context.warps[warps * cta + k]
        for p in range(state.path_count):
            part = state.paths[p]
            if part.status == AT_BARRIER and part.info == name:
                part.status = READY
                waited |= 1 << k
                if context.checked != 0:
                    acquire(context, warps * cta + k, vector)
    if context.checked != 0:
        for k in range(warps):
            if waited >> k & 1:
                take_rows(context, warps * cta + k, vector, context.time)
        forget(context, vector)
    barrier.arrived = 0
    return 0


def reduce(context: Context, cta: int, name: int) -> None:
    """``bar.red``: combine the predicates of all waiting lanes, and give each lane the result."""
    warps = context.warp_count
    true = 0
    total = 0
    for turn in range(2):
        for k in range(warps):
            number = warps * cta + k
            state = context.warps[number]
            registers = context.registers + number * context.register_bytes
            for p in range(state.path_count):
                part = state.paths[p]
                if part.status != AT_BARRIER or part.info != name:
                    continue
                mask, block = part.mask, part.came_from
                if block.end != END_REDUCE:
                    continue
                if turn == 0:
                    true += popcount(mask & load32(registers + block.end_c))
                    total += popcount(mask)
                    continue
                operation, row = block.target, registers + block.end_d
                if operation == 0:  # popc, of 32 bits
                    for lane in range(32):
                        if mask >> lane & 1:
                            store32(row + 4 * lane, true)
                else:
                    holds = true == total if operation == 1 else true > 0
                    old = load32(row)
                    store32(row, old | mask if holds else old & ~mask)
