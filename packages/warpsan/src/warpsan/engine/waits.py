"""Ends of blocks in asynchronous kernels: waits for mbarriers, cluster barriers and registers: machine code
(:mod:`~warpsan.engine.translate`).

A block has at most the registers that it can have been launched with (PTX ISA, "setmaxnreg"); a request in the wrong
direction changes nothing.
"""

from __future__ import annotations

from warpsan.engine.clocks import acquire, publish, release_fenced, release_to, vector_of
from warpsan.engine.context import Context
from warpsan.engine.hazards import add_hazard, break_rule, hazard_row, note_fault
from warpsan.engine.layout import (
    APART,
    AT_CLUSTER,
    AT_MBARRIER,
    END_EXIT,
    EVERY_LANE,
    FOR_REGISTERS,
    LEFT_OUT,
    PARKED,
    READY,
)
from warpsan.engine.mbarriers import break_mbarrier_rule, mbarrier_instruction, named_mbarrier, pass_on, use_mbarrier
from warpsan.engine.memory import Block, HazardRow, MbarrierState, Path, Warp
from warpsan.engine.missing import note_arrival
from warpsan.engine.parts import add_part, begin_wait
from warpsan.engine.rules import (
    ARRIVES_TWICE_IN_CLUSTER,
    OLD_PHASE,
    PART_OF_WARPGROUP,
    PARTIAL_WARP,
    REGISTERS_WOULD_GROW,
    REGISTERS_WOULD_SHRINK,
    RELAXED_IN_CLUSTER,
    WAITS_WITHOUT_ARRIVAL,
    WARPGROUP_DIFFERS,
)
from warpsan.engine.structs import Ptr, i64
from warpsan.engine.suspects import current_instruction, first_lane, is_status
from warpsan.engine.watch.releases import take_rows
from warpsan.engine.words import load32, load64, popcount, store32

__all__ = [
    "arrive_in_cluster",
    "ask_for_registers",
    "cluster_phase",
    "compare_warpgroup",
    "wait_for_phases",
    "wait_in_cluster",
]

_GROUP = 4
"""Warps of a warpgroup."""


def wait_for_phases(context: Context, state: Warp, registers: int, block: Block, at: int, taken: int) -> int:
    """Lanes wait for phases of mbarriers; lanes that wait for the same phase wait together. Returns a status."""
    place, left = registers + block.end_a, taken
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


def wait_for_phase(context: Context, registers: int, block: Block, part: Path) -> int:
    """Lanes wait for the phase of one mbarrier with one parity. Returns a status."""
    mask = part.mask
    place, result = registers + block.end_a, registers + block.end_d
    first = first_lane(mask)
    current_instruction(context, block.end_pc)
    actual = named_mbarrier(context, first, load64(place + 8 * first) + block.end_b)
    if is_status(actual):  # no phase to wait for
        store32(result, load32(result) | mask)
        return 0 if actual == LEFT_OUT else actual
    entry = MbarrierState(actual)
    status = use_mbarrier(context, entry, first)
    if status != 0:
        return status
    apart = others_go_on(context, mask) if context.counting != 0 else 0
    if (apart == 2 or (apart == 1 and context.early != 0)) and context.hazard_room == 0:
        return APART
    row, offset = block.end_a, block.end_b
    mbarrier_instruction(context, registers, row, offset, mask, block.end_pc)
    state = context.current_warp
    now, asked = entry.phase, wanted(registers, block, first)
    if block.end_token == 0:  # a parity: the present phase, or the one before
        asked = now if asked == (now & 1) else now - 1
    status = break_mbarrier_rule(context, OLD_PHASE, mask, entry.offset) if asked < now - 1 else 0
    if status != 0:
        return status
    if asked < now:
        store32(result, load32(result) | mask)
        if apart:
            state.passed_wait |= mask
        if context.checked != 0:
            pass_on(context, context.current, entry, mask, block.end_e)
        return 0
    store32(result, load32(result) & ~mask)
    state.passed_wait &= ~mask
    begin_wait(context, part, AT_MBARRIER)
    part.mbarrier = entry
    part.more = asked
    part.came_from = block
    return 0


