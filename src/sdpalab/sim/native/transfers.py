"""Bulk copies in flight, their groups and waits: machine code (:mod:`~sdpalab.sim.native.translate`).

The rules are those of :mod:`sdpalab.sim.bulk_copies` and :mod:`~sdpalab.sim.tensor_map`. Copies land when nothing else
can run, the oldest first; stores no later than when their lane waits for them. A lane that waits only for the reading
(``.read``) has the data kept until then.
"""

from __future__ import annotations

from sdpalab.sim.memory import GLOBAL_BASE
from sdpalab.sim.native.clocks import comes_before, completed, operation_time, warps_of_cluster
from sdpalab.sim.native.flights import copy_came, copy_issued, others_know, read_range, reads_range_complete
from sdpalab.sim.native.layout import (
    ASYNC,
    BACKWARD,
    BULK_GROUPS,
    CAPTURED,
    CAPTURED_BYTES,
    CAPTURED_END,
    CHECKED,
    COUNTING,
    CTA_COUNT,
    CURRENT,
    CURRENT_CTA,
    CURRENT_STATE,
    DRAWN,
    EARLY,
    EVERY_LANE,
    EXTENT_COUNT,
    EXTENTS,
    FULL,
    GLOBAL,
    ILLEGAL,
    LANDED,
    LOADS,
    MAP_AXES,
    MAP_BEGIN,
    MAP_BYTES,
    MAP_COUNTS,
    MAP_DIMS,
    MAP_FILL,
    MAP_ITEM,
    MAP_RAW,
    MAP_STEPS,
    MAP_STRIDES,
    MAP_SWIZZLE,
    MAP_WORDS,
    MB_OFFSET,
    MB_TAG,
    MBARRIER_RULE,
    MOST_TRANSFERS,
    OPERANDS,
    ORDER,
    RACE,
    RAW_WORDS,
    SCRATCH,
    SCRATCH_PLACES,
    SECTORS,
    SHARED,
    SHARED_LIMIT,
    SHARED_STRIDE,
    SPREAD,
    STORES,
    TENSOR_MAP,
    TENSOR_MAP_COUNT,
    TENSOR_MAPS,
    TOUCHED,
    TOUCHED_BYTES,
    TR_BYTES,
    TR_COORDINATES,
    TR_CTA,
    TR_DATA,
    TR_GROUP,
    TR_KIND,
    TR_LANE,
    TR_LINEAR,
    TR_MAP,
    TR_MBARRIER,
    TR_OFFSET,
    TR_PC,
    TR_SERIAL,
    TR_SOURCE,
    TR_STATE,
    TR_TIME,
    TR_WARP,
    TRANSFER_COUNT,
    TRANSFER_FIRST,
    TRANSFER_SERIAL,
    TRANSFER_WORDS,
    TRANSFERS,
    WAITED_FOR,
    WORDS,
    WRITTEN_OUT,
)
from sdpalab.sim.native.mbarriers import (
    actor_of,
    bytes_came,
    cta_alive,
    cta_of,
    mbarrier_at,
    offset_of,
    vectors_of,
)
from sdpalab.sim.native.reset import draw
from sdpalab.sim.native.traffic import count_shared
from sdpalab.sim.native.watch import read_global, write_global
from sdpalab.sim.native.words import copy, fill, load32, load64, popcount, store32, store64
from sdpalab.sim.tally import SECTOR

__all__ = [
    "commit_transfers",
    "drained",
    "land_next",
    "load_box",
    "load_bytes",
    "store_box",
    "store_bytes",
    "store_words",
    "wait_for_transfers",
]


def next_entry(context: int) -> int:
    """Room for one more; 0 if there is none. Those that have landed are left behind."""
    count = load64(context + 8 * TRANSFER_COUNT)
    base = load64(context + 8 * TRANSFERS)
    if count == MOST_TRANSFERS:
        left = 0
        for k in range(load64(context + 8 * TRANSFER_FIRST), count):
            entry = base + 8 * TRANSFER_WORDS * k
            if load64(entry + 8 * TR_KIND) != LANDED:
                copy(base + 8 * TRANSFER_WORDS * left, entry, 8 * TRANSFER_WORDS)
                left += 1
        store64(context + 8 * TRANSFER_FIRST, 0)
        count = left
        if count == MOST_TRANSFERS:
            return 0
    store64(context + 8 * TRANSFER_COUNT, count + 1)
    entry = base + 8 * TRANSFER_WORDS * count
    store64(entry + 8 * TR_SERIAL, load64(context + 8 * TRANSFER_SERIAL))
    store64(entry + 8 * TR_WARP, load64(context + 8 * CURRENT))
    store64(entry + 8 * TR_LINEAR, load64(context + 8 * CURRENT_CTA))
    return entry


