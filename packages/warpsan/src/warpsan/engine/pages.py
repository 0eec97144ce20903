"""Summary of the writes to a page of shared memory, so that most accesses need no check of its granules: machine
code (:mod:`~warpsan.engine.translate`)."""

from __future__ import annotations

from warpsan.engine.clocks import vector_of
from warpsan.engine.context import Context

__all__ = ["page_of", "page_written", "write_page"]


def page_of(context: Context, cta: int, page: int) -> int:
    """The number of a page of a CTA's shared memory."""
    return context.pages * cta + page


def write_page(context: Context, cta: int, page: int, actor: int, time: int) -> None:
    """An actor writes to a page at a time."""
    number = page_of(context, cta, page)
    before = context.page_written[number]
    if context.page_owner[number] != actor:
        context.page_owner[number] = actor
        context.page_others[number] = before
    if time > before:
        context.page_written[number] = time


def page_written(context: Context, cta: int, page: int, warp: int) -> int:
    """Whether a page has writes that may not come before a warp's access.

    Writes of its owner come before if the last write does; writes of others come before if all actors' writes do.
    """
    number = page_of(context, cta, page)
    written = context.page_written[number]
    floor = context.floors[warp]
    if written <= floor:
        return 0
    owner = context.page_owner[number]
    if context.page_others[number] > floor:
        return 1
    return 1 if written > vector_of(context, warp)[owner] else 0
