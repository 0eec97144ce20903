"""Events of a launch that is run again to report its hazards: machine code (:mod:`~warpsan.engine.translate`).

The trace has accesses to watched places, and all events that order threads: arrivals at barriers, converging warps,
landing copies, exits, instructions of :mod:`.steps` with the values of their registers, and strong accesses, whose
places are watched from the first such access on. An access to a watched place is recorded with all lanes of its warp.
The events of a cluster without an access to a suspicious place are dropped at its end, unless all of its events are
requested. Phases of barriers that order nothing new are only counted (:mod:`.empty_phases`).
:mod:`~warpsan.engine.replay` passes the events to the checks.
"""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.empty_phases import (
    arrivals_aside,
    begin_phases,
    is_whole,
    room_for_event,
    write_all_arrivals,
    write_arrivals,
)
from warpsan.engine.layout import (
    ACCESS_WORDS,
    COPIES_TO_IT,
    END_ARRIVE,
    EV_CHANGES,
    EV_COPY,
    EV_DESCRIPTOR,
    EV_DOES,
    EV_GROUPS,
    EV_KIND,
    EV_MAP,
    EV_MASK,
    EV_NAME,
    EV_NUMBER,
    EV_OFFSETS,
    EV_OPERATION,
    EV_PLACE,
    EV_ROWS,
    EV_SPACE,
    EV_THREADS,
    EV_TURN,
    EV_VALUED,
    EV_VALUES,
    EV_WAITS,
    EV_WARP,
    EV_WIDTH,
    EV_WORDS,
    EVENT_WORDS,
    IN_SHARED,
    MATRIX_ROWS,
    NO_PHASE,
    ORDERING_PLACE,
    ORDERS_IT,
    READS_IT,
    SCRATCH_PLACES,
    SUSPICIOUS_PLACE,
    TOGETHER,
    TRACE_ACCESS,
    TRACE_ADVANCE,
    TRACE_ARRIVAL,
    TRACE_CLUSTER,
    TRACE_EXIT,
    TRACE_FENCE,
    TRACE_LANDING,
    TRACE_MAP,
    TRACE_MEETING,
    TRACE_STEP,
    TRANSPOSED_ROWS,
)
from warpsan.engine.memory import Record
from warpsan.engine.unit_addresses import cta_of, offset_of
from warpsan.engine.words import copy, load8, load32, load64, store64
from warpsan.host.tensor_map import DESCRIPTOR_BYTES

__all__ = [
    "begin_trace",
    "end_trace",
    "next_serial",
    "trace_access",
    "trace_advance",
    "trace_arrival",
    "trace_exit",
    "trace_fence",
    "trace_global",
    "trace_landing",
    "trace_map",
    "trace_meeting",
    "trace_step",
]


def begin_trace(context: Context, cluster: int) -> None:
    """A cluster begins."""
    context.cluster = cluster
    context.turn_began = context.turn
    if context.trace == 0:
        return
    context.trace_began = context.trace_end
    context.traced_accesses = context.watched_clusters[cluster]
    linear = context.warps[0].linear_cta
    begin_phases(context)
    event_at(room_for_event(context, EVENT_WORDS), context, TRACE_CLUSTER, EVENT_WORDS, 0, linear)


def end_trace(context: Context) -> None:
    """A cluster has run to its end: its events are dropped without an access to a watched place."""
    if context.trace != 0 and context.traced_accesses == 0:
        context.trace_end = context.trace_began


def new_event(context: Context, kind: int, words: int, mask: int, place: int) -> int:
    """The address of an event of the current warp, after the arrivals of its CTA; 0 if there is no space."""
    state = context.current_warp
    write_arrivals(context, state.cta)
    event = event_at(room_for_event(context, words), context, kind, words, mask, place)
    if event != 0:
        state.last_event = (event - context.trace) // 8 + 1
    state.last_phase = NO_PHASE
    return event


def event_at(event: int, context: Context, kind: int, words: int, mask: int, place: int) -> int:
    """The same address, if there is one, with the words that all events have."""
    if event != 0:
        store64(event + 8 * EV_KIND, kind)
        store64(event + 8 * EV_WORDS, words)
        store64(event + 8 * EV_WARP, context.current)
        store64(event + 8 * EV_MASK, mask)
        store64(event + 8 * EV_PLACE, place)
        store64(event + 8 * EV_TURN, context.turn)
        store64(event + 8 * EV_NAME, 0)
        store64(event + 8 * EV_THREADS, 0)
    return event


