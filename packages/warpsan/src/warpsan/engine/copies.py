"""Copies of cp.async in flight: machine code (:mod:`~warpsan.engine.translate`).

In the late mode, a copy poisons its destination at issue, and reads its source and writes the data when the issuing
lane waits for its group (PTX ISA, "Data Movement: Asynchronous Copy").
"""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.layout import (
    FULL,
    MANY_COPIES,
    MOST_COPIES,
)
from warpsan.engine.memory import Record, ThreadCopy, Warp
from warpsan.engine.suspects import current_instruction
from warpsan.engine.watch.shared_memory import copies_landed, copies_still_fly
from warpsan.engine.watch.undefined_global import undefine_copies
from warpsan.engine.words import copy, fill, popcount

__all__ = ["count_unwaited", "drop_landed", "issue_copies", "land_copy", "wait_for_copies"]


def count_unwaited(context: Context) -> None:
    """All threads have exited: count the copies that they have not waited for."""
    for warp in range(context.warp_count * context.cta_count):
        state = context.warps[warp]
        first = MOST_COPIES * warp
        for k in range(state.copies_in_flight):
            entry = context.copies[first + k]
            place = context.unwaited.at(entry.pc)
            place[0] += popcount(entry.mask)


def issue_copies(context: Context, entry: ThreadCopy) -> int:
    """Put a complete entry in flight, or execute it at once in the early mode. Returns a status."""
    state = context.current_warp
    mask, width = entry.mask, entry.width
    early, number = context.early, context.copy_count + 1
    context.copy_count = number
    entry.number = number
    for lane in range(32):
        if mask >> lane & 1:
            if early:
                land_copy(entry, lane, width)
            else:
                fill(entry.target[lane], 0xFF, width)
    flying = state.copies_in_flight + 1
    state.copies_in_flight = flying
    if flying < MOST_COPIES:
        return 0
    first = MOST_COPIES * context.current
    return FULL if drop_landed(context, state, first, 0) >= MOST_COPIES else 0


def drop_landed(context: Context, state: Warp, first: int, many: int) -> int:
    """Drop entries whose copies have all landed, if a warp has more than a given number of entries. Returns the number
    left.

    Moving the others at each wait would take longer than skipping landed entries.
    """
    flying = state.copies_in_flight
    if flying <= many:
        return flying
    left = 0
    for k in range(flying):
        entry = context.copies[first + k]
        if entry.mask != 0:
            if left != k:
                copy(context.copies[first + left], entry, ThreadCopy.byte_size)
            left += 1
    state.copies_in_flight = left
    return left


def land_copy(entry: ThreadCopy, lane: int, width: int) -> None:
    """Copy the data of one lane; bytes beyond the source's become zero."""
    target, source = entry.target[lane], entry.source[lane]
    size = entry.bytes[lane]
    if size == 16:
        copy(target, source, 16)
        return
    if size < width:
        fill(target, 0, width)
    copy(target, source, size)


def wait_for_copies(registers: int, record: Record, mask: int, context: Context) -> int:
    """The active lanes wait for all but their last groups, whose number the record has; -1: for all copies."""
    state, keep = context.current_warp, record.operands[0]
    flying = state.copies_in_flight
    first = MOST_COPIES * context.current
    late, checked = context.early == 0, context.checked
    places = context.places
    shared = context.current_shared
    left = 0
    for k in range(flying):
        entry = context.copies[first + k]
        here, width = entry.mask, entry.width
        left |= here & ~mask
        if here & mask == 0:
            continue
        due = 0
        for lane in range(32):
            if (here & mask) >> lane & 1:
                committed = state.copy_groups[lane]
                if keep < 0 or entry.group[lane] < committed - keep:
                    due |= 1 << lane
                    if late:
                        land_copy(entry, lane, width)
                    places[lane] = entry.target[lane] - shared
        if checked and due != 0:
            current_instruction(context, entry.pc)
            copies_landed(context, state.cta, due, width)
            undefine_copies(context, entry, state.cta, due)
        here = here & ~due
        entry.mask = here
        left |= here
    drop_landed(context, state, first, MANY_COPIES if left != 0 else 0)
    if checked:
        copies_still_fly(context, state.cta)
    return 0
