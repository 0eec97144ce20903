"""mbarriers, their phases and the lanes that wait for them: machine code (:mod:`~warpsan.engine.translate`).

An mbarrier's state is kept here; its eight bytes in shared memory are opaque. A phase is complete when no arrivals and
no bytes are pending (PTX ISA, "mbarrier"). A use by a warp that does not come after the initialisation is a suspicion.
"""

from __future__ import annotations

from warpsan.engine.clocks import (
    comes_before,
    join_vector,
    observed_vector,
    publish,
    release_fenced,
    release_to,
    vector_of,
    warps_of_cluster,
)
from warpsan.engine.context import Context
from warpsan.engine.flights import mark_mbarrier, touch_remote, unmark_mbarrier
from warpsan.engine.hazards import add_hazard, hazard_row
from warpsan.engine.initialised import initialised_by
from warpsan.engine.lane_order import acquire_by_lanes, arrive_lanes
from warpsan.engine.layout import (
    AT_MBARRIER,
    ENDED,
    EVERY_LANE,
    FULL,
    LEFT_OUT,
    MOST_MBARRIERS,
    READY,
    SPENT,
    TOGETHER,
)
from warpsan.engine.memory import MbarrierState, Record
from warpsan.engine.missing import has_fenced, note_arrival, note_wait
from warpsan.engine.races import race
from warpsan.engine.recorded import is_recorded, record_shared
from warpsan.engine.rules import (
    ARRIVALS_OF_INIT,
    COMPLETES_PHASE,
    EARLY_FENCE,
    INITIALISED_AGAIN,
    MORE_ARRIVALS,
    MORE_BYTES,
    MORE_DROPS,
    NARROW_ARRIVAL,
    NARROW_WAIT,
    NO_MBARRIER,
    RELAXED_ARRIVAL,
    RELAXED_WAIT,
    RELEASED,
    TOO_MANY_BYTES,
    UPDATES_WRITTEN,
)
from warpsan.engine.structs import Ptr, i64
from warpsan.engine.suspects import current_instruction, first_lane, is_status
from warpsan.engine.tags import actor_of_tag, time_of_tag
from warpsan.engine.traffic import count_shared
from warpsan.engine.unit_addresses import check_shared, cta_of, offset_of
from warpsan.engine.watch import mark_written, write_shared
from warpsan.engine.watch.releases import take_rows
from warpsan.engine.words import fill, load32, load64, store32, store64

__all__ = [
    "acquire_observed",
    "actor_of",
    "arrive_at",
    "arrive_in_order",
    "begin_mbarrier",
    "break_mbarrier_rule",
    "bytes_came",
    "bytes_counted",
    "check_arrivals",
    "comes_after_writes",
    "count_arrivals",
    "count_bytes",
    "end_mbarrier",
    "is_remote",
    "landed_copy",
    "mbarrier_at",
    "mbarrier_instruction",
    "named_mbarrier",
    "pass_on",
    "try_complete_phase",
    "use_mbarrier",
    "vectors_of",
]

_MOST = (1 << 20) - 1


def mbarrier_at(context: Context, cta: int, offset: int) -> MbarrierState:
    """The mbarrier at an offset of a CTA's shared memory; 0 if there is none."""
    for k in range(MOST_MBARRIERS):
        entry = context.mbarriers[MOST_MBARRIERS * cta + k]
        if entry.valid == 0:
            return MbarrierState(0)
        if entry.offset == offset and entry.valid != ENDED:
            return entry
    return MbarrierState(0)


def named_mbarrier(context: Context, lane: int, address: int) -> int:
    """The mbarrier at an address of a lane of the current warp; below 64 if there is none, as in
    :mod:`.unit_addresses`."""
    status = check_shared(context, lane, address, 8, 8)
    if status != 0:
        return status
    entry = mbarrier_at(context, cta_of(context, address), offset_of(address))
    if entry != 0:
        return entry.address
    status = break_mbarrier_rule(context, NO_MBARRIER, 1 << lane, offset_of(address))
    return status if status != 0 else LEFT_OUT


def break_mbarrier_rule(context: Context, rule: int, lanes: int, offset: int) -> int:
    """Lanes of the current warp break a rule of the mbarrier at an offset. Returns a status."""
    row = hazard_row(context, context.current_record, rule, lanes)
    row.offset = offset
    return add_hazard(context, row)


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


def landed_copy(context: Context, entry: MbarrierState, remote: int, time: int) -> None:
    """A copy that was issued at a time has landed, and is released to its mbarrier."""
    actor = actor_of(context, entry)
    place = vectors_of(context, entry, remote).at(actor)
    place[0] = max(place[0], time)
    context.landed[actor] = max(context.landed[actor], time)


def is_remote(context: Context, warp: int, entry: MbarrierState) -> int:
    """Whether a warp is of another CTA than an mbarrier."""
    return 0 if warp // context.warp_count == entry.cta else 1


