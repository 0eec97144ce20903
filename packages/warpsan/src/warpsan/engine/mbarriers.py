"""mbarriers, their phases and the lanes that wait for them: machine code (:mod:`~warpsan.engine.translate`).

The rules are those of :mod:`warpsan.replay.mbarriers`. A broken rule, or a use of an mbarrier by a warp that does not
come after its initialisation, is a suspicion; some broken rules end the run, because native code cannot continue.
"""

from __future__ import annotations

from warpsan.engine.clocks import (
    comes_before,
    first_of_cluster,
    join_vector,
    observed_vector,
    publish,
    release_fenced,
    release_to,
    vector_of,
    warps_of_cluster,
)
from warpsan.engine.context import Context
from warpsan.engine.flights import doubt, mark_mbarrier, touch_remote, unmark_mbarrier
from warpsan.engine.initialised import initialised_by
from warpsan.engine.lane_order import acquire_by_lanes, arrive_lanes
from warpsan.engine.layout import (
    AT_MBARRIER,
    EVERY_LANE,
    FULL,
    ILLEGAL,
    MBARRIER_RULE,
    MOST_MBARRIERS,
    RACE,
    READY,
    SCRATCH_PLACES,
    SPENT,
)
from warpsan.engine.memory import MbarrierState, Record
from warpsan.engine.recorded import is_recorded, record_shared
from warpsan.engine.structs import Ptr, i64
from warpsan.engine.suspects import broken_rule, current_instruction
from warpsan.engine.tags import shared_tag
from warpsan.engine.traffic import count_shared
from warpsan.engine.watch import mark_written, write_shared
from warpsan.engine.watch.releases import take_rows
from warpsan.engine.words import fill, load32, load64, store32, store64
from warpsan.host.memory import RANK_SHIFT

__all__ = [
    "acquire_observed",
    "actor_of",
    "arrive_at",
    "arrive_in_order",
    "begin_mbarrier",
    "bytes_came",
    "bytes_counted",
    "count_arrivals",
    "count_bytes",
    "cta_alive",
    "cta_of",
    "end_mbarrier",
    "is_remote",
    "mbarrier_at",
    "mbarrier_instruction",
    "offset_of",
    "pass_on",
    "try_complete_phase",
    "use_mbarrier",
    "vectors_of",
]

_LOW = (1 << RANK_SHIFT) - 1
_MOST = (1 << 20) - 1


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


def mbarrier_at(context: Context, cta: int, offset: int) -> MbarrierState:
    """The mbarrier at an offset of a CTA's shared memory; 0 if there is none."""
    for k in range(MOST_MBARRIERS):
        entry = context.mbarriers[MOST_MBARRIERS * cta + k]
        if entry.valid == 0:
            return MbarrierState(0)
        if entry.offset == offset:
            return entry
    return MbarrierState(0)


# ---- the checks ------------------------------------------------------------------------------------------------------


def actor_of(context: Context, entry: MbarrierState) -> int:
    """The actor number of an mbarrier: of the copies that signal it."""
    place = (entry - context.mbarriers) // MbarrierState.byte_size
    return 2 * warps_of_cluster(context) + place


def vectors_of(context: Context, entry: MbarrierState, remote: int) -> Ptr[i64]:
    """The vector that threads of an mbarrier's own CTA, or of other CTAs (``remote``), have released to it in this
    phase, followed by that of all earlier phases."""
    place = (entry - context.mbarriers) // MbarrierState.byte_size
    return context.mbarrier_vectors.at(2 * context.actors * (2 * place + remote))


def is_remote(context: Context, warp: int, entry: MbarrierState) -> int:
    """Whether a warp is of another CTA than an mbarrier."""
    return 0 if warp // context.warp_count == entry.cta else 1


def use_mbarrier(context: Context, entry: MbarrierState) -> int:
    """The current warp uses an mbarrier, and must come after its initialisation. Returns a status."""
    if context.checked == 0:
        return 0
    warp = context.current
    touch_remote(context, warp, entry.cta, warp, context.clocks[warp])
    if comes_before(context, warp, entry.tag):
        return 0
    granule = entry.offset >> context.granule_shift
    return doubt(context, entry.cta, granule, RACE)


