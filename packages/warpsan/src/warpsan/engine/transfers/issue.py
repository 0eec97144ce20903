"""Instructions that issue bulk copies: machine code."""

from __future__ import annotations

from warpsan.engine.clocks import comes_before, first_of_cluster, operation_time, warps_of_cluster
from warpsan.engine.context import Context
from warpsan.engine.flights import copy_issued, doubt, read_range
from warpsan.engine.layout import (
    COPY_CASTS,
    COPY_COMBINE,
    COPY_PC,
    COPY_SIGNAL,
    FULL,
    ILLEGAL,
    LANDED,
    LOADS,
    MAP_ITEM,
    MAP_KIND,
    MB_CTA,
    MB_OFFSET,
    MB_TAG,
    MB_UNFENCED,
    MBARRIER_RULE,
    MBARRIER_WORDS,
    MOST_MBARRIERS,
    OF_COPIES,
    OPERANDS,
    RACE,
    SCRATCH_PLACES,
    STORES,
    TENSOR_MAP,
    TR_BYTES,
    TR_COMBINE,
    TR_CTA,
    TR_DATA,
    TR_KIND,
    TR_MAP,
    TR_MBARRIER,
    TR_OFFSET,
    TR_ORIGIN,
    TR_ORIGIN_CTA,
    TR_PC,
    TR_READ_TIME,
    TR_TIME,
    TR_WARP,
    TRANSFER_WORDS,
    WARP_CTA,
    WITHIN,
    WORDS,
)
from warpsan.engine.mbarriers import actor_of, cta_alive, cta_of, mbarrier_at, offset_of
from warpsan.engine.recorded import is_recorded, record_lines, record_shared
from warpsan.engine.suspects import broken_rule, current_instruction
from warpsan.engine.trace import next_serial
from warpsan.engine.traffic import count_shared
from warpsan.engine.transfers.boxes import global_lines
from warpsan.engine.transfers.entries import box_entry, bytes_entry, lane_address, new_entry, next_entry
from warpsan.engine.transfers.landing import begin_store, begin_transfer
from warpsan.engine.words import copy, load32, load64, store64

__all__ = ["copy_within", "load_box", "load_bytes", "store_box", "store_bytes", "store_words"]


def load_box(registers: int, record: int, mask: int, context: Context) -> int:
    """``cp.async.bulk.tensor`` to shared memory."""
    return issue(registers, record, mask, context, LOADS, 1)


def load_bytes(registers: int, record: int, mask: int, context: Context) -> int:
    """``cp.async.bulk`` to shared memory."""
    return issue(registers, record, mask, context, LOADS, 0)


def store_box(registers: int, record: int, mask: int, context: Context) -> int:
    """``cp.async.bulk.tensor`` or its reduction to global memory."""
    return issue(registers, record, mask, context, STORES, 1)


def store_bytes(registers: int, record: int, mask: int, context: Context) -> int:
    """``cp.async.bulk`` or its reduction to global memory."""
    return issue(registers, record, mask, context, STORES, 0)


def copy_within(registers: int, record: int, mask: int, context: Context) -> int:
    """``cp.async.bulk`` or its reduction from the own shared memory to that of another CTA of the cluster."""
    return issue(registers, record, mask, context, WITHIN, 0)


def issue(registers: int, record: int, mask: int, context: Context, kind: int, boxes: int) -> int:
    """Lanes issue copies of a kind, of boxes or of bytes, one after the other. Returns a status."""
    current_instruction(context, load32(record + 4 * (OPERANDS + COPY_PC)))
    context.transfer_serial = next_serial(context)
    for lane in range(32):
        if mask >> lane & 1 == 0:
            continue
        if boxes:
            entry = box_entry(registers, record, lane, context, kind)
        else:
            entry = bytes_entry(registers, record, lane, context, kind)
        status = issue_one(registers, record, lane, context, entry) if entry >= 64 else entry
        if status != 0:
            return status
    record_lines(context, load32(record + 4 * (OPERANDS + COPY_PC)))
    return 0


