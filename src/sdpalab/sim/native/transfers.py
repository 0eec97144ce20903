"""Bulk copies in flight, their groups and waits: machine code (:mod:`~sdpalab.sim.native.translate`).

The rules are those of :mod:`sdpalab.sim.bulk_copies` and :mod:`~sdpalab.sim.tensor_map`. Loads land when nothing else
can run, the oldest first; stores when their lane waits for them.
"""

from __future__ import annotations

from sdpalab.sim.memory import GLOBAL_BASE
from sdpalab.sim.native.layout import (
    ASYNC,
    BULK_GROUPS,
    CURRENT,
    CURRENT_STATE,
    EARLY,
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
    MBARRIER_RULE,
    MOST_TRANSFERS,
    OPERANDS,
    ORDER,
    RAW_WORDS,
    SHARED,
    SHARED_LIMIT,
    SHARED_STRIDE,
    STORES,
    TENSOR_MAP,
    TENSOR_MAP_COUNT,
    TENSOR_MAPS,
    TR_BYTES,
    TR_COORDINATES,
    TR_CTA,
    TR_DATA,
    TR_GROUP,
    TR_KIND,
    TR_LANE,
    TR_MAP,
    TR_MBARRIER,
    TR_OFFSET,
    TR_SERIAL,
    TR_WARP,
    TRANSFER_COUNT,
    TRANSFER_FIRST,
    TRANSFER_SERIAL,
    TRANSFER_WORDS,
    TRANSFERS,
    WORDS,
)
from sdpalab.sim.native.mbarriers import bytes_came, cta_alive, cta_of, mbarrier_at, offset_of
from sdpalab.sim.native.words import copy, fill, load32, load64, store32, store64

__all__ = ["commit_transfers", "drained", "land_next", "load_box", "store_box", "store_words", "wait_for_transfers"]


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
    for k in range(axes):
        row = registers + load32(record + 4 * (OPERANDS + rank_operand + 1 + k))
        store64(entry + 8 * (TR_COORDINATES + k), load32(row + 4 * lane))
    return entry


def load_box(registers: int, record: int, mask: int, context: int) -> int:
    """``cp.async.bulk.tensor`` to shared memory: operands 4 and 5 are the mbarrier's row and offset, then the axes."""
    store64(context + 8 * TRANSFER_SERIAL, load64(context + 8 * TRANSFER_SERIAL) + 1)
    for lane in range(32):
        if mask >> lane & 1 == 0:
            continue
        entry = box_entry(registers, record, lane, context, LOADS, 6)
        if entry < 64:
            return entry
        row = registers + load32(record + 4 * (OPERANDS + 4))
        address = load64(row + 8 * lane) + load32(record + 4 * (OPERANDS + 5))
        home = cta_of(context, address)
        mbarrier = mbarrier_at(context, home, offset_of(address)) if home >= 0 else 0
        if mbarrier == 0:
            return MBARRIER_RULE
        store64(entry + 8 * TR_MBARRIER, mbarrier)
        status = begin_transfer(context, entry)
        if status != 0:
            return status
    return 0


def store_words(registers: int, record: int, mask: int, context: int) -> int:
    """``st.async``: operands are the row and offset of the address, of the mbarrier's, bytes of an element, how many of
    them, and their rows."""
    store64(context + 8 * TRANSFER_SERIAL, load64(context + 8 * TRANSFER_SERIAL) + 1)
    element, many = load32(record + 4 * (OPERANDS + 4)), load32(record + 4 * (OPERANDS + 5))
    size = element * many
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
        for k in range(many):
            row = registers + load32(record + 4 * (OPERANDS + 6 + k))
            copy(entry + 8 * TR_DATA + element * k, row + element * lane, element)
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
    """``cp.async.bulk.tensor`` to global memory: operand 4 is the number of axes."""
    state = load64(context + 8 * CURRENT_STATE)
    store64(context + 8 * TRANSFER_SERIAL, load64(context + 8 * TRANSFER_SERIAL) + 1)
    for lane in range(32):
        if mask >> lane & 1 == 0:
            continue
        entry = box_entry(registers, record, lane, context, STORES, 4)
        if entry < 64:
            return entry
        store64(entry + 8 * TR_GROUP, load32(state + 8 * BULK_GROUPS + 4 * lane))
        if load64(context + 8 * EARLY) != 0:
            move_box(context, entry)
    return 0


def commit_transfers(registers: int, record: int, mask: int, context: int) -> int:
    """``cp.async.bulk.commit_group``: close the current bulk group of each lane."""
    groups = load64(context + 8 * CURRENT_STATE) + 8 * BULK_GROUPS
    for lane in range(32):
        if mask >> lane & 1:
            store32(groups + 4 * lane, load32(groups + 4 * lane) + 1)
    return 0