def initialise(context: Context, entry: MbarrierState) -> int:
    """The current warp writes an mbarrier, which from now on only mbarrier instructions may touch. Returns a status."""
    offset, cta = entry.offset, entry.cta
    warp = context.current
    store64(context.scratch + SCRATCH_PLACES, offset)
    status = write_shared(context, cta, 1, EVERY_LANE, offset, offset, 8)
    touch_remote(context, warp, cta, warp, context.clocks[warp])
    entry.tag = shared_tag(warp, context.clocks[warp])
    mark_mbarrier(context, cta, offset)
    fill(vectors_of(context, entry, 0), 0, 32 * context.actors)
    return status


def mbarrier_instruction(context: Context, registers: int, row: int, offset: int, mask: int, pc: int) -> None:
    """An instruction uses mbarriers: count and record an access of eight bytes by each lane of a mask."""
    current_instruction(context, pc)
    if (context.counting | is_recorded(context, pc)) == 0:
        return
    places = context.scratch + SCRATCH_PLACES
    for lane in range(32):
        store64(places + 8 * lane, offset_of(load64(registers + row + 8 * lane) + offset))
    record_shared(context, mask, 8, pc)
    if context.counting != 0:
        count_shared(context, mask, 8, pc, 0)


# ---- instructions ----------------------------------------------------------------------------------------------------


def begin_mbarrier(registers: int, record: Record, mask: int, context: Context) -> int:
    """``mbarrier.init``: operands are the address's row (64 bits), its offset, the row of the counts, and the pc."""
    row, shift = record.operands[0], record.operands[1]
    mbarrier_instruction(context, registers, row, shift, mask, record.operands[3])
    for lane in range(32):
        if mask >> lane & 1 == 0:
            continue
        address = load64(registers + record.operands[0] + 8 * lane) + record.operands[1]
        count = load32(registers + record.operands[2] + 4 * lane) & 0xFFFFFFFF
        cta, offset = cta_of(context, address), offset_of(address)
        legal = cta >= 0 and offset & 7 == 0 and offset <= context.shared_limit - 8
        entry = mbarrier_at(context, cta, offset) if legal else MbarrierState(0)
        # A repeated initialisation: in the middle of a phase, it is a suspicion.
        wrong = entry != 0 or count < 1 or count > _MOST
        status = broken_rule(context, MBARRIER_RULE if legal else ILLEGAL) if wrong or not legal else 0
        if status != 0:
            return status
        if not legal:
            continue
        count = max(count, 1)
        if entry != 0 and context.checked != 0:
            unmark_mbarrier(context, cta, offset)
        if entry == 0:
            entry = free_mbarrier(context, cta)
            if entry == 0:
                return FULL
        entry.offset = offset
        entry.valid = 1
        entry.expected = count
        entry.pending = count
        entry.pending_bytes = 0
        entry.phase = 0
        entry.cta = cta
        initialised_by(context, entry, lane)
        place = context.shared + cta * context.shared_stride + offset
        store64(place, count)
        if context.checked != 0:
            status = initialise(context, entry)
            if status != 0:
                return status
    return 0


def free_mbarrier(context: Context, cta: int) -> MbarrierState:
    """Allocate another mbarrier of a CTA; 0 if there is no space."""
    first = MOST_MBARRIERS * cta
    k = 0
    while k < MOST_MBARRIERS - 1 and context.mbarriers[first + k].valid != 0:
        k += 1
    return context.mbarriers[first + k] if k < MOST_MBARRIERS - 1 else MbarrierState(0)


