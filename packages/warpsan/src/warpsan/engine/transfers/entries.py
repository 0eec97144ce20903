"""Bulk copies in flight, one entry each: machine code (:mod:`~warpsan.engine.translate`)."""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.layout import (
    COPY_COORDINATES,
    COPY_FAR,
    COPY_MANY,
    COPY_SHARED,
    FULL,
    ILLEGAL,
    IN_GLOBAL,
    LANDED,
    MAP_AXES,
    MAP_BYTES,
    MAP_RAW,
    MAP_SWIZZLE,
    MAP_WORDS,
    RAW_WORDS,
    TENSOR_MAP,
    WITHIN,
)
from warpsan.engine.mbarriers import cta_alive, cta_of, offset_of
from warpsan.engine.memory import MbarrierState, Record, TransferEntry
from warpsan.engine.suspects import broken_rule, suspect
from warpsan.engine.trace import trace_global
from warpsan.engine.words import call_operation, copy, load32, load64
from warpsan.host.memory import GLOBAL_BASE

__all__ = ["box_entry", "bytes_entry", "lane_address", "new_entry", "next_entry", "origin_place", "shared_place"]


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
    entry.linear_cta = context.current_cta
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
    return entry.address


def within_extent(context: Context, begin: int, size: int) -> int:
    """Whether so many bytes of global memory lie in one buffer."""
    for k in range(context.extent_count):
        extent = context.extents.at(2 * k)
        if begin >= extent[0] and begin + size <= extent[1]:
            return 1
    return 0


def lane_address(registers: int, record: Record, operand: int, lane: int) -> int:
    """A lane's address: the row of a record's operand, plus the offset in the next operand."""
    row = registers + record.operands[operand]
    return load64(row + 8 * lane) + record.operands[operand + 1]


def written_in_launch(context: Context, first: int, last: int) -> int:
    """A tensor map is read at bytes of global memory. Returns 0 if no warp has written there (with the race check),
    or if that has been noted; otherwise a status, because a fence between the proxies may be missing."""
    writers, strong = context.global_writers, context.global_strong
    shift = context.global_shift
    for granule in range(first >> shift, (last >> shift) + 1 if writers != 0 else 0):
        written = writers[granule] != 0
        if written or (strong != 0 and strong[granule] != 0):
            status = suspect(context, IN_GLOBAL, granule, TENSOR_MAP)
            if status != 0:
                return status
    return 0


def tensor_map_at(context: Context, address: int) -> int:
    """The tensor map at a generic address; 0 if there is none, or a status below 64.

    Maps of the launch's arguments are known; Python reads others, which a kernel has changed, and keeps them.
    """
    offset = address - GLOBAL_BASE
    if offset & 63:
        return 0
    if within_extent(context, offset, 128) == 0:
        return 0
    if context.trace != 0:
        trace_global(context, offset, offset + 128)
    status = written_in_launch(context, offset, offset + 127)
    if status != 0:
        return status
    place = context.arena + offset
    for number in range(context.tensor_map_count):
        tensor = context.tensor_maps + 8 * MAP_WORDS * number
        same = 0
        while same < RAW_WORDS and load64(place + 8 * same) == load64(tensor + 8 * (MAP_RAW + same)):
            same += 1
        if same == RAW_WORDS:
            return tensor
    return call_operation(context.read_map, place, 0, 0, context)


def box_entry(registers: int, record: Record, lane: int, context: Context, kind: int) -> int:
    """An entry for a box that a lane copies; for a fault, 0 if it has been noted, or a status below 64."""
    shared = lane_address(registers, record, COPY_SHARED, lane)
    tensor = tensor_map_at(context, lane_address(registers, record, COPY_FAR, lane))
    axes = record.operands[COPY_MANY]
    if tensor == 0:
        return broken_rule(context, TENSOR_MAP)
    if tensor < 64:
        return tensor
    if load64(tensor + 8 * MAP_AXES) != axes:
        return broken_rule(context, TENSOR_MAP)
    cta, offset = cta_of(context, shared), offset_of(shared)
    size = load64(tensor + 8 * MAP_BYTES)
    if cta < 0 or offset & 127 or offset > context.shared_limit - size:
        return broken_rule(context, ILLEGAL)
    status = reaches_exited(context, cta)
    if status != 0:
        return status
    if load64(tensor + 8 * MAP_SWIZZLE) != 0 and size & 127:
        return TENSOR_MAP
    place = new_entry(context, kind, lane, cta, offset, size)
    if place < 64:
        return place
    entry = TransferEntry(place)
    entry.tensor_map = tensor
    for k in range(axes):
        row = registers + record.operands[COPY_COORDINATES + k]
        entry.coordinates[k] = load32(row + 4 * lane)
    return place


def reaches_exited(context: Context, cta: int) -> int:
    """Whether a copy uses the shared memory of a CTA that has exited; it continues if that has been noted. Returns a
    status."""
    return broken_rule(context, ILLEGAL) if cta_alive(context, cta) == 0 else 0


def bytes_entry(registers: int, record: Record, lane: int, context: Context, kind: int) -> int:
    """An entry for bytes that a lane copies; 0 if it copies none; for a fault, as :func:`box_entry`."""
    shared = lane_address(registers, record, COPY_SHARED, lane)
    far = lane_address(registers, record, COPY_FAR, lane)
    begin = far if kind == WITHIN else far - GLOBAL_BASE
    size = load32(registers + record.operands[COPY_MANY] + 4 * lane)
    cta, offset = cta_of(context, shared), offset_of(shared)
    if size == 0:
        return 0
    limit = context.shared_limit - size
    legal = cta >= 0 and size > 0 and (size | offset | begin) & 15 == 0 and offset <= limit
    if kind == WITHIN:
        legal = legal and begin >= 0 and begin <= limit
    else:
        legal = legal and within_extent(context, begin, size) != 0
    if legal == 0:
        return broken_rule(context, ILLEGAL)
    status = reaches_exited(context, cta)
    if status != 0:
        return status
    place = new_entry(context, kind, lane, cta, offset, size)
    if place < 64:
        return place
    entry = TransferEntry(place)
    entry.tensor_map = 0
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
