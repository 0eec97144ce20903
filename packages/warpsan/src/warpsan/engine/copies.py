"""Copies of cp.async in flight: machine code (:mod:`~warpsan.engine.translate`).

In the late mode, a copy poisons its destination at issue, and reads its source and writes the data when the issuing
lane waits for its group (:mod:`warpsan.replay.async_copy`).
"""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.layout import (
    COPY_GROUP,
    COPY_INSTRUCTION,
    COPY_MASK,
    COPY_NUMBER,
    COPY_SIZE,
    COPY_SOURCE,
    COPY_TARGET,
    COPY_TRACED,
    COPY_WIDTH,
    COPY_WORDS,
    FULL,
    MANY_COPIES,
    MOST_COPIES,
    SCRATCH_PLACES,
)
from warpsan.engine.memory import Record, Warp
from warpsan.engine.trace import trace_landing
from warpsan.engine.watch import copies_landed
from warpsan.engine.watch.undefined_global import undefine_copies
from warpsan.engine.words import copy, fill, load32, load64, popcount, store64

__all__ = ["count_unwaited", "drop_landed", "issue_copies", "land_copy", "wait_for_copies"]


def count_unwaited(context: Context) -> None:
    """All threads have exited: count the copies that they have not waited for."""
    for warp in range(context.warp_count * context.cta_count):
        state = context.warps[warp]
        first = context.copies + 8 * COPY_WORDS * MOST_COPIES * warp
        for k in range(state.copies_in_flight):
            entry = first + 8 * COPY_WORDS * k
            place = context.unwaited.at(load64(entry + 8 * COPY_INSTRUCTION))
            place[0] += popcount(load64(entry + 8 * COPY_MASK))


def issue_copies(context: Context, entry: int) -> int:
    """Put a complete entry in flight, or execute it at once in the early mode. Returns a status."""
    state = context.current_state
    mask, width = load64(entry + 8 * COPY_MASK), load64(entry + 8 * COPY_WIDTH)
    early, number = context.early, context.copy_count + 1
    context.copy_count = number
    store64(entry + 8 * COPY_NUMBER, number)
    store64(entry + 8 * COPY_TRACED, context.traced_copy == number)
    for lane in range(32):
        if mask >> lane & 1:
            if early:
                land_copy(entry, lane, width)
            else:
                fill(load64(entry + 8 * (COPY_TARGET + lane)), 0xFF, width)
    flying = state.copies_in_flight + 1
    state.copies_in_flight = flying
    if flying < MOST_COPIES:
        return 0
    first = context.copies + 8 * COPY_WORDS * MOST_COPIES * context.current
    return FULL if drop_landed(state, first, 0) >= MOST_COPIES else 0


def drop_landed(state: Warp, first: int, many: int) -> int:
    """Drop entries whose copies have all landed, if a warp has more than a given number of entries. Returns the number
    left.

    Moving the others at each wait would take longer than skipping landed entries.
    """
    flying = state.copies_in_flight
    if flying <= many:
        return flying
    left = 0
    for k in range(flying):
        entry = first + 8 * COPY_WORDS * k
        if load64(entry + 8 * COPY_MASK) != 0:
            if left != k:
                copy(first + 8 * COPY_WORDS * left, entry, 8 * COPY_WORDS)
            left += 1
    state.copies_in_flight = left
    return left


def land_copy(entry: int, lane: int, width: int) -> None:
    """Copy the data of one lane; bytes beyond the source's become zero."""
    target, source = load64(entry + 8 * (COPY_TARGET + lane)), load64(entry + 8 * (COPY_SOURCE + lane))
    size = load64(entry + 8 * (COPY_SIZE + lane))
    if size == 16:
        copy(target, source, 16)
        return
    if size < width:
        fill(target, 0, width)
    copy(target, source, size)


def wait_for_copies(registers: int, record: Record, mask: int, context: Context) -> int:
    """The active lanes wait for all but their last groups, whose number the record has; -1: for all copies."""
    state, keep = context.current_state, record.operands[0]
    flying = state.copies_in_flight
    first = context.copies + 8 * COPY_WORDS * MOST_COPIES * context.current
    late, checked = context.early == 0, context.checked
    places = context.scratch + SCRATCH_PLACES
    shared = context.current_shared
    left = 0
    for k in range(flying):
        entry = first + 8 * COPY_WORDS * k
        here, width = load64(entry + 8 * COPY_MASK), load64(entry + 8 * COPY_WIDTH)
        left |= here & ~mask
        if here & mask == 0:
            continue
        due = 0
        for lane in range(32):
            if (here & mask) >> lane & 1:
                committed = load32(state.copy_groups + 4 * lane)
                if keep < 0 or load32(entry + 8 * COPY_GROUP + 4 * lane) < committed - keep:
                    due |= 1 << lane
                    if late:
                        land_copy(entry, lane, width)
                    store64(places + 8 * lane, load64(entry + 8 * (COPY_TARGET + lane)) - shared)
        if checked and due != 0:
            copies_landed(context, due, width)
            undefine_copies(context, entry, state.cta, due)
        if due != 0 and load64(entry + 8 * COPY_TRACED):
            trace_landing(context, due, load64(entry + 8 * COPY_NUMBER))
        here = here & ~due
        store64(entry + 8 * COPY_MASK, here)
        left |= here
    drop_landed(state, first, MANY_COPIES if left != 0 else 0)
    return 0