def arrive_at(registers: int, record: Record, mask: int, context: Context) -> int:
    """``mbarrier.arrive`` without a token.

    Operands are the address's row and offset, the row of the counts or bytes, whether these are bytes to expect, the
    pc, its order (:func:`arrive_in_order`), the row of the state tokens (or -1), whether the lanes drop out, and
    whether these arrivals must not end the phase.
    """
    token, drops = record.operands[6], record.operands[7]
    left = mask
    place, shift = record.operands[0], record.operands[1]
    mbarrier_instruction(context, registers, place, shift, mask, record.operands[4])
    while left != 0:
        entry = MbarrierState(0)
        total = 0
        for lane in range(32):
            if left >> lane & 1 == 0:
                continue
            row = registers + record.operands[0]
            address = load64(row + 8 * lane) + record.operands[1]
            many = load32(registers + record.operands[2] + 4 * lane) & 0xFFFFFFFF
            cta = cta_of(context, address)
            mine = mbarrier_at(context, cta, offset_of(address)) if cta >= 0 else MbarrierState(0)
            if mine == 0 or cta_alive(context, cta) == 0:
                status = broken_rule(context, MBARRIER_RULE)
                if status != 0:
                    return status
            if mine == 0:  # this lane is left out
                left = left & ~(1 << lane)
                continue
            if entry == 0:
                entry = mine
            if mine != entry:
                continue
            left = left & ~(1 << lane)
            if token >= 0:  # tokens as if the lanes came one after the other
                state = entry.phase << 32 | max(0, entry.pending - total)
                store64(registers + token + 8 * lane, state)
            if record.operands[3]:
                entry.pending_bytes += many
                total += 1
            else:
                total += many
        if entry == 0:
            continue
        pending, expected = entry.pending, entry.expected
        status = use_mbarrier(context, entry)
        wrong = total > pending or entry.pending_bytes > _MOST or (drops and total > expected)
        ends = total == pending and record.operands[8]
        if status == 0 and (wrong or ends):
            status = broken_rule(context, MBARRIER_RULE)
        if status != 0:
            return status
        if context.checked != 0:
            arrive_in_order(context, entry, mask, record.operands[5])
        if drops:
            entry.expected = max(expected - total, 0)
        count_arrivals(context, entry, total)
    return 0


def count_arrivals(context: Context, entry: MbarrierState, total: int) -> None:
    """A number of threads have arrived: phases that waited only for them end."""
    total = total if total <= _MOST else entry.pending
    while total > 0:
        here = min(total, entry.pending)
        entry.pending -= here
        total -= here
        if try_complete_phase(context, entry) == 0:
            break  # more arrivals than the phase can take


def count_bytes(registers: int, record: Record, mask: int, context: Context) -> int:
    """``mbarrier.expect_tx`` and ``complete_tx``: operands are the address's row and offset, the row of the bytes,
    whether the phase expects them (or they are complete), and the pc."""
    row, shift = record.operands[0], record.operands[1]
    mbarrier_instruction(context, registers, row, shift, mask, record.operands[4])
    for lane in range(32):
        if mask >> lane & 1 == 0:
            continue
        address = load64(registers + row + 8 * lane) + shift
        many = load32(registers + record.operands[2] + 4 * lane) & 0xFFFFFFFF
        cta = cta_of(context, address)
        entry = mbarrier_at(context, cta, offset_of(address)) if cta >= 0 else MbarrierState(0)
        status = 0
        if entry == 0 or cta_alive(context, cta) == 0:
            status = broken_rule(context, MBARRIER_RULE)
            if status == 0 and entry == 0:
                continue
        if status == 0:
            status = use_mbarrier(context, entry)
        if status == 0 and record.operands[3] == 0:
            status = bytes_came(context, entry, many)
        elif status == 0:
            entry.pending_bytes += many
            status = broken_rule(context, MBARRIER_RULE) if entry.pending_bytes > _MOST else 0
        if status != 0:
            return status
    return 0


def end_mbarrier(registers: int, record: Record, mask: int, context: Context) -> int:
    """``mbarrier.inval``: operands are the address's row and offset, and the pc. The memory is free."""
    row, shift = record.operands[0], record.operands[1]
    mbarrier_instruction(context, registers, row, shift, mask, record.operands[2])
    for lane in range(32):
        if mask >> lane & 1 == 0:
            continue
        address = load64(registers + row + 8 * lane) + shift
        cta, offset = cta_of(context, address), offset_of(address)
        entry = mbarrier_at(context, cta, offset) if cta >= 0 else MbarrierState(0)
        status = use_mbarrier(context, entry) if entry != 0 else broken_rule(context, MBARRIER_RULE)
        if status != 0:
            return status
        if entry == 0:
            continue
        entry.offset = -1
        if context.checked != 0:
            unmark_mbarrier(context, cta, offset)
            store64(context.scratch + SCRATCH_PLACES, offset)
            mark_written(context, cta, 1, EVERY_LANE, 8)
    return 0