def trace_arrival(context: Context, mask: int, block: int, name: int, threads: int, end: int, aside: int) -> None:
    """Lanes arrive at a barrier, by the end of a block; ``aside`` is whether the arrival may be deferred."""
    if context.trace == 0:
        return
    state = context.current_warp
    rows, event = arrivals_aside(context, state.cta), 0
    if context.deferred_arrivals == 0 or is_whole(context, state, mask) == 0:
        aside = 0
    many = load64(rows) if aside else 0
    if aside and (many == 0 or is_alike(rows + 8, block, name, threads)):
        store64(rows, many + 1)
        event = event_at(rows + 8 * (1 + EVENT_WORDS * many), context, TRACE_ARRIVAL, EVENT_WORDS, mask, block)
    else:
        event = new_event(context, TRACE_ARRIVAL, EVENT_WORDS, mask, block)
    if event != 0:
        store64(event + 8 * EV_NAME, name)
        store64(event + 8 * EV_THREADS, threads)
        store64(event + 8 * EV_WAITS, end != END_ARRIVE)


def is_alike(event: int, block: int, name: int, threads: int) -> int:
    """Whether an arrival is one at this barrier by the end of the same block."""
    same = load64(event + 8 * EV_PLACE) == block and load64(event + 8 * EV_NAME) == name
    return same and load64(event + 8 * EV_THREADS) == threads


def trace_exit(context: Context, mask: int) -> None:
    """Lanes exit."""
    if context.trace != 0:
        new_event(context, TRACE_EXIT, EVENT_WORDS, mask, 0)


def trace_landing(context: Context, mask: int, number: int) -> None:
    """Lanes have waited for their part of an instruction's copies, whose access is an event."""
    event = new_event(context, TRACE_LANDING, EVENT_WORDS, mask, 0)
    if event != 0:
        store64(event + 8 * EV_COPY, number)


def trace_meeting(registers: int, record: Record, mask: int, context: Context) -> int:
    """Lanes have converged; operands are the pc and the row of the member masks. After a phase of a barrier that the
    warp has left, this orders nothing new."""
    state = context.current_warp
    phase = state.last_phase
    event = new_event(context, TRACE_MEETING, EVENT_WORDS + 32, mask, record.operands[0])
    row = registers + record.operands[1]
    for lane in range(32 if event != 0 else 0):
        store64(event + 8 * (EV_GROUPS + lane), load32(row + 4 * lane) & mask)
    state.last_phase = phase
    return 0


def next_serial(context: Context) -> int:
    """The number of an instruction's operation: in lockstep, that of the turn in which all warps execute it."""
    if context.order == TOGETHER:
        return context.turn
    return context.transfer_serial + 1


def trace_step(registers: int, record: Record, mask: int, context: Context) -> int:
    """Lanes execute an instruction (:mod:`.steps`); operands are the pc, the place of its registers in the lists, as
    rows and bits, their number, and whether its operations land by themselves."""
    many = record.operands[2]
    event = new_event(context, TRACE_STEP, EVENT_WORDS + 32 * many, mask, record.operands[0])
    if event == 0:
        return 0
    issues = record.operands[3]
    store64(event + 8 * EV_OPERATION, next_serial(context) if issues else -1)
    pairs = context.lists.at(record.operands[1])
    for k in range(many):
        row, bits = registers + pairs[2 * k], pairs[2 * k + 1]
        for lane in range(32):
            value = load32(row) >> lane & 1 if bits == 1 else 0
            for part in range(bits >> 3):
                value |= load8(row + (bits >> 3) * lane + part) << 8 * part
            store64(event + 8 * (EV_ROWS + 32 * k + lane), value)
    return 0


