"""Instructions that issue bulk copies: machine code."""

from __future__ import annotations

from warpsan.engine.clocks import first_of_cluster, operation_time, warps_of_cluster
from warpsan.engine.context import Context
from warpsan.engine.flights import copy_issued, read_range
from warpsan.engine.hazards import break_rule
from warpsan.engine.initialised import check_fenced
from warpsan.engine.layout import (
    COPY_CASTS,
    COPY_COMBINE,
    COPY_PC,
    COPY_SIGNAL,
    FULL,
    LANDED,
    LEFT_OUT,
    LOADS,
    MOST_MBARRIERS,
    OF_COPIES,
    STORES,
    UNMODELLED,
    WITHIN,
    WORDS,
)
from warpsan.engine.mbarriers import actor_of, break_mbarrier_rule, comes_after_writes, mbarrier_at, named_mbarrier
from warpsan.engine.memory import MbarrierState, Record, TransferEntry
from warpsan.engine.recorded import is_recorded, record_lines, record_shared
from warpsan.engine.rules import NO_MBARRIER, SIGNALS_ANOTHER_CTA, SIGNALS_WRITTEN, WRITES_EXITED
from warpsan.engine.suspects import current_instruction, is_status
from warpsan.engine.tags import global_tag
from warpsan.engine.traffic import count_shared
from warpsan.engine.transfers.boxes import global_lines
from warpsan.engine.transfers.entries import (
    box_entry,
    bytes_entry,
    lane_address,
    lanes_alike,
    new_entry,
    next_entry,
    next_serial,
)
from warpsan.engine.transfers.landing import begin_store, begin_transfer
from warpsan.engine.unit_addresses import check_shared, cta_alive, cta_of, offset_of
from warpsan.engine.words import copy, load32, load64

__all__ = ["copy_within", "load_box", "load_box_of_pair", "load_bytes", "store_box", "store_bytes", "store_words"]


BOXES, BOXES_OF_PAIRS = 1, 2
"""Copies of boxes, and those whose mbarrier may be that of the other CTA of a pair."""


def load_box(registers: int, record: Record, mask: int, context: Context) -> int:
    """``cp.async.bulk.tensor`` to shared memory."""
    return issue(registers, record, mask, context, LOADS, BOXES)


def load_box_of_pair(registers: int, record: Record, mask: int, context: Context) -> int:
    """``cp.async.bulk.tensor.cta_group::2`` to shared memory: its mbarrier may be that of the other CTA of a pair."""
    return issue(registers, record, mask, context, LOADS, BOXES_OF_PAIRS)


def load_bytes(registers: int, record: Record, mask: int, context: Context) -> int:
    """``cp.async.bulk`` to shared memory."""
    return issue(registers, record, mask, context, LOADS, 0)


def store_box(registers: int, record: Record, mask: int, context: Context) -> int:
    """``cp.async.bulk.tensor`` or its reduction to global memory."""
    return issue(registers, record, mask, context, STORES, BOXES)


def store_bytes(registers: int, record: Record, mask: int, context: Context) -> int:
    """``cp.async.bulk`` or its reduction to global memory."""
    return issue(registers, record, mask, context, STORES, 0)


def copy_within(registers: int, record: Record, mask: int, context: Context) -> int:
    """``cp.async.bulk`` or its reduction from the own shared memory to that of another CTA of the cluster."""
    return issue(registers, record, mask, context, WITHIN, 0)


def issue(registers: int, record: Record, mask: int, context: Context, kind: int, boxes: int) -> int:
    """Lanes issue copies of a kind, of boxes or of bytes, one after the other. Returns a status."""
    current_instruction(context, record.operands[COPY_PC])
    context.transfer_serial = next_serial(context)
    context.step_began = context.time
    for lane in range(32):
        if mask >> lane & 1 == 0:
            continue
        if boxes:
            place = box_entry(registers, record, lane, context, kind)
        else:
            place = bytes_entry(registers, record, lane, context, kind)
        if is_status(place) == 0 and kind == STORES and context.checked != 0:
            TransferEntry(place).alike = lanes_alike(registers, record, mask, lane, boxes)
        status = place if is_status(place) else issue_one(registers, record, lane, context, TransferEntry(place), boxes)
        if status > LEFT_OUT:
            return status
    record_lines(context, record.operands[COPY_PC])
    return 0


