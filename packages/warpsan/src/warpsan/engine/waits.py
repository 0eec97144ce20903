"""Ends of blocks in asynchronous kernels: waits for mbarriers, cluster barriers and registers: machine code
(:mod:`~warpsan.engine.translate`).

The rules are those of :mod:`warpsan.replay.mbarrier`, :mod:`~warpsan.replay.cluster` and
:mod:`~warpsan.replay.setmaxnreg`.
"""

from __future__ import annotations

from warpsan.engine.clocks import acquire, publish, release_fenced, release_to, vector_of
from warpsan.engine.context import Context
from warpsan.engine.layout import (
    APART,
    AT_CLUSTER,
    AT_MBARRIER,
    BLOCK_WORDS,
    CLUSTER_ARRIVALS,
    CLUSTER_RULE,
    CLUSTER_WAITS,
    END,
    END_A,
    END_B,
    END_C,
    END_D,
    END_E,
    END_EXIT,
    END_PC,
    END_TOKEN,
    FIRST_PART,
    FOR_REGISTERS,
    HELD_REGISTERS,
    LIVE,
    MB_PHASE,
    MBARRIER_RULE,
    PARKED,
    PART_BLOCK,
    PART_FROM,
    PART_INFO,
    PART_MASK,
    PART_MORE,
    PART_STATUS,
    PART_WORDS,
    PARTIAL_WARP,
    PARTS,
    PASSED,
    READY,
    REGISTER_RULE,
    SIZE,
    WARP_CTA,
    WARP_WORDS,
)
from warpsan.engine.mbarriers import cta_of, mbarrier_at, mbarrier_instruction, offset_of, pass_on, use_mbarrier
from warpsan.engine.parts import add_part
from warpsan.engine.structs import Ptr, i64
from warpsan.engine.suspects import broken_rule, current_instruction, first_lane, note_fault
from warpsan.engine.watch.releases import take_rows
from warpsan.engine.words import load32, load64, popcount, store32, store64

__all__ = ["arrive_in_cluster", "ask_for_registers", "cluster_phase", "wait_for_phases", "wait_in_cluster"]


def wait_for_phases(context: Context, state: int, registers: int, block: int, at: int, taken: int) -> int:
    """Lanes wait for phases of mbarriers; lanes that wait for the same phase wait together. Returns a status."""
    place, left = registers + load32(block + 4 * END_A), taken
    while left != 0:
        first, same = first_lane(left), 0
        for lane in range(first, 32):
            alike = load64(place + 8 * lane) == load64(place + 8 * first)
            if left >> lane & 1 and alike and wanted(registers, block, lane) == wanted(registers, block, first):
                same |= 1 << lane
        left &= ~same
        status = wait_for_phase(context, registers, block, add_part(state, at + 1, same, READY))
        if status != 0:
            return status
    return 0


def wait_for_phase(context: Context, registers: int, block: int, part: int) -> int:
    """Lanes wait for the phase of one mbarrier with one parity. Returns a status."""
    mask = load64(part + 8 * PART_MASK)
    place, result = registers + load32(block + 4 * END_A), registers + load32(block + 4 * END_D)
    first = first_lane(mask)
    address = load64(place + 8 * first) + load32(block + 4 * END_B)
    cta = cta_of(context, address)
    entry = mbarrier_at(context, cta, offset_of(address)) if cta >= 0 else 0
    current_instruction(context, load32(block + 4 * END_PC))
    if entry == 0:  # no phase to wait for
        store32(result, load32(result) | mask)
        return broken_rule(context, MBARRIER_RULE)
    status = use_mbarrier(context, entry)
    if status != 0:
        return status
    apart = others_go_on(context, mask) if context.counting != 0 else 0
    if (apart == 2 or (apart == 1 and context.early != 0)) and context.faults == 0:
        return APART
    row, offset = load32(block + 4 * END_A), load32(block + 4 * END_B)
    mbarrier_instruction(context, registers, row, offset, mask, load32(block + 4 * END_PC))
    passed = context.current_state + 8 * PASSED
    now, asked = load64(entry + 8 * MB_PHASE), wanted(registers, block, first)
    if load32(block + 4 * END_TOKEN) == 0:  # a parity: the present phase, or the one before
        asked = now if asked == (now & 1) else now - 1
    status = broken_rule(context, MBARRIER_RULE) if asked < now - 1 else 0
    if status != 0:
        return status
    if asked < now:
        store32(result, load32(result) | mask)
        if apart:
            store64(passed, load64(passed) | mask)
        if context.checked != 0:
            pass_on(context, context.current, entry, mask, load32(block + 4 * END_E))
        return 0
    store32(result, load32(result) & ~mask)
    store64(passed, load64(passed) & ~mask)
    store64(part + 8 * PART_STATUS, AT_MBARRIER)
    store64(part + 8 * PART_INFO, entry)
    store64(part + 8 * PART_MORE, asked)
    store64(part + 8 * PART_FROM, block)
    return 0


