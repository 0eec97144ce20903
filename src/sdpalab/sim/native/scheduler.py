"""The loop that runs warps: machine code (:mod:`~sdpalab.sim.native.translate`), the same for all kernels.

A warp is up to 32 parts, each a set of lanes in front of one block. Of those that can run, the lowest block goes
first, together with all lanes that wait for it, so that lanes reconverge at the earliest common instruction. A warp
runs until it blocks; then it is the next one's turn. Under the random schedule a warp is drawn at every block. What
cannot go on any more is left to the reference engine.

Every number here is an int64. Functions take addresses; :mod:`~sdpalab.sim.native.layout` names the words there.
"""

from __future__ import annotations

from sdpalab.sim.native.clocks import acquire, forget, release_to
from sdpalab.sim.native.layout import (
    ACTORS,
    APART,
    ARRIVED,
    ARRIVED_AT,
    AT_BARRIER,
    BACKWARD,
    BARRIER_COUNT,
    BARRIER_RULE,
    BARRIER_WORDS,
    BARRIERS,
    BEFORE_AT,
    BLOCK_COUNT,
    BLOCK_WORDS,
    BLOCKS,
    BY_WARP,
    CAME,
    CHECKED,
    CLOCKS,
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
    END_NEXT,
    END_REDUCE,
    END_REFUSED,
    END_REGISTERS,
    END_STOP,
    END_TRY_WAIT,
    FIRST,
    FIRST_PART,
    GIVEN,
    GRANULES,
    INDEX,
    ISSUED,
    KIND,
    LANES_BY_BLOCK,
    LAST,
    LISTS,
    LIVE,
    LOCAL,
    LOCAL_STRIDE,
    MEMBERS,
    MOST_STEPS,
    ORDER,
    PARKED,
    PART_BLOCK,
    PART_FROM,
    PART_INFO,
    PART_MASK,
    PART_STATUS,
    PART_WORDS,
    PARTS,
    PASSED,
    PLANES,
    READERS,
    READY,
    RECORDS,
    REFUSED,
    REGISTER_BYTES,
    REGISTERS,
    RELEASED,
    SHARED,
    SHARED_STRIDE,
    SIZE,
    STEPS,
    STEPS_TAKEN,
    STUCK,
    SYNCTHREADS,
    TABLE,
    TARGET,
    THREADS,
    TIME,
    TRAP,
    VECTORS,
    WARP_COUNT,
    WARP_CTA,
    WARP_LINEAR,
    WARP_NUMBER,
    WARP_STEPS,
    WARP_WORDS,
    WARPS,
    WARPS_BY_BLOCK,
)
from sdpalab.sim.native.products import meet
from sdpalab.sim.native.reset import draw, reset_cluster
from sdpalab.sim.native.transfers import drained, land_next
from sdpalab.sim.native.waits import (
    arrive_in_cluster,
    ask_for_registers,
    cluster_phase,
    wait_for_phase,
    wait_in_cluster,
)
from sdpalab.sim.native.words import call_operation, load32, load64, popcount, store32, store64

__all__ = ["run_clusters"]

_QUANTUM = 4096
"""Blocks that a warp may run while others are ready."""


def run_clusters(context: int, first: int, last: int) -> int:
    """Run clusters one after the other, each from its beginning to its end; a status."""
    for cluster in range(first, last):
        reset_cluster(context, cluster)
        status = run_cluster(context)
        if status != 0:
            return status
    return 0


def run_cluster(context: int) -> int:
    """Run the warps of a cluster until all have exited; a status."""
    warps = load64(context + 8 * WARP_COUNT) * load64(context + 8 * CTA_COUNT)
    order = load64(context + 8 * ORDER)
    while True:
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
        if ran == 0:
            status = land_next(context)
            if status != 0:
                return STUCK if status < 0 else status


def lowest_ready(state: int) -> int:
    """The lowest block that lanes are ready for; -1 if there are none."""
    low = -1
    for k in range(load64(state + 8 * PARTS)):
        part = state + 8 * (FIRST_PART + PART_WORDS * k)
        if load64(part + 8 * PART_STATUS) == READY:
            block = load64(part + 8 * PART_BLOCK)
            if low < 0 or block < low:
                low = block
    return low


