"""The checks and marks of accesses to shared memory in the code of operations.

The granules of all lanes are compared with one number, or marked, in vectors if they lie close together
(:mod:`~warpsan.semantics.spans`), and otherwise without a branch for each lane. Only an access for which that does not
decide calls the functions of :mod:`warpsan.engine.watch.shared_memory`, which go lane by lane.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from warpsan.engine import layout, watch
from warpsan.engine.clocks import lanes_there
from warpsan.engine.lanes import WORD32, WORD64, Lanes, llvm_type
from warpsan.engine.layout import PAGE_SHIFT, WARP
from warpsan.engine.operation import OperationCode
from warpsan.engine.watch.shared_memory import (
    OF_BYTES,
    OF_COPIES_THERE,
    OF_NOTES,
    OF_PARTIAL_READS,
    OF_READS,
    OF_WRITES,
)
from warpsan.semantics.spans import SPAN, Span, extent_of

__all__ = ["check_copy", "check_read", "check_write"]


def check_read(code: OperationCode, cta: Any, places: Lanes, width: int, shift: int, *, followed: bool) -> Any:
    """The status of reads of ``width`` bytes at offsets in the CTA's shared memory, s64, which are in the scratch too;
    their pages are marked. ``shift`` is the binary logarithm of the bytes of a granule. With ``followed``, the bytes
    may be unwritten."""
    marks = SharedMarks.of(code, cta, places, width, shift)
    return marks.if_any(lambda: marks.read(followed=followed))


def check_write(code: OperationCode, cta: Any, present: Any, places: Lanes, width: int, shift: int) -> Any:
    """The status of writes; as :func:`check_read`. ``present`` has all lanes that execute the instruction, an
    ``i64``. The granules and pages are marked."""
    marks = SharedMarks.of(code, cta, places, width, shift)
    return marks.if_any(lambda: marks.write(present))


def check_copy(code: OperationCode, cta: Any, present: Any, places: Lanes, width: int, shift: int) -> Any:
    """The status of the issue of copies that write these places until they land; as :func:`check_write`."""
    marks = SharedMarks.of(code, cta, places, width, shift)
    return marks.if_any(lambda: marks.copy(present))


@dataclass(frozen=True)
class SharedMarks:
    """An access of the active lanes. Inactive lanes repeat that of an active one.

    Attributes
    ----------
    code : OperationCode
    cta : llvmlite.ir.Value
        The CTA of the cluster, ``i64``.
    places : Lanes
        Offsets in the CTA's shared memory, s64.
    low, high : llvmlite.ir.Value
        The least and the greatest offset of the active lanes, ``i64``.
    width, shift : int
        Bytes of each lane; binary logarithm of the bytes of a granule.
    offsets, bits : llvmlite.ir.Value
        Pointers to the offsets, and to the lane whose access it is as a bit, 32 of each.
    spans : pair of Span
        That of all lanes side by side, and that of other accesses.
    """

    code: OperationCode
    cta: Any
    places: Lanes
    low: Any
    high: Any
    width: int
    shift: int
    offsets: Any
    bits: Any
    spans: tuple[Span, Span]

    @classmethod
    def of(cls, code: OperationCode, cta: Any, places: Lanes, width: int, shift: int) -> SharedMarks:
        """The access of the active lanes."""
        b = code.builder
        extent = extent_of(code, places, width, [(shift, SPAN)], lambda high, shift: code.context("granules"))
        rows = []
        for row in (extent.places, extent.lanes):
            with b.goto_entry_block():
                rows.append(b.alloca(row.value.type))
            rows[-1].align = 64
            b.store(row.value, rows[-1], align=64)
        return cls(
            code,
            cta,
            extent.places,
            extent.low,
            extent.high,
            width,
            shift,
            rows[0],
            rows[1],
            (extent.rows[0], extent.spans[0]),
        )

    @property
    def many(self) -> int:
        """Granules of each lane."""
        return max(self.width >> self.shift, 1)

    def if_any(self, check: Callable[[], Any]) -> Any:
        """The status of a check, or DONE without active lanes."""
        b = self.code.builder
        return self._choose(b.icmp_signed("!=", self.code.mask, WORD32(0)), check, WORD64(layout.DONE))

    # ---- reads and writes -------------------------------------------------------------------------------------------

    def read(self, *, followed: bool) -> Any:
        """Check reads, and mark their pages. Returns a status."""
        code, b = self.code, self.code.builder
        span = self.low, self.high, WORD64(self.width)
        needs = code.call(watch.look_at_pages, self._context, self.cta, *span)
        if followed:
            needs = b.and_(needs, WORD64(~OF_BYTES))
        function = watch.read_followed if followed else watch.read_shared
        tests = {
            OF_BYTES: self._are_written,
            OF_COPIES_THERE: lambda: self._fly_not(layout.NOT_READABLE),
            OF_WRITES | OF_COPIES_THERE: self._writes_before,
        }
        fine = self._hold(needs, tests)
        mask = b.zext(code.mask, WORD64)
        status = self._choose(
            b.not_(fine), lambda: code.call(function, self._context, self.cta, mask, *span), WORD64(layout.DONE)
        )
        self._mark_read()
        return status

    def _mark_read(self) -> None:
        """Note the time of the current warp's reads of all granules, for any status."""
        code, b = self.code, self.code.builder
        now = b.trunc(self._word_of("clocks", code.context("current")), WORD32)
        plane = code.pointer("current_plane")

        def wide() -> None:
            value, granules = code.spread(now, "u32", self.many).value, self.places >> self.shift
            for lane in range(WARP):
                granule = b.extract_element(granules.value, WORD32(lane))
                b.store(value, self._pointer(plane, granule, "u32"), align=4)

        self._in_span(lambda span: span.store(plane, span.spread(now, "u32")), wide)

    def write(self, present: Any) -> Any:
        """Check and mark writes. Returns a status."""
        code, b = self.code, self.code.builder
        span = self.low, self.high, WORD64(self.width)
        actual = code.call(watch.look_before_write, self._context, self.cta, *span)
        partial = b.icmp_signed("!=", b.and_(actual, WORD64(OF_BYTES)), WORD64(0))
        needs = b.and_(actual, WORD64(~OF_BYTES))
        tests = {
            OF_WRITES: self._writes_before,
            OF_READS: self._reads_before,
            OF_PARTIAL_READS: self._partial_reads_before,
        }
        return self._done_or(
            watch.write_shared, present, self._hold(needs, tests), lambda: self._mark(present, partial)
        )

    def copy(self, present: Any) -> Any:
        """Check and mark copies that begin. Returns a status."""
        code, b = self.code, self.code.builder
        actual = code.call(watch.look_before_write, self._context, self.cta, self.low, self.high, WORD64(self.width))
        tests = {
            OF_COPIES_THERE: lambda: self._fly_not(-1),
            OF_WRITES | OF_COPIES_THERE: self._writes_before,
            OF_READS: self._reads_before,
            OF_PARTIAL_READS: self._partial_reads_before,
        }
        fine = self._hold(b.and_(actual, WORD64(~(OF_BYTES | OF_NOTES))), tests)
        mask, words = b.zext(code.mask, WORD64), (WORD64(self.width), WORD64(1))
        mark = functools.partial(code.call, watch.mark_flying, self._context, self.cta, mask, *words)
        return self._done_or(watch.copy_begins, present, fine, mark)

    def _done_or(self, function: Callable[..., int], present: Any, fine: Any, mark: Callable[[], object]) -> Any:
        """DONE after the marks of a fine access, or the status of the function that checks and marks lane by lane."""
        code, b = self.code, self.code.builder
        with b.if_else(fine) as (fast, slow):
            with fast:
                mark()
                marked = b.block
            with slow:
                mask, span = b.zext(code.mask, WORD64), (self.low, self.high, WORD64(self.width))
                status = code.call(function, self._context, self.cta, mask, present, *span)
                called = b.block
        result = b.phi(WORD64)
        result.add_incoming(WORD64(layout.DONE), marked)
        result.add_incoming(status, called)
        return result

    def _mark(self, present: Any, partial: Any) -> None:
        """The granules and the pages have been written; ``partial`` if some bytes of the pages may not have been."""
        code, b = self.code, self.code.builder
        warp = code.context("current")
        now = self._word_of("clocks", warp)
        tag = code.spread(b.or_(b.shl(now, WORD64(16)), warp), "s64", self.many)
        there = code.call(lanes_there, self._context, present)
        apart = b.icmp_signed("==", there, WORD64(0))
        writers, masks = self._of_cta("writers", 8), self._of_cta("write_masks", 4)
        # A granule that several lanes write at one time comes after none of them.
        again = self._if(apart, lambda: self._any(lambda at, bit: self._at(writers, at, "s64") == tag))
        common = code.spread(b.trunc(there, WORD32), "u32", self.many)

        def close(span: Span) -> None:
            span.store(writers, span.spread(b.extract_element(tag.value, WORD32(0)), "s64"))
            span.store(masks, span.spread(b.trunc(there, WORD32), "u32"))

        def wide() -> None:
            with self._each_lane() as (granule, bit):
                b.store(tag.value, self._pointer(writers, granule, "s64"), align=8)
                lanes = b.select(apart, code.spread(bit, "u32", self.many).value, common.value)
                b.store(lanes, self._pointer(masks, granule, "u32"), align=4)

        with b.if_then(b.not_(again)):
            self._in_span(close, wide, b.not_(apart))
        alone = functools.partial(code.spread, type_="u32", count=self.many)
        several = self._if(apart, lambda: self._any(lambda at, bit: self._at(masks, at, "u32") != alone(bit)))
        page = b.ashr(self.low, WORD64(PAGE_SHIFT))
        far = b.icmp_signed(">", b.sub(b.ashr(self.high, WORD64(PAGE_SHIFT)), page), WORD64(63))
        slowly = functools.reduce(b.or_, [again, several, far, self._if(partial, lambda: b.not_(self._are_written()))])
        with b.if_else(slowly, likely=False) as (one_by_one, together):
            with one_by_one:
                mask = b.zext(code.mask, WORD64)
                code.call(watch.mark_written, self._context, self.cta, mask, there, WORD64(self.width))
            with together:
                number = (self.places >> PAGE_SHIFT) - code.spread(page, "s64")
                pages = self._in_span(
                    lambda _: b.or_(WORD64(1), b.shl(WORD64(1), b.sub(b.ashr(self.high, WORD64(PAGE_SHIFT)), page))),
                    lambda: (number.like(1) << (number & 63)).reduced("or"),
                )
                code.call(watch.mark_pages, self._context, self.cta, page, pages, warp, now)

    # ---- tests of all granules, i1 ----------------------------------------------------------------------------------

    def _hold(self, needs: Any, tests: Mapping[int, Callable[[], Any]]) -> Any:
        """Whether an access needs no checks, or only such that have tests, and these hold."""
        b, quick = self.code.builder, functools.reduce(operator.or_, tests)

        def hold() -> Any:
            fine: Any = ir.IntType(1)(1)
            for bit, test in tests.items():
                wanted = b.icmp_signed("!=", b.and_(needs, WORD64(bit)), WORD64(0))
                fine = b.and_(fine, self._choose(wanted, test, ir.IntType(1)(1)))
            return fine

        simple = b.icmp_signed("==", b.and_(needs, WORD64(~quick)), WORD64(0))
        some = b.icmp_signed("!=", needs, WORD64(0))
        return self._choose(some, lambda: self._if(simple, hold), ir.IntType(1)(1))

    def _are_written(self) -> Any:
        """Whether all bytes have been written."""
        written = self._of_cta("written", 1, "written_bytes")
        return self._in_span(lambda span: span.has_bytes(written), lambda: self._has_bytes(written))

    def _has_bytes(self, written: Any) -> Any:
        code, b = self.code, self.code.builder
        missing, need = code.loop_value(code.constant("u32", 0, 1)), (1 << self.width) - 1
        with code.loop(WORD64(WARP)) as lane:
            place = b.load(b.gep(self.offsets, [lane], source_etype=WORD64), typ=WORD64)
            word = b.load(code.at(written, b.ashr(place, WORD64(3))), typ=WORD32, align=1)
            bits = b.lshr(word, b.and_(b.trunc(place, WORD32), WORD32(7)))
            missing.set(missing.get() | code.spread(b.and_(b.not_(bits), WORD32(need)), "u32", 1))
        return (missing.get() == 0).any()

    def _fly_not(self, bits: int) -> Any:
        """Whether no operation in flight of these bits uses the granules."""
        flying = self._of_cta("flying", 4)
        return self.code.builder.not_(
            self._in_span(
                lambda span: span.any((span.load(flying, "u32") & bits) != 0),
                lambda: self._any(lambda granule, _: (self._at(flying, granule, "u32") & bits) != 0),
            )
        )

    def _writes_before(self) -> Any:
        """Whether all writes come before: those of all other warps, or of lanes of the current one that the lane comes
        after."""
        warp = self.code.context("current")
        words, floor = ("writers", "write_masks"), self._word_of("floors", warp)
        return self._tags_before(words, floor, lambda own, contains: own & contains)

    def _partial_reads_before(self) -> Any:
        """Whether no lane writes bytes that other lanes of its warp have read without it."""
        code, b = self.code, self.code.builder
        warp = code.context("current")
        met = self._word_of("vectors", b.mul(b.add(code.context("actors"), WORD64(1)), warp))
        words = "partial_tags", "partial_masks"
        return self._tags_before(words, met, lambda own, contains: ~own | contains)

    def _tags_before(self, words: tuple[str, str], time: Any, fine: Callable[[Lanes, Lanes], Lanes]) -> Any:
        """Whether all tags have times up to a given one, or are ``fine``, given whether they are the current warp's,
        and whether their mask contains the lane."""
        code, b = self.code, self.code.builder
        highest = b.or_(b.shl(time, WORD64(16)), WORD64(0xFFFF))
        limit = code.spread(highest, "s64", self.many)
        tags, masks = self._of_cta(words[0], 8), self._of_cta(words[1], 4)

        warp = code.context("current")

        def before(tag: Lanes, mask: Lanes, lanes: Lanes) -> Lanes:
            """Whether tags are up to the time or fine for all of these lanes, as bits."""
            own = (tag & 0xFFFF) == code.spread(warp, "s64", tag.count)
            return (tag <= code.spread(highest, "s64", tag.count)) | fine(own, (mask & lanes) == lanes)

        def late(granule: Any, bit: Any) -> Lanes:
            lanes = code.spread(bit, "u32", self.many)
            return ~before(self._at(tags, granule, "s64"), self._at(masks, granule, "u32"), lanes)

        def all_before(span: Span) -> Any:
            lanes = span.spread(code.mask, "u32")
            return b.not_(span.any(~before(span.load(tags, "s64"), span.load(masks, "u32"), lanes)))

        later = self._in_span(
            lambda span: span.any(span.load(tags, "s64") > span.spread(highest, "s64")),
            lambda: self._any(lambda granule, _: self._at(tags, granule, "s64") > limit),
        )
        late_any = self._if(later, lambda: b.not_(self._in_span(all_before, lambda: ir.IntType(1)(0))))
        return self._choose(late_any, lambda: b.not_(self._any(late)), ir.IntType(1)(1))

    def _reads_before(self) -> Any:
        """Whether all reads by other warps come before."""
        code, b = self.code, self.code.builder
        warp, planes = code.context("current"), code.context("planes")
        first = b.mul(planes, self.cta)
        vector = b.mul(code.context("actors"), warp)
        late = code.loop_value(code.constant("u32", 0, 1))
        with code.loop(planes) as other:
            met = self._word_of("vectors", b.add(vector, other))
            last = self._word_of("last_read", other)
            with b.if_then(b.and_(b.icmp_signed("!=", other, warp), b.icmp_signed(">", last, met))):
                place = b.mul(b.mul(code.context("granules"), b.add(first, other)), WORD64(4))
                plane, limit = code.at(code.pointer("readers"), place), code.spread(met, "s64", self.many)
                later = self._in_span(
                    lambda span: span.any(span.load(plane, "s32").to("s64") > span.spread(met, "s64")),
                    lambda: self._any(lambda granule, _: self._at(plane, granule, "s32").to("s64") > limit),
                )
                late.set(late.get() | code.spread(b.zext(later, WORD32), "u32", 1))
        return (late.get() == 0).any()

    def _any(self, test: Callable[[Any, Any], Lanes]) -> Any:
        """Whether a test holds for any granule. It gets the first granule of each lane, and the lane as a bit."""
        holds = self.code.loop_value(self.code.constant("pred", 0, self.many))
        with self._each_lane() as (granule, bit):
            holds.set(holds.get() | test(granule, bit))
        return holds.get().any()

    # ---- code -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _each_lane(self) -> Iterator[tuple[Any, Any]]:
        """A loop over the lanes: the first granule of each, an ``i64``, and the lane as a bit, an ``i32``."""
        b = self.code.builder
        with self.code.loop(WORD64(WARP)) as lane:
            place = b.load(b.gep(self.offsets, [lane], source_etype=WORD64), typ=WORD64)
            bit = b.load(b.gep(self.bits, [lane], source_etype=WORD32), typ=WORD32)
            yield b.ashr(place, WORD64(self.shift)), bit

    def _pointer(self, base: Any, granule: Any, type_: str) -> Any:
        return self.code.builder.gep(base, [granule], source_etype=llvm_type(type_).element)

    def _at(self, base: Any, granule: Any, type_: str) -> Lanes:
        """The elements of a lane's granules in an array."""
        vector = llvm_type(type_, self.many)
        return self.code.load(self._pointer(base, granule, type_), type_, self.many, vector.element.width // 8)

    def _in_span(self, close: Callable[[Span], Any], wide: Callable[[], Any], may: Any = None) -> Any:
        """A value, or None, that is computed in vectors if a span holds the access, and ``may`` holds."""
        b, (row, other) = self.code.builder, self.spans

        def either(span: Span, otherwise: Callable[[], Any]) -> Any:
            with b.if_else(span.holds if may is None else b.and_(span.holds, may)) as (then, rest):
                with then:
                    one, after_one = close(span), b.block
                with rest:
                    two, after_two = otherwise(), b.block
            if one is None:
                return None
            result = b.phi(one.type)
            result.add_incoming(one, after_one)
            result.add_incoming(two, after_two)
            return result

        return either(row, lambda: either(other, wide))

    def _if(self, condition: Any, test: Callable[[], Any]) -> Any:
        """Whether a condition and a test hold, an ``i1``."""
        return self._choose(condition, test, ir.IntType(1)(0))

    def _choose(self, condition: Any, value: Callable[[], Any], otherwise: Any) -> Any:
        """A value under a condition, and another one otherwise."""
        b, before = self.code.builder, self.code.builder.block
        with b.if_then(condition):
            chosen, after = value(), b.block
        result = b.phi(otherwise.type)
        result.add_incoming(otherwise, before)
        result.add_incoming(chosen, after)
        return result

    @property
    def _context(self) -> Any:
        return self.code.builder.ptrtoint(self.code.base, WORD64)

    def _word_of(self, word: str, number: Any) -> Any:
        """An element of an array of int64."""
        b = self.code.builder
        return b.load(b.gep(self.code.pointer(word), [number], source_etype=WORD64), typ=WORD64)

    def _of_cta(self, word: str, size: int, count: str = "granules") -> Any:
        """The CTA's part of an array, with elements of ``size`` bytes; ``count`` has their number."""
        code, b = self.code, self.code.builder
        return code.at(code.pointer(word), b.mul(b.mul(code.context(count), self.cta), WORD64(size)))
