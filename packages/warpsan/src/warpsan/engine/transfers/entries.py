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
    OPERANDS,
    RAW_WORDS,
    TENSOR_MAP,
    TR_BYTES,
    TR_COMBINE,
    TR_COORDINATES,
    TR_CTA,
    TR_KIND,
    TR_LANE,
    TR_LINEAR,
    TR_MAP,
    TR_MBARRIER,
    TR_OFFSET,
    TR_ORIGIN,
    TR_ORIGIN_CTA,
    TR_SERIAL,
    TR_SOURCE,
    TR_STATE,
    TR_WARP,
    TRANSFER_WORDS,
    WARP_CTA,
    WITHIN,
)
from warpsan.engine.mbarriers import cta_alive, cta_of, offset_of
from warpsan.engine.suspects import broken_rule, suspect
from warpsan.engine.trace import trace_global
from warpsan.engine.words import call_operation, copy, load32, load64, store64
from warpsan.host.memory import GLOBAL_BASE

__all__ = ["box_entry", "bytes_entry", "lane_address", "new_entry", "next_entry", "origin_place", "shared_place"]


def next_entry(context: Context) -> int:
    """Allocate another entry; 0 if there is no space. Landed entries are dropped."""
    count, room = context.transfer_count, context.transfer_room
    base = context.transfers
    if count == room:
        left = 0
        for k in range(context.transfer_first, count):
            entry = base + 8 * TRANSFER_WORDS * k
            if load64(entry + 8 * TR_KIND) != LANDED:
                copy(base + 8 * TRANSFER_WORDS * left, entry, 8 * TRANSFER_WORDS)
                left += 1
        context.transfer_first = 0
        count = left
        if count == room:
            return 0
    context.transfer_count = count + 1
    entry = base + 8 * TRANSFER_WORDS * count
    store64(entry + 8 * TR_SERIAL, context.transfer_serial)
    store64(entry + 8 * TR_WARP, context.current)
    store64(entry + 8 * TR_LINEAR, context.current_cta)
    return entry


def new_entry(context: Context, kind: int, lane: int, cta: int, offset: int, size: int) -> int:
    """An entry for a lane's copy of so many bytes, from an offset of a CTA's shared memory on; a status below 64 if
    there is no space."""
    entry = next_entry(context)
    if entry == 0:
        return FULL
    store64(entry + 8 * TR_KIND, kind)
    store64(entry + 8 * TR_LANE, lane)
    store64(entry + 8 * TR_CTA, cta)
    store64(entry + 8 * TR_OFFSET, offset)
    store64(entry + 8 * TR_BYTES, size)
    store64(entry + 8 * TR_MBARRIER, 0)
    store64(entry + 8 * TR_SOURCE, 0)
    store64(entry + 8 * TR_STATE, 0)
    store64(entry + 8 * TR_COMBINE, 0)
    return entry


def within_extent(context: Context, begin: int, size: int) -> int:
    """Whether so many bytes of global memory lie in one buffer."""
    for k in range(context.extent_count):
        extent = context.extents.at(2 * k)
        if begin >= extent[0] and begin + size <= extent[1]:
            return 1
    return 0


def lane_address(registers: int, record: int, operand: int, lane: int) -> int:
    """A lane's address: the row of a record's operand, plus the offset in the next operand."""
    row = registers + load32(record + 4 * (OPERANDS + operand))
    return load64(row + 8 * lane) + load32(record + 4 * (OPERANDS + operand + 1))


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


def box_entry(registers: int, record: int, lane: int, context: Context, kind: int) -> int:
    """An entry for a box that a lane copies; for a fault, 0 if it has been noted, or a status below 64."""
    shared = lane_address(registers, record, COPY_SHARED, lane)
    tensor = tensor_map_at(context, lane_address(registers, record, COPY_FAR, lane))
    axes = load32(record + 4 * (OPERANDS + COPY_MANY))
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
    entry = new_entry(context, kind, lane, cta, offset, size)
    if entry < 64:
        return entry
    store64(entry + 8 * TR_MAP, tensor)
    for k in range(axes):
        row = registers + load32(record + 4 * (OPERANDS + COPY_COORDINATES + k))
        store64(entry + 8 * (TR_COORDINATES + k), load32(row + 4 * lane))
    return entry


def reaches_exited(context: Context, cta: int) -> int:
    """Whether a copy uses the shared memory of a CTA that has exited; it continues if that has been noted. Returns a
    status."""
    return broken_rule(context, ILLEGAL) if cta_alive(context, cta) == 0 else 0


def bytes_entry(registers: int, record: int, lane: int, context: Context, kind: int) -> int:
    """An entry for bytes that a lane copies; 0 if it copies none; for a fault, as :func:`box_entry`."""
    shared = lane_address(registers, record, COPY_SHARED, lane)
    far = lane_address(registers, record, COPY_FAR, lane)
    begin = far if kind == WITHIN else far - GLOBAL_BASE
    size = load32(registers + load32(record + 4 * (OPERANDS + COPY_MANY)) + 4 * lane)
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
    entry = new_entry(context, kind, lane, cta, offset, size)
    if entry < 64:
        return entry
    store64(entry + 8 * TR_MAP, 0)
    store64(entry + 8 * TR_COORDINATES, begin)
    if kind == WITHIN:
        store64(entry + 8 * TR_ORIGIN_CTA, load64(context.current_state + 8 * WARP_CTA))
    return entry


def shared_place(context: Context, entry: int) -> int:
    """The address of a copy's shared memory in this process."""
    begin = context.shared + load64(entry + 8 * TR_CTA) * context.shared_stride
    return begin + load64(entry + 8 * TR_OFFSET)


def origin_place(context: Context, entry: int) -> int:
    """The address in this process of the shared memory that a copy within the cluster reads."""
    begin = context.shared + load64(entry + 8 * TR_ORIGIN_CTA) * context.shared_stride
    return begin + load64(entry + 8 * TR_ORIGIN)