def wanted(registers: int, block: int, lane: int) -> int:
    """The phase that a lane waits for, by a parity or by its state token."""
    row = registers + load32(block + 4 * END_C)
    if load32(block + 4 * END_TOKEN):
        return load64(row + 8 * lane) >> 32 & 0xFFFFFFFF
    return load32(row + 4 * lane) & 1


def others_go_on(context: Context, mask: int) -> int:
    """The state of the warp's other lanes while those of a mask wait: 0 if they wait for these, 1 if they exit,
    otherwise 2.

    Unless they wait for these lanes, the order of the warps decides whether these lanes reach later code together with
    them, and so the number of times that the warp runs it. For lanes that exit, ``PASSED`` shows whether they came
    together: a wait for a copy, or for lanes that wait for one, is long in the late mode, in any order.
    """
    apart = 0
    state = context.current_state
    for k in range(load64(state + 8 * PARTS)):
        part = state + 8 * (FIRST_PART + PART_WORDS * k)
        if load64(part + 8 * PART_MASK) & mask == 0 and load64(part + 8 * PART_STATUS) != PARKED:
            block = context.blocks + 4 * BLOCK_WORDS * load64(part + 8 * PART_BLOCK)
            if load32(block + 4 * END) != END_EXIT or load32(block + 4 * SIZE) != 1:
                return 2
            apart = 1
    return apart


# ---- clusters --------------------------------------------------------------------------------------------------------


def arrive_in_cluster(context: Context, state: int, block: int, mask: int) -> int:
    """Lanes arrive at the barrier of their cluster. Returns a status."""
    again = 0
    for lane in range(32):
        if mask >> lane & 1:
            place = state + 8 * CLUSTER_ARRIVALS + 4 * lane
            arrivals = load32(place)
            again += arrivals > load32(state + 8 * CLUSTER_WAITS + 4 * lane)
            store32(place, arrivals + 1)
    current_instruction(context, load32(block + 4 * END_PC))
    status = broken_rule(context, CLUSTER_RULE) if again else 0
    if status != 0:
        return status
    cluster, relaxed = load64(state + 8 * WARP_CTA) // context.cluster_size, load32(block + 4 * END_A)
    if context.checked != 0:
        vector = vectors_of_cluster(context, cluster)
        if relaxed:
            release_fenced(context, context.current, vector, 1)
        else:
            release_to(context, context.current, vector)
    context.cluster_arrived[cluster] += popcount(mask)
    cluster_phase(context, state)
    return 0


def wait_in_cluster(context: Context, state: int, block: int, at: int, taken: int) -> int:
    """Lanes wait for the phase in which they arrived; lanes that wait for the same phase wait together. Returns a
    status."""
    current_instruction(context, load32(block + 4 * END_PC))
    cluster, left = load64(state + 8 * WARP_CTA) // context.cluster_size, taken
    while left != 0:
        arrivals, same, never = load32(state + 8 * CLUSTER_ARRIVALS + 4 * first_lane(left)), 0, 0
        for lane in range(32):
            waits = state + 8 * CLUSTER_WAITS + 4 * lane
            if left >> lane & 1 and load32(state + 8 * CLUSTER_ARRIVALS + 4 * lane) == arrivals:
                never += arrivals <= load32(waits)
                store32(waits, arrivals)
                same |= 1 << lane
        left &= ~same
        status = broken_rule(context, CLUSTER_RULE) if never else 0
        if status != 0:
            return status
        part = add_part(state, at + 1, same, READY)
        if context.cluster_phase[cluster] < arrivals:
            store64(part + 8 * PART_STATUS, AT_CLUSTER)
            store64(part + 8 * PART_MORE, arrivals)
        else:
            leave_cluster_barrier(context, context.current)
    return 0