def take(state: int, block: int) -> int:
    """Remove the lanes that are ready for a block or parked there; the lanes."""
    mask = 0
    left = 0
    for k in range(load64(state + 8 * PARTS)):
        part = state + 8 * (FIRST_PART + PART_WORDS * k)
        status = load64(part + 8 * PART_STATUS)
        if load64(part + 8 * PART_BLOCK) == block and status in (READY, PARKED):
            mask |= load64(part + 8 * PART_MASK)
            continue
        if left != k:
            to = state + 8 * (FIRST_PART + PART_WORDS * left)
            for word in range(PART_WORDS):
                store64(to + 8 * word, load64(part + 8 * word))
        left += 1
    store64(state + 8 * PARTS, left)
    return mask


def add_part(state: int, block: int, mask: int, status: int) -> int:
    """Lanes go on with a block, or wait in front of it; the address of the part."""
    number = load64(state + 8 * PARTS)
    part = state + 8 * (FIRST_PART + PART_WORDS * number)
    store64(part + 8 * PART_BLOCK, block)
    store64(part + 8 * PART_MASK, mask)
    store64(part + 8 * PART_STATUS, status)
    store64(state + 8 * PARTS, number + 1)
    return part


def run_warp(context: int, state: int, number: int, quantum: int) -> int:
    """Run a warp until none of its lanes can go on, or for so many blocks; a status."""
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
    for _ in range(quantum):
        at = lowest_ready(state)
        if at < 0:
            return 0
        mask = take(state, at)
        block = blocks + 4 * BLOCK_WORDS * at
        if load32(block + 4 * COLLECTIVE) != 0:
            met = together(state, registers, block, mask)
            if met != mask:
                add_part(state, at, mask & ~met, PARKED)
                if met == 0:
                    continue
                mask = met
        size = load32(block + 4 * SIZE)
        steps = load64(state + 8 * WARP_STEPS) + size
        store64(state + 8 * WARP_STEPS, steps)
        if steps > load64(context + 8 * MOST_STEPS):
            return STEPS
        store64(context + 8 * STEPS_TAKEN, load64(context + 8 * STEPS_TAKEN) + size)
        store64(lanes_by_block + 8 * at, load64(lanes_by_block + 8 * at) + popcount(mask))
        store64(warps_by_block + 8 * at, load64(warps_by_block + 8 * at) + 1)
        if load64(context + 8 * COUNTING) != 0:
            count_block(context, state, at, size)
            passed = load64(state + 8 * PASSED)
            if mask & passed and mask & ~passed:
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
            store64(context + 8 * CURRENT_PC, (last - records) // 64)
            return status
    return 0


def count_block(context: int, state: int, at: int, size: int) -> None:
    """Count what a warp issues for its CTA, and that it runs a block."""
    issued = load64(context + 8 * ISSUED) + 8 * load64(state + 8 * WARP_LINEAR)
    store64(issued, load64(issued) + size)
    row = load64(context + 8 * BLOCK_COUNT) * load64(state + 8 * WARP_NUMBER)
    place = load64(context + 8 * BY_WARP) + 8 * (row + at)
    store64(place, load64(place) + 1)


def guarded(registers: int, guard: int, mask: int) -> int:
    """The lanes of a mask whose guard holds."""
    if guard == 0:
        return mask
    predicate = load32(registers + (guard & ~3))
    if guard & 2:
        predicate = ~predicate
    return mask & predicate


def together(state: int, registers: int, block: int, mask: int) -> int:
    """The lanes for which all are there that a warp-wide instruction of the block needs."""
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
    """Where the lanes that reached the end of a block go on; a status."""
    end = load32(block + 4 * END)
    if end == END_NEXT:
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
        return TRAP
    if end == END_REFUSED:
        return REFUSED
    if end == END_INDEXED:
        return go_by_index(context, state, registers, block, taken)
    if end == END_CLUSTER_ARRIVE:
        add_part(state, at + 1, taken, READY)
        return arrive_in_cluster(context, state, taken, load32(block + 4 * END_A))
    part = add_part(state, at + 1, taken, READY)
    if end == END_TRY_WAIT:
        return wait_for_phase(context, registers, block, part)
    if end == END_CLUSTER_WAIT:
        return wait_in_cluster(context, state, part)
    if end == END_REGISTERS:
        return ask_for_registers(context, state, block, part)
    return meet(context, state, block, part, end)


def go_by_index(context: int, state: int, registers: int, block: int, taken: int) -> int:
    """Each lane goes to the block of its index: of an indexed branch, or of where it called a function; a status."""
    row = registers + load32(block + 4 * END_A)
    targets = load64(context + 8 * LISTS) + 4 * load32(block + 4 * END_B)
    left = taken
    while left != 0:
        index = -1
        mask = 0
        for lane in range(32):
            mine = load32(row + 4 * lane)
            if left >> lane & 1 and (mine < 0 or mine >= load32(block + 4 * END_C)):
                return INDEX
            if left >> lane & 1 and (index < 0 or mine == index):
                index = mine
                mask |= 1 << lane
        add_part(state, load32(targets + 4 * index), mask, READY)
        left &= ~mask
    return 0


def leave(context: int, state: int, taken: int) -> int:
    """Lanes exit: parked lanes are looked at again, and barriers that waited only for them are complete."""
    live = load64(state + 8 * LIVE) & ~taken
    store64(state + 8 * LIVE, live)
    store64(context + 8 * CURRENT_LIVE, live)
    for k in range(load64(state + 8 * PARTS)):
        part = state + 8 * (FIRST_PART + PART_WORDS * k)
        if load64(part + 8 * PART_STATUS) == PARKED:
            store64(part + 8 * PART_STATUS, READY)
    cluster_phase(context)
    cta = load64(state + 8 * WARP_CTA)
    for name in range(BARRIER_COUNT):
        barrier = load64(context + 8 * BARRIERS) + 8 * BARRIER_WORDS * (BARRIER_COUNT * cta + name)
        if load64(barrier + 8 * ARRIVED) > 0:
            status = release(context, cta, barrier, name)
            if status != 0:
                return status
    return 0


# ---- barriers of a CTA -----------------------------------------------------------------------------------------------


def uniform(registers: int, row: int, mask: int) -> int:
    """The value of a 32-bit row in all lanes of a mask; -1 if they differ."""
    value = -1
    for lane in range(32):
        if mask >> lane & 1:
            mine = load32(registers + row + 4 * lane) & 0xFFFFFFFF
            if value >= 0 and mine != value:
                return -1
            value = mine
    return value


def arrive(context: int, state: int, registers: int, block: int, at: int, taken: int, end: int) -> int:
    """Lanes arrive at a barrier (and wait there): PTX ISA, "bar, barrier".

    Every rule that the reference engine reports ends the native run, and some cases that need a closer look.
    """
    name = uniform(registers, load32(block + 4 * END_A), taken)
    given = 0
    if load32(block + 4 * END_B) >= 0:
        given = uniform(registers, load32(block + 4 * END_B), taken)
    whole = 32 * load64(context + 8 * WARP_COUNT)
    if name < 0 or name >= BARRIER_COUNT or given < 0 or given % 32 or given > whole:
        return BARRIER_RULE
    if end == END_ARRIVE and given == 0:
        return BARRIER_RULE
    cta, warp = load64(state + 8 * WARP_CTA), load64(state + 8 * WARP_NUMBER)
    barrier = load64(context + 8 * BARRIERS) + 8 * BARRIER_WORDS * (BARRIER_COUNT * cta + name)
    arrived = load64(barrier + 8 * ARRIVED)
    kind = 2 if end == END_REDUCE else 1
    came = load64(barrier + 8 * (CAME + warp))
    if arrived > 0:
        before = load64(barrier + 8 * GIVEN)
        if (before if before else whole) != (given if given else whole):
            return BARRIER_RULE
        if load64(barrier + 8 * KIND) != kind:
            return BARRIER_RULE
        # A warp that waits where it has arrived counts twice: whether that was meant shows if others wait forever.
        if came != 0 and (end != END_BARRIER or came != taken or given == 0):
            return BARRIER_RULE
    if load64(context + 8 * CHECKED) != 0:
        if given != 0 and not follows(context, cta, barrier):
            return BARRIER_RULE
        if load32(block + 4 * END_C) == 1 and end == END_BARRIER and name == 0:
            if arrived > 0 and load64(barrier + 8 * SYNCTHREADS) not in (0, block):
                return BARRIER_RULE
            store64(barrier + 8 * SYNCTHREADS, block)
        clock = load64(load64(context + 8 * CLOCKS) + 8 * load64(context + 8 * CURRENT))
        store64(barrier + 8 * (ARRIVED_AT + warp), clock)
        release_to(context, load64(context + 8 * CURRENT), barrier_vector(context, cta, name))
    store64(barrier + 8 * KIND, kind)
    store64(barrier + 8 * GIVEN, given)
    store64(barrier + 8 * (CAME + warp), came | taken)
    store64(barrier + 8 * ARRIVED, arrived + (32 if given else popcount(taken)))
    part = add_part(state, at + 1, taken, READY if end == END_ARRIVE else AT_BARRIER)
    store64(part + 8 * PART_INFO, name)
    store64(part + 8 * PART_FROM, block)
    return release(context, cta, barrier, name)


def follows(context: int, cta: int, barrier: int) -> int:
    """Whether the current warp's arrival comes after the phase before: if not, it could have been part of that."""
    warps, current = load64(context + 8 * WARP_COUNT), load64(context + 8 * CURRENT)
    vector = load64(context + 8 * VECTORS) + 8 * load64(context + 8 * ACTORS) * current
    for k in range(warps):
        other = warps * cta + k
        if other != current and load64(barrier + 8 * (BEFORE_AT + k)) > load64(vector + 8 * other):
            return 0
    return 1


def barrier_vector(context: int, cta: int, name: int) -> int:
    """What was passed on to a barrier of a CTA (:mod:`~sdpalab.sim.native.clocks`)."""
    return load64(context + 8 * RELEASED) + 8 * load64(context + 8 * ACTORS) * (BARRIER_COUNT * cta + name)


def alive(context: int, cta: int) -> int:
    """Threads of a CTA that have not exited."""
    warps = load64(context + 8 * WARP_COUNT)
    states = load64(context + 8 * WARPS) + 8 * WARP_WORDS * warps * cta
    total = 0
    for k in range(warps):
        total += popcount(load64(states + 8 * (WARP_WORDS * k + LIVE)))
    return total


def release(context: int, cta: int, barrier: int, name: int) -> int:
    """Let the lanes go that wait at a barrier, if it is complete; a status."""
    arrived, given = load64(barrier + 8 * ARRIVED), load64(barrier + 8 * GIVEN)
    need = given if given else alive(context, cta)
    if arrived < need:
        return 0
    if arrived > need:
        return BARRIER_RULE
    if load64(barrier + 8 * SYNCTHREADS) != 0 and alive(context, cta) < load64(context + 8 * THREADS):
        return BARRIER_RULE
    store64(barrier + 8 * SYNCTHREADS, 0)
    warps = load64(context + 8 * WARP_COUNT)
    if load64(barrier + 8 * KIND) == 2:
        reduce(context, cta, name)
    vector = barrier_vector(context, cta, name)
    store64(context + 8 * TIME, load64(context + 8 * TIME) + 1)
    for k in range(warps):
        came = load64(barrier + 8 * (CAME + k))
        store64(barrier + 8 * (BEFORE_AT + k), load64(barrier + 8 * (ARRIVED_AT + k)) if came else 0)
        store64(barrier + 8 * (CAME + k), 0)
        state = load64(context + 8 * WARPS) + 8 * WARP_WORDS * (warps * cta + k)
        for p in range(load64(state + 8 * PARTS)):
            part = state + 8 * (FIRST_PART + PART_WORDS * p)
            if load64(part + 8 * PART_STATUS) == AT_BARRIER and load64(part + 8 * PART_INFO) == name:
                store64(part + 8 * PART_STATUS, READY)
                if load64(context + 8 * CHECKED) != 0:
                    acquire(context, warps * cta + k, vector)
    if load64(context + 8 * CHECKED) != 0:
        forget(context, vector)
    store64(barrier + 8 * ARRIVED, 0)
    return 0


def reduce(context: int, cta: int, name: int) -> None:
    """``bar.red``: the predicates of all lanes that wait, combined, to each of them."""
    warps = load64(context + 8 * WARP_COUNT)
    true = 0
    total = 0
    for turn in range(2):
        for k in range(warps):
            number = warps * cta + k
            state = load64(context + 8 * WARPS) + 8 * WARP_WORDS * number
            registers = load64(context + 8 * REGISTERS) + number * load64(context + 8 * REGISTER_BYTES)
            for p in range(load64(state + 8 * PARTS)):
                part = state + 8 * (FIRST_PART + PART_WORDS * p)
                if load64(part + 8 * PART_STATUS) != AT_BARRIER or load64(part + 8 * PART_INFO) != name:
                    continue
                mask, block = load64(part + 8 * PART_MASK), load64(part + 8 * PART_FROM)
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
