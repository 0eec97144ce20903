"""Bulk copies in flight, one entry each: machine code (:mod:`~warpsan.engine.translate`)."""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.hazards import add_hazard, hazard_row
from warpsan.engine.layout import (
    COPY_COORDINATES,
    COPY_FAR,
    COPY_MANY,
    COPY_PC,
    COPY_SHARED,
    FULL,
    LANDED,
    LEFT_OUT,
    LOADS,
    NO_MAP_BOX,
    RAW_WORDS,
    STORES,
    TOGETHER,
    UNMODELLED,
    WITHIN,
)
from warpsan.engine.map_fences import check_map
from warpsan.engine.memory import MapWords, MbarrierState, Record, TransferEntry
from warpsan.engine.rules import AXES_DIFFER, NO_TENSOR_MAP, NOT_IN_CHUNKS
from warpsan.engine.suspects import is_status
from warpsan.engine.unit_addresses import check_global, check_shared, cta_of, offset_of
from warpsan.engine.words import call_operation, copy, load32, load64
from warpsan.host.memory import GLOBAL_BASE

__all__ = [
    "box_entry",
    "bytes_entry",
    "lane_address",
    "lanes_alike",
    "new_entry",
    "next_entry",
    "next_serial",
    "origin_place",
    "shared_place",
]


def next_serial(context: Context) -> int:
    """The number of an instruction's copies: in lockstep, that of the turn in which all warps execute it."""
    return context.turn if context.order == TOGETHER else context.transfer_serial + 1


def next_entry(context: Context) -> TransferEntry:
    """Allocate another entry; 0 if there is no space. Landed entries are dropped."""
    count, room = context.transfer_count, context.transfer_room
    base = context.transfers
    if count == room:
        left = 0
        for k in range(context.transfer_first, count):
            entry = base[k]
            if entry.kind != LANDED:
                copy(base[left], entry, TransferEntry.byte_size)
                left += 1
        context.transfer_first = 0
        count = left
        if count == room:
            return TransferEntry(0)
    context.transfer_count = count + 1
    entry = base[count]
    entry.serial = context.transfer_serial
    entry.warp = context.current
    return entry


def new_entry(context: Context, kind: int, lane: int, cta: int, offset: int, size: int) -> int:
    """An entry for a lane's copy of so many bytes, from an offset of a CTA's shared memory on; a status below 64 if
    there is no space."""
    entry = next_entry(context)
    if entry == 0:
        return FULL
    entry.kind = kind
    entry.lane = lane
    entry.cta = cta
    entry.offset = offset
    entry.bytes = size
    entry.mbarrier = MbarrierState(0)
    entry.source = 0
    entry.state = 0
    entry.combine = 0
    entry.alike = 1 << lane
    return entry.address


def lane_address(registers: int, record: Record, operand: int, lane: int) -> int:
    """A lane's address: the row of a record's operand, plus the offset in the next operand."""
    row = registers + record.operands[operand]
    return load64(row + 8 * lane) + record.operands[operand + 1]


def lanes_alike(registers: int, record: Record, mask: int, lane: int, boxes: int) -> int:
    """The lanes of a mask whose copy has the operands of a lane's, as bits: their stores write equal bytes."""
    alike, axes = 0, record.operands[COPY_MANY]
    for other in range(32):
        if mask >> other & 1 == 0:
            continue
        same = lane_address(registers, record, COPY_SHARED, other) == lane_address(
            registers, record, COPY_SHARED, lane
        ) and lane_address(registers, record, COPY_FAR, other) == lane_address(registers, record, COPY_FAR, lane)
        for k in range(axes if boxes else 1):
            row = registers + (record.operands[COPY_COORDINATES + k] if boxes else axes)
            if load32(row + 4 * other) != load32(row + 4 * lane):
                same = False
        if same:
            alike |= 1 << other
    return alike


