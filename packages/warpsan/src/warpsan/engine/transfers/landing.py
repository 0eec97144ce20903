"""Landing of bulk copies, their groups and waits: machine code.

The rules are those of :mod:`warpsan.replay.bulk_copies`. Copies land when nothing else can run, the oldest first;
stores land at the latest when their lane waits for them. If a lane waits only for the reading (``.read``), the data is
kept until then, or until the buffer is full.
"""

from __future__ import annotations

from warpsan.engine.clocks import completed, operation_time, release_to, warps_of_cluster
from warpsan.engine.context import Context
from warpsan.engine.copies import count_unwaited
from warpsan.engine.flights import copy_came, others_know, read_range, reads_range_complete
from warpsan.engine.layout import (
    ARRIVALS,
    ASYNC,
    BACKWARD,
    BULK_GROUPS,
    DRAWN,
    EVERY_LANE,
    LANDED,
    MB_BYTES,
    OPERANDS,
    SCRATCH_PLACES,
    STORES,
    TR_BYTES,
    TR_COMBINE,
    TR_CTA,
    TR_DATA,
    TR_GROUP,
    TR_KIND,
    TR_LANE,
    TR_MAP,
    TR_MBARRIER,
    TR_OFFSET,
    TR_ORIGIN,
    TR_ORIGIN_CTA,
    TR_PC,
    TR_READ_TIME,
    TR_SERIAL,
    TR_SOURCE,
    TR_STATE,
    TR_TIME,
    TR_WARP,
    TRANSFER_WORDS,
    WAITED_FOR,
    WARP_WORDS,
    WITHIN,
    WORDS,
    WRITTEN_OUT,
)
from warpsan.engine.mbarriers import actor_of, bytes_came, bytes_counted, cta_alive, is_far, vectors_of
from warpsan.engine.recorded import record_lines, record_update
from warpsan.engine.reset import draw
from warpsan.engine.suspects import broken_rule, current_instruction
from warpsan.engine.trace import trace_advance
from warpsan.engine.traffic import count_stretch
from warpsan.engine.transfers.arrivals import land_arrivals
from warpsan.engine.transfers.boxes import global_lines, move_box, put
from warpsan.engine.transfers.entries import origin_place, shared_place
from warpsan.engine.watch.cluster_memory import UPDATES, watch_cluster
from warpsan.engine.words import copy, fill, load32, load64, store32, store64
from warpsan.host.memory import RANK_SHIFT

__all__ = ["begin_store", "begin_transfer", "commit_transfers", "drained", "land_next", "wait_for_transfers"]

_NEARLY = 1024
"""Free entries left for copies when stores write the data that they have read."""


def begin_transfer(context: Context, entry: int) -> int:
    """A copy to shared memory begins: in the early mode it lands at once, otherwise its destination is poison.
    Returns a status."""
    if context.early != 0:
        return land(context, entry)
    if load64(entry + 8 * TR_COMBINE) != 0:
        return 0
    fill(shared_place(context, entry), 0xFF, load64(entry + 8 * TR_BYTES))
    return 0


def begin_store(context: Context, entry: int, lane: int) -> int:
    """A store joins the current bulk group of its lane, and reads shared memory from now on. Returns a status."""
    groups = context.current_state + 8 * BULK_GROUPS
    store64(entry + 8 * TR_GROUP, load32(groups + 4 * lane))
    if context.checked != 0:
        warp, cta = load64(entry + 8 * TR_WARP), load64(entry + 8 * TR_CTA)
        twin = warps_of_cluster(context) + warp
        time = operation_time(context, twin)
        store64(entry + 8 * TR_TIME, time)
        offset, size = load64(entry + 8 * TR_OFFSET), load64(entry + 8 * TR_BYTES)
        status = read_range(context, cta, offset, size, warp, twin, time, load64(entry + 8 * TR_MAP) == 0)
        if status != 0:
            return status
    return write_out(context, entry) if context.early != 0 else 0