def tensor_map_at(context: int, address: int) -> int:
    """The tensor map whose bytes are at a generic address, if the launch was given that; 0 if not."""
    offset = address - GLOBAL_BASE
    if offset & 63:
        return 0
    inside = 0
    for k in range(load64(context + 8 * EXTENT_COUNT)):
        extent = load64(context + 8 * EXTENTS) + 16 * k
        if offset >= load64(extent) and offset <= load64(extent + 8) - 128:
            inside = 1
    if inside == 0:
        return 0
    place = load64(context + 8 * GLOBAL) + offset
    for number in range(load64(context + 8 * TENSOR_MAP_COUNT)):
        tensor = load64(context + 8 * TENSOR_MAPS) + 8 * MAP_WORDS * number
        same = 0
        while same < RAW_WORDS and load64(place + 8 * same) == load64(tensor + 8 * (MAP_RAW + same)):
            same += 1
        if same == RAW_WORDS:
            return tensor
    return 0


def box_entry(registers: int, record: int, lane: int, context: int, kind: int, rank_operand: int) -> int:
    """An entry for a box that a lane copies; a status below 64 where that is wrong.

    Operands are the row and offset of the address in shared memory, and of the map's; from ``rank_operand`` on the
    number of axes, and the rows of the coordinates.
    """
    shared = load64(registers + load32(record + 4 * OPERANDS) + 8 * lane) + load32(record + 4 * (OPERANDS + 1))
    named = load64(registers + load32(record + 4 * (OPERANDS + 2)) + 8 * lane) + load32(record + 4 * (OPERANDS + 3))
    tensor = tensor_map_at(context, named)
    axes = load32(record + 4 * (OPERANDS + rank_operand))
    if tensor == 0:
        return TENSOR_MAP
    if load64(tensor + 8 * MAP_AXES) != axes:
        return TENSOR_MAP
    cta, offset = cta_of(context, shared), offset_of(shared)
    size = load64(tensor + 8 * MAP_BYTES)
    if cta < 0 or offset & 127 or offset > load64(context + 8 * SHARED_LIMIT) - size:
        return ILLEGAL
    if cta_alive(context, cta) == 0:
        return ILLEGAL
    if load64(tensor + 8 * MAP_SWIZZLE) != 0 and size & 127:
        return TENSOR_MAP
    entry = next_entry(context)
    if entry == 0:
        return FULL
    store64(entry + 8 * TR_KIND, kind)
    store64(entry + 8 * TR_LANE, lane)
    store64(entry + 8 * TR_MAP, tensor)
    store64(entry + 8 * TR_CTA, cta)
    store64(entry + 8 * TR_OFFSET, offset)
    store64(entry + 8 * TR_BYTES, size)
    store64(entry + 8 * TR_MBARRIER, 0)
    store64(entry + 8 * TR_SOURCE, 0)
    store64(entry + 8 * TR_STATE, 0)
    for k in range(axes):
        row = registers + load32(record + 4 * (OPERANDS + rank_operand + 1 + k))
        store64(entry + 8 * (TR_COORDINATES + k), load32(row + 4 * lane))
    return entry


def load_box(registers: int, record: int, mask: int, context: int) -> int:
    """``cp.async.bulk.tensor`` to shared memory: operands 4 and 5 are the mbarrier's row and offset, 6 the pc, 7 the
    row of the CTAs that a multicast writes to (16 bits; or -1), then the axes."""
    if several(context, mask):
        return SPREAD
    store64(context + 8 * TRANSFER_SERIAL, load64(context + 8 * TRANSFER_SERIAL) + 1)
    for lane in range(32):
        if mask >> lane & 1 == 0:
            continue
        entry = box_entry(registers, record, lane, context, LOADS, 8)
        if entry < 64:
            return entry
        store64(entry + 8 * TR_PC, load32(record + 4 * (OPERANDS + 6)))
        row = registers + load32(record + 4 * (OPERANDS + 4))
        address = load64(row + 8 * lane) + load32(record + 4 * (OPERANDS + 5))
        home = cta_of(context, address)
        mbarrier = mbarrier_at(context, home, offset_of(address)) if home >= 0 else 0
        if mbarrier == 0:
            return MBARRIER_RULE
        store64(entry + 8 * TR_MBARRIER, mbarrier)
        many = load32(record + 4 * (OPERANDS + 7))
        if many >= 0:
            status = multicast(context, entry, load32((registers + many + 2 * lane) & ~3) >> 16 * (lane & 1) & 0xFFFF)
        else:
            status = announce_load(context, entry, 1, 1)
            if status == 0:
                status = begin_transfer(context, entry)
        if status != 0:
            return status
    return 0


