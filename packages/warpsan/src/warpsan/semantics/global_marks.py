"""The checks and marks of plain accesses to global memory in the code of operations.

An access whose lanes lie close together, over marks that are empty, of the own warp, or of accesses that come before,
is checked and marked in vectors (:mod:`~warpsan.semantics.spans`). Every other one calls a function of
:mod:`warpsan.engine.watch.global_memory`, which goes lane by lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from warpsan.engine import watch
from warpsan.engine.clocks import lanes_there
from warpsan.engine.lanes import BYTE, WORD32, WORD64, Lanes
from warpsan.engine.layout import DONE, GLOBAL_PAGE_SHIFT, OF_COPIES, PAGE_STRONG, PAGE_WRITTEN, READ_SHIFT, SEVERAL
from warpsan.engine.operation import OperationCode
from warpsan.semantics.spans import SPAN, Span, extent_of

__all__ = ["check_global"]

_WARP_AND_CTA = ~(0xFFFFFFFF << 8)
"""Bits of a tag without the time."""


def check_global(
    code: OperationCode,
    function: Callable[..., int],
    present: Any,
    places: Lanes,
    width: int,
    shift: int,
    *,
    writes: bool,
) -> Any:
    """The status of plain accesses of ``width`` bytes at offsets in the arena, s64, which are in the scratch too;
    ``function`` is the one that goes lane by lane. ``present`` has all lanes that execute the instruction, an ``i64``;
    ``shift`` is the binary logarithm of the bytes of a granule."""
    b = code.builder
    context = b.ptrtoint(code.base, WORD64)
    mine, some = code.call(watch.plain_tag, context), b.icmp_signed("!=", code.mask, WORD32(0))
    simple, end = [], b.append_basic_block("checked")
    with b.if_then(b.and_(some, b.icmp_signed("!=", mine, WORD64(0)))):
        there = b.trunc(code.call(lanes_there, context, present), WORD32)
        size = min(max(32 * (width >> shift), 2 * SPAN), 4 * SPAN)
        extent = extent_of(code, places, width, [(READ_SHIFT, SPAN), (shift, size)], partial(_granules_until, code))
        numbers = (b.ashr(each, WORD64(GLOBAL_PAGE_SHIFT)) for each in (extent.low, extent.high))
        pages = [b.gep(code.pointer("global_pages"), [number], source_etype=BYTE) for number in numbers]
        for cells, granules in (extent.rows, extent.spans):
            marks = _Marks(code, cells, granules, pages, mine, there)
            with marks.written() if writes else marks.read():
                simple.append(b.block)
                b.branch(end)
    status = code.call(function, context, b.zext(code.mask, WORD64), present, WORD64(width))
    one_by_one = b.block
    b.branch(end)
    b.position_at_end(end)
    result = b.phi(WORD64)
    for block in simple:
        result.add_incoming(WORD64(DONE), block)
    result.add_incoming(status, one_by_one)
    return result


def _granules_until(code: OperationCode, offset: Any, shift: int) -> Any:
    """The number of granules up to the end of an offset's page."""
    b = code.builder
    page = b.add(b.ashr(offset, WORD64(GLOBAL_PAGE_SHIFT)), WORD64(1))
    return b.shl(page, WORD64(GLOBAL_PAGE_SHIFT - shift))