def write_out(context: Context, entry: int) -> int:
    """A store writes global memory. Returns a status."""
    status = global_lines(context, entry, 3 if load64(entry + 8 * TR_COMBINE) != 0 else 2)
    record_lines(context, load64(entry + 8 * TR_PC))
    if status != 0:
        return status
    move_box(context, entry)
    store64(entry + 8 * TR_STATE, load64(entry + 8 * TR_STATE) | WRITTEN_OUT)
    return 0


def capture(context: Context, entry: int) -> int:
    """A store reads its box, and writes it later. Returns a status."""
    end, size = context.captured_end, load64(entry + 8 * TR_BYTES)
    nearly = context.transfer_count > context.transfer_room - _NEARLY
    if nearly or end + size > context.captured_bytes:
        status = write_captured(context)
        if status != 0:
            return status
        end = 0
    context.captured_end = end + size
    target = context.captured + end
    copy(target, shared_place(context, entry), size)
    store64(entry + 8 * TR_SOURCE, target)
    return 0


def write_captured(context: Context) -> int:
    """The buffer of data that stores have read is full: all of these stores write now, as they may at any time.
    Returns a status."""
    first, count = context.transfer_first, context.transfer_count
    base = context.transfers
    for k in range(first, count):
        captured = base + 8 * TRANSFER_WORDS * k
        if in_flight(captured) and load64(captured + 8 * TR_SOURCE) != 0:
            status = land_all(context, load64(captured + 8 * TR_SERIAL))
            if status != 0:
                return status
    return 0


def commit_transfers(registers: int, record: int, mask: int, context: Context) -> int:
    """``cp.async.bulk.commit_group``: close the current bulk group of each lane."""
    state = context.current_state
    groups = state + 8 * BULK_GROUPS
    for lane in range(32):
        if mask >> lane & 1:
            store32(groups + 4 * lane, load32(groups + 4 * lane) + 1)
    return 0


def wait_for_transfers(registers: int, record: int, mask: int, context: Context) -> int:
    """``cp.async.bulk.wait_group``: complete the stores of the active lanes but those of their last groups, whose
    number is operand 0; or only their reading, by operand 1. Returns a status."""
    keep, reads_only = load32(record + 4 * OPERANDS), load32(record + 4 * (OPERANDS + 1))
    warp, current = context.current, context.current_state
    groups = current + 8 * BULK_GROUPS
    for k in range(context.transfer_first, context.transfer_count):
        entry = context.transfers + 8 * TRANSFER_WORDS * k
        if load64(entry + 8 * TR_KIND) != STORES or load64(entry + 8 * TR_WARP) != warp:
            continue
        lane, state = load64(entry + 8 * TR_LANE), load64(entry + 8 * TR_STATE)
        if mask >> lane & 1 == 0 or load64(entry + 8 * TR_GROUP) >= load32(groups + 4 * lane) - keep:
            continue
        status = 0
        if state & WRITTEN_OUT == 0 and reads_only == 0:
            status = write_out(context, entry)
        elif state & (WRITTEN_OUT | WAITED_FOR) == 0:
            status = capture(context, entry)
        if status != 0:
            return status
        waited_for(context, entry)
    return 0


def waited_for(context: Context, entry: int) -> None:
    """The lane of a store has waited for its reading, or for all of it."""
    state = load64(entry + 8 * TR_STATE)
    if state & WAITED_FOR == 0 and context.checked != 0:
        offset, size, warp = load64(entry + 8 * TR_OFFSET), load64(entry + 8 * TR_BYTES), load64(entry + 8 * TR_WARP)
        reads_range_complete(context, load64(entry + 8 * TR_CTA), offset, size)
        completed(context, warp, warps_of_cluster(context) + warp, load64(entry + 8 * TR_TIME))
    store64(entry + 8 * TR_STATE, state | WAITED_FOR)
    if state & WRITTEN_OUT:
        store64(entry + 8 * TR_KIND, LANDED)


def in_flight(entry: int) -> int:
    """Whether a copy has not landed yet."""
    return load64(entry + 8 * TR_KIND) != LANDED and load64(entry + 8 * TR_STATE) & WRITTEN_OUT == 0


