"""Unwritten bytes of global memory: machine code.

Each byte has a mark, which is 1 until the byte is written (:mod:`warpsan.host.undefined_memory`). A read of unwritten
bytes ends the run, or is noted; if undefined bytes are tracked, the result of a load or a copy to shared memory is
undefined from there on (:mod:`.undefined_bytes`). The places of lanes are in the scratch.
"""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.hazards import note_undefined
from warpsan.engine.memory import Record, ThreadCopy
from warpsan.engine.rules import FROM_GLOBAL
from warpsan.engine.structs import Ptr, u8
from warpsan.engine.suspects import first_lane
from warpsan.engine.watch.undefined_bytes import ITEM_WORDS, put_origin, store_lane, undefine
from warpsan.engine.words import fill, load32, load64

__all__ = [
    "bring_undefined",
    "copy_undefined",
    "define_global",
    "follows_undefined",
    "read_undefined",
    "shadows_from_global",
    "sized_copy_undefined",
    "undefine_copies",
    "update_undefined",
]


def any_undefined(marks: Ptr[u8], offset: int, size: int) -> int:
    """Whether any byte of a range is undefined."""
    if size == 16:
        return load64(marks + offset) | load64(marks + offset + 8)
    if size == 8:
        return load64(marks + offset)
    if size == 4:
        return load32(marks + offset)
    bad = 0
    for k in range(size):
        bad |= marks[offset + k]
    return bad


def undefined_bits_of(marks: Ptr[u8], offset: int, size: int) -> int:
    """A mask of up to eight bytes: all ones in each undefined byte."""
    bits = 0
    for k in range(size):
        if marks[offset + k]:
            bits |= 0xFF << 8 * k
    return bits


def lanes_undefined(context: Context, mask: int, width: int) -> int:
    """The lanes, of some, with an undefined byte at their places."""
    places, marks = context.places, context.global_undefined
    bad = 0
    for lane in range(32):
        if mask >> lane & 1 and any_undefined(marks, places[lane], width) != 0:
            bad |= 1 << lane
    return bad


def note_read(context: Context, record: Record, bad: int, width: int) -> int:
    """Lanes read undefined bytes at their places. As :func:`~..hazards.note_fault`: the offsets are those of the
    first undefined bytes of the lanes, and the width is the number of bytes that the first lane reads."""
    places, marks = context.places, context.global_undefined
    many = 0
    for lane in range(32):
        if bad >> lane & 1:
            offset = places[lane]
            first = width
            for k in range(width):
                if marks[offset + k]:
                    first = min(first, k)
                    many += lane == first_lane(bad)
            context.fault_offsets[lane] = offset + first
    return note_undefined(context, record, bad, many, context.fault_offsets)


def read_undefined(context: Context, mask: int, width: int) -> int:
    """Lanes read; the read is a use, or undefined bytes are not tracked yet. Returns a status."""
    bad = lanes_undefined(context, mask, width)
    return note_read(context, context.current_record, bad, width) if bad != 0 else 0


def copy_undefined(context: Context, mask: int, width: int) -> int:
    """Lanes issue copies of so many bytes to shared memory, in which undefined bytes are tracked. Returns a status."""
    if context.origins != 0 and context.hazard_room == 0:
        return 0
    return read_undefined(context, mask, width)


def sized_copy_undefined(context: Context, mask: int) -> int:
    """The same for copies whose numbers of bytes are in ``Context.fault_widths``. Returns a status."""
    marks = context.global_undefined
    for lane in range(32):
        if mask >> lane & 1:
            width = context.fault_widths[lane]
            if any_undefined(marks, context.places[lane], width) != 0:
                status = copy_undefined(context, 1 << lane, width)
                if status != 0:
                    return status
    return 0


def define_global(context: Context, mask: int, width: int) -> int:
    """Lanes write. Returns a status."""
    places, marks = context.places, context.global_undefined
    for lane in range(32):
        if mask >> lane & 1:
            offset = places[lane]
            if any_undefined(marks, offset, width) != 0:
                fill(marks + offset, 0, width)
    return 0


def update_undefined(context: Context, mask: int, width: int) -> int:
    """Lanes update the stored values, which count as written from then on. Returns a status."""
    status = read_undefined(context, mask, width)
    return status if status != 0 else define_global(context, mask, width)


# ---- loads and copies whose undefined bytes are followed -------------------------------------------------------------


def shadows_from_global(registers: int, record: Record, mask: int, context: Context) -> int:
    """Lanes load from global memory; operands as those of :func:`~.undefined_bytes.shadows_from_memory`. Returns a
    status."""
    places, marks = context.places, context.global_undefined
    size, many = record.operands[3], record.operands[4]
    items = context.lists.at(record.operands[5])
    reader, bad = record.operands[6] | FROM_GLOBAL, 0
    for lane in range(32):
        if mask >> lane & 1:
            offset = places[lane]
            clean = any_undefined(marks, offset, size * many) == 0
            if clean == 0:
                bad |= 1 << lane
            for k in range(many):
                item = items.at(ITEM_WORDS * k)
                if item[0] >= 0:
                    bits = 0 if clean else undefined_bits_of(marks, offset + size * k, size)
                    store_lane(registers + item[0], lane, item[2], bits)
                    store_lane(registers + item[1], lane, 4, 0 if clean else reader)
    return note_read(context, record, bad, size * many) if bad != 0 and context.hazard_room != 0 else 0


def follows_undefined(context: Context) -> int:
    """Whether undefined bytes of global memory that are copied to shared memory are tracked."""
    return context.global_undefined != 0 and context.origins != 0


def bring_undefined(context: Context, cta: int, target: int, source: int, size: int, pc: int) -> None:
    """The instruction at a pc has copied bytes from global to shared memory, both as addresses of this process:
    undefined bytes remain undefined there, if they are tracked."""
    if follows_undefined(context) == 0:
        return
    marks, at = context.global_undefined, target - context.shared - context.shared_stride * cta
    begin = source - context.arena
    for word in range((size + 3) // 4):
        k, many = 4 * word, min(4, size - 4 * word)
        bits = undefined_bits_of(marks, begin + k, many)
        if bits != 0:
            undefine(context, cta, at + k, many, bits)
            put_origin(context, cta, at + k, many, pc + 1 | FROM_GLOBAL)


def undefine_copies(context: Context, entry: ThreadCopy, cta: int, due: int) -> None:
    """The copies of some lanes of an entry of cp.async have landed; as :func:`bring_undefined`."""
    for lane in range(32 if context.global_undefined != 0 else 0):
        if due >> lane & 1:
            target, source = entry.target[lane], entry.source[lane]
            size, pc = entry.bytes[lane], entry.pc
            bring_undefined(context, cta, target, source, size, pc)