def issue_one(registers: int, record: Record, lane: int, context: Context, entry: TransferEntry, boxes: int) -> int:
    """A lane issues the copy of an entry, of boxes or of bytes. Returns ``LEFT_OUT`` or a status."""
    kind = entry.kind
    entry.pc = record.operands[COPY_PC]
    if kind != LOADS:
        status = set_combination(context, entry, record.operands[COPY_COMBINE])
        if status != 0 or entry.kind == LANDED:
            return status
        if kind == STORES:
            return begin_store(context, entry, lane)
    mbarrier = named_mbarrier(context, lane, lane_address(registers, record, COPY_SIGNAL, lane))
    if is_status(mbarrier):
        entry.kind = LANDED
        return mbarrier
    entry.mbarrier = MbarrierState(mbarrier)
    casts = record.operands[COPY_CASTS]
    if kind == LOADS and casts >= 0:
        ranks = load32((registers + casts + 2 * lane) & ~3) >> 16 * (lane & 1) & 0xFFFF
        return multicast(context, entry, ranks, boxes == BOXES_OF_PAIRS)
    return begin_load(context, entry, 1, 1)


def set_combination(context: Context, entry: TransferEntry, combine: int) -> int:
    """The combination of a copy's elements; for a box, by the type of its tensor's elements, or none if that type
    has no such combination. Returns a status."""
    tensor = entry.tensor_map
    if tensor == 0:
        entry.combine = combine
    elif combine >= 0:
        kind = tensor.kind
        number = context.lists[combine + kind] if kind >= 0 else 0
        if number == 0:
            context.ended_by = entry.pc
            context.end_number = kind
            return UNMODELLED
        entry.combine = tensor.item << 16 | number
    return 0


def multicast(context: Context, model: TransferEntry, ranks: int, pairs: int) -> int:
    """A box is copied to the same place of several CTAs, and signals the same mbarrier of each; with ``pairs``, that of
    the CTA of its pair whose rank has the parity of the given mbarrier's (PTX ISA, "cp.async.bulk.tensor"). Returns a
    status.

    Global memory is read once.
    """
    entry = TransferEntry(context.scratch)  # entries may move while others are added
    copy(entry, model, TransferEntry.byte_size)
    model.kind = LANDED
    offset = entry.mbarrier.offset
    reads = 1
    first = first_of_cluster(context, context.current_warp.cta)
    parity = entry.mbarrier.cta - first & 1
    for rank in range(context.cluster_size):
        if ranks >> rank & 1 == 0:
            continue
        cta = first + rank
        mbarrier = mbarrier_at(context, first + (rank & ~1 | parity) if pairs else cta, offset)
        if cta_alive(context, cta) == 0:
            status = break_rule(context, WRITES_EXITED, 1 << entry.lane)
            if status != 0:
                return status
        if mbarrier == 0:
            status = break_mbarrier_rule(context, NO_MBARRIER, 1 << entry.lane, offset)
            if status != 0:
                return status
            continue
        place = next_entry(context)
        if place == 0:
            return FULL
        copy(place, entry, TransferEntry.byte_size)
        place.cta = cta
        place.mbarrier = mbarrier
        status = begin_load(context, place, 1, reads)
        if status != 0:
            return status
        reads = 0
    return 0


