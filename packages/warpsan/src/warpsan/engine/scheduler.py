"""The loop that runs warps: machine code (:mod:`~warpsan.engine.translate`), the same for all kernels.

A warp is up to 32 parts, each a set of lanes at one block. The lowest block that can run goes first, together with all
lanes that wait for it, so that lanes reconverge at the earliest common instruction. A warp runs until it blocks; then
the next one runs. Under the random schedule, a warp is drawn at every block. A run that cannot continue ends with a
status.

Every number here is an int64. Functions take addresses; :mod:`~warpsan.engine.layout` names their words.
"""

from __future__ import annotations

from warpsan.engine.barriers import arrive, release_all, threads_left
from warpsan.engine.empty_phases import write_all_arrivals
from warpsan.engine.layout import (
    APART,
    ARRIVALS_PENDING,
    BACKWARD,
    BLOCK_COUNT,
    BLOCK_WORDS,
    BLOCKS,
    BY_WARP,
    CHECKED,
    COLLECTIVE,
    COUNTING,
    CTA_COUNT,
    CURRENT,
    CURRENT_CTA,
    CURRENT_LIVE,
    CURRENT_LOCAL,
    CURRENT_PC,
    CURRENT_PLANE,
    CURRENT_SHARED,
    CURRENT_STATE,
    DRAWN,
    END,
    END_A,
    END_ARRIVE,
    END_B,
    END_BARRIER,
    END_BRANCH,
    END_C,
    END_CLUSTER_ARRIVE,
    END_CLUSTER_WAIT,
    END_D,
    END_EXIT,
    END_GUARD,
    END_INDEXED,
    END_INNER,
    END_NEXT,
    END_REDUCE,
    END_REGISTERS,
    END_STOP,
    END_TRY_WAIT,
    FAULTS,
    FIRST,
    FIRST_PART,
    FORCED,
    GRANULES,
    INDEX,
    ISSUED,
    LANES_BY_BLOCK,
    LAST,
    LATE,
    LISTS,
    LIVE,
    LOCAL,
    LOCAL_STRIDE,
    MEMBERS,
    MOST_STEPS,
    ORDER,
    PARKED,
    PART_STATUS,
    PART_WORDS,
    PARTS,
    PASSED,
    PLANES,
    POLLS,
    PROGRESS,
    READERS,
    READY,
    RECORDS,
    REGISTER_BYTES,
    REGISTERS,
    SCRATCH,
    SCRATCH_FAULTS,
    SHARED,
    SHARED_STRIDE,
    SIZE,
    STARVED,
    STEPS,
    STEPS_TAKEN,
    STUCK,
    TABLE,
    TARGET,
    TIME,
    TIME_LIMIT,
    TOGETHER,
    TRAP,
    TURN,
    WARP_COUNT,
    WARP_CTA,
    WARP_LINEAR,
    WARP_NUMBER,
    WARP_STEPS,
    WARP_WORDS,
    WARPS,
    WARPS_BY_BLOCK,
)
from warpsan.engine.parts import add_part, lowest_other, lowest_parked, lowest_ready, polls, ready_elsewhere, take
from warpsan.engine.products import meet
from warpsan.engine.reset import draw, reset_cluster
from warpsan.engine.trace import begin_trace, end_trace, trace_exit, trace_trap
from warpsan.engine.transfers.landing import drained, land_next
from warpsan.engine.waits import arrive_in_cluster, ask_for_registers, cluster_phase, wait_for_phases, wait_in_cluster
from warpsan.engine.words import call_operation, load32, load64, popcount, store64

__all__ = ["run_clusters"]


_QUANTUM = 4096
"""Blocks that a warp runs while others are ready."""
_POLLS, _ROUNDS, _DRAWS = 64, 4, 2048
"""Blocks of polling loops that a warp runs in its turn; and the number of turns with nothing but polling, of all
warps, or of each drawn one, after which the run is a deadlock. After half of them, lanes pass the polling lanes of
their warp, which may keep them from reconverging."""


def run_clusters(context: int, first: int, last: int) -> int:
    """Run clusters one after the other, each from its beginning to its end. Returns a status."""
    for cluster in range(first, last):
        reset_cluster(context, cluster)
        begin_trace(context, cluster)
        status = run_together(context) if load64(context + 8 * ORDER) == TOGETHER else run_cluster(context)
        if status != 0:
            write_all_arrivals(context)
            return status
        end_trace(context)
    return 0


