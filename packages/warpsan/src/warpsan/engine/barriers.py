"""Barriers of a CTA: machine code (:mod:`~warpsan.engine.translate`).

The rules are those of :mod:`warpsan.replay.barriers` and :mod:`warpsan.replay.barrier_rules`.
"""

from __future__ import annotations

from warpsan.engine.clocks import acquire, forget, release_to
from warpsan.engine.context import Context
from warpsan.engine.empty_phases import end_phase
from warpsan.engine.layout import (
    ARRIVED,
    ARRIVED_AT,
    AT_BARRIER,
    BARRIER_COUNT,
    BARRIER_WORDS,
    BEFORE_AT,
    CAME,
    END,
    END_A,
    END_ARRIVE,
    END_B,
    END_BARRIER,
    END_C,
    END_D,
    END_REDUCE,
    FIRST_PART,
    GIVEN,
    KIND,
    LIVE,
    NO_BARRIER,
    PART_BLOCK,
    PART_FROM,
    PART_INFO,
    PART_MASK,
    PART_STATUS,
    PART_WORDS,
    PARTS,
    READY,
    SYNCTHREADS,
    TARGET,
    TOGETHER,
    WARP_CTA,
    WARP_NUMBER,
    WARP_WORDS,
)
from warpsan.engine.parts import add_part
from warpsan.engine.structs import Ptr, i64
from warpsan.engine.suspects import first_lane, suspect_arrival
from warpsan.engine.trace import trace_arrival
from warpsan.engine.watch.releases import take_rows
from warpsan.engine.words import load32, load64, popcount, store32, store64

__all__ = ["arrive", "release_all", "threads_left"]


def arrive(context: Context, state: int, registers: int, block: int, at: int, taken: int, end: int) -> int:
    """Lanes arrive at barriers (and wait there); lanes at the same barrier arrive together (PTX ISA, "bar,
    barrier"). Returns a status."""
    names, left = registers + load32(block + 4 * END_A), taken
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


def arrive_at_one(context: Context, state: int, registers: int, block: int, at: int, taken: int, end: int) -> int:
    """Lanes arrive at one barrier. A possible broken rule is a suspicion. Returns a status."""
    first, given = first_lane(taken), 0
    name = load32(registers + load32(block + 4 * END_A) + 4 * first) & 0xFFFFFFFF
    if load32(block + 4 * END_B) >= 0:
        given = load32(registers + load32(block + 4 * END_B) + 4 * first) & 0xFFFFFFFF
    whole = 32 * context.warp_count
    wrong = 1 if given % 32 != 0 or given > whole or (end == END_ARRIVE and given == 0) else 0
    trace_arrival(context, taken, at, name, given, end, wrong == 0 and name < NO_BARRIER and end != END_ARRIVE)
    if name >= NO_BARRIER:
        name, wrong = NO_BARRIER, 1
    cta, warp = load64(state + 8 * WARP_CTA), load64(state + 8 * WARP_NUMBER)
    barrier = context.barriers + 8 * BARRIER_WORDS * (BARRIER_COUNT * cta + name)
    arrived = load64(barrier + 8 * ARRIVED)
    kind = 2 if end == END_REDUCE else 1
    came = load64(barrier + 8 * (CAME + warp))
    if arrived > 0:
        before = load64(barrier + 8 * GIVEN)
        if (before if before else whole) != (given if given else whole):
            wrong = 1
        if load64(barrier + 8 * KIND) != kind:
            wrong = 1
            kind = 2
        # A warp that arrives and waits counts twice; if that was unintended, other warps wait forever.
        if came != 0 and (end != END_BARRIER or came != taken or given == 0):
            wrong = 1
    if context.checked != 0:
        if given != 0 and not follows(context, cta, barrier):
            wrong = 1
        if load32(block + 4 * END_C) == 1 and end == END_BARRIER and name == 0:
            if arrived > 0 and load64(barrier + 8 * SYNCTHREADS) not in (0, block):
                wrong = 1
            store64(barrier + 8 * SYNCTHREADS, block)
        clock = context.clocks[context.current]
        store64(barrier + 8 * (ARRIVED_AT + warp), clock)
        release_to(context, context.current, barrier_vector(context, cta, name))
    status = suspect_arrival(context, at) if wrong else 0
    if status != 0:
        return status
    store64(barrier + 8 * KIND, kind)
    store64(barrier + 8 * GIVEN, given)
    store64(barrier + 8 * (CAME + warp), came | taken)
    store64(barrier + 8 * ARRIVED, arrived + (32 if given else popcount(taken)))
    part = add_part(state, at + 1, taken, READY if end == END_ARRIVE else AT_BARRIER)
    store64(part + 8 * PART_INFO, name)
    store64(part + 8 * PART_FROM, block)
    if context.order == TOGETHER:
        context.arrivals_pending = 1
        return 0
    return release(context, cta, barrier, name)


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
        barrier = context.barriers + 8 * BARRIER_WORDS * (BARRIER_COUNT * cta + name)
        if load64(barrier + 8 * ARRIVED) > 0:
            status = release(context, cta, barrier, name)
            if status != 0:
                return status
    return 0