def use_mbarrier(context: Context, entry: MbarrierState, lane: int) -> int:
    """A lane of the current warp uses an mbarrier, and must come after its initialisation. Returns a status."""
    if context.checked == 0:
        return 0
    warp = context.current
    touch_remote(context, warp, entry.cta, warp, context.clocks[warp], 0)
    return comes_after_writes(context, UPDATES_WRITTEN, warp, lane, entry)


def comes_after_writes(context: Context, rule: int, warp: int, lane: int, entry: MbarrierState) -> int:
    """Whether a lane's use of an mbarrier comes after its initialisation and all other writes there, or breaks a rule.
    Returns a status."""
    shift = context.granule_shift
    first = context.granules * entry.cta + (entry.offset >> shift)
    for k in range(first, first + max(8 >> shift, 1)):
        tag = context.writers[k]
        if comes_before(context, warp, tag) == 0:
            party = context.write_parties[k] if context.write_parties != 0 else 0
            return race(context, rule, warp, lane, entry.offset, 8, actor_of_tag(tag), time_of_tag(tag), party)
    return 0


def initialise(context: Context, entry: MbarrierState, lane: int) -> int:
    """A lane of the current warp writes an mbarrier, which only mbarrier instructions may touch from now on. Returns a
    status."""
    offset, cta = entry.offset, entry.cta
    warp = context.current
    context.places[lane] = offset
    status = write_shared(context, cta, 1 << lane, EVERY_LANE, offset, offset, 8)
    touch_remote(context, warp, cta, warp, context.clocks[warp], 0)
    mark_mbarrier(context, cta, offset)
    fill(vectors_of(context, entry, 0), 0, 32 * context.actors)
    return status


def mbarrier_instruction(context: Context, registers: int, row: int, offset: int, mask: int, pc: int) -> None:
    """An instruction uses mbarriers: count and record an access of eight bytes by each lane of a mask."""
    current_instruction(context, pc)
    if (context.counting | is_recorded(context, pc)) == 0:
        return
    places = context.places
    for lane in range(32):
        places[lane] = offset_of(load64(registers + row + 8 * lane) + offset)
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
        status = check_shared(context, lane, address, 8, 8)
        if status == LEFT_OUT:
            continue
        if status != 0:
            return status
        cta, offset = cta_of(context, address), offset_of(address)
        entry = mbarrier_at(context, cta, offset)
        if entry != 0 and is_in_phase(context, entry):
            status = break_mbarrier_rule(context, INITIALISED_AGAIN, 1 << lane, offset)
        if status == 0 and (count < 1 or count > _MOST):
            hazard = hazard_row(context, context.current_record, ARRIVALS_OF_INIT, 1 << lane)
            hazard.actual = count
            status = add_hazard(context, hazard)
        if status != 0:
            return status
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
        entry.generic = 0
        entry.turn = -1
        initialised_by(context, entry, lane, record.operands[3])
        place = context.shared + cta * context.shared_stride + offset
        store64(place, count)
        if context.checked != 0:
            status = initialise(context, entry, lane)
            if status != 0:
                return status
    return 0


def is_in_phase(context: Context, entry: MbarrierState) -> int:
    """Whether an mbarrier is in the middle of a phase, or lanes wait for it."""
    if entry.pending != entry.expected or entry.pending_bytes != 0:
        return 1
    for number in range(context.warp_count * context.cta_count):
        state = context.warps[number]
        for k in range(state.path_count):
            if state.paths[k].status == AT_MBARRIER and state.paths[k].mbarrier == entry:
                return 1
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
        entry, total, came, many = MbarrierState(0), 0, 0, 0
        for lane in range(32):
            if left >> lane & 1 == 0:
                continue
            actual = named_mbarrier(context, lane, load64(registers + place + 8 * lane) + shift)
            if is_status(actual):
                left = left & ~(1 << lane)
                if actual == LEFT_OUT:
                    continue
                return actual
            if entry == 0:
                entry = MbarrierState(actual)
            if actual != entry.address:
                continue
            left, came = left & ~(1 << lane), came | 1 << lane
            if token >= 0:  # tokens as if the lanes came one after the other
                state = entry.phase << 32 | max(0, entry.pending - total)
                store64(registers + token + 8 * lane, state)
            more = load32(registers + record.operands[2] + 4 * lane) & 0xFFFFFFFF
            total += 1 if record.operands[3] else more
            many += more if record.operands[3] else 0
        if entry == 0:
            continue
        status = use_mbarrier(context, entry, first_lane(came))
        entry.pending_bytes += many
        if status == 0:
            alone = context.order != TOGETHER
            status = check_arrivals(context, entry, came, total, drops, record.operands[8], alone)
        if status != 0:
            return status
        if context.checked != 0:
            arrive_in_order(context, entry, came, record.operands[5])
        if drops:
            entry.expected = max(entry.expected - total, 0)
        count_arrivals(context, entry, total)
    return 0