def multicast(context: int, model: int, ranks: int) -> int:
    """A box is copied to the same place of several CTAs, and signals the same mbarrier of each; a status.

    Global memory is read once.
    """
    entry = load64(context + 8 * SCRATCH)  # entries may move while others are added
    copy(entry, model, 8 * TRANSFER_WORDS)
    store64(model + 8 * TR_KIND, LANDED)
    offset = load64(load64(entry + 8 * TR_MBARRIER) + 8 * MB_OFFSET)
    reads = 1
    for rank in range(load64(context + 8 * CTA_COUNT)):
        if ranks >> rank & 1 == 0:
            continue
        mbarrier = mbarrier_at(context, rank, offset)
        if mbarrier == 0 or cta_alive(context, rank) == 0:
            return MBARRIER_RULE
        place = next_entry(context)
        if place == 0:
            return FULL
        copy(place, entry, 8 * TRANSFER_WORDS)
        store64(place + 8 * TR_CTA, rank)
        store64(place + 8 * TR_MBARRIER, mbarrier)
        status = announce_load(context, place, 1, reads)
        if status == 0:
            status = begin_transfer(context, place)
        if status != 0:
            return status
        reads = 0
    return 0


# ---- plain bytes -----------------------------------------------------------------------------------------------------


def bytes_entry(registers: int, record: int, lane: int, context: int, kind: int) -> int:
    """An entry for bytes that a lane copies; 0 if it copies none, or a status below 64 where that is wrong.

    Operands are the row and offset of the address in shared memory, and of that in global memory, the row of the
    number of bytes, and the pc.
    """
    shared = load64(registers + load32(record + 4 * OPERANDS) + 8 * lane) + load32(record + 4 * (OPERANDS + 1))
    begin = load64(registers + load32(record + 4 * (OPERANDS + 2)) + 8 * lane) + load32(record + 4 * (OPERANDS + 3))
    size = load32(registers + load32(record + 4 * (OPERANDS + 4)) + 4 * lane)
    begin = begin - GLOBAL_BASE
    cta, offset = cta_of(context, shared), offset_of(shared)
    if size == 0:
        return 0
    if cta < 0 or size < 0 or (size | offset | begin) & 15 or offset > load64(context + 8 * SHARED_LIMIT) - size:
        return ILLEGAL
    inside = 0
    for k in range(load64(context + 8 * EXTENT_COUNT)):
        extent = load64(context + 8 * EXTENTS) + 16 * k
        if begin >= load64(extent) and begin + size <= load64(extent + 8):
            inside = 1
    if inside == 0 or cta_alive(context, cta) == 0:
        return ILLEGAL
    entry = next_entry(context)
    if entry == 0:
        return FULL
    store64(entry + 8 * TR_KIND, kind)
    store64(entry + 8 * TR_LANE, lane)
    store64(entry + 8 * TR_MAP, 0)
    store64(entry + 8 * TR_CTA, cta)
    store64(entry + 8 * TR_OFFSET, offset)
    store64(entry + 8 * TR_BYTES, size)
    store64(entry + 8 * TR_MBARRIER, 0)
    store64(entry + 8 * TR_SOURCE, 0)
    store64(entry + 8 * TR_STATE, 0)
    store64(entry + 8 * TR_COORDINATES, begin)
    store64(entry + 8 * TR_PC, load32(record + 4 * (OPERANDS + 5)))
    return entry