def trace_map(record: Record, mask: int, context: Context) -> int:
    """Lanes read the tensor maps at the places in the scratch; operand 2 is the pc."""
    places, before = context.scratch + SCRATCH_PLACES, -1
    for lane in range(32):
        place = load64(places + 8 * lane)
        if mask >> lane & 1 and place != before:
            pc = record.operands[2]
            event = new_event(context, TRACE_MAP, EV_DESCRIPTOR + DESCRIPTOR_BYTES // 8, 1 << lane, pc)
            if event != 0:
                store64(event + 8 * EV_MAP, place)
                copy(event + 8 * EV_DESCRIPTOR, context.arena + place, DESCRIPTOR_BYTES)
            before = place
    return 0


def trace_fence(registers: int, record: Record, mask: int, context: Context) -> int:
    """Lanes have copied a tensor map by an instruction that is also a fence; operand 0 is the pc."""
    new_event(context, TRACE_FENCE, EVENT_WORDS, mask, record.operands[0])
    return 0


def trace_advance(context: Context, serial: int) -> None:
    """Nothing else can run: operations of one instruction land."""
    if context.trace == 0:
        return
    write_all_arrivals(context)
    for number in range(context.warp_count * context.cta_count):
        context.warps[number].last_phase = NO_PHASE
    event = event_at(room_for_event(context, EVENT_WORDS), context, TRACE_ADVANCE, EVENT_WORDS, 0, 0)
    if event != 0:
        store64(event + 8 * EV_OPERATION, serial)


def trace_global(context: Context, begin: int, end: int) -> None:
    """A bulk copy accesses a range of global memory: if any of it is watched, the events of the cluster are kept."""
    shift = context.global_shift
    for k in range(begin >> shift, (end - 1 >> shift) + 1):
        if context.watched_global[k] & SUSPICIOUS_PLACE:
            context.traced_accesses = 1


# ---- accesses --------------------------------------------------------------------------------------------------------


def watched(context: Context, mask: int, space: int, width: int, orders: int) -> int:
    """The reasons to watch any of the places in the scratch, combined as bits. With ``orders``, they are watched
    from now on."""
    shift, marks = context.global_shift, context.watched_global
    reasons, here = 0, SUSPICIOUS_PLACE | ORDERING_PLACE
    if space == IN_SHARED:
        shift, marks = context.granule_shift, context.watched_shared
        if context.watched_clusters[context.cluster] & 1 == 0:
            here = ORDERING_PLACE
    places = context.scratch + SCRATCH_PLACES
    for lane in range(32):
        if mask >> lane & 1:
            place = load64(places + 8 * lane)
            granule = (offset_of(place) if space == IN_SHARED else place) >> shift
            for k in range(granule, granule + max(width >> shift, 1)):
                if orders:
                    marks[k] |= ORDERING_PLACE
                reasons |= marks[k] & here
    return reasons


def polls_again(context: Context, mask: int, pc: int) -> int:
    """Whether a strong read of the places in the scratch is already the warp's last event, without a write or an
    update since: the read changes nothing for the warp."""
    begin = context.current_warp.last_event - 1
    if begin < 0 or begin < context.traced_write:
        return 0
    event = context.trace + 8 * begin
    if load64(event + 8 * EV_KIND) != TRACE_ACCESS or load64(event + 8 * EV_PLACE) != pc:
        return 0
    if load64(event + 8 * EV_MASK) != mask:
        return 0
    places = context.scratch + SCRATCH_PLACES
    for lane in range(32):
        if mask >> lane & 1 and load64(event + 8 * (EV_OFFSETS + lane)) != load64(places + 8 * lane):
            return 0
    return 1


def memory_at(context: Context, space: int, place: int) -> int:
    """The address of a place in this process; in shared memory, the place may have the rank of its CTA."""
    if space != IN_SHARED:
        return context.arena + place
    stretch = context.shared + cta_of(context, place) * context.shared_stride
    return stretch + offset_of(place)


def put_value(registers: int, record: Record, value: int, lane: int, element: int, many: int) -> None:
    """Copy the values that a lane writes."""
    if element in (MATRIX_ROWS, TRANSPOSED_ROWS):
        row, line = registers + record.operands[4 + (lane >> 3)], lane & 7
        if element == MATRIX_ROWS:
            copy(value, row + 16 * line, 16)
        for k in range(8 if element == TRANSPOSED_ROWS else 0):
            copy(value + 2 * k, row + 2 * (8 * k + line), 2)
        return
    for k in range(many):
        row = registers + record.operands[4 + k]
        copy(value + element * k, row + element * lane, element)


def trace_access(
    registers: int,
    record: Record,
    mask: int,
    context: Context,
    space: int,
    width: int,
    does: int,
    element: int,
    many: int,
) -> int:
    """Lanes access the places in the scratch. Operand 3 of the record is the pc, followed by the rows of the written
    values, ``many`` elements of so many bytes for each lane. Returns a status."""
    reasons = 0 if mask == 0 else watched(context, mask, space, width, does & ORDERS_IT)
    if reasons == 0:
        return 0
    pc = record.operands[3]
    if does == READS_IT | ORDERS_IT and polls_again(context, mask, pc):
        return 0
    event = new_event(context, TRACE_ACCESS, ACCESS_WORDS if many > 0 else EV_VALUES, mask, pc)
    if event == 0:
        return 0
    if does & ~ORDERS_IT != READS_IT:
        context.traced_write = (event - context.trace) // 8
    if reasons & SUSPICIOUS_PLACE:
        context.traced_accesses = 1
    places = context.scratch + SCRATCH_PLACES
    store64(event + 8 * EV_NUMBER, context.copy_count + 1)
    if does == COPIES_TO_IT:
        context.traced_copy = context.copy_count + 1
    store64(event + 8 * EV_SPACE, space)
    store64(event + 8 * EV_DOES, does & ~ORDERS_IT)
    store64(event + 8 * EV_WIDTH, width)
    store64(event + 8 * EV_VALUED, many > 0)
    copy(event + 8 * EV_OFFSETS, places, 8 * 32)
    changes = 0
    for lane in range(32 if many > 0 else 0):
        if mask >> lane & 1:
            value = event + 8 * EV_VALUES + 16 * lane
            put_value(registers, record, value, lane, element, many)
            before = memory_at(context, space, load64(places + 8 * lane))
            for j in range(width):
                if load8(value + j) != load8(before + j):
                    changes |= 1 << lane
    store64(event + 8 * EV_CHANGES, changes)
    return 0