def check_arrivals(
    context: Context, entry: MbarrierState, lanes: int, total: int, drops: int, incomplete: int, alone: int
) -> int:
    """Lanes of the current warp arrive ``total`` times at an mbarrier, and drop out of later phases or not; of
    ``incomplete`` arrivals, none may be the last. Unless ``alone``, they are at once with those of other warps by the
    same instruction in the same turn of lockstep. Returns a status."""
    expected, status, number = entry.expected, 0, (context.current_record - context.records) >> 6
    if alone or entry.turn != context.turn or entry.turn_record != number:
        entry.turn = context.turn
        entry.turn_record = number
        entry.turn_pending = entry.pending
        entry.turn_total = 0
        entry.turn_warp = context.current
        entry.turn_lanes = lanes
    entry.turn_total += total
    if entry.pending_bytes > _MOST:
        status = break_mbarrier_rule(context, TOO_MANY_BYTES, lanes, entry.offset)
    if status == 0 and drops and total > expected:
        row = hazard_row(context, context.current_record, MORE_DROPS, lanes)
        row.offset = entry.offset
        row.actual = total
        row.expected = expected
        status = add_hazard(context, row)
    if status == 0 and entry.turn_total > entry.turn_pending:
        row = hazard_row(context, context.current_record, MORE_ARRIVALS, entry.turn_lanes)
        row.warp = context.warps[entry.turn_warp].number
        row.cta = context.warps[entry.turn_warp].linear_cta
        row.offset = entry.offset
        row.actual = entry.turn_total
        row.expected = entry.turn_pending
        row.limit = max(expected - total, 0) if drops else expected
        status = add_hazard(context, row)
    if status == 0 and incomplete and entry.turn_total == entry.turn_pending and total > 0:
        status = break_mbarrier_rule(context, COMPLETES_PHASE, lanes, entry.offset)
    return status


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
        many = load32(registers + record.operands[2] + 4 * lane) & 0xFFFFFFFF
        actual = named_mbarrier(context, lane, load64(registers + row + 8 * lane) + shift)
        if actual == LEFT_OUT:
            continue
        if is_status(actual):
            return actual
        entry = MbarrierState(actual)
        status = use_mbarrier(context, entry, lane)
        if status == 0 and record.operands[3] == 0:
            status = bytes_came(context, entry, many, lane)
        elif status == 0:
            entry.pending_bytes += many
            if entry.pending_bytes > _MOST:
                status = break_mbarrier_rule(context, TOO_MANY_BYTES, 1 << lane, entry.offset)
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
        actual = named_mbarrier(context, lane, load64(registers + row + 8 * lane) + shift)
        if actual == LEFT_OUT:
            continue
        status = actual if is_status(actual) else use_mbarrier(context, MbarrierState(actual), lane)
        if status != 0:
            return status
        entry = MbarrierState(actual)
        cta, offset = entry.cta, entry.offset
        entry.valid = ENDED
        if context.checked != 0:
            unmark_mbarrier(context, cta, offset)
            context.places[0] = offset
            mark_written(context, cta, 1, EVERY_LANE, 8)
    return 0


def bytes_came(context: Context, entry: MbarrierState, many: int, lane: int) -> int:
    """Bytes that an mbarrier counts are complete, on behalf of a lane of the current warp. Returns a status."""
    entry.pending_bytes -= many
    return bytes_counted(context, entry, lane)


def bytes_counted(context: Context, entry: MbarrierState, lane: int) -> int:
    """An mbarrier has counted a group of bytes that complete together. Returns a status."""
    left, status = entry.pending_bytes, 0
    if left < -_MOST:
        status = break_mbarrier_rule(context, TOO_MANY_BYTES, 1 << lane, entry.offset)
    if status == 0 and left < 0 and entry.pending == 0:
        entry.pending_bytes = 0
        row = hazard_row(context, context.current_record, MORE_BYTES, 1 << lane)
        row.offset = entry.offset
        row.actual = -left
        status = add_hazard(context, row)
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
    if abs_of(order) <= remote:
        note_arrival(context, warp, entry.cta, NARROW_ARRIVAL)
    elif order < 0:
        note_arrival(context, warp, entry.cta, EARLY_FENCE if has_fenced(context, warp, remote) else RELAXED_ARRIVAL)
    if abs_of(order) > remote:
        note_arrival(context, warp, entry.cta, RELEASED)
    if order > remote:
        arrive_lanes(context, warp, mask)
        release_to(context, warp, vectors_of(context, entry, remote))
    elif -order > remote and context.fenced_at != 0:
        release_fenced(context, warp, vectors_of(context, entry, remote), remote)


def abs_of(order: int) -> int:
    """The level of a scope plus one, by an order."""
    return order if order > 0 else -order


def pass_on(context: Context, warp: int, entry: MbarrierState, mask: int, order: int) -> None:
    """Lanes of a warp have waited for a phase of an mbarrier: it acquires the vectors of all complete phases in the
    scope; for a relaxed wait, at its next fence. The order is as in :func:`arrive_in_order`."""
    actors = context.actors
    if order < 0 or (context.cluster_size > 1 and order < 2):
        note_wait(context, warp, RELAXED_WAIT if order < 0 else NARROW_WAIT)
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