def issue_one(registers: int, record: int, lane: int, context: Context, entry: int) -> int:
    """A lane issues the copy of an entry. Returns a status."""
    kind = load64(entry + 8 * TR_KIND)
    store64(entry + 8 * TR_PC, load32(record + 4 * (OPERANDS + COPY_PC)))
    if kind != LOADS:
        status = set_combination(context, entry, load32(record + 4 * (OPERANDS + COPY_COMBINE)))
        if status != 0 or load64(entry + 8 * TR_KIND) == LANDED:
            return status
        if kind == STORES:
            return begin_store(context, entry, lane)
    mbarrier = named_mbarrier(context, lane_address(registers, record, COPY_SIGNAL, lane))
    if mbarrier == 0:
        store64(entry + 8 * TR_KIND, LANDED)
        return broken_rule(context, MBARRIER_RULE)
    store64(entry + 8 * TR_MBARRIER, mbarrier)
    casts = load32(record + 4 * (OPERANDS + COPY_CASTS))
    if kind == LOADS and casts >= 0:
        return multicast(context, entry, load32((registers + casts + 2 * lane) & ~3) >> 16 * (lane & 1) & 0xFFFF)
    return begin_load(context, entry, 1, 1)


def set_combination(context: Context, entry: int, combine: int) -> int:
    """The combination of a copy's elements; for a box, by the type of its tensor's elements, or none if that type
    has no such combination. Returns a status."""
    tensor = load64(entry + 8 * TR_MAP)
    if tensor == 0:
        store64(entry + 8 * TR_COMBINE, combine)
    elif combine >= 0:
        kind = load64(tensor + 8 * MAP_KIND)
        number = context.lists[combine + kind] if kind >= 0 else 0
        if number == 0:
            store64(entry + 8 * TR_KIND, LANDED)
            return broken_rule(context, TENSOR_MAP)
        store64(entry + 8 * TR_COMBINE, load64(tensor + 8 * MAP_ITEM) << 16 | number)
    return 0


def multicast(context: Context, model: int, ranks: int) -> int:
    """A box is copied to the same place of several CTAs, and signals the same mbarrier of each. Returns a status.

    Global memory is read once.
    """
    entry = context.scratch  # entries may move while others are added
    copy(entry, model, 8 * TRANSFER_WORDS)
    store64(model + 8 * TR_KIND, LANDED)
    offset = load64(load64(entry + 8 * TR_MBARRIER) + 8 * MB_OFFSET)
    reads = 1
    first = first_of_cluster(context, load64(context.current_state + 8 * WARP_CTA))
    for rank in range(context.cluster_size):
        if ranks >> rank & 1 == 0:
            continue
        cta = first + rank
        mbarrier = mbarrier_at(context, cta, offset)
        if mbarrier == 0 or cta_alive(context, cta) == 0:
            status = broken_rule(context, MBARRIER_RULE)
            if status != 0:
                return status
            if mbarrier == 0:
                continue
        place = next_entry(context)
        if place == 0:
            return FULL
        copy(place, entry, 8 * TRANSFER_WORDS)
        store64(place + 8 * TR_CTA, cta)
        store64(place + 8 * TR_MBARRIER, mbarrier)
        status = begin_load(context, place, 1, reads)
        if status != 0:
            return status
        reads = 0
    return 0


def store_words(registers: int, record: int, mask: int, context: Context) -> int:
    """``st.async`` and ``red.async``: operands are the row and offset of the address, of the mbarrier's, bytes of an
    element, their number, the pc, their combination with the stored values (0: overwrite), and their rows."""
    current_instruction(context, load32(record + 4 * (OPERANDS + 6)))
    context.transfer_serial = next_serial(context)
    element, many = load32(record + 4 * (OPERANDS + 4)), load32(record + 4 * (OPERANDS + 5))
    size = element * many
    if context.counting | is_recorded(context, load32(record + 4 * (OPERANDS + 6))):
        row, shift = registers + load32(record + 4 * OPERANDS), load32(record + 4 * (OPERANDS + 1))
        places = context.scratch + SCRATCH_PLACES
        for lane in range(32):
            store64(places + 8 * lane, offset_of(load64(row + 8 * lane) + shift))
        record_shared(context, mask, size, load32(record + 4 * (OPERANDS + 6)))
        if context.counting != 0:
            count_shared(context, mask, size, load32(record + 4 * (OPERANDS + 6)), 0)
    for lane in range(32):
        if mask >> lane & 1 == 0:
            continue
        address = lane_address(registers, record, 0, lane)
        signal = lane_address(registers, record, 2, lane)
        cta, offset = cta_of(context, address), offset_of(address)
        if cta < 0 or offset & (size - 1) or offset > context.shared_limit - size:
            status = broken_rule(context, ILLEGAL)
            if status != 0:
                return status
            continue
        mbarrier = named_mbarrier(context, signal)
        if mbarrier == 0 or cta_of(context, signal) != cta or cta_alive(context, cta) == 0:
            status = broken_rule(context, MBARRIER_RULE)
            if status != 0:
                return status
            if mbarrier == 0:  # this lane is left out
                continue
        entry = new_entry(context, WORDS, lane, cta, offset, size)
        if entry < 64:
            return entry
        store64(entry + 8 * TR_MBARRIER, mbarrier)
        store64(entry + 8 * TR_COMBINE, load32(record + 4 * (OPERANDS + 7)))
        store64(entry + 8 * TR_PC, load32(record + 4 * (OPERANDS + 6)))
        for k in range(many):
            row = registers + load32(record + 4 * (OPERANDS + 8 + k))
            copy(entry + 8 * TR_DATA + element * k, row + element * lane, element)
        status = begin_load(context, entry, 0, 0)
        if status != 0:
            return status
    return 0