def land_next(context: Context) -> int:
    """Nothing else can run: the copies of one instruction land. Returns a status; -1 if there are none."""
    first, count = context.transfer_first, context.transfer_count
    base = context.transfers
    while first < count and load64(base + 8 * (TRANSFER_WORDS * first + TR_KIND)) == LANDED:
        first += 1
    context.transfer_first = first
    newest = context.order == BACKWARD
    if context.order == DRAWN:
        newest = draw(context, 2) == 1
    serial = -1
    for k in range(count - first):
        entry = base + 8 * TRANSFER_WORDS * (count - 1 - k if newest else first + k)
        if in_flight(entry):
            serial = load64(entry + 8 * TR_SERIAL)
            break
    if serial < 0:
        return -1
    status = land_all(context, serial)
    return status if status != 0 else signal_all(context, serial)


def begin_of(context: Context, serial: int) -> int:
    """The number of the first copy of one instruction: copies are in the order of their instructions."""
    low, high = context.transfer_first, context.transfer_count
    while low < high:
        middle = low + high >> 1
        if load64(context.transfers + 8 * (TRANSFER_WORDS * middle + TR_SERIAL)) < serial:
            low = middle + 1
        else:
            high = middle
    return low


def land_all(context: Context, serial: int) -> int:
    """The copies of one instruction that are in flight land. Returns a status."""
    trace_advance(context, serial)
    for k in range(begin_of(context, serial), context.transfer_count):
        entry = context.transfers + 8 * TRANSFER_WORDS * k
        if load64(entry + 8 * TR_SERIAL) != serial:
            break
        if in_flight(entry):
            status = land(context, entry)
            if status != 0:
                return status
    return 0


def land(context: Context, entry: int) -> int:
    """A copy lands; if it writes shared memory, its mbarrier counts its bytes. Returns a status."""
    if load64(entry + 8 * TR_KIND) == ARRIVALS:
        return land_arrivals(context, entry)
    if load64(entry + 8 * TR_KIND) == STORES:
        status = write_out(context, entry)
        if load64(entry + 8 * TR_STATE) & WAITED_FOR:
            store64(entry + 8 * TR_KIND, LANDED)
        return status
    if cta_alive(context, load64(entry + 8 * TR_CTA)) == 0:
        status = breaks_rule(context, entry)
        if status != 0:
            return status
    if load64(entry + 8 * TR_KIND) == WITHIN:
        status = origin_read(context, entry)
        if status != 0:
            return status
    if load64(entry + 8 * TR_COMBINE) != 0:
        return combine_words(context, entry)
    if load64(entry + 8 * TR_KIND) == WORDS:
        copy(shared_place(context, entry), entry + 8 * TR_DATA, load64(entry + 8 * TR_BYTES))
    else:
        move_box(context, entry)
    store64(entry + 8 * TR_KIND, LANDED)
    if context.checked != 0:
        mbarrier = load64(entry + 8 * TR_MBARRIER)
        cta, offset = load64(entry + 8 * TR_CTA), load64(entry + 8 * TR_OFFSET)
        copy_came(context, cta, offset, load64(entry + 8 * TR_BYTES))
        far = is_far(context, load64(entry + 8 * TR_WARP), mbarrier)
        place = vectors_of(context, mbarrier, far).at(actor_of(context, mbarrier))
        place[0] = max(place[0], load64(entry + 8 * TR_TIME))
    return signal(context, entry)


def signal(context: Context, entry: int) -> int:
    """The mbarrier of a landed copy counts its bytes. In the late mode, its phase ends when all copies of the
    instruction have landed (:func:`signal_all`). Returns a status."""
    mbarrier, many = load64(entry + 8 * TR_MBARRIER), load64(entry + 8 * TR_BYTES)
    current_instruction(context, load64(entry + 8 * TR_PC))
    if context.early != 0:
        return bytes_came(context, mbarrier, many)
    store64(mbarrier + 8 * MB_BYTES, load64(mbarrier + 8 * MB_BYTES) - many)
    return 0