@dataclass(frozen=True)
class _Marks:
    """An access.

    Attributes
    ----------
    cells, granules : Span
        The marks of reads, of 16 bytes each, and those of writes.
    pages : list of llvmlite.ir.Value
        Pointers to the bytes of its first and last page.
    mine, there : llvmlite.ir.Value
        The tag of the current warp's access, and the lanes that come after it, an ``i64`` and an ``i32``.
    """

    code: OperationCode
    cells: Span
    granules: Span
    pages: list[Any]
    mine: Any
    there: Any

    @contextmanager
    def read(self) -> Iterator[None]:
        """Code after the marks of reads, if the earlier marks are simple."""
        code, b, cells = self.code, self.code.builder, self.cells
        marked = b.icmp_signed("!=", self._pages(), BYTE(0))
        readers = code.pointer("global_readers")
        masks = code.pointer("global_read_masks")
        with b.if_then(b.and_(cells.holds, b.or_(b.not_(marked), self.granules.holds))):
            tags = cells.load(readers, "s64")
            several = (tags >> 40) == SEVERAL
            simple = self._simple(cells, tags, masks, self.there) | several
            with b.if_then(b.not_(cells.any(~simple))), b.if_then(self._unwritten_or_before(marked)):
                cells.store(readers, cells.spread(self.mine, "s64"), several)
                cells.store(masks, cells.spread(self.there, "u32"), several)
                yield

    @contextmanager
    def written(self) -> Iterator[None]:
        """As :meth:`read`, for writes."""
        code, b, cells, granules = self.code, self.code.builder, self.cells, self.granules
        with b.if_then(b.and_(cells.holds, granules.holds)):
            tags = cells.load(code.pointer("global_readers"), "s64")
            reads = self._simple(cells, tags, code.pointer("global_read_masks"), code.mask)
            with (
                b.if_then(b.not_(cells.any(~reads))),
                b.if_then(self._writes_before("global_strong", "global_watched", "chains")),
            ):
                granules.store(code.pointer("global_writers"), granules.spread(self.mine, "s64"))
                granules.store(code.pointer("global_write_masks"), granules.spread(self.there, "u32"))
                for page in self.pages:
                    b.store(b.or_(b.load(page, typ=BYTE), BYTE(PAGE_WRITTEN)), page)
                yield

    def _unwritten_or_before(self, written: Any) -> Any:
        b, before = self.code.builder, self.code.builder.block
        with b.if_then(written, likely=False):
            ordered, after = self._writes_before("global_strong"), b.block
        result = b.phi(ordered.type)
        result.add_incoming(ordered.type(1), before)
        result.add_incoming(ordered, after)
        return result

    def _writes_before(self, *others: str) -> Any:
        """Whether all writes of the granules come before, an ``i1``, and there are no marks of other kinds."""
        code, b, granules = self.code, self.code.builder, self.granules
        tags, masks = granules.load(code.pointer("global_writers"), "s64"), code.pointer("global_write_masks")
        actual = granules.any(~self._simple(granules, tags, masks, code.mask))
        if granules.covered is None:  # one mark for all, as of the warp of another block
            before = b.block
            with b.if_then(actual, likely=False):
                first = b.extract_element(tags.value, WORD32(0))
                one = (tags == granules.spread(first, "s64")).all()
                words = b.ptrtoint(code.base, WORD64), first, WORD64(0), WORD64(0)
                conflict = b.icmp_signed("!=", code.call(watch.conflicts, *words), WORD64(0))
                still, after = b.or_(b.not_(one), conflict), b.block
            late = b.phi(actual.type)
            late.add_incoming(actual, before)
            late.add_incoming(still, after)
            actual = late
        strong = b.icmp_signed("!=", b.and_(self._pages(), BYTE(PAGE_STRONG)), BYTE(0))
        for name in others:
            before = b.block
            with b.if_then(b.and_(strong, b.icmp_signed("!=", code.context(name), WORD64(0))), likely=False):
                marked, after = granules.any(granules.load(code.pointer(name), "s64") != 0), b.block
            some = b.phi(marked.type)
            some.add_incoming(marked.type(0), before)
            some.add_incoming(marked, after)
            actual = b.or_(actual, some)
        return b.not_(actual)

    def _pages(self) -> Any:
        """The bits of all pages of the access, an ``i8``."""
        return self.code.builder.or_(*(self.code.builder.load(page, typ=BYTE) for page in self.pages))

    def _simple(self, span: Span, tags: Lanes, masks: Any, lanes: Any) -> Lanes:
        """Whether marks are empty, of a warp of the own CTA whose accesses come before, or of the own warp with at
        least some lanes, an ``i32``, present."""
        code, b = self.code, self.code.builder
        begin = span.spread(b.shl(code.context("current_cta"), WORD64(40)), "u64")
        floor = b.load(b.gep(code.pointer("floors"), [code.context("current")], source_etype=WORD64), typ=WORD64)
        last = span.spread(b.or_(b.shl(floor, WORD64(8)), WORD64(0xFF)), "u64")
        before = (tags.as_type("u64") - begin <= last) & ((tags & 0xFF) < OF_COPIES)
        own = ((tags ^ span.spread(self.mine, "s64")) & _WARP_AND_CTA) == 0
        needed = span.spread(lanes, "u32")
        return (tags == 0) | before | (own & ((span.load(masks, "u32") & needed) == needed))