def run_cluster(context: int) -> int:
    """Run the warps of a cluster until all have exited. Returns a status."""
    warps = load64(context + 8 * WARP_COUNT) * load64(context + 8 * CTA_COUNT)
    order = load64(context + 8 * ORDER)
    most = _DRAWS * warps if order == DRAWN else _ROUNDS
    idle = 0
    while True:
        before = load64(context + 8 * PROGRESS)
        store64(context + 8 * STARVED, idle > most // 2)
        ran = 0
        left = 0
        first = draw(context, warps) if order == DRAWN else 0
        for k in range(warps):
            number = (first + k) % warps
            if order == BACKWARD:
                number = warps - 1 - k
            state = load64(context + 8 * WARPS) + 8 * WARP_WORDS * number
            if load64(state + 8 * PARTS) == 0:
                continue
            left += 1
            if lowest_ready(state) < 0:
                continue
            ran += 1
            status = run_warp(context, state, number, 1 if order == DRAWN else _QUANTUM)
            if status != 0:
                return status
            if order == DRAWN:
                break
        if left == 0:
            return drained(context)
        idle = idle + 1 if load64(context + 8 * PROGRESS) == before else 0
        if ran == 0 or idle > most:
            idle = 0
            status = advance(context, ran)
            if status != 0:
                return status


def run_together(context: int) -> int:
    """Run a cluster in lockstep: always its lowest block, by each warp at it. Returns a status.

    After a block that ends only for lockstep, the same lanes continue, even if a lower block could run.
    """
    warps = load64(context + 8 * WARP_COUNT) * load64(context + 8 * CTA_COUNT)
    within = -1
    while True:
        low = -1
        left = 0
        for number in range(warps):
            state = load64(context + 8 * WARPS) + 8 * WARP_WORDS * number
            if load64(state + 8 * PARTS) != 0:
                left += 1
                at = lowest_ready(state)
                if at >= 0 and (at == within or low < 0 or (at < low and low != within)):
                    low = at
        if left == 0:
            return drained(context)
        if low < 0:
            status = advance(context, 0)
            if status != 0:
                return status
            continue
        store64(context + 8 * TURN, load64(context + 8 * TURN) + 1)
        block = load64(context + 8 * BLOCKS) + 4 * BLOCK_WORDS * low
        within = low + 1 if load32(block + 4 * END) == END_INNER else -1
        for number in range(warps):
            state = load64(context + 8 * WARPS) + 8 * WARP_WORDS * number
            if lowest_ready(state) == low:
                status = run_warp(context, state, number, 1)
                if status != 0:
                    return status
        if load64(context + 8 * ARRIVALS_PENDING) != 0:
            status = release_all(context)
            if status != 0:
                return status


def advance(context: int, ran: int) -> int:
    """Only polling loops can run (``ran``), or nothing: copies in flight land, or lanes continue without required
    lanes of their warp, unless a loop may end by itself. Returns a status."""
    status = land_next(context)
    if status >= 0:
        return status
    return 0 if ran != 0 and loops_end(context) else force_parked(context)


def loops_end(context: int) -> int:
    """Whether lanes are ready for a polling loop that may end without memory, or for a block outside polling loops."""
    warps = load64(context + 8 * WARP_COUNT) * load64(context + 8 * CTA_COUNT)
    for number in range(warps):
        if ready_elsewhere(context, load64(context + 8 * WARPS) + 8 * WARP_WORDS * number):
            return 1
    return 0


def force_parked(context: int) -> int:
    """Lanes that wait for others of their warp at the lowest block run it without them, if faults are noted. Returns
    a status."""
    warps = load64(context + 8 * WARP_COUNT) * load64(context + 8 * CTA_COUNT)
    low = -1
    for number in range(warps if load64(context + 8 * FAULTS) != 0 else 0):
        at = lowest_parked(load64(context + 8 * WARPS) + 8 * WARP_WORDS * number)
        if at >= 0 and (low < 0 or at < low):
            low = at
    if low < 0:
        return STUCK
    for number in range(warps):
        state = load64(context + 8 * WARPS) + 8 * WARP_WORDS * number
        if lowest_parked(state) == low and lowest_ready(state) < 0:
            add_part(state, low, take(state, low), READY)
            store64(context + 8 * FORCED, low + 1)
            status = run_warp(context, state, number, 1)
            store64(context + 8 * FORCED, 0)
            if status != 0:
                return status
    return 0


def run_warp(context: int, state: int, number: int, quantum: int) -> int:
    """Run a warp until none of its lanes can continue, or for a number of blocks. Returns a status."""
    registers = load64(context + 8 * REGISTERS) + number * load64(context + 8 * REGISTER_BYTES)
    cta = load64(state + 8 * WARP_CTA)
    store64(context + 8 * CURRENT, number)
    store64(context + 8 * CURRENT_CTA, load64(state + 8 * WARP_LINEAR) + 1)
    store64(context + 8 * CURRENT_STATE, state)
    store64(context + 8 * CURRENT_LIVE, load64(state + 8 * LIVE))
    store64(context + 8 * CURRENT_SHARED, load64(context + 8 * SHARED) + cta * load64(context + 8 * SHARED_STRIDE))
    local = load64(context + 8 * LOCAL) + 32 * number * load64(context + 8 * LOCAL_STRIDE)
    store64(context + 8 * CURRENT_LOCAL, local)
    if load64(context + 8 * CHECKED) != 0:
        plane = load64(context + 8 * PLANES) * cta + number
        store64(context + 8 * CURRENT_PLANE, load64(context + 8 * READERS) + 4 * load64(context + 8 * GRANULES) * plane)
    blocks, records = load64(context + 8 * BLOCKS), load64(context + 8 * RECORDS)
    table = load64(context + 8 * TABLE)
    lanes_by_block, warps_by_block = load64(context + 8 * LANES_BY_BLOCK), load64(context + 8 * WARPS_BY_BLOCK)
    polled = 0
    for _ in range(quantum):
        at = lowest_ready(state)
        if at < 0:
            return 0
        if polls(context, at):
            polled += 1
            starved = load64(context + 8 * STARVED)
            if polled > _POLLS or (starved and quantum == 1):
                other = lowest_other(context, state) if starved else -1
                if other >= 0:
                    at = other
                elif polled > _POLLS:
                    return 0
        mask = take(state, at)
        block = blocks + 4 * BLOCK_WORDS * at
        if load32(block + 4 * COLLECTIVE) != 0 and load64(context + 8 * FORCED) != at + 1:
            met = together(state, registers, block, mask)
            if met != mask:
                add_part(state, at, mask & ~met, PARKED)
                if met == 0:
                    continue
                mask = met
        if load32(block + 4 * POLLS) == 0:
            store64(context + 8 * PROGRESS, load64(context + 8 * PROGRESS) + 1)
        size = load32(block + 4 * SIZE)
        steps = load64(state + 8 * WARP_STEPS) + size
        store64(state + 8 * WARP_STEPS, steps)
        if steps > load64(context + 8 * MOST_STEPS):
            store64(context + 8 * CURRENT_PC, at)
            return STEPS
        if load64(context + 8 * TIME) > load64(context + 8 * TIME_LIMIT):
            return LATE
        store64(context + 8 * STEPS_TAKEN, load64(context + 8 * STEPS_TAKEN) + size)
        store64(lanes_by_block + 8 * at, load64(lanes_by_block + 8 * at) + popcount(mask))
        store64(warps_by_block + 8 * at, load64(warps_by_block + 8 * at) + 1)
        if load64(context + 8 * COUNTING) != 0:
            count_block(context, state, at, size)
            passed = load64(state + 8 * PASSED)
            if mask & passed and mask & ~passed and load64(context + 8 * FAULTS) == 0:
                return APART
        record = records + 64 * load32(block + 4 * FIRST)
        last = records + 64 * load32(block + 4 * LAST)
        while record < last:
            active = guarded(registers, load32(record + 4), mask)
            if active != 0:
                function = load64(table + 8 * load32(record))
                status = call_operation(function, registers, record, active, context)
                if status != 0:
                    store64(context + 8 * CURRENT_PC, (record - records) // 64)
                    return status
            record += 64
        status = end_block(context, state, registers, block, at, mask)
        if status != 0:
            store64(context + 8 * CURRENT_PC, at if status == INDEX else (last - records) // 64)
            return status
    return 0


def count_block(context: int, state: int, at: int, size: int) -> None:
    """Count the instructions that a warp issues for its CTA, and its run of a block."""
    issued = load64(context + 8 * ISSUED) + 8 * load64(state + 8 * WARP_LINEAR)
    store64(issued, load64(issued) + size)
    row = load64(context + 8 * BLOCK_COUNT) * load64(state + 8 * WARP_NUMBER)
    place = load64(context + 8 * BY_WARP) + 8 * (row + at)
    store64(place, load64(place) + 1)


def guarded(registers: int, guard: int, mask: int) -> int:
    """The lanes of a mask for which its guard holds."""
    if guard == 0:
        return mask
    predicate = load32(registers + (guard & ~3))
    if guard & 2:
        predicate = ~predicate
    return mask & predicate


def together(state: int, registers: int, block: int, mask: int) -> int:
    """The lanes whose warp-wide instruction of the block has all required lanes."""
    absent = load64(state + 8 * LIVE) & ~mask
    if absent == 0:
        return mask
    if load32(block + 4 * COLLECTIVE) == 1:
        return 0
    members = registers + load32(block + 4 * MEMBERS)
    met = 0
    for lane in range(32):
        if mask >> lane & 1 and absent & load32(members + 4 * lane) == 0:
            met |= 1 << lane
    return met


def end_block(context: int, state: int, registers: int, block: int, at: int, mask: int) -> int:
    """Send the lanes that reached the end of a block to their next block. Returns a status."""
    end = load32(block + 4 * END)
    if end in (END_NEXT, END_INNER):
        add_part(state, at + 1, mask, READY)
        return 0
    taken = guarded(registers, load32(block + 4 * END_GUARD), mask)
    rest = mask & ~taken
    if rest != 0:
        add_part(state, at + 1, rest, READY)
    if taken == 0:
        return 0
    if end == END_BRANCH:
        add_part(state, load32(block + 4 * TARGET), taken, READY)
        return 0
    if end == END_EXIT:
        return leave(context, state, taken)
    if end in (END_BARRIER, END_ARRIVE, END_REDUCE):
        return arrive(context, state, registers, block, at, taken, end)
    if end == END_STOP:
        trace_trap(context, taken, at)
        return TRAP
    if end == END_INDEXED:
        return go_by_index(context, state, registers, block, taken)
    if end == END_CLUSTER_ARRIVE:
        add_part(state, at + 1, taken, READY)
        return arrive_in_cluster(context, state, block, taken)
    if end == END_TRY_WAIT:
        return wait_for_phases(context, state, registers, block, at, taken)
    if end == END_CLUSTER_WAIT:
        return wait_in_cluster(context, state, block, at, taken)
    part = add_part(state, at + 1, taken, READY)
    if end == END_REGISTERS:
        return ask_for_registers(context, state, block, part)
    return meet(context, state, block, part, end)


def go_by_index(context: int, state: int, registers: int, block: int, taken: int) -> int:
    """Each lane goes to the block of its index: of an indexed branch, of the called function's address (in the end's
    row), or of its return address. Returns a status."""
    row = registers + load32(block + 4 * END_A)
    targets = load64(context + 8 * LISTS) + 4 * load32(block + 4 * END_B)
    left = taken
    while left != 0:
        index = -1
        mask = 0
        for lane in range(32):
            mine = load32(row + 4 * lane)
            if left >> lane & 1 and (mine < 0 or mine >= load32(block + 4 * END_C)):
                scratch = load64(context + 8 * SCRATCH) + SCRATCH_FAULTS
                store64(scratch, lane)
                address = load32(block + 4 * END_D)
                store64(scratch + 8, mine & 0xFFFFFFFF if address < 0 else load64(registers + address + 8 * lane))
                return INDEX
            if left >> lane & 1 and (index < 0 or mine == index):
                index = mine
                mask |= 1 << lane
        add_part(state, load32(targets + 4 * index), mask, READY)
        left &= ~mask
    return 0


def leave(context: int, state: int, taken: int) -> int:
    """Lanes exit: parked lanes are checked again, and barriers that waited only for them complete."""
    live = load64(state + 8 * LIVE) & ~taken
    store64(state + 8 * LIVE, live)
    store64(context + 8 * CURRENT_LIVE, live)
    trace_exit(context, taken)
    for k in range(load64(state + 8 * PARTS)):
        part = state + 8 * (FIRST_PART + PART_WORDS * k)
        if load64(part + 8 * PART_STATUS) == PARKED:
            store64(part + 8 * PART_STATUS, READY)
    cluster_phase(context, state)
    return threads_left(context, load64(state + 8 * WARP_CTA))