def bytes_came(context: Context, entry: MbarrierState, many: int) -> int:
    """Bytes that an mbarrier counts are complete. Returns a status."""
    entry.pending_bytes -= many
    return bytes_counted(context, entry)


def bytes_counted(context: Context, entry: MbarrierState) -> int:
    """An mbarrier has counted a group of bytes that complete together. Returns a status."""
    left = entry.pending_bytes
    short = left < 0 and entry.pending == 0
    entry.pending_bytes = 0 if short else left
    status = broken_rule(context, MBARRIER_RULE) if short or left < -_MOST else 0
    try_complete_phase(context, entry)
    return status


def try_complete_phase(context: Context, entry: MbarrierState) -> int:
    """End a complete phase, and release the lanes that wait for it. Returns whether there was one. After all threads
    have dropped out, the phase that ends is the last."""
    if entry.pending != 0 or entry.pending_bytes != 0 or entry.valid == SPENT:
        return 0
    if entry.expected == 0:
        entry.valid = SPENT
    phase = entry.phase + 1
    entry.phase = phase
    entry.pending = entry.expected
    checked = context.checked
    if checked:
        for remote in range(2 if context.cluster_size > 1 else 1):
            publish(context, vectors_of(context, entry, remote))
    warps = context.warp_count
    for number in range(warps * context.cta_count):
        state = context.warps[number]
        for p in range(state.path_count):
            part = state.paths[p]
            if part.status != AT_MBARRIER or part.mbarrier != entry:
                continue
            if phase > part.more:
                part.status = READY
                registers = context.registers + number * context.register_bytes
                block = part.came_from
                row = registers + block.end_d
                store32(row, load32(row) | part.mask)
                if checked:
                    pass_on(context, number, entry, part.mask, block.end_e)
    return 1


def arrive_in_order(context: Context, entry: MbarrierState, mask: int, order: int) -> None:
    """Lanes of the current warp arrive at an mbarrier, and release their accesses, or, for a relaxed arrival, the
    vector of the warp's last fence, if the scope contains the CTA of the mbarrier.

    The order is the level of the scope plus one, negative for relaxed.
    """
    warp = context.current
    remote = is_remote(context, warp, entry)
    if order > remote:
        arrive_lanes(context, warp, mask)
        release_to(context, warp, vectors_of(context, entry, remote))
    elif -order > remote and context.fenced_at != 0:
        release_fenced(context, warp, vectors_of(context, entry, remote), remote)


def pass_on(context: Context, warp: int, entry: MbarrierState, mask: int, order: int) -> None:
    """Lanes of a warp have waited for a phase of an mbarrier: it acquires the vectors of all complete phases in the
    scope; for a relaxed wait, at its next fence. The order is as in :func:`arrive_in_order`."""
    actors = context.actors
    for remote in range(2 if context.cluster_size > 1 else 1):
        passed = vectors_of(context, entry, remote).at(actors)
        if order > remote:
            acquire_by_lanes(context, warp, passed, mask)
        elif -order > remote and context.observed_at != 0:
            join_vector(context, observed_vector(context, warp, remote), passed)
    if order > 0:
        take_rows(context, warp, vector_of(context, warp), 0)


def acquire_observed(registers: int, record: Record, mask: int, context: Context) -> int:
    """An acquiring fence: the current warp acquires the observations of its relaxed waits. The operand is whether
    the fence's scope contains the cluster."""
    warp = context.current
    for remote in range(1 + record.operands[0]):
        observed = observed_vector(context, warp, remote)
        latest = 0
        for other in range(context.actors):
            latest = max(latest, observed[other])
        if latest == 0:  # no waits
            continue
        acquire_by_lanes(context, warp, observed, mask)
        fill(observed, 0, 8 * context.actors)
    take_rows(context, warp, vector_of(context, warp), 0)
    return 0
