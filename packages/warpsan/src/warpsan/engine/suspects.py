"""The instruction of an action, and the first of its lanes: machine code (:mod:`~warpsan.engine.translate`)."""

from __future__ import annotations

from warpsan.engine.context import Context

__all__ = [
    "current_instruction",
    "first_lane",
]


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
