"""The loop that runs warps: machine code (:mod:`~warpsan.engine.translate`), the same for all kernels.

A warp is up to 32 parts, each a set of lanes at one block. The lowest block that can run goes first, together with all
lanes that wait for it, so that lanes reconverge at the earliest common instruction. A warp runs until it blocks; then
the next one runs. Under the random schedule, a warp is drawn at every block. A run that cannot continue ends with a
status.

Every number here is an int64. Functions take addresses; :mod:`~warpsan.engine.layout` names their words.
"""

from __future__ import annotations

from warpsan.engine.barriers import arrive, release_all, threads_left
from warpsan.engine.context import Context
from warpsan.engine.layout import (
    APART,
    BACKWARD,
    DRAWN,
    END_ARRIVE,
    END_BARRIER,
    END_BRANCH,
    END_CLUSTER_ARRIVE,
    END_CLUSTER_WAIT,
    END_EXIT,
    END_INDEXED,
    END_INNER,
    END_NEXT,
    END_REDUCE,
    END_REGISTERS,
    END_STOP,
    END_TRY_WAIT,
    INDEX,
    LATE,
    PARKED,
    READY,
    STEPS,
    STUCK,
    TOGETHER,
    TRAP,
)
from warpsan.engine.memory import Block, Warp
from warpsan.engine.parts import add_part, lowest_other, lowest_parked, lowest_ready, polls, pop_lanes, ready_elsewhere
from warpsan.engine.products import meet
from warpsan.engine.reset import draw, reset_cluster
from warpsan.engine.suspects import first_lane
from warpsan.engine.transfers.landing import drained, land_next
from warpsan.engine.waits import (
    arrive_in_cluster,
    ask_for_registers,
    cluster_phase,
    compare_warpgroup,
    wait_for_phases,
    wait_in_cluster,
)
from warpsan.engine.words import call_operation, load32, load64, popcount

__all__ = ["run_clusters"]


_QUANTUM = 4096
"""Blocks that a warp runs while others are ready."""
_POLLS, _ROUNDS, _DRAWS = 64, 4, 2048
"""Blocks of polling loops that a warp runs in its turn; and the number of turns with nothing but polling, of all
warps, or of each drawn one, after which the run is a deadlock. After half of them, lanes pass the polling lanes of
their warp, which may keep them from reconverging."""


def run_clusters(context: Context, first: int, last: int) -> int:
    """Run clusters one after the other, each from its beginning to its end. Returns a status."""
    for cluster in range(first, last):
        reset_cluster(context, cluster)
        context.cluster = cluster
        context.turn_began = context.turn
        status = run_together(context) if context.order == TOGETHER else run_cluster(context)
        if status != 0:
            return status
    return 0


def run_cluster(context: Context) -> int:
    """Run the warps of a cluster until all have exited. Returns a status."""
    warps = context.warp_count * context.cta_count
    order = context.order
    most = _DRAWS * warps if order == DRAWN else _ROUNDS
    idle = 0
    while True:
        before = context.progress
        context.starved = idle > most // 2
        ran = 0
        left = 0
        first = draw(context, warps) if order == DRAWN else 0
        for k in range(warps):
            number = (first + k) % warps
            if order == BACKWARD:
                number = warps - 1 - k
            state = context.warps[number]
            if state.path_count == 0:
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
        idle = idle + 1 if context.progress == before else 0
        if ran == 0 or idle > most:
            idle = 0
            status = advance(context, ran)
            if status != 0:
                return status


def run_together(context: Context) -> int:
    """Run a cluster in lockstep: always its lowest block, by each warp at it. Returns a status.

    After a block that ends only for lockstep, the same lanes continue, even if a lower block could run.
    """
    warps = context.warp_count * context.cta_count
    within = -1
    while True:
        low = -1
        left = 0
        for number in range(warps):
            state = context.warps[number]
            if state.path_count != 0:
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
        context.turn += 1
        block = context.blocks[low]
        within = low + 1 if block.end == END_INNER else -1
        for number in range(warps):
            state = context.warps[number]
            if lowest_ready(state) == low:
                status = run_warp(context, state, number, 1)
                if status != 0:
                    return status
        if context.arrivals_pending != 0:
            status = release_all(context)
            if status != 0:
                return status


def advance(context: Context, ran: int) -> int:
    """Only polling loops can run (``ran``), or nothing: copies in flight land, or lanes continue without required
    lanes of their warp, unless a loop may end by itself. Returns a status."""
    status = land_next(context)
    if status >= 0:
        return status
    return 0 if ran != 0 and loops_end(context) else force_parked(context)


def loops_end(context: Context) -> int:
    """Whether lanes are ready for a polling loop that may end without memory, or for a block outside polling loops."""
    warps = context.warp_count * context.cta_count
    for number in range(warps):
        if ready_elsewhere(context, context.warps[number]):
            return 1
    return 0


def force_parked(context: Context) -> int:
    """Lanes that wait for others of their warp at the lowest block run it without them, if faults are noted. Returns
    a status."""
    warps = context.warp_count * context.cta_count
    low = -1
    for number in range(warps if context.hazard_room != 0 else 0):
        at = lowest_parked(context.warps[number])
        if at >= 0 and (low < 0 or at < low):
            low = at
    if low < 0:
        return STUCK
    for number in range(warps):
        state = context.warps[number]
        if lowest_parked(state) == low and lowest_ready(state) < 0:
            add_part(state, low, pop_lanes(state, low), READY)
            context.forced = low + 1
            status = run_warp(context, state, number, 1)
            context.forced = 0
            if status != 0:
                return status
    return 0