def store_words(registers: int, record: Record, mask: int, context: Context) -> int:
    """``st.async`` and ``red.async``: operands are the row and offset of the address, of the mbarrier's, bytes of an
    element, their number, the pc, their combination with the stored values (0: overwrite), and their rows."""
    current_instruction(context, record.operands[6])
    context.transfer_serial = next_serial(context)
    context.step_began = context.time
    element, many = record.operands[4], record.operands[5]
    size = element * many
    if context.counting | is_recorded(context, record.operands[6]):
        row, shift = registers + record.operands[0], record.operands[1]
        places = context.places
        for lane in range(32):
            places[lane] = offset_of(load64(row + 8 * lane) + shift)
        record_shared(context, mask, size, record.operands[6])
        if context.counting != 0:
            count_shared(context, mask, size, record.operands[6], 0)
    for lane in range(32):
        if mask >> lane & 1 == 0:
            continue
        address = lane_address(registers, record, 0, lane)
        signal = lane_address(registers, record, 2, lane)
        status = check_shared(context, lane, address, size, size)
        mbarrier = named_mbarrier(context, lane, signal) if status == 0 else status
        if mbarrier == LEFT_OUT:
            continue
        if is_status(mbarrier):
            return mbarrier
        cta, offset = cta_of(context, address), offset_of(address)
        if MbarrierState(mbarrier).cta != cta:
            status = break_rule(context, SIGNALS_ANOTHER_CTA, 1 << lane)
            if status != 0:
                return status
        place = new_entry(context, WORDS, lane, cta, offset, size)
        if is_status(place):
            return place
        entry = TransferEntry(place)
        entry.mbarrier = MbarrierState(mbarrier)
        entry.combine = record.operands[7]
        entry.pc = record.operands[6]
        for k in range(many):
            row = registers + record.operands[8 + k]
            copy(entry.data + element * k, row + element * lane, element)
        status = begin_load(context, entry, 0, 0)
        if status != 0:
            return status
    return 0


def begin_load(context: Context, entry: TransferEntry, proxy: int, reads: int) -> int:
    """A copy to shared memory is issued; ``reads`` is whether it reads global memory itself. Returns a status."""
    status = announce_load(context, entry, proxy, reads)
    return status if status != 0 else begin_transfer(context, entry)


def announce_load(context: Context, entry: TransferEntry, proxy: int, reads: int) -> int:
    """Checks and counts a copy to shared memory at its issue. Returns a status.

    ``reads`` is whether it reads global memory itself.
    """
    if entry.kind == LOADS and reads:
        context.read_tag = copy_tag(context, entry.mbarrier)
        status = global_lines(context, entry, 1)
        context.read_tag = 0
        if status != 0:
            return status
    if context.checked == 0:
        return 0
    warp, mbarrier = entry.warp, entry.mbarrier
    status = comes_after_writes(context, SIGNALS_WRITTEN, warp, entry.lane, mbarrier)
    if status == 0 and entry.kind != WORDS:
        status = check_fenced(context, mbarrier, 1 << entry.lane)
    if status != 0:
        return status
    if entry.kind == WITHIN:
        status = announce_origin(context, entry)
        if status != 0:
            return status
    if entry.combine != 0:  # atomic, and checked when it lands
        return 0
    actor, cta = actor_of(context, mbarrier), entry.cta
    time = copy_issued(context, warp, entry.lane, cta, entry.offset, entry.bytes, actor, proxy)
    entry.time = time
    return time if is_status(time) else 0


def copy_tag(context: Context, mbarrier: MbarrierState) -> int:
    """The tag that a copy completing on an mbarrier leaves in the global memory that it reads; 0 without checks."""
    if context.checked == 0:
        return 0
    number = (mbarrier - context.mbarriers) // MbarrierState.byte_size
    cta = context.cluster * context.cta_count + number // MOST_MBARRIERS
    linear = context.ctas[cta] + 1
    time = operation_time(context, actor_of(context, mbarrier))
    return global_tag(linear, time, OF_COPIES + number % MOST_MBARRIERS)


def announce_origin(context: Context, entry: TransferEntry) -> int:
    """Checks the shared memory that a copy within the cluster reads, at its issue. Returns a status."""
    warp = entry.warp
    async_actor = warps_of_cluster(context) + warp
    time = operation_time(context, async_actor)
    entry.coordinates[2] = time
    origin, size = entry.coordinates[0], entry.bytes
    return read_range(context, entry.coordinates[1], origin, size, warp, entry.lane, async_actor, time, 0)
