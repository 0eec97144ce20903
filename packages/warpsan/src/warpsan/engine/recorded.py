"""Accesses of mbarriers and asynchronous copies that recorders collect (:mod:`warpsan.profile.recording`): machine code
(:mod:`~warpsan.engine.translate`) that calls :class:`~warpsan.engine.recorders.Recorders`."""

from __future__ import annotations

from warpsan.engine.layout import (
    CURRENT,
    CURRENT_CTA,
    RECORD_LINE,
    RECORD_SHARED,
    RECORDED,
    TR_BYTES,
    TR_LANE,
    TR_LINEAR,
    TR_OFFSET,
    TR_PC,
    TR_WARP,
    WARP,
)
from warpsan.engine.words import call_operation, load8, load64, store64

__all__ = ["is_recorded", "record_line", "record_lines", "record_shared", "record_update"]


def is_recorded(context: int, pc: int) -> int:
    """Whether a recorder collects the accesses of an instruction."""
    marks = load64(context + 8 * RECORDED)
    return load8(marks + pc) if marks != 0 else 0


def record_shared(context: int, mask: int, width: int, pc: int) -> None:
    """Lanes of the current warp access shared memory at the offsets in the scratch."""
    if is_recorded(context, pc):
        call_operation(load64(context + 8 * RECORD_SHARED), pc, width, mask, context)


def record_line(context: int, entry: int, begin: int, end: int) -> None:
    """A lane's copy accesses a stretch of global memory."""
    if is_recorded(context, load64(entry + 8 * TR_PC)):
        call_operation(load64(context + 8 * RECORD_LINE), begin, end, load64(entry + 8 * TR_LANE), context)


def record_update(context: int, entry: int) -> None:
    """A lane's copy updates a stretch of shared memory."""
    pc, begin = load64(entry + 8 * TR_PC), load64(entry + 8 * TR_OFFSET)
    if is_recorded(context, pc):
        store64(context + 8 * CURRENT, load64(entry + 8 * TR_WARP))
        store64(context + 8 * CURRENT_CTA, load64(entry + 8 * TR_LINEAR))
        lane, end = load64(entry + 8 * TR_LANE), begin + load64(entry + 8 * TR_BYTES)
        call_operation(load64(context + 8 * RECORD_LINE), begin, end, WARP + lane, context)
        record_lines(context, pc)


def record_lines(context: int, pc: int) -> None:
    """The copies of an instruction of the current warp have passed all their ranges since the last such call."""
    if is_recorded(context, pc):
        call_operation(load64(context + 8 * RECORD_LINE), -1, pc, 0, context)
