"""Accesses of mbarriers and asynchronous copies that recorders collect (:mod:`warpsan.profile.recording`): machine code
(:mod:`~warpsan.engine.translate`) that calls :class:`~warpsan.engine.recorders.Recorders`."""

from __future__ import annotations

from warpsan.engine.context import Context
from warpsan.engine.layout import (
    WARP,
)
from warpsan.engine.memory import TransferEntry
from warpsan.engine.suspects import act_for
from warpsan.engine.words import call_operation

__all__ = ["is_recorded", "record_line", "record_lines", "record_shared", "record_update"]


def is_recorded(context: Context, pc: int) -> int:
    """Whether a recorder collects the accesses of an instruction."""
    marks = context.recorded
    return marks[pc] if marks != 0 else 0


def record_shared(context: Context, mask: int, width: int, pc: int) -> None:
    """Lanes of the current warp access shared memory at the offsets in the context."""
    if is_recorded(context, pc):
        call_operation(context.record_shared, pc, width, mask, context)


def record_line(context: Context, entry: TransferEntry, begin: int, end: int) -> None:
    """A lane's copy accesses a stretch of global memory."""
    if is_recorded(context, entry.pc):
        call_operation(context.record_line, begin, end, entry.lane, context)


def record_update(context: Context, entry: TransferEntry) -> None:
    """A lane's copy updates a stretch of shared memory."""
    pc, begin = entry.pc, entry.offset
    if is_recorded(context, pc):
        act_for(context, entry.warp)
        lane, end = entry.lane, begin + entry.bytes
        call_operation(context.record_line, begin, end, WARP + lane, context)
        record_lines(context, pc)


def record_lines(context: Context, pc: int) -> None:
    """The copies of an instruction of the current warp have passed all their ranges since the last such call."""
    if is_recorded(context, pc):
        call_operation(context.record_line, -1, pc, 0, context)