def load_bytes(registers: int, record: int, mask: int, context: int) -> int:
    """``cp.async.bulk`` to shared memory: operands 6 and 7 are the mbarrier's row and offset."""
    if several(context, mask):
        return SPREAD
    store64(context + 8 * TRANSFER_SERIAL, load64(context + 8 * TRANSFER_SERIAL) + 1)
    for lane in range(32):
        if mask >> lane & 1 == 0:
            continue
        entry = bytes_entry(registers, record, lane, context, LOADS)
        if entry == 0:
            continue
        if entry < 64:
            return entry
        row = registers + load32(record + 4 * (OPERANDS + 6))
        address = load64(row + 8 * lane) + load32(record + 4 * (OPERANDS + 7))
        home = cta_of(context, address)
        mbarrier = mbarrier_at(context, home, offset_of(address)) if home >= 0 else 0
        if mbarrier == 0:
            return MBARRIER_RULE
        store64(entry + 8 * TR_MBARRIER, mbarrier)
        status = announce_load(context, entry, 1, 1)
        if status == 0:
            status = begin_transfer(context, entry)
        if status != 0:
            return status
    return 0


def store_bytes(registers: int, record: int, mask: int, context: int) -> int:
    """``cp.async.bulk`` to global memory."""
    if several(context, mask):
        return SPREAD
    store64(context + 8 * TRANSFER_SERIAL, load64(context + 8 * TRANSFER_SERIAL) + 1)
    for lane in range(32):
        if mask >> lane & 1 == 0:
            continue
        entry = bytes_entry(registers, record, lane, context, STORES)
        if entry == 0:
            continue
        status = begin_store(context, entry, lane) if entry >= 64 else entry
        if status != 0:
            return status
    return 0


def several(context: int, mask: int) -> int:
    """Whether more than one lane issues copies that are counted: their sectors would be counted together."""
    return load64(context + 8 * COUNTING) != 0 and popcount(mask) > 1


def announce_load(context: int, entry: int, proxy: int, reads: int) -> int:
    """What the checks and the counters make of a copy to shared memory when it is issued; a status.

    ``reads`` is whether it reads global memory for itself.
    """
    if load64(entry + 8 * TR_KIND) == LOADS and reads:
        status = global_lines(context, entry, 1)
        if status != 0:
            return status
    if load64(context + 8 * CHECKED) == 0:
        return 0
    warp, mbarrier = load64(entry + 8 * TR_WARP), load64(entry + 8 * TR_MBARRIER)
    if comes_before(context, warp, load64(mbarrier + 8 * MB_TAG)) == 0:
        return RACE
    actor, cta = actor_of(context, mbarrier), load64(entry + 8 * TR_CTA)
    time = copy_issued(context, warp, cta, load64(entry + 8 * TR_OFFSET), load64(entry + 8 * TR_BYTES), actor, proxy)
    store64(entry + 8 * TR_TIME, time)
    return time if time < 64 else 0


def store_words(registers: int, record: int, mask: int, context: int) -> int:
    """``st.async``: operands are the row and offset of the address, of the mbarrier's, bytes of an element, how many of
    them, the pc, and their rows."""
    store64(context + 8 * TRANSFER_SERIAL, load64(context + 8 * TRANSFER_SERIAL) + 1)
    element, many = load32(record + 4 * (OPERANDS + 4)), load32(record + 4 * (OPERANDS + 5))
    size = element * many
    if load64(context + 8 * COUNTING) != 0:
        row, shift = registers + load32(record + 4 * OPERANDS), load32(record + 4 * (OPERANDS + 1))
        places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
        signal = registers + load32(record + 4 * (OPERANDS + 2))
        first = 0
        while mask >> first & 1 == 0:
            first += 1
        for lane in range(32):
            store64(places + 8 * lane, offset_of(load64(row + 8 * lane) + shift))
            if mask >> lane & 1 and offset_of(load64(signal + 8 * lane)) != offset_of(load64(signal + 8 * first)):
                return SPREAD
        count_shared(context, mask, size, load32(record + 4 * (OPERANDS + 6)), 0)
    for lane in range(32):
        if mask >> lane & 1 == 0:
            continue
        address = load64(registers + load32(record + 4 * OPERANDS) + 8 * lane) + load32(record + 4 * (OPERANDS + 1))
        signal = load64(registers + load32(record + 4 * (OPERANDS + 2)) + 8 * lane)
        signal = signal + load32(record + 4 * (OPERANDS + 3))
        cta, offset = cta_of(context, address), offset_of(address)
        if cta < 0 or offset & (size - 1) or offset > load64(context + 8 * SHARED_LIMIT) - size:
            return ILLEGAL
        mbarrier = (
            mbarrier_at(context, cta_of(context, signal), offset_of(signal)) if cta_of(context, signal) >= 0 else 0
        )
        if mbarrier == 0 or cta_of(context, signal) != cta or cta_alive(context, cta) == 0:
            return MBARRIER_RULE
        entry = next_entry(context)
        if entry == 0:
            return FULL
        store64(entry + 8 * TR_KIND, WORDS)
        store64(entry + 8 * TR_LANE, lane)
        store64(entry + 8 * TR_CTA, cta)
        store64(entry + 8 * TR_OFFSET, offset)
        store64(entry + 8 * TR_BYTES, size)
        store64(entry + 8 * TR_MBARRIER, mbarrier)
        store64(entry + 8 * TR_SOURCE, 0)
        store64(entry + 8 * TR_STATE, 0)
        for k in range(many):
            row = registers + load32(record + 4 * (OPERANDS + 7 + k))
            copy(entry + 8 * TR_DATA + element * k, row + element * lane, element)
        status = announce_load(context, entry, 0, 0)
        if status == 0:
            status = begin_transfer(context, entry)
        if status != 0:
            return status
    return 0