def wait_for_transfers(registers: int, record: int, mask: int, context: int) -> int:
    """``cp.async.bulk.wait_group``: complete the stores of the active lanes but those of their last groups."""
    keep = load32(record + 4 * OPERANDS)
    groups = load64(context + 8 * CURRENT_STATE) + 8 * BULK_GROUPS
    for k in range(load64(context + 8 * TRANSFER_FIRST), load64(context + 8 * TRANSFER_COUNT)):
        entry = load64(context + 8 * TRANSFERS) + 8 * TRANSFER_WORDS * k
        if load64(entry + 8 * TR_KIND) != STORES or load64(entry + 8 * TR_WARP) != load64(context + 8 * CURRENT):
            continue
        lane = load64(entry + 8 * TR_LANE)
        if mask >> lane & 1 and load64(entry + 8 * TR_GROUP) < load32(groups + 4 * lane) - keep:
            if load64(context + 8 * EARLY) == 0:
                move_box(context, entry)
            store64(entry + 8 * TR_KIND, LANDED)
    return 0


def land_next(context: int) -> int:
    """Nothing else can run: the copies of one instruction to shared memory land. A status; -1 if there are none."""
    first, count = load64(context + 8 * TRANSFER_FIRST), load64(context + 8 * TRANSFER_COUNT)
    base = load64(context + 8 * TRANSFERS)
    while first < count:
        kind = load64(base + 8 * (TRANSFER_WORDS * first + TR_KIND))
        if kind != LANDED:
            break
        first += 1
    store64(context + 8 * TRANSFER_FIRST, first)
    serial = -1
    newest = load64(context + 8 * ORDER) == 1
    for k in range(first, count):
        entry = base + 8 * TRANSFER_WORDS * k
        kind = load64(entry + 8 * TR_KIND)
        if kind in (LOADS, WORDS) and (serial < 0 or newest):
            serial = load64(entry + 8 * TR_SERIAL)
    if serial < 0:
        return -1
    for k in range(first, count):
        entry = base + 8 * TRANSFER_WORDS * k
        kind = load64(entry + 8 * TR_KIND)
        if kind in (LOADS, WORDS) and load64(entry + 8 * TR_SERIAL) == serial:
            status = land(context, entry)
            if status != 0:
                return status
    return 0


def land(context: int, entry: int) -> int:
    """A copy lands in shared memory, and its mbarrier counts its bytes; a status."""
    if cta_alive(context, load64(entry + 8 * TR_CTA)) == 0:
        return ASYNC
    if load64(entry + 8 * TR_KIND) == WORDS:
        copy(shared_place(context, entry), entry + 8 * TR_DATA, load64(entry + 8 * TR_BYTES))
    else:
        move_box(context, entry)
    store64(entry + 8 * TR_KIND, LANDED)
    return bytes_came(context, load64(entry + 8 * TR_MBARRIER), load64(entry + 8 * TR_BYTES))


def drained(context: int) -> int:
    """All threads have exited: stores that nobody waited for are wrong; a status."""
    for k in range(load64(context + 8 * TRANSFER_FIRST), load64(context + 8 * TRANSFER_COUNT)):
        if load64(load64(context + 8 * TRANSFERS) + 8 * (TRANSFER_WORDS * k + TR_KIND)) != LANDED:
            return ASYNC
    return 0


def move_box(context: int, entry: int) -> None:
    """Copy a box line by line, in either direction: 16-byte chunks of shared memory in the order of the swizzle."""
    tensor = load64(entry + 8 * TR_MAP)
    loads = load64(entry + 8 * TR_KIND) == LOADS
    axes, item, swizzle = load64(tensor + 8 * MAP_AXES), load64(tensor + 8 * MAP_ITEM), load64(tensor + 8 * MAP_SWIZZLE)
    inner = load64(tensor + 8 * MAP_COUNTS) * item
    lines = load64(tensor + 8 * MAP_BYTES) // inner
    begin = load64(context + 8 * SHARED) + load64(entry + 8 * TR_CTA) * load64(context + 8 * SHARED_STRIDE)
    offset = load64(entry + 8 * TR_OFFSET)
    base = load64(context + 8 * GLOBAL) + load64(tensor + 8 * MAP_BEGIN)
    across = load64(entry + 8 * TR_COORDINATES)
    limit = load64(tensor + 8 * MAP_DIMS)
    for line in range(lines):
        rest = line
        source = base + across * item
        exists = 1
        for axis in range(1, axes):
            count = load64(tensor + 8 * (MAP_COUNTS + axis))
            step = load64(tensor + 8 * (MAP_STEPS + axis))
            place = load64(entry + 8 * (TR_COORDINATES + axis)) + step * (rest % count)
            rest = rest // count
            if place < 0 or place >= load64(tensor + 8 * (MAP_DIMS + axis)):
                exists = 0
            source += place * load64(tensor + 8 * (MAP_STRIDES + axis))
        for chunk in range(inner // 16):
            spot = offset + line * inner + 16 * chunk
            target = begin + (spot ^ (spot >> 7 & swizzle) << 4)
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
