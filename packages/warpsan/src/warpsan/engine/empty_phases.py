"""Phases of barriers of a CTA that order nothing new, in a launch whose events are recorded (:mod:`.trace`): machine
code (:mod:`~warpsan.engine.translate`).

A phase in which whole warps wait that have left one phase together, without an event since, orders nothing new. A
kernel may have a million of them. Arrivals are therefore deferred until an event of their CTA, a different arrival, or
the end of their phase. If the phase is then empty, one event replaces them, with the number of such phases in a row. It
keeps the place of the arrivals in the order in which clusters run side by side (:mod:`.event_order`). At the beginning,
all warps of a CTA have left one phase.
"""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.layout import (
    AT_BARRIER,
    EV_KIND,
    EV_MASK,
    EV_NAME,
    EV_PLACE,
    EV_THREADS,
    EV_TIMES,
    EV_TURN,
    EV_WARP,
    EVENT_WORDS,
    NO_PHASE,
    TRACE_PHASE,
    TRACE_WORDS,
)
from warpsan.engine.memory import Warp
from warpsan.engine.words import copy, load64, popcount, store64

__all__ = [
    "arrivals_aside",
    "begin_phases",
    "end_phase",
    "is_whole",
    "room_for_event",
    "write_all_arrivals",
    "write_arrivals",
]


def room_for_event(context: Context, words: int) -> int:
    """The address of an event of so many words; 0 if there is no space: then the end is beyond the last word."""
    end = context.trace_end
    if end + words > TRACE_WORDS:
        context.trace_end = TRACE_WORDS + 1
        return 0
    context.trace_end = end + words
    return context.trace + 8 * end


def begin_phases(context: Context) -> None:
    """A cluster begins."""
    context.traced_phase = -1
    for cta in range(context.cta_count if context.deferred_arrivals != 0 else 0):
        store64(arrivals_aside(context, cta), 0)


def arrivals_aside(context: Context, cta: int) -> int:
    """The place of the number of deferred arrivals of a CTA, which are followed by their events."""
    stride = 1 + EVENT_WORDS * context.warp_count
    return context.deferred_arrivals + 8 * stride * cta


def is_whole(context: Context, state: Warp, mask: int) -> int:
    """Whether these are all initial lanes of a warp."""
    here = min(32, context.threads - 32 * state.number)
    return mask == (1 << here) - 1 and mask == state.live


def write_arrivals(context: Context, cta: int) -> None:
    """The deferred arrivals of a CTA become events."""
    if context.deferred_arrivals == 0:
        return
    aside = arrivals_aside(context, cta)
    for k in range(load64(aside)):
        row = aside + 8 * (1 + EVENT_WORDS * k)
        state = context.warps[load64(row + 8 * EV_WARP)]
        state.last_phase = NO_PHASE
        event = room_for_event(context, EVENT_WORDS)
        if event != 0:
            copy(event, row, 8 * EVENT_WORDS)
            state.last_event = (event - context.trace) // 8 + 1
    store64(aside, 0)


def write_all_arrivals(context: Context) -> None:
    """The deferred arrivals of all CTAs become events."""
    for cta in range(context.cta_count if context.trace != 0 else 0):
        write_arrivals(context, cta)


def end_phase(context: Context, cta: int, name: int, arrived: int, whole: int) -> None:
    """The phase of a barrier is complete in a CTA, with so many threads counted; ``whole`` is whether no thread is
    missing. Its warps have not continued yet."""
    if context.trace == 0 or context.deferred_arrivals == 0:
        return
    aside = arrivals_aside(context, cta)
    if whole and load64(aside) != 0 and load64(aside + 8 * (1 + EV_NAME)) == name and is_empty(context, aside, arrived):
        write_phase(context, aside)
        store64(aside, 0)
        return
    write_arrivals(context, cta)
    number, warps = context.phases + 1, context.warp_count
    context.phases = number
    for k in range(warps):
        state = context.warps[warps * cta + k]
        for p in range(state.path_count):
            part = state.paths[p]
            waits = part.status == AT_BARRIER and part.info == name
            if waits and part.mask == state.live:
                state.last_phase = number


def is_empty(context: Context, aside: int, arrived: int) -> int:
    """Whether all arrivals of a phase, a number of threads, are deferred, by warps that have left one phase
    together."""
    counted, together = 0, -1
    for k in range(load64(aside)):
        row = aside + 8 * (1 + EVENT_WORDS * k)
        counted += 32 if load64(row + 8 * EV_THREADS) != 0 else popcount(load64(row + 8 * EV_MASK))
        state = context.warps[load64(row + 8 * EV_WARP)]
        last = state.last_phase
        if last == NO_PHASE or (k > 0 and last != together):
            return 0
        together = last
    return counted == arrived


def write_phase(context: Context, aside: int) -> None:
    """One event for the arrivals of an empty phase; in lockstep, for those of each turn."""
    trace, turn = context.trace, -1
    for k in range(load64(aside)):
        row = aside + 8 * (1 + EVENT_WORDS * k)
        if k > 0 and load64(row + 8 * EV_TURN) == turn:
            continue
        turn = load64(row + 8 * EV_TURN)
        before = context.traced_phase
        event = trace + 8 * before
        if context.cta_count == 1 and before >= 0 and before + EVENT_WORDS == context.trace_end:
            same = load64(event + 8 * EV_PLACE) == load64(row + 8 * EV_PLACE)
            same = same and load64(event + 8 * EV_NAME) == load64(row + 8 * EV_NAME)
            if same and load64(event + 8 * EV_THREADS) == load64(row + 8 * EV_THREADS):
                store64(event + 8 * EV_TIMES, load64(event + 8 * EV_TIMES) + 1)
                continue
        event = room_for_event(context, EVENT_WORDS)
        if event != 0:
            context.traced_phase = (event - trace) // 8
            copy(event, row, 8 * EVENT_WORDS)
            store64(event + 8 * EV_KIND, TRACE_PHASE)
            store64(event + 8 * EV_TIMES, 1)