def begin_transfer(context: int, entry: int) -> int:
    """A copy to shared memory begins: it lands at once in the early mode, else its destination is poison; a status."""
    if load64(context + 8 * EARLY) != 0:
        return land(context, entry)
    fill(shared_place(context, entry), 0xFF, load64(entry + 8 * TR_BYTES))
    return 0


def shared_place(context: int, entry: int) -> int:
    """Where in this process a copy's shared memory begins."""
    begin = load64(context + 8 * SHARED) + load64(entry + 8 * TR_CTA) * load64(context + 8 * SHARED_STRIDE)
    return begin + load64(entry + 8 * TR_OFFSET)


def store_box(registers: int, record: int, mask: int, context: int) -> int:
    """``cp.async.bulk.tensor`` to global memory: operand 4 is the pc, 5 the number of axes."""
    if several(context, mask):
        return SPREAD
    store64(context + 8 * TRANSFER_SERIAL, load64(context + 8 * TRANSFER_SERIAL) + 1)
    for lane in range(32):
        if mask >> lane & 1 == 0:
            continue
        entry = box_entry(registers, record, lane, context, STORES, 5)
        if entry < 64:
            return entry
        store64(entry + 8 * TR_PC, load32(record + 4 * (OPERANDS + 4)))
        status = begin_store(context, entry, lane)
        if status != 0:
            return status
    return 0


def begin_store(context: int, entry: int, lane: int) -> int:
    """A store joins the current bulk group of its lane, and reads shared memory from now on; a status."""
    groups = load64(context + 8 * CURRENT_STATE) + 8 * BULK_GROUPS
    store64(entry + 8 * TR_GROUP, load32(groups + 4 * lane))
    if load64(context + 8 * CHECKED) != 0:
        warp, cta = load64(entry + 8 * TR_WARP), load64(entry + 8 * TR_CTA)
        twin = warps_of_cluster(context) + warp
        time = operation_time(context, twin)
        store64(entry + 8 * TR_TIME, time)
        offset, size = load64(entry + 8 * TR_OFFSET), load64(entry + 8 * TR_BYTES)
        status = read_range(context, cta, offset, size, warp, twin, time)
        if status != 0:
            return status
    return write_out(context, entry) if load64(context + 8 * EARLY) != 0 else 0


def write_out(context: int, entry: int) -> int:
    """A store writes global memory; a status."""
    status = global_lines(context, entry, 2)
    if status != 0:
        return status
    move_box(context, entry)
    store64(entry + 8 * TR_STATE, load64(entry + 8 * TR_STATE) | WRITTEN_OUT)
    return 0


def capture(context: int, entry: int) -> int:
    """A store reads its box, and writes it later; a status."""
    end, size = load64(context + 8 * CAPTURED_END), load64(entry + 8 * TR_BYTES)
    if end + size > load64(context + 8 * CAPTURED_BYTES):
        end = 0
        for k in range(load64(context + 8 * TRANSFER_FIRST), load64(context + 8 * TRANSFER_COUNT)):
            other = load64(context + 8 * TRANSFERS) + 8 * TRANSFER_WORDS * k
            if load64(other + 8 * TR_KIND) != LANDED and load64(other + 8 * TR_SOURCE) != 0:
                return FULL
    store64(context + 8 * CAPTURED_END, end + size)
    target = load64(context + 8 * CAPTURED) + end
    copy(target, shared_place(context, entry), size)
    store64(entry + 8 * TR_SOURCE, target)
    return 0