def leave_cluster_barrier(context: Context, warp: int) -> None:
    """A warp acquires the vectors of all complete phases."""
    cluster = warp // context.warp_count // context.cluster_size
    if context.checked != 0:
        acquire(context, warp, vectors_of_cluster(context, cluster).at(context.actors))
        take_rows(context, warp, vector_of(context, warp), 0)


def vectors_of_cluster(context: Context, cluster: int) -> Ptr[i64]:
    """The vector released to the barrier of a cluster in this phase, followed by that of all earlier phases."""
    return context.cluster_vectors.at(2 * context.actors * cluster)


def cluster_phase(context: Context, state: int) -> None:
    """If all live threads of a warp's cluster have arrived, the phase ends, and the lanes that wait for it continue."""
    warps = context.warp_count * context.cluster_size
    cluster = load64(state + 8 * WARP_CTA) // context.cluster_size
    alive = 0
    for number in range(warps * cluster, warps * (cluster + 1)):
        alive += popcount(load64(context.warps + 8 * (WARP_WORDS * number + LIVE)))
    arrived = context.cluster_arrived[cluster]
    if arrived == 0 or arrived < alive:
        return
    phase = context.cluster_phase[cluster] + 1
    context.cluster_phase[cluster] = phase
    context.cluster_arrived[cluster] = 0
    if context.checked != 0:
        publish(context, vectors_of_cluster(context, cluster))
    for number in range(warps * cluster, warps * (cluster + 1)):
        state = context.warps + 8 * WARP_WORDS * number
        for k in range(load64(state + 8 * PARTS)):
            part = state + 8 * (FIRST_PART + PART_WORDS * k)
            if load64(part + 8 * PART_STATUS) == AT_CLUSTER and load64(part + 8 * PART_MORE) <= phase:
                store64(part + 8 * PART_STATUS, READY)
                leave_cluster_barrier(context, number)


# ---- registers -------------------------------------------------------------------------------------------------------


def ask_for_registers(context: Context, state: int, block: int, part: int) -> int:
    """A whole warp releases registers or requests more, and waits for them. If a lane is missing, that is noted
    without any other effect. Returns a status."""
    mask = load64(part + 8 * PART_MASK)
    if mask != (1 << 32) - 1:
        current_instruction(context, load32(block + 4 * END_PC))
        return note_fault(context, context.current_record, mask, PARTIAL_WARP, 0)
    wanted, held = load32(block + 4 * END_A), load64(state + 8 * HELD_REGISTERS)
    if (held > wanted) if load32(block + 4 * END_B) else (held < wanted):
        if load32(block + 4 * END_C) == 0:  # no change
            return 0
        current_instruction(context, load32(block + 4 * END_PC))
        return broken_rule(context, REGISTER_RULE)
    store64(part + 8 * PART_STATUS, FOR_REGISTERS)
    store64(part + 8 * PART_MORE, wanted)
    cta, warps = load64(state + 8 * WARP_CTA), context.warp_count
    for turn in range(2):  # releases first
        for k in range(warps):
            other = context.warps + 8 * WARP_WORDS * (warps * cta + k)
            for p in range(load64(other + 8 * PARTS)):
                waiting = other + 8 * (FIRST_PART + PART_WORDS * p)
                if load64(waiting + 8 * PART_STATUS) != FOR_REGISTERS:
                    continue
                more = load64(waiting + 8 * PART_MORE) - load64(other + 8 * HELD_REGISTERS)
                if more <= 0 or (turn == 1 and held_by(context, cta) + 32 * more <= context.register_limit):
                    store64(other + 8 * HELD_REGISTERS, load64(waiting + 8 * PART_MORE))
                    store64(waiting + 8 * PART_STATUS, READY)
    return 0


def held_by(context: Context, cta: int) -> int:
    """Registers of the threads of a CTA."""
    warps = context.warp_count
    total = 0
    for k in range(warps):
        total += 32 * load64(context.warps + 8 * (WARP_WORDS * (warps * cta + k) + HELD_REGISTERS))
    return total
