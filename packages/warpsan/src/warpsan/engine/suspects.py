"""The warp, the instruction and the lanes of an action, and statuses: machine code
(:mod:`~warpsan.engine.translate`)."""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.layout import FIRST_TIME

__all__ = [
    "act_for",
    "current_instruction",
    "first_lane",
    "is_status",
]


def is_status(result: int) -> int:
    """Whether a result is a status, and not a time or an address."""
    return result < FIRST_TIME


def act_for(context: Context, warp: int) -> None:
    """Later accesses and hazards belong to a warp: an operation that it has issued completes."""
    state = context.warps[warp]
    context.current = warp
    context.current_warp = state
    context.current_cta = state.linear_cta + 1
    context.current_live = state.live


def current_instruction(context: Context, pc: int) -> None:
    """Later hazards belong to an action of an instruction without a record of its own, or after its record."""
    number = context.record_count + pc
    context.current_record = context.records[number]


def first_lane(mask: int) -> int:
    """The first of some lanes."""
    first = 0
    while mask >> first & 1 == 0:
        first += 1
    return first
