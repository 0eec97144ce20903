"""Landing of bulk copies, their groups and waits: machine code.

Copies land when nothing else can run, the oldest first;
stores land at the latest when their lane waits for them. If a lane waits only for the reading (``.read``), the data is
kept until then, or until the buffer is full.
"""

from __future__ import annotations

from warpsan.checks.orders import SAME_CLUSTER
from warpsan.engine.clocks import completed, operation_time, release_to, warps_of_cluster
from warpsan.engine.context import Context
from warpsan.engine.copies import count_unwaited
from warpsan.engine.flights import copy_came, others_know, read_range, reads_range_complete
from warpsan.engine.hazards import break_rule
from warpsan.engine.layout import (
    ARRIVALS,
    BACKWARD,
    CONTINUES,
    DRAWN,
    ENDED,
    EVERY_LANE,
    LANDED,
    SCOPE_SHIFT,
    STORES,
    TENSOR,
    WAITED_FOR,
    WITHIN,
    WORDS,
    WRITTEN_OUT,
)
from warpsan.engine.mbarriers import break_mbarrier_rule, bytes_came, bytes_counted, is_remote, landed_copy, vectors_of
from warpsan.engine.memory import MbarrierState, Record, TransferEntry
from warpsan.engine.recorded import record_lines, record_update
from warpsan.engine.reset import draw
from warpsan.engine.rules import NO_MBARRIER, READS_EXITED, STILL_READS, WRITES_EXITED
from warpsan.engine.suspects import act_for, current_instruction
from warpsan.engine.tensor_memory import leaked_columns
from warpsan.engine.tensor_products import land_tensor
from warpsan.engine.traffic import count_stretch
from warpsan.engine.transfers.arrivals import land_arrivals
from warpsan.engine.transfers.boxes import global_lines, move_box, put
from warpsan.engine.transfers.entries import origin_place, shared_place
from warpsan.engine.unit_addresses import cta_alive
from warpsan.engine.watch.cluster_memory import UPDATES, watch_cluster
from warpsan.engine.words import copy, fill, load32, store32
from warpsan.host.memory import RANK_SHIFT

__all__ = ["begin_store", "begin_transfer", "commit_transfers", "drained", "land_next", "wait_for_transfers"]

_NEARLY = 1024
"""Free entries left for copies when stores write the data that they have read."""


def begin_transfer(context: Context, entry: TransferEntry) -> int:
    """A copy to shared memory begins: in the early mode it lands at once, otherwise its destination is poison.
    Returns a status."""
    if context.early != 0:
        return land(context, entry)
    if entry.combine != 0:
        return 0
    fill(shared_place(context, entry), 0xFF, entry.bytes)
    return 0


def begin_store(context: Context, entry: TransferEntry, lane: int) -> int:
    """A store joins the current bulk group of its lane, and reads shared memory from now on. Returns a status."""
    groups = context.current_warp.bulk_groups
    entry.group = load32(groups + 4 * lane)
    if context.checked != 0:
        warp, cta = entry.warp, entry.cta
        async_actor = warps_of_cluster(context) + warp
        time = operation_time(context, async_actor)
        entry.time = time
        offset, size = entry.offset, entry.bytes
        status = read_range(context, cta, offset, size, warp, lane, async_actor, time, entry.tensor_map == 0)
        if status != 0:
            return status
    return write_out(context, entry) if context.early != 0 else 0


def write_out(context: Context, entry: TransferEntry) -> int:
    """A store writes global memory. Returns a status."""
    status = global_lines(context, entry, 3 if entry.combine != 0 else 2)
    record_lines(context, entry.pc)
    if status != 0:
        return status
    move_box(context, entry)
    entry.state |= WRITTEN_OUT
    return 0


def capture(context: Context, entry: TransferEntry) -> int:
    """A store reads its box, and writes it later. Returns a status."""
    end, size = context.captured_end, entry.bytes
    nearly = context.transfer_count > context.transfer_room - _NEARLY
    if nearly or end + size > context.captured_bytes:
        status = write_captured(context)
        if status != 0:
            return status
        end = 0
    context.captured_end = end + size
    target = context.captured + end
    copy(target, shared_place(context, entry), size)
    entry.source = target
    return 0


