"""Boxes and ranges of global memory that bulk copies read and write: machine code.

The rules are those of :mod:`warpsan.host.tensor_map`.
"""

from __future__ import annotations

from warpsan.checks.orders import SAME_GPU
from warpsan.engine.context import Context
from warpsan.engine.layout import (
    CONTINUES,
    LOADS,
    RACE,
    SCOPE_SHIFT,
    WITHIN,
)
from warpsan.engine.memory import MapWords, TransferEntry
from warpsan.engine.recorded import is_recorded, record_line
from warpsan.engine.suspects import act_for, current_instruction
from warpsan.engine.transfers.entries import origin_place, shared_place
from warpsan.engine.watch import read_pieces, update_pieces, write_pieces, written_nearby
from warpsan.engine.watch.undefined_global import (
    bring_undefined,
    copy_undefined,
    define_global,
    follows_undefined,
    update_undefined,
)
from warpsan.engine.words import call_operation, copy, fill
from warpsan.profile.tally import SECTOR

__all__ = ["global_lines", "move_box", "put"]


def global_lines(context: Context, entry: TransferEntry, kind: int) -> int:
    """Checks, counts and records the lines of a box in global memory that the issuing warp reads (1), writes (2), or
    combines with others (3). Returns a status."""
    checked, counting = context.checked, context.counting
    if (checked | counting | is_recorded(context, entry.pc)) == 0:
        return 0
    current_instruction(context, entry.pc)
    warp = entry.warp
    act_for(context, warp)
    tensor = entry.tensor_map
    if tensor == 0:
        begin = entry.coordinates[0]
        end = begin + entry.bytes
        record_line(context, entry, begin, end)
        count_sectors(context, begin, end, kind)
        add_sectors(context, entry, (end - 1) // SECTOR - begin // SECTOR + 1, end - begin)
        return touch_line(context, begin, end, kind, entry) if checked else 0
    axes, item = tensor.axes, tensor.item
    lines = tensor.box_bytes // (tensor.counts[0] * item)
    across = entry.coordinates[0]
    low = max(across, 0)
    high = min(across + tensor.counts[0], tensor.dims[0])
    context.counted_copies += 1
    sectors = 0
    total = 0
    for line in range(lines if low < high else 0):
        outer = line_begin(tensor, entry, axes, line)
        if outer < 0:
            continue
        outer += tensor.begin
        begin, end = outer + low * item, outer + high * item
        status = touch_line(context, begin, end, kind, entry) if checked else 0
        if status != 0:
            return status
        total += end - begin
        sectors += new_sectors(context, begin, end) if counting else 0
        record_line(context, entry, begin, end)
        count_sectors(context, begin, end, kind)
    add_sectors(context, entry, sectors, total)
    return 0


def new_sectors(context: Context, begin: int, end: int) -> int:
    """The number of sectors of a range of global memory that the counted copy has not touched before."""
    copies, copy = context.copy_of_sector, context.counted_copies
    count = 0
    for sector in range(begin // SECTOR, (end - 1) // SECTOR + 1):
        if copies[sector] != copy:
            copies[sector] = copy
            count += 1
    return count


def count_sectors(context: Context, begin: int, end: int, kind: int) -> None:
    """The sectors of a range of global memory are read (1), written (2), or both (3)."""
    if context.counting != 0:
        many = (end - 1) // SECTOR - begin // SECTOR + 1
        touched = context.touched.at(begin // SECTOR)
        if kind & 1:
            fill(touched, 1, many)
        if kind & 2:
            fill(touched + context.touched_bytes, 1, many)


def add_sectors(context: Context, entry: TransferEntry, sectors: int, total: int) -> None:
    """Count the sectors of a copy of that many bytes; lines of its box that overlap take fewer."""
    if context.counting != 0:
        place = context.sectors.at(2 * entry.pc)
        place[0] += sectors
        place[1] += min(sectors, (total + SECTOR - 1) // SECTOR)


def line_begin(tensor: MapWords, entry: TransferEntry, axes: int, line: int) -> int:
    """The start of a line of a box, without its innermost coordinate, in bytes of the tensor; -1 if it is outside."""
    rest = line
    source = 0
    for axis in range(1, axes):
        count = tensor.counts[axis]
        step = tensor.steps[axis]
        number = rest
        rest = 0
        if number >= count:  # most boxes have few axes, and a division takes long
            rest = number // count
            number -= rest * count
        place = entry.coordinates[axis] + step * number
        if place < 0 or place >= tensor.dims[axis]:
            return -1
        source += place * tensor.strides[axis]
    return source


def touch_line(context: Context, begin: int, end: int, kind: int, entry: TransferEntry) -> int:
    """The issuer of a copy, a lane of the current warp, reads (1) or writes (2) a range of global memory, or updates it
    atomically (3). Returns a status.

    Lanes that store the same bytes by the same instruction come after each other's store.
    """
    issuer = entry.lane
    looks = context.global_undefined
    if (
        kind == 1 and context.global_marks == 0 and written_nearby(context, begin, end)
    ):  # is there a fence between the proxies?
        return RACE
    places = context.places
    width = min(16, (begin | end) & -(begin | end))
    at = begin
    while at < end:
        many = min(32, (end - at) // width)
        for number in range(many):
            places[number] = at + width * number
        at += width * many
        mask = (1 << many) - 1
        if kind == 1:
            status = read_pieces(context, mask, 1 << issuer, width, issuer)
        elif kind == 3:
            status = update_pieces(context, mask, 1 << issuer, width, CONTINUES | SAME_GPU << SCOPE_SHIFT, issuer)
        else:
            status = write_pieces(context, mask, entry.alike, width, issuer)
        if status == 0 and looks != 0:
            status = look_at_pieces(context, mask, width, kind)
        if status != 0:
            return status
    return 0


def look_at_pieces(context: Context, mask: int, width: int, kind: int) -> int:
    """Look for unwritten bytes among pieces that a copy reads (1) or updates (3); its destination (2) becomes
    defined. Returns a status."""
    if kind == 1:
        return copy_undefined(context, mask, width)
    return update_undefined(context, mask, width) if kind == 3 else define_global(context, mask, width)


def move_box(context: Context, entry: TransferEntry) -> None:
    """Copy a box line by line, in either direction: 16-byte chunks of shared memory in the order of the swizzle.
    Plain bytes are one line."""
    tensor = entry.tensor_map
    loads = entry.kind == LOADS
    if entry.kind == WITHIN:
        copy(shared_place(context, entry), origin_place(context, entry), entry.bytes)
        return
    if tensor == 0:
        origin = entry.source if entry.source != 0 else shared_place(context, entry)
        far = context.arena + entry.coordinates[0]
        if loads:
            bring(context, entry, origin, far, entry.bytes)
        else:
            put(context, entry, far, origin, entry.bytes)
        return
    axes, item, swizzle = tensor.axes, tensor.item, tensor.swizzle
    inner = tensor.counts[0] * item
    lines = tensor.box_bytes // inner
    offset = entry.offset
    begin = shared_place(context, entry) - offset
    if entry.source != 0:
        begin = entry.source - offset
    base = context.arena + tensor.begin
    across = entry.coordinates[0]
    limit = tensor.dims[0]
    plain = loads and across >= 0 and across * item + inner <= limit * item and follows_undefined(context) == 0
    for line in range(lines):
        outer = line_begin(tensor, entry, axes, line)
        exists = outer >= 0
        source = base + across * item + outer
        if plain and exists:
            for chunk in range(inner // 16):
                spot = offset + line * inner + 16 * chunk
                copy(begin + (spot ^ (spot >> 7 & swizzle) << 4), source + 16 * chunk, 16)
            continue
        for chunk in range(inner // 16):
            spot = offset + line * inner + 16 * chunk
            target = (spot ^ (spot >> 7 & swizzle) << 4) + begin
            first = across + 16 * chunk // item
            if exists and first >= 0 and first + 16 // item <= limit:
                if loads:
                    bring(context, entry, target, source + 16 * chunk, 16)
                else:
                    put(context, entry, source + 16 * chunk, target, 16)
                continue
            for k in range(16 // item):
                inside = exists and first + k >= 0 and first + k < limit
                if loads and not inside:
                    copy(target + item * k, tensor.fill.address, item)
                elif loads:
                    bring(context, entry, target + item * k, source + 16 * chunk + item * k, item)
                elif inside:
                    put(context, entry, source + 16 * chunk + item * k, target + item * k, item)


def bring(context: Context, entry: TransferEntry, target: int, source: int, size: int) -> None:
    """A copy writes bytes of global memory to shared memory."""
    copy(target, source, size)
    bring_undefined(context, entry.cta, target, source, size, entry.pc)


def put(context: Context, entry: TransferEntry, target: int, source: int, size: int) -> None:
    """A copy writes bytes, or combines them with the stored ones."""
    combine = entry.combine
    if combine == 0:
        copy(target, source, size)
        return
    function = context.table[(combine & 0xFFFF) - 1]
    call_operation(function, target, source, size // (combine >> 16), context)