def commit_transfers(registers: int, record: int, mask: int, context: int) -> int:
    """``cp.async.bulk.commit_group``: close the current bulk group of each lane."""
    groups = load64(context + 8 * CURRENT_STATE) + 8 * BULK_GROUPS
    for lane in range(32):
        if mask >> lane & 1:
            store32(groups + 4 * lane, load32(groups + 4 * lane) + 1)
    return 0


def wait_for_transfers(registers: int, record: int, mask: int, context: int) -> int:
    """``cp.async.bulk.wait_group``: complete the stores of the active lanes but those of their last groups, as many as
    operand 0 says; or only their reading, by operand 1. A status."""
    keep, reads_only = load32(record + 4 * OPERANDS), load32(record + 4 * (OPERANDS + 1))
    warp = load64(context + 8 * CURRENT)
    groups = load64(context + 8 * CURRENT_STATE) + 8 * BULK_GROUPS
    for k in range(load64(context + 8 * TRANSFER_FIRST), load64(context + 8 * TRANSFER_COUNT)):
        entry = load64(context + 8 * TRANSFERS) + 8 * TRANSFER_WORDS * k
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


def waited_for(context: int, entry: int) -> None:
    """The lane of a store has waited for its reading, or for all of it."""
    state = load64(entry + 8 * TR_STATE)
    if state & WAITED_FOR == 0 and load64(context + 8 * CHECKED) != 0:
        offset, size, warp = load64(entry + 8 * TR_OFFSET), load64(entry + 8 * TR_BYTES), load64(entry + 8 * TR_WARP)
        reads_range_complete(context, load64(entry + 8 * TR_CTA), offset, size)
        completed(context, warp, warps_of_cluster(context) + warp, load64(entry + 8 * TR_TIME))
    store64(entry + 8 * TR_STATE, state | WAITED_FOR)
    if state & WRITTEN_OUT:
        store64(entry + 8 * TR_KIND, LANDED)


def in_flight(entry: int) -> int:
    """Whether a copy has still to land."""
    return load64(entry + 8 * TR_KIND) != LANDED and load64(entry + 8 * TR_STATE) & WRITTEN_OUT == 0


def land_next(context: int) -> int:
    """Nothing else can run: the copies of one instruction land. A status; -1 if there are none."""
    first, count = load64(context + 8 * TRANSFER_FIRST), load64(context + 8 * TRANSFER_COUNT)
    base = load64(context + 8 * TRANSFERS)
    while first < count and load64(base + 8 * (TRANSFER_WORDS * first + TR_KIND)) == LANDED:
        first += 1
    store64(context + 8 * TRANSFER_FIRST, first)
    serial = -1
    newest = load64(context + 8 * ORDER) == BACKWARD
    if load64(context + 8 * ORDER) == DRAWN:
        newest = draw(context, 2) == 1
    for k in range(first, count):
        entry = base + 8 * TRANSFER_WORDS * k
        if in_flight(entry) and (serial < 0 or newest):
            serial = load64(entry + 8 * TR_SERIAL)
    if serial < 0:
        return -1
    for k in range(first, count):
        entry = base + 8 * TRANSFER_WORDS * k
        if in_flight(entry) and load64(entry + 8 * TR_SERIAL) == serial:
            status = land(context, entry)
            if status != 0:
                return status
    return 0


def land(context: int, entry: int) -> int:
    """A copy lands, and if that is in shared memory its mbarrier counts its bytes; a status."""
    if load64(entry + 8 * TR_KIND) == STORES:
        status = write_out(context, entry)
        if load64(entry + 8 * TR_STATE) & WAITED_FOR:
            store64(entry + 8 * TR_KIND, LANDED)
        return status
    if cta_alive(context, load64(entry + 8 * TR_CTA)) == 0:
        return ASYNC
    if load64(entry + 8 * TR_KIND) == WORDS:
        copy(shared_place(context, entry), entry + 8 * TR_DATA, load64(entry + 8 * TR_BYTES))
    else:
        move_box(context, entry)
    store64(entry + 8 * TR_KIND, LANDED)
    if load64(context + 8 * CHECKED) != 0:
        mbarrier = load64(entry + 8 * TR_MBARRIER)
        cta, offset = load64(entry + 8 * TR_CTA), load64(entry + 8 * TR_OFFSET)
        copy_came(context, cta, offset, load64(entry + 8 * TR_BYTES))
        place = vectors_of(context, mbarrier) + 8 * actor_of(context, mbarrier)
        store64(place, max(load64(place), load64(entry + 8 * TR_TIME)))
    return bytes_came(context, load64(entry + 8 * TR_MBARRIER), load64(entry + 8 * TR_BYTES))