def signal_all(context: Context, serial: int) -> int:
    """All copies of one instruction have landed: phases that waited only for their bytes end. Returns a status."""
    for k in range(begin_of(context, serial), context.transfer_count):
        entry = context.transfers + 8 * TRANSFER_WORDS * k
        if load64(entry + 8 * TR_SERIAL) != serial:
            break
        if load64(entry + 8 * TR_MBARRIER) == 0:
            continue
        current_instruction(context, load64(entry + 8 * TR_PC))
        status = bytes_counted(context, load64(entry + 8 * TR_MBARRIER))
        if status != 0:
            return status
    return 0


def origin_read(context: Context, entry: int) -> int:
    """A copy within the cluster has read its source; waits for its mbarrier are ordered after that. Returns a
    status."""
    cta = load64(entry + 8 * TR_ORIGIN_CTA)
    if cta_alive(context, cta) == 0:
        status = breaks_rule(context, entry)
        if status != 0:
            return status
    if context.checked != 0:
        reads_range_complete(context, cta, load64(entry + 8 * TR_ORIGIN), load64(entry + 8 * TR_BYTES))
        twin, mbarrier = warps_of_cluster(context) + load64(entry + 8 * TR_WARP), load64(entry + 8 * TR_MBARRIER)
        place = vectors_of(context, mbarrier, is_far(context, load64(entry + 8 * TR_WARP), mbarrier)).at(twin)
        place[0] = max(place[0], load64(entry + 8 * TR_READ_TIME))
    return 0


def combine_words(context: Context, entry: int) -> int:
    """An asynchronous reduction updates shared memory on behalf of its lane, and releases the update to its
    mbarrier. Returns a status."""
    source = origin_place(context, entry) if load64(entry + 8 * TR_KIND) == WITHIN else entry + 8 * TR_DATA
    if load64(entry + 8 * TR_KIND) == WITHIN:
        record_update(context, entry)
        if context.counting != 0:
            count_stretch(context, load64(entry + 8 * TR_PC), load64(entry + 8 * TR_BYTES))
    warp, lane, mbarrier = load64(entry + 8 * TR_WARP), load64(entry + 8 * TR_LANE), load64(entry + 8 * TR_MBARRIER)
    cta, offset, size = load64(entry + 8 * TR_CTA), load64(entry + 8 * TR_OFFSET), load64(entry + 8 * TR_BYTES)
    store64(entry + 8 * TR_KIND, LANDED)
    if context.checked != 0:
        context.current = warp
        context.current_state = context.warps + 8 * WARP_WORDS * warp
        current_instruction(context, load64(entry + 8 * TR_PC))
        place = context.scratch + SCRATCH_PLACES + 8 * lane
        width = min(size, 16)
        for k in range(size // width):
            store64(place, cta + 1 << RANK_SHIFT | offset + width * k)
            status = watch_cluster(context, 1 << lane, EVERY_LANE, width, UPDATES)
            if status != 0:
                return status
        release_to(context, warp, vectors_of(context, mbarrier, is_far(context, warp, mbarrier)))
    put(context, entry, shared_place(context, entry), source, size)
    return signal(context, entry)


def breaks_rule(context: Context, entry: int) -> int:
    """A copy is in flight when a block exits whose shared memory it uses. Returns a status."""
    current_instruction(context, load64(entry + 8 * TR_PC))
    return broken_rule(context, ASYNC)


def drained(context: Context) -> int:
    """All threads have exited: copies in flight land, those without a wait are counted, and stores without a wait
    break a rule. Returns a status."""
    status = 0
    while status == 0:
        status = land_next(context)
    if status > 0:
        return status
    if context.checked != 0:
        count_unwaited(context)  # copies of an mbarrier arrival have landed by now
    for k in range(context.transfer_first, context.transfer_count):
        entry = context.transfers + 8 * TRANSFER_WORDS * k
        status = breaks_rule(context, entry) if load64(entry + 8 * TR_KIND) != LANDED else 0
        if status != 0:
            return status
    return others_know(context)