def wanted(registers: int, block: Block, lane: int) -> int:
    """The phase that a lane waits for, by a parity or by its state token."""
    row = registers + block.end_c
    if block.end_token:
        return load64(row + 8 * lane) >> 32 & 0xFFFFFFFF
    return load32(row + 4 * lane) & 1


def others_go_on(context: Context, mask: int) -> int:
    """The state of the warp's other lanes while those of a mask wait: 0 if they wait for these, 1 if they exit,
    otherwise 2.

    Unless they wait for these lanes, the order of the warps decides whether these lanes reach later code together with
    them, and so the number of times that the warp runs it. For lanes that exit, ``passed_wait`` shows whether they came
    together: a wait for a copy, or for lanes that wait for one, is long in the late mode, in any order.
    """
    apart = 0
    state = context.current_warp
    for k in range(state.path_count):
        part = state.paths[k]
        if part.mask & mask == 0 and part.status != PARKED:
            block = context.blocks[part.block]
            if block.end != END_EXIT or block.size != 1:
                return 2
            apart = 1
    return apart


# ---- clusters --------------------------------------------------------------------------------------------------------


def arrive_in_cluster(context: Context, state: Warp, block: Block, mask: int) -> int:
    """Lanes arrive at the barrier of their cluster. Returns a status."""
    again = 0
    for lane in range(32):
        if mask >> lane & 1:
            place = state.cluster_arrivals + 4 * lane
            arrivals = load32(place)
            again |= (arrivals > load32(state.cluster_waits + 4 * lane)) << lane
            store32(place, arrivals + 1)
    current_instruction(context, block.end_pc)
    status = break_rule(context, ARRIVES_TWICE_IN_CLUSTER, again) if again else 0
    if status != 0:
        return status
    cluster, relaxed = state.cta // context.cluster_size, block.end_a
    if context.checked != 0:
        vector = vectors_of_cluster(context, cluster)
        for rank in range(context.cluster_size if relaxed else 0):
            note_arrival(context, context.current, cluster * context.cluster_size + rank, RELAXED_IN_CLUSTER)
        if relaxed:
            release_fenced(context, context.current, vector, 1)
        else:
            release_to(context, context.current, vector)
    context.cluster_arrived[cluster] += popcount(mask)
    cluster_phase(context, state)
    return 0


def wait_in_cluster(context: Context, state: Warp, block: Block, at: int, taken: int) -> int:
    """Lanes wait for the phase in which they arrived; lanes that wait for the same phase wait together. Returns a
    status."""
    current_instruction(context, block.end_pc)
    cluster, left = state.cta // context.cluster_size, taken
    while left != 0:
        arrivals, same, never = load32(state.cluster_arrivals + 4 * first_lane(left)), 0, 0
        for lane in range(32):
            waits = state.cluster_waits + 4 * lane
            if left >> lane & 1 and load32(state.cluster_arrivals + 4 * lane) == arrivals:
                never |= (arrivals <= load32(waits)) << lane
                store32(waits, arrivals)
                same |= 1 << lane
        left &= ~same
        status = break_rule(context, WAITS_WITHOUT_ARRIVAL, never) if never else 0
        if status != 0:
            return status
        part = add_part(state, at + 1, same, READY)
        if context.cluster_phase[cluster] < arrivals:
            begin_wait(context, part, AT_CLUSTER)
            part.more = arrivals
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