def drained(context: int) -> int:
    """All threads have exited: what is in flight lands, and stores that nobody waited for are wrong; a status."""
    status = 0
    while status == 0:
        status = land_next(context)
    if status > 0:
        return status
    for k in range(load64(context + 8 * TRANSFER_FIRST), load64(context + 8 * TRANSFER_COUNT)):
        if load64(load64(context + 8 * TRANSFERS) + 8 * (TRANSFER_WORDS * k + TR_KIND)) != LANDED:
            return ASYNC
    return others_know(context)


# ---- boxes of global memory ------------------------------------------------------------------------------------------


def global_lines(context: int, entry: int, kind: int) -> int:
    """What the checks and the counters make of the lines of a box in global memory, which the warp that issued the copy
    reads (1) or writes (2); a status."""
    checked, counting = load64(context + 8 * CHECKED), load64(context + 8 * COUNTING)
    if (checked | counting) == 0:
        return 0
    store64(context + 8 * CURRENT, load64(entry + 8 * TR_WARP))
    store64(context + 8 * CURRENT_CTA, load64(entry + 8 * TR_LINEAR))
    tensor = load64(entry + 8 * TR_MAP)
    if tensor == 0:
        begin = load64(entry + 8 * TR_COORDINATES)
        end = begin + load64(entry + 8 * TR_BYTES)
        count_sectors(context, begin, end, kind)
        add_sectors(context, entry, (end - 1) // SECTOR - begin // SECTOR + 1, end - begin)
        return touch_line(context, begin, end, kind) if checked else 0
    if counting and nested(tensor) == 0:
        return TENSOR_MAP
    axes, item = load64(tensor + 8 * MAP_AXES), load64(tensor + 8 * MAP_ITEM)
    lines = load64(tensor + 8 * MAP_BYTES) // (load64(tensor + 8 * MAP_COUNTS) * item)
    across = load64(entry + 8 * TR_COORDINATES)
    low = max(across, 0)
    high = min(across + load64(tensor + 8 * MAP_COUNTS), load64(tensor + 8 * MAP_DIMS))
    last = -1
    sectors = 0
    total = 0
    for line in range(lines if low < high else 0):
        outer = line_begin(tensor, entry, axes, line)
        if outer < 0:
            continue
        outer += load64(tensor + 8 * MAP_BEGIN)
        begin, end = outer + low * item, outer + high * item
        status = touch_line(context, begin, end, kind) if checked else 0
        if status != 0:
            return status
        total += end - begin
        sectors += max(0, (end - 1) // SECTOR - max(begin // SECTOR, last + 1) + 1)
        last = max(last, (end - 1) // SECTOR)
        count_sectors(context, begin, end, kind)
    add_sectors(context, entry, sectors, total)
    return 0


def count_sectors(context: int, begin: int, end: int, kind: int) -> None:
    """The sectors of a stretch of global memory are read (1) or written (2) at all."""
    if load64(context + 8 * COUNTING) != 0:
        touched = load64(context + 8 * TOUCHED) + (load64(context + 8 * TOUCHED_BYTES) if kind == 2 else 0)
        fill(touched + begin // SECTOR, 1, (end - 1) // SECTOR - begin // SECTOR + 1)


def add_sectors(context: int, entry: int, sectors: int, total: int) -> None:
    """A copy took so many sectors, for that many bytes."""
    if load64(context + 8 * COUNTING) != 0:
        place = load64(context + 8 * SECTORS) + 16 * load64(entry + 8 * TR_PC)
        store64(place, load64(place) + sectors)
        store64(place + 8, load64(place + 8) + (total + SECTOR - 1) // SECTOR)


def line_begin(tensor: int, entry: int, axes: int, line: int) -> int:
    """Where a line of a box begins, but for its innermost coordinate, in bytes of the tensor; -1 if it is outside."""
    rest = line
    source = 0
    for axis in range(1, axes):
        count = load64(tensor + 8 * (MAP_COUNTS + axis))
        step = load64(tensor + 8 * (MAP_STEPS + axis))
        place = load64(entry + 8 * (TR_COORDINATES + axis)) + step * (rest % count)
        rest = rest // count
        if place < 0 or place >= load64(tensor + 8 * (MAP_DIMS + axis)):
            return -1
        source += place * load64(tensor + 8 * (MAP_STRIDES + axis))
    return source


def nested(tensor: int) -> int:
    """Whether the lines of a box lie one behind the other, so that their sectors are counted without a look back."""
    reach = load64(tensor + 8 * MAP_COUNTS) * load64(tensor + 8 * MAP_ITEM)
    for axis in range(1, load64(tensor + 8 * MAP_AXES)):
        count = load64(tensor + 8 * (MAP_COUNTS + axis))
        stride = load64(tensor + 8 * (MAP_STEPS + axis)) * load64(tensor + 8 * (MAP_STRIDES + axis))
        if count > 1:
            if stride < reach:
                return 0
            reach += (count - 1) * stride
    return 1


def touch_line(context: int, begin: int, end: int, kind: int) -> int:
    """The current warp reads (1) or writes (2) a stretch of global memory; a status."""
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    width = min(16, (begin | end) & -(begin | end))
    at = begin
    while at < end:
        many = 0
        while many < 32 and at < end:
            store64(places + 8 * many, at)
            at += width
            many += 1
        mask = (1 << many) - 1
        if kind == 1:
            status = read_global(context, mask, EVERY_LANE, width)
        else:
            status = write_global(context, mask, EVERY_LANE, width)
        if status != 0:
            return status
    return 0


def move_box(context: int, entry: int) -> None:
    """Copy a box line by line, in either direction: 16-byte chunks of shared memory in the order of the swizzle. Plain
    bytes are one line."""
    tensor = load64(entry + 8 * TR_MAP)
    loads = load64(entry + 8 * TR_KIND) == LOADS
    if tensor == 0:
        origin = load64(entry + 8 * TR_SOURCE) if load64(entry + 8 * TR_SOURCE) != 0 else shared_place(context, entry)
        far = load64(context + 8 * GLOBAL) + load64(entry + 8 * TR_COORDINATES)
        if loads:
            copy(origin, far, load64(entry + 8 * TR_BYTES))
        else:
            copy(far, origin, load64(entry + 8 * TR_BYTES))
        return
    axes, item, swizzle = load64(tensor + 8 * MAP_AXES), load64(tensor + 8 * MAP_ITEM), load64(tensor + 8 * MAP_SWIZZLE)
    inner = load64(tensor + 8 * MAP_COUNTS) * item
    lines = load64(tensor + 8 * MAP_BYTES) // inner
    offset = load64(entry + 8 * TR_OFFSET)
    begin = shared_place(context, entry) - offset
    if load64(entry + 8 * TR_SOURCE) != 0:
        begin = load64(entry + 8 * TR_SOURCE) - offset
    base = load64(context + 8 * GLOBAL) + load64(tensor + 8 * MAP_BEGIN)
    across = load64(entry + 8 * TR_COORDINATES)
    limit = load64(tensor + 8 * MAP_DIMS)
    for line in range(lines):
        outer = line_begin(tensor, entry, axes, line)
        exists = outer >= 0
        source = base + across * item + outer
        for chunk in range(inner // 16):
            spot = offset + line * inner + 16 * chunk
            target = (spot ^ (spot >> 7 & swizzle) << 4) + begin
            first = across + 16 * chunk // item
            if exists and first >= 0 and first + 16 // item <= limit:
                if loads:
                    copy(target, source + 16 * chunk, 16)
                else:
                    copy(source + 16 * chunk, target, 16)
                continue
            for k in range(16 // item):
                inside = exists and first + k >= 0 and first + k < limit
                if loads and not inside:
                    copy(target + item * k, tensor + 8 * MAP_FILL, item)
                elif loads:
                    copy(target + item * k, source + 16 * chunk + item * k, item)
                elif inside:
                    copy(source + 16 * chunk + item * k, target + item * k, item)