def tensor_map_at(context: Context, lane: int, address: int) -> int:
    """The tensor map at a lane's generic address; below 64 if there is none, as in :mod:`~..unit_addresses`.

    Maps of the launch's arguments are known; Python reads others, which a kernel has changed, and keeps them.
    """
    offset = address - GLOBAL_BASE
    status = check_global(context, lane, offset, 128, 64)
    if status != 0:
        return status
    status = check_map(context, lane, offset, offset + 128)
    if status != 0:
        return status
    place = context.arena + offset
    for number in range(context.tensor_map_count):
        tensor = context.tensor_maps[number]
        same = 0
        while same < RAW_WORDS and load64(place + 8 * same) == tensor.raw[same]:
            same += 1
        if same == RAW_WORDS:
            return tensor.address
    read = call_operation(context.read_map, place, 0, 0, context)
    return read if read != 0 else break_map_rule(context, lane, NO_TENSOR_MAP, offset, 0, 0)


def break_map_rule(context: Context, lane: int, rule: int, offset: int, expected: int, actual: int) -> int:
    """A lane uses a wrong tensor map, at an offset of global memory. Returns ``LEFT_OUT``, or a status."""
    row = hazard_row(context, context.current_record, rule, 1 << lane)
    row.offset = offset
    row.expected = expected
    row.actual = actual
    status = add_hazard(context, row)
    return status if status != 0 else LEFT_OUT


def box_entry(registers: int, record: Record, lane: int, context: Context, kind: int) -> int:
    """An entry for a box that a lane copies; below 64 if there is none, as in :mod:`~..unit_addresses`."""
    shared = lane_address(registers, record, COPY_SHARED, lane)
    map_address = lane_address(registers, record, COPY_FAR, lane)
    place = tensor_map_at(context, lane, map_address)
    axes = record.operands[COPY_MANY]
    if is_status(place):
        return place
    tensor = MapWords(place)
    if tensor.axes != axes:
        return break_map_rule(context, lane, AXES_DIFFER, map_address - GLOBAL_BASE, axes, tensor.axes)
    size = tensor.box_bytes
    status = check_shared(context, lane, shared, size, 128)
    if status != 0:
        return status
    if tensor.swizzle != 0 and size & 127:
        context.ended_by = record.operands[COPY_PC]
        context.end_number = NO_MAP_BOX
        return UNMODELLED
    place = new_entry(context, kind, lane, cta_of(context, shared), offset_of(shared), size)
    if is_status(place):
        return place
    entry = TransferEntry(place)
    entry.tensor_map = tensor
    for k in range(axes):
        row = registers + record.operands[COPY_COORDINATES + k]
        entry.coordinates[k] = load32(row + 4 * lane)
    return place


def bytes_entry(registers: int, record: Record, lane: int, context: Context, kind: int) -> int:
    """An entry for bytes that a lane copies; below 64 if there is none, as in :mod:`~..unit_addresses`: 0 if it copies
    no bytes."""
    shared = lane_address(registers, record, COPY_SHARED, lane)
    far = lane_address(registers, record, COPY_FAR, lane)
    begin = far if kind == WITHIN else far - GLOBAL_BASE
    size = load32(registers + record.operands[COPY_MANY] + 4 * lane) & 0xFFFFFFFF
    if size == 0:
        return 0
    if size & 15:
        row = hazard_row(context, context.current_record, NOT_IN_CHUNKS, 1 << lane)
        row.actual = size
        status = add_hazard(context, row)
        return status if status != 0 else LEFT_OUT
    status = check_global(context, lane, begin, size, 16) if kind == STORES else 0
    if status == 0:
        status = check_shared(context, lane, shared, size, 16)
    if status == 0 and kind == LOADS:
        status = check_global(context, lane, begin, size, 16)
    if status == 0 and kind == WITHIN:
        status = check_shared(context, lane, begin, size, 16)
    if status != 0:
        return status
    place = new_entry(context, kind, lane, cta_of(context, shared), offset_of(shared), size)
    if is_status(place):
        return place
    entry = TransferEntry(place)
    entry.tensor_map = MapWords(0)
    entry.coordinates[0] = begin
    if kind == WITHIN:
        entry.coordinates[1] = context.current_warp.cta
    return place


def shared_place(context: Context, entry: TransferEntry) -> int:
    """The address of a copy's shared memory in this process."""
    begin = context.shared + entry.cta * context.shared_stride
    return begin + entry.offset


def origin_place(context: Context, entry: TransferEntry) -> int:
    """The address in this process of the shared memory that a copy within the cluster reads."""
    begin = context.shared + entry.coordinates[1] * context.shared_stride
    return begin + entry.coordinates[0]