def cluster_phase(context: Context, state: Warp) -> None:
    """If all live threads of a warp's cluster have arrived, the phase ends, and the lanes that wait for it continue."""
    warps = context.warp_count * context.cluster_size
    cluster = state.cta // context.cluster_size
    alive = 0
    for number in range(warps * cluster, warps * (cluster + 1)):
        alive += popcount(context.warps[number].live)
    arrived = context.cluster_arrived[cluster]
    if arrived == 0 or arrived < alive:
        return
    phase = context.cluster_phase[cluster] + 1
    context.cluster_phase[cluster] = phase
    context.cluster_arrived[cluster] = 0
    if context.checked != 0:
        publish(context, vectors_of_cluster(context, cluster))
    for number in range(warps * cluster, warps * (cluster + 1)):
        state = context.warps[number]
        for k in range(state.path_count):
            part = state.paths[k]
            if part.status == AT_CLUSTER and part.more <= phase:
                part.status = READY
                leave_cluster_barrier(context, number)


# ---- registers -------------------------------------------------------------------------------------------------------


def ask_for_registers(context: Context, state: Warp, block: Block, part: Path) -> int:
    """A whole warp releases registers or requests more, and waits for them. If a lane is missing, that is noted
    without any other effect. Returns a status."""
    mask = part.mask
    state.register_changes += 1
    state.register_pc = block.end_pc
    if mask != EVERY_LANE:
        current_instruction(context, block.end_pc)
        return note_fault(context, context.current_record, mask, PARTIAL_WARP, 0)
    if context.checked != 0:
        status = compare_warpgroup(context, state)
        if status != 0:
            return status
    wanted, held = block.end_a, state.held_registers
    if (held > wanted) if block.end_b else (held < wanted):
        if block.end_c == 0 or context.checked == 0:  # no change
            return 0
        rule = REGISTERS_WOULD_SHRINK if block.end_b else REGISTERS_WOULD_GROW
        row = row_of_registers(context, rule, block.end_pc)
        row.expected = wanted
        row.actual = held
        return add_hazard(context, row)
    begin_wait(context, part, FOR_REGISTERS)
    part.more = wanted
    cta, warps = state.cta, context.warp_count
    for turn in range(2):  # releases first
        for k in range(warps):
            other = context.warps[warps * cta + k]
            for p in range(other.path_count):
                waiting = other.paths[p]
                if waiting.status != FOR_REGISTERS:
                    continue
                more = waiting.more - other.held_registers
                if more <= 0 or (turn == 1 and held_by(context, cta) + 32 * more <= context.register_limit):
                    other.held_registers = waiting.more
                    waiting.status = READY
    return 0


def compare_warpgroup(context: Context, state: Warp) -> int:
    """A warp has executed setmaxnreg or has exited: the warps of its warpgroup execute the same ones (PTX ISA,
    "setmaxnreg"). Returns a status."""
    first, changes, status = state.number // _GROUP * _GROUP, state.register_changes, 0
    for number in range(first, min(first + _GROUP, context.warp_count)):
        other = context.warps[context.warp_count * state.cta + number]
        if status != 0 or (other.register_changes == 0 and changes == 0):
            continue
        if other.register_changes == changes and other.register_pc != state.register_pc:
            row = row_of_registers(context, WARPGROUP_DIFFERS, state.register_pc)
            row.other_pc = other.register_pc
            row.other_cta = other.linear_cta
            row.other_warp = number
            row.other_lanes = 0
            status = add_hazard(context, row)
        elif other.live == 0 and other.register_changes < changes:
            status = add_hazard(context, row_of_registers(context, PART_OF_WARPGROUP, state.register_pc))
        elif state.live == 0 and changes < other.register_changes:
            status = add_hazard(context, row_of_registers(context, PART_OF_WARPGROUP, other.register_pc))
    return status


def row_of_registers(context: Context, rule: int, pc: int) -> HazardRow:
    """A row for all lanes of the current warp at a setmaxnreg."""
    return hazard_row(context, context.records[context.record_count + pc], rule, EVERY_LANE)


def held_by(context: Context, cta: int) -> int:
    """Registers of the threads of a CTA."""
    warps = context.warp_count
    total = 0
    for k in range(warps):
        total += 32 * context.warps[warps * cta + k].held_registers
    return total
