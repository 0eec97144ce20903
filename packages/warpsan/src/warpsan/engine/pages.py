"""Summary of the writes to a page of shared memory, so that most accesses need no check of its granules: machine
code (:mod:`~warpsan.engine.translate`)."""

from __future__ import annotations

from warpsan.engine.clocks import vector_of
from warpsan.engine.layout import FLOORS, PAGE_OTHERS, PAGE_OWNER, PAGE_WRITTEN, PAGES
from warpsan.engine.words import load64, store64

__all__ = ["page_word", "page_written", "write_page"]


def page_word(context: int, word: int, cta: int, page: int) -> int:
    """The address of a word of a page of a CTA's shared memory."""
    return load64(context + 8 * word) + 8 * (load64(context + 8 * PAGES) * cta + page)


def write_page(context: int, cta: int, page: int, actor: int, time: int) -> None:
    """An actor writes to a page at a time."""
    written, owner = page_word(context, PAGE_WRITTEN, cta, page), page_word(context, PAGE_OWNER, cta, page)
    before = load64(written)
    if load64(owner) != actor:
        store64(owner, actor)
        store64(page_word(context, PAGE_OTHERS, cta, page), before)
    if time > before:
        store64(written, time)


def page_written(context: int, cta: int, page: int, warp: int) -> int:
    """Whether a page has writes that may not come before a warp's access.

    Writes of its owner come before if the last write does; writes of others come before if all actors' writes do.
    """
    written = load64(page_word(context, PAGE_WRITTEN, cta, page))
    floor = load64(load64(context + 8 * FLOORS) + 8 * warp)
    if written <= floor:
        return 0
    owner = load64(page_word(context, PAGE_OWNER, cta, page))
    if load64(page_word(context, PAGE_OTHERS, cta, page)) > floor:
        return 1
    return 1 if written > load64(vector_of(context, warp) + 8 * owner) else 0