def follows(context: Context, cta: int, barrier: int) -> int:
    """Whether the current warp's arrival comes after the phase before; if not, it could have been part of that
    phase."""
    warps, current = context.warp_count, context.current
    vector = context.vectors.at(context.actors * current)
    for k in range(warps):
        other = warps * cta + k
        if other != current and load64(barrier + 8 * (BEFORE_AT + k)) > vector[other]:
            return 0
    return 1


def barrier_vector(context: Context, cta: int, name: int) -> Ptr[i64]:
    """The released vector of a barrier of a CTA (:mod:`~warpsan.engine.clocks`)."""
    return context.released.at(context.actors * (BARRIER_COUNT * cta + name))


def last_arrival(context: Context, cta: int, name: int) -> int:
    """The block at whose end lanes wait at a barrier."""
    warps = context.warp_count
    for k in range(warps):
        state = context.warps + 8 * WARP_WORDS * (warps * cta + k)
        for p in range(load64(state + 8 * PARTS)):
            part = state + 8 * (FIRST_PART + PART_WORDS * p)
            if load64(part + 8 * PART_STATUS) == AT_BARRIER and load64(part + 8 * PART_INFO) == name:
                return load64(part + 8 * PART_BLOCK) - 1
    return 0


def alive(context: Context, cta: int) -> int:
    """Threads of a CTA that have not exited."""
    warps = context.warp_count
    states = context.warps + 8 * WARP_WORDS * warps * cta
    total = 0
    for k in range(warps):
        total += popcount(load64(states + 8 * (WARP_WORDS * k + LIVE)))
    return total


def release(context: Context, cta: int, barrier: int, name: int) -> int:
    """Release the lanes that wait at a barrier, if it is complete. Returns a status."""
    arrived, given = load64(barrier + 8 * ARRIVED), load64(barrier + 8 * GIVEN)
    need = given if given else alive(context, cta)
    if arrived < need:
        return 0
    short = load64(barrier + 8 * SYNCTHREADS) != 0 and alive(context, cta) < context.threads
    if arrived > need or short:
        status = suspect_arrival(context, last_arrival(context, cta, name))
        if status != 0:
            return status
    store64(barrier + 8 * SYNCTHREADS, 0)
    end_phase(context, cta, name, arrived, arrived == need and (given != 0 or need == context.threads))
    warps = context.warp_count
    if load64(barrier + 8 * KIND) == 2:
        reduce(context, cta, name)
    vector = barrier_vector(context, cta, name)
    context.time += 1
    waited = 0
    for k in range(warps):
        came = load64(barrier + 8 * (CAME + k))
        store64(barrier + 8 * (BEFORE_AT + k), load64(barrier + 8 * (ARRIVED_AT + k)) if came else 0)
        store64(barrier + 8 * (CAME + k), 0)
        state = context.warps + 8 * WARP_WORDS * (warps * cta + k)
        for p in range(load64(state + 8 * PARTS)):
            part = state + 8 * (FIRST_PART + PART_WORDS * p)
            if load64(part + 8 * PART_STATUS) == AT_BARRIER and load64(part + 8 * PART_INFO) == name:
                store64(part + 8 * PART_STATUS, READY)
                waited |= 1 << k
                if context.checked != 0:
                    acquire(context, warps * cta + k, vector)
    if context.checked != 0:
        for k in range(warps):
            if waited >> k & 1:
                take_rows(context, warps * cta + k, vector, context.time)
        forget(context, vector)
    store64(barrier + 8 * ARRIVED, 0)
    return 0


def reduce(context: Context, cta: int, name: int) -> None:
    """``bar.red``: combine the predicates of all waiting lanes, and give each lane the result."""
    warps = context.warp_count
    true = 0
    total = 0
    for turn in range(2):
        for k in range(warps):
            number = warps * cta + k
            state = context.warps + 8 * WARP_WORDS * number
            registers = context.registers + number * context.register_bytes
            for p in range(load64(state + 8 * PARTS)):
                part = state + 8 * (FIRST_PART + PART_WORDS * p)
                if load64(part + 8 * PART_STATUS) != AT_BARRIER or load64(part + 8 * PART_INFO) != name:
                    continue
                mask, block = load64(part + 8 * PART_MASK), load64(part + 8 * PART_FROM)
                if load32(block + 4 * END) != END_REDUCE:
                    continue
                if turn == 0:
                    true += popcount(mask & load32(registers + load32(block + 4 * END_C)))
                    total += popcount(mask)
                    continue
                operation, row = load32(block + 4 * TARGET), registers + load32(block + 4 * END_D)
                if operation == 0:  # popc, of 32 bits
                    for lane in range(32):
                        if mask >> lane & 1:
                            store32(row + 4 * lane, true)
                else:
                    holds = true == total if operation == 1 else true > 0
                    old = load32(row)
                    store32(row, old | mask if holds else old & ~mask)