def write_captured(context: Context) -> int:
    """The buffer of data that stores have read is full: all of these stores write now, as they may at any time.
    Returns a status."""
    first, count = context.transfer_first, context.transfer_count
    base, current, status = context.transfers, context.current, 0
    for k in range(first, count):
        captured = base[k]
        if status == 0 and in_flight(captured) and captured.source != 0:
            status = land_all(context, captured.serial)
    act_for(context, current)
    return status


def commit_transfers(registers: int, record: Record, mask: int, context: Context) -> int:
    """``cp.async.bulk.commit_group``: close the current bulk group of each lane."""
    state = context.current_warp
    groups = state.bulk_groups
    for lane in range(32):
        if mask >> lane & 1:
            store32(groups + 4 * lane, load32(groups + 4 * lane) + 1)
    return 0


def wait_for_transfers(registers: int, record: Record, mask: int, context: Context) -> int:
    """``cp.async.bulk.wait_group``: complete the stores of the active lanes but those of their last groups, whose
    number is operand 0; or only their reading, by operand 1. Returns a status."""
    keep, reads_only = record.operands[0], record.operands[1]
    warp, current = context.current, context.current_warp
    groups = current.bulk_groups
    for k in range(context.transfer_first, context.transfer_count):
        entry = context.transfers[k]
        if entry.kind != STORES or entry.warp != warp:
            continue
        lane, state = entry.lane, entry.state
        if mask >> lane & 1 == 0 or entry.group >= load32(groups + 4 * lane) - keep:
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


def waited_for(context: Context, entry: TransferEntry) -> None:
    """The lane of a store has waited for its reading, or for all of it."""
    state = entry.state
    if state & WAITED_FOR == 0 and context.checked != 0:
        offset, size, warp = entry.offset, entry.bytes, entry.warp
        reads_range_complete(context, entry.cta, offset, size)
        completed(context, warp, warps_of_cluster(context) + warp, entry.time)
    entry.state = state | WAITED_FOR
    if state & WRITTEN_OUT:
        entry.kind = LANDED


def in_flight(entry: TransferEntry) -> int:
    """Whether a copy has not landed yet."""
    return entry.kind != LANDED and entry.state & WRITTEN_OUT == 0


def land_next(context: Context) -> int:
    """Nothing else can run: the copies of one instruction land. Returns a status; -1 if there are none."""
    first, count = context.transfer_first, context.transfer_count
    base = context.transfers
    while first < count and base[first].kind == LANDED:
        first += 1
    context.transfer_first = first
    newest = context.order == BACKWARD
    if context.order == DRAWN:
        newest = draw(context, 2) == 1
    serial = -1
    for k in range(count - first):
        entry = base[count - 1 - k if newest else first + k]
        if in_flight(entry):
            serial = entry.serial
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
        if context.transfers[middle].serial < serial:
            low = middle + 1
        else:
            high = middle
    return low


def land_all(context: Context, serial: int) -> int:
    """The copies of one instruction that are in flight land. Returns a status."""
    for k in range(begin_of(context, serial), context.transfer_count):
        entry = context.transfers[k]
        if entry.serial != serial:
            break
        if in_flight(entry):
            status = land(context, entry)
            if status != 0:
                return status
    return 0


def land(context: Context, entry: TransferEntry) -> int:
    """A copy lands; if it writes shared memory, its mbarrier counts its bytes. Returns a status."""
    if entry.kind == ARRIVALS:
        return land_arrivals(context, entry)
    if entry.kind == TENSOR:
        return land_tensor(context, entry)
    if entry.kind == STORES:
        status = check_exited(context, entry, entry.cta, READS_EXITED) if entry.source == 0 else 0
        if status == 0:
            status = write_out(context, entry)
        if entry.state & WAITED_FOR:
            entry.kind = LANDED
        return status
    if entry.kind == WITHIN:
        status = origin_read(context, entry)
        if status != 0:
            return status
    status = check_exited(context, entry, entry.cta, WRITES_EXITED)
    if status != 0:
        return status
    if entry.combine != 0:
        return combine_words(context, entry)
    if entry.kind == WORDS:
        copy(shared_place(context, entry), entry.data, entry.bytes)
    else:
        move_box(context, entry)
    entry.kind = LANDED
    if context.checked != 0:
        mbarrier = entry.mbarrier
        cta, offset = entry.cta, entry.offset
        copy_came(context, cta, offset, entry.bytes)
        remote = is_remote(context, entry.warp, mbarrier)
        landed_copy(context, mbarrier, remote, entry.time)
    return signal(context, entry)