def run_warp(context: Context, state: Warp, number: int, quantum: int) -> int:
    """Run a warp until none of its lanes can continue, or for a number of blocks. Returns a status."""
    registers = context.registers + number * context.register_bytes
    cta = state.cta
    context.current = number
    context.current_cta = state.linear_cta + 1
    context.current_warp = state
    context.current_live = state.live
    context.current_shared = context.shared + cta * context.shared_stride
    local = context.local + 32 * number * context.local_stride
    context.current_local = local
    if context.checked != 0:
        plane = context.planes * cta + number
        context.current_plane = context.readers.at(context.granules * plane)
    blocks, records = context.blocks, context.records
    table = context.table
    lanes_by_block, warps_by_block = context.lanes_by_block, context.warps_by_block
    polled = 0
    for _ in range(quantum):
        at = lowest_ready(state)
        if at < 0:
            return 0
        if polls(context, at):
            polled += 1
            starved = context.starved
            if polled > _POLLS or (starved and quantum == 1):
                other = lowest_other(context, state) if starved else -1
                if other >= 0:
                    at = other
                elif polled > _POLLS:
                    return 0
        mask = pop_lanes(state, at)
        block = blocks[at]
        if block.collective != 0 and context.forced != at + 1:
            met = together(state, registers, block, mask)
            if met != mask:
                add_part(state, at, mask & ~met, PARKED)
                if met == 0:
                    continue
                mask = met
        if block.polls == 0:
            context.progress += 1
        size = block.size
        steps = state.steps + size
        state.steps = steps
        if steps > context.most_steps:
            context.current_pc = at
            return STEPS
        if context.time > context.time_limit:
            return LATE
        context.steps_taken += size
        lanes_by_block[at] += popcount(mask)
        warps_by_block[at] += 1
        if context.counting != 0:
            count_block(context, state, at, size)
            passed = state.passed_wait
            if mask & passed and mask & ~passed and context.hazard_room == 0:
                return APART
        last = block.last
        for k in range(block.first, last):
            record = records[k]
            active = guarded(registers, record.guard, mask)
            if active != 0:
                status = call_operation(table[record.function], registers, record, active, context)
                if status != 0:
                    context.current_pc = k
                    return status
        status = end_block(context, state, registers, block, at, mask)
        if status != 0:
            context.current_pc = at if status in (INDEX, TRAP) else last
            return status
    return 0


def count_block(context: Context, state: Warp, at: int, size: int) -> None:
    """Count the instructions that a warp issues for its CTA, and its run of a block."""
    issued = context.issued.at(state.linear_cta)
    issued[0] += size
    row = context.block_count * state.number
    place = context.by_warp.at(row + at)
    place[0] += 1


def guarded(registers: int, guard: int, mask: int) -> int:
    """The lanes of a mask for which its guard holds."""
    if guard == 0:
        return mask
    predicate = load32(registers + (guard & ~3))
    if guard & 2:
        predicate = ~predicate
    return mask & predicate


def together(state: Warp, registers: int, block: Block, mask: int) -> int:
    """The lanes whose warp-wide instruction of the block has all required lanes."""
    absent = state.live & ~mask
    if absent == 0:
        return mask
    if block.collective == 1:
        return 0
    members = registers + block.members
    met = 0
    for lane in range(32):
        if mask >> lane & 1 and absent & load32(members + 4 * lane) == 0:
            met |= 1 << lane
    return met


def end_block(context: Context, state: Warp, registers: int, block: Block, at: int, mask: int) -> int:
    """Send the lanes that reached the end of a block to their next block. Returns a status."""
    end = block.end
    if end in (END_NEXT, END_INNER):
        add_part(state, at + 1, mask, READY)
        return 0
    taken = guarded(registers, block.end_guard, mask)
    rest = mask & ~taken
    if rest != 0:
        add_part(state, at + 1, rest, READY)
    if taken == 0:
        return 0
    if end == END_BRANCH:
        add_part(state, block.target, taken, READY)
        return 0
    if end == END_EXIT:
        return leave(context, state, taken)
    if end in (END_BARRIER, END_ARRIVE, END_REDUCE):
        return arrive(context, state, registers, block, at, taken, end)
    if end == END_STOP:
        context.ended_by = first_lane(taken)
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


def go_by_index(context: Context, state: Warp, registers: int, block: Block, taken: int) -> int:
    """Each lane goes to the block of its index: of an indexed branch, of the called function's address (in the end's
    row), or of its return address. Returns a status."""
    row = registers + block.end_a
    targets = context.lists.at(block.end_b)
    left = taken
    while left != 0:
        index = -1
        mask = 0
        for lane in range(32):
            mine = load32(row + 4 * lane)
            if left >> lane & 1 and (mine < 0 or mine >= block.end_c):
                address = block.end_d
                context.ended_by = lane
                context.end_number = mine & 0xFFFFFFFF if address < 0 else load64(registers + address + 8 * lane)
                return INDEX
            if left >> lane & 1 and (index < 0 or mine == index):
                index = mine
                mask |= 1 << lane
        add_part(state, targets[index], mask, READY)
        left &= ~mask
    return 0


def leave(context: Context, state: Warp, taken: int) -> int:
    """Lanes exit: parked lanes are checked again, and barriers that waited only for them complete."""
    live = state.live & ~taken
    state.live = live
    context.current_live = live
    for k in range(state.path_count):
        part = state.paths[k]
        if part.status == PARKED:
            part.status = READY
    cluster_phase(context, state)
    status = compare_warpgroup(context, state) if live == 0 and context.checked != 0 else 0
    return threads_left(context, state.cta) if status == 0 else status