def named_mbarrier(context: Context, address: int) -> int:
    """The mbarrier at an address of shared::cluster; 0 if there is none."""
    home = cta_of(context, address)
    return mbarrier_at(context, home, offset_of(address)) if home >= 0 else 0


def begin_load(context: Context, entry: int, proxy: int, reads: int) -> int:
    """A copy to shared memory is issued; ``reads`` is whether it reads global memory itself. Returns a status."""
    status = announce_load(context, entry, proxy, reads)
    return status if status != 0 else begin_transfer(context, entry)


def announce_load(context: Context, entry: int, proxy: int, reads: int) -> int:
    """Checks and counts a copy to shared memory at its issue. Returns a status.

    ``reads`` is whether it reads global memory itself.
    """
    if load64(entry + 8 * TR_KIND) == LOADS and reads:
        context.read_tag = copy_tag(context, load64(entry + 8 * TR_MBARRIER))
        status = global_lines(context, entry, 1)
        context.read_tag = 0
        if status != 0:
            return status
    if context.checked == 0:
        return 0
    warp, mbarrier = load64(entry + 8 * TR_WARP), load64(entry + 8 * TR_MBARRIER)
    status = 0
    if comes_before(context, warp, load64(mbarrier + 8 * MB_TAG)) == 0:
        granule = load64(mbarrier + 8 * MB_OFFSET) >> context.granule_shift
        status = doubt(context, load64(mbarrier + 8 * MB_CTA), granule, RACE)
    if status == 0 and load64(entry + 8 * TR_KIND) != WORDS and load64(mbarrier + 8 * MB_UNFENCED) != 0:
        granule = load64(entry + 8 * TR_OFFSET) >> context.granule_shift
        status = doubt(context, load64(entry + 8 * TR_CTA), granule, MBARRIER_RULE)  # its destination is watched
    if status != 0:
        return status
    if load64(entry + 8 * TR_KIND) == WITHIN:
        status = announce_origin(context, entry)
        if status != 0:
            return status
    if load64(entry + 8 * TR_COMBINE) != 0:  # atomic, and checked when it lands
        return 0
    actor, cta = actor_of(context, mbarrier), load64(entry + 8 * TR_CTA)
    time = copy_issued(context, warp, cta, load64(entry + 8 * TR_OFFSET), load64(entry + 8 * TR_BYTES), actor, proxy)
    store64(entry + 8 * TR_TIME, time)
    return time if time < 64 else 0


def copy_tag(context: Context, mbarrier: int) -> int:
    """The tag that a copy completing on an mbarrier leaves in the global memory that it reads; 0 without checks."""
    if context.checked == 0:
        return 0
    number = (mbarrier - context.mbarriers) // (8 * MBARRIER_WORDS)
    cta = context.cluster * context.cta_count + number // MOST_MBARRIERS
    linear = context.ctas[cta] + 1
    time = operation_time(context, actor_of(context, mbarrier))
    return linear << 40 | time << 8 | OF_COPIES + number % MOST_MBARRIERS


def announce_origin(context: Context, entry: int) -> int:
    """Checks the shared memory that a copy within the cluster reads, at its issue. Returns a status."""
    warp = load64(entry + 8 * TR_WARP)
    twin = warps_of_cluster(context) + warp
    time = operation_time(context, twin)
    store64(entry + 8 * TR_READ_TIME, time)
    origin, size = load64(entry + 8 * TR_ORIGIN), load64(entry + 8 * TR_BYTES)
    return read_range(context, load64(entry + 8 * TR_ORIGIN_CTA), origin, size, warp, twin, time, 0)