def signal(context: Context, entry: TransferEntry) -> int:
    """The mbarrier of a landed copy counts its bytes. In the late mode, its phase ends when all copies of the
    instruction have landed (:func:`signal_all`). Returns a status."""
    mbarrier, many = entry.mbarrier, entry.bytes
    issuer(context, entry)
    if mbarrier.valid == ENDED:
        entry.mbarrier = MbarrierState(0)
        return break_mbarrier_rule(context, NO_MBARRIER, 1 << entry.lane, mbarrier.offset)
    if context.early != 0:
        return bytes_came(context, mbarrier, many, entry.lane)
    mbarrier.pending_bytes -= many
    return 0


def signal_all(context: Context, serial: int) -> int:
    """All copies of one instruction have landed: phases that waited only for their bytes end. Returns a status."""
    for k in range(begin_of(context, serial), context.transfer_count):
        entry = context.transfers[k]
        if entry.serial != serial:
            break
        if entry.mbarrier == 0:
            continue
        issuer(context, entry)
        status = bytes_counted(context, entry.mbarrier, entry.lane)
        if status != 0:
            return status
    return 0


def origin_read(context: Context, entry: TransferEntry) -> int:
    """A copy within the cluster has read its source; waits for its mbarrier are ordered after that. Returns a
    status."""
    cta = entry.coordinates[1]
    status = check_exited(context, entry, cta, READS_EXITED)
    if status != 0:
        return status
    if context.checked != 0:
        reads_range_complete(context, cta, entry.coordinates[0], entry.bytes)
        async_actor, mbarrier = warps_of_cluster(context) + entry.warp, entry.mbarrier
        place = vectors_of(context, mbarrier, is_remote(context, entry.warp, mbarrier)).at(async_actor)
        place[0] = max(place[0], entry.coordinates[2])
    return 0


def combine_words(context: Context, entry: TransferEntry) -> int:
    """An asynchronous reduction updates shared memory on behalf of its lane, and releases the update to its
    mbarrier. Returns a status."""
    source = origin_place(context, entry) if entry.kind == WITHIN else entry.data.address
    if entry.kind == WITHIN:
        record_update(context, entry)
        if context.counting != 0:
            count_stretch(context, entry.pc, entry.bytes)
    warp, lane, mbarrier = entry.warp, entry.lane, entry.mbarrier
    cta, offset, size = entry.cta, entry.offset, entry.bytes
    entry.kind = LANDED
    if context.checked != 0:
        act_for(context, warp)
        current_instruction(context, entry.pc)
        width = min(size, 16)
        for k in range(size // width):
            context.places[lane] = cta + 1 << RANK_SHIFT | offset + width * k
            status = watch_cluster(
                context, 1 << lane, EVERY_LANE, width, UPDATES, CONTINUES | SAME_CLUSTER << SCOPE_SHIFT
            )
            if status != 0:
                return status
        release_to(context, warp, vectors_of(context, mbarrier, is_remote(context, warp, mbarrier)))
    put(context, entry, shared_place(context, entry), source, size)
    return signal(context, entry)


def issuer(context: Context, entry: TransferEntry) -> None:
    """Hazards from now on belong to the warp and the instruction that issued a copy."""
    act_for(context, entry.warp)
    current_instruction(context, entry.pc)


def check_exited(context: Context, entry: TransferEntry, cta: int, rule: int) -> int:
    """The CTA whose shared memory a copy uses must not have exited. Returns a status."""
    if cta_alive(context, cta):
        return 0
    issuer(context, entry)
    return break_rule(context, rule, 1 << entry.lane)


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
        entry = context.transfers[k]
        if entry.kind != LANDED:
            issuer(context, entry)
            status = break_rule(context, STILL_READS, 1 << entry.lane)
            if status != 0:
                return status
    status = leaked_columns(context)
    return status if status != 0 else others_know(context)
