"""Bulk copies in flight, one entry each: machine code (:mod:`~warpsan.engine.translate`)."""

from __future__ import annotations

from warpsan.engine.layout import (
    COPY_COORDINATES,
    COPY_FAR,
    COPY_MANY,
    COPY_SHARED,
    CURRENT,
    CURRENT_CTA,
    CURRENT_STATE,
    EXTENT_COUNT,
    EXTENTS,
    FULL,
    GLOBAL,
    GLOBAL_SHIFT,
    GLOBAL_STRONG,
    GLOBAL_WRITERS,
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
    READ_MAP,
    SHARED,
    SHARED_LIMIT,
    SHARED_STRIDE,
    TENSOR_MAP,
    TENSOR_MAP_COUNT,
    TENSOR_MAPS,
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
    TRACE,
    TRANSFER_COUNT,
    TRANSFER_FIRST,
    TRANSFER_ROOM,
    TRANSFER_SERIAL,
    TRANSFER_WORDS,
    TRANSFERS,
    WARP_CTA,
    WITHIN,
)
from warpsan.engine.mbarriers import cta_alive, cta_of, offset_of
from warpsan.engine.suspects import broken_rule, suspect
from warpsan.engine.trace import trace_global
from warpsan.engine.words import call_operation, copy, load32, load64, store64
from warpsan.host.memory import GLOBAL_BASE

__all__ = ["box_entry", "bytes_entry", "lane_address", "new_entry", "next_entry", "origin_place", "shared_place"]


def next_entry(context: int) -> int:
    """Allocate another entry; 0 if there is no space. Landed entries are dropped."""
    count, room = load64(context + 8 * TRANSFER_COUNT), load64(context + 8 * TRANSFER_ROOM)
    base = load64(context + 8 * TRANSFERS)
    if count == room:
        left = 0
        for k in range(load64(context + 8 * TRANSFER_FIRST), count):
            entry = base + 8 * TRANSFER_WORDS * k
            if load64(entry + 8 * TR_KIND) != LANDED:
                copy(base + 8 * TRANSFER_WORDS * left, entry, 8 * TRANSFER_WORDS)
                left += 1
        store64(context + 8 * TRANSFER_FIRST, 0)
        count = left
        if count == room:
            return 0
    store64(context + 8 * TRANSFER_COUNT, count + 1)
    entry = base + 8 * TRANSFER_WORDS * count
    store64(entry + 8 * TR_SERIAL, load64(context + 8 * TRANSFER_SERIAL))
    store64(entry + 8 * TR_WARP, load64(context + 8 * CURRENT))
    store64(entry + 8 * TR_LINEAR, load64(context + 8 * CURRENT_CTA))
    return entry


def new_entry(context: int, kind: int, lane: int, cta: int, offset: int, size: int) -> int:
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


def within_extent(context: int, begin: int, size: int) -> int:
    """Whether so many bytes of global memory lie in one buffer."""
    for k in range(load64(context + 8 * EXTENT_COUNT)):
        extent = load64(context + 8 * EXTENTS) + 16 * k
        if begin >= load64(extent) and begin + size <= load64(extent + 8):
            return 1
    return 0


def lane_address(registers: int, record: int, operand: int, lane: int) -> int:
    """A lane's address: the row of a record's operand, plus the offset in the next operand."""
    row = registers + load32(record + 4 * (OPERANDS + operand))
    return load64(row + 8 * lane) + load32(record + 4 * (OPERANDS + operand + 1))


def written_in_launch(context: int, first: int, last: int) -> int:
    """A tensor map is read at bytes of global memory. Returns 0 if no warp has written there (with the race check),
    or if that has been noted; otherwise a status, because a fence between the proxies may be missing."""
    writers, strong = load64(context + 8 * GLOBAL_WRITERS), load64(context + 8 * GLOBAL_STRONG)
    shift = load64(context + 8 * GLOBAL_SHIFT)
    for granule in range(first >> shift, (last >> shift) + 1 if writers != 0 else 0):
        written = load64(writers + 8 * granule) != 0
        if written or (strong != 0 and load64(strong + 8 * granule) != 0):
            status = suspect(context, IN_GLOBAL, granule, TENSOR_MAP)
            if status != 0:
                return status
    return 0


def tensor_map_at(context: int, address: int) -> int:
    """The tensor map at a generic address; 0 if there is none, or a status below 64.

    Maps of the launch's arguments are known; Python reads others, which a kernel has changed, and keeps them.
    """
    offset = address - GLOBAL_BASE
    if offset & 63:
        return 0
    if within_extent(context, offset, 128) == 0:
        return 0
    if load64(context + 8 * TRACE) != 0:
        trace_global(context, offset, offset + 128)
    status = written_in_launch(context, offset, offset + 127)
    if status != 0:
        return status
    place = load64(context + 8 * GLOBAL) + offset
    for number in range(load64(context + 8 * TENSOR_MAP_COUNT)):
        tensor = load64(context + 8 * TENSOR_MAPS) + 8 * MAP_WORDS * number
        same = 0
        while same < RAW_WORDS and load64(place + 8 * same) == load64(tensor + 8 * (MAP_RAW + same)):
            same += 1
        if same == RAW_WORDS:
            return tensor
    return call_operation(load64(context + 8 * READ_MAP), place, 0, 0, context)


def box_entry(registers: int, record: int, lane: int, context: int, kind: int) -> int:
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
    if cta < 0 or offset & 127 or offset > load64(context + 8 * SHARED_LIMIT) - size:
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


def reaches_exited(context: int, cta: int) -> int:
    """Whether a copy uses the shared memory of a CTA that has exited; it continues if that has been noted. Returns a
    status."""
    return broken_rule(context, ILLEGAL) if cta_alive(context, cta) == 0 else 0


def bytes_entry(registers: int, record: int, lane: int, context: int, kind: int) -> int:
    """An entry for bytes that a lane copies; 0 if it copies none; for a fault, as :func:`box_entry`."""
    shared = lane_address(registers, record, COPY_SHARED, lane)
    far = lane_address(registers, record, COPY_FAR, lane)
    begin = far if kind == WITHIN else far - GLOBAL_BASE
    size = load32(registers + load32(record + 4 * (OPERANDS + COPY_MANY)) + 4 * lane)
    cta, offset = cta_of(context, shared), offset_of(shared)
    if size == 0:
        return 0
    limit = load64(context + 8 * SHARED_LIMIT) - size
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
        store64(entry + 8 * TR_ORIGIN_CTA, load64(load64(context + 8 * CURRENT_STATE) + 8 * WARP_CTA))
    return entry


def shared_place(context: int, entry: int) -> int:
    """The address of a copy's shared memory in this process."""
    begin = load64(context + 8 * SHARED) + load64(entry + 8 * TR_CTA) * load64(context + 8 * SHARED_STRIDE)
    return begin + load64(entry + 8 * TR_OFFSET)


def origin_place(context: int, entry: int) -> int:
    """The address in this process of the shared memory that a copy within the cluster reads."""
    begin = load64(context + 8 * SHARED) + load64(entry + 8 * TR_ORIGIN_CTA) * load64(context + 8 * SHARED_STRIDE)
    return begin + load64(entry + 8 * TR_ORIGIN)
