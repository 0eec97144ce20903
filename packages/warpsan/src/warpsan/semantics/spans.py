"""Spans of granules in the checks of memory: an access whose places lie close together is checked and marked in
vectors, not lane by lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from llvmlite import ir

from warpsan.engine.lanes import WORD32, WORD64, Lanes, where
from warpsan.engine.layout import WARP
from warpsan.engine.operation import OperationCode

__all__ = ["SPAN", "AccessPlaces", "Span", "extent_of"]

SPAN = 64
"""Granules of the shortest span: fewer than a CTA or a page of global memory has."""
_ALIGN = 16
"""Alignment of lanes side by side, in bytes."""


@dataclass(frozen=True)
class Span:
    """Granules in a row that contain an access.

    Attributes
    ----------
    shift : int
        Binary logarithm of the bytes of a granule.
    size : int
        Number of granules.
    first : llvmlite.ir.Value
        The first granule, ``i64``; its byte is a multiple of 8.
    holds : llvmlite.ir.Value
        Whether all places of the access lie in the span, an ``i1``.
    covered : llvmlite.ir.Value or None
        The granules of the access, an integer with a bit for each granule of the span; None for all.
    """

    code: OperationCode
    shift: int
    size: int
    first: Any
    holds: Any
    covered: Any

    @property
    def covers(self) -> Lanes:
        """The granules of the access as a predicate."""
        b, every = self.code.builder, self.code.constant("pred", 1, self.size)
        return every if self.covered is None else Lanes(b, b.bitcast(self.covered, every.value.type), "pred")

    def any(self, condition: Lanes) -> Any:
        """Whether a condition on the granules of the span holds for a granule of the access, an ``i1``."""
        return (condition & self.covers).any()

    def spread(self, value: Any, type_: str) -> Lanes:
        """A scalar for each granule."""
        return self.code.spread(value, type_, self.size)

    def load(self, base: Any, type_: str) -> Lanes:
        """The elements of an array that has one for each granule."""
        size = self.code.constant(type_, 0, 1).bits // 8
        return self.code.load(self._place(base, size), type_, self.size, size)

    def store(self, base: Any, value: Lanes, but: Lanes | None = None) -> None:
        """Set the elements of granules of the access, except ``but`` those of a predicate."""
        size = value.bits // 8
        if self.covered is not None or but is not None:
            before = self.load(base, value.type).frozen()  # otherwise a masked store, which is slow on AMD's processors
            value = where(self.covers if but is None else self.covers & ~but, value, before)
        self.code.builder.store(value.value, self._place(base, size), align=size)

    def has_bytes(self, written: Any) -> Any:
        """Whether the bits of all bytes of granules of the access are set in ``written``, an ``i1``."""
        code, b, many = self.code, self.code.builder, 1 << self.shift
        place = code.at(written, b.lshr(b.shl(self.first, WORD64(self.shift)), WORD64(3)))
        if self.covered is None:
            return (code.load(place, "u8", self.size * many // 8, 1) == 0xFF).all()
        part = SPAN // many
        bits = code.spread(self.covered, "u64", many)
        bits = (bits >> bits.each("u64", [part * k for k in range(many)])) & ((1 << part) - 1)
        for step in reversed(range(part.bit_length() - 1)):  # a granule's bit to its first byte
            size = 1 << step
            mask = reduce(int.__or__, (((1 << size) - 1) << many * size * k for k in range(SPAN // (many * size))))
            bits = (bits | (bits << size * (many - 1))) & mask
        return ((bits * ((1 << many) - 1) & ~code.load(place, "u64", many, 1)) == 0).all()

    def _place(self, base: Any, size: int) -> Any:
        return self.code.at(base, self.code.builder.mul(self.first, WORD64(size)))


@dataclass(frozen=True)
class AccessPlaces:
    """The places of an access.

    Attributes
    ----------
    places, lanes : Lanes
        Offsets, s64, and the lane of each as a bit, u32; inactive lanes repeat an active one.
    low, high : llvmlite.ir.Value
        The least and the greatest offset of the active lanes, ``i64``.
    rows, spans : list of Span
        Spans of all lanes side by side, and of other accesses.
    """

    places: Lanes
    lanes: Lanes
    low: Any
    high: Any
    rows: list[Span]
    spans: list[Span]


def extent_of(
    code: OperationCode, places: Lanes, width: int, shapes: Sequence[tuple[int, int]], exist: Callable[[Any, int], Any]
) -> AccessPlaces:
    """The places of the active lanes, at least one.

    Parameters
    ----------
    width : int
        Bytes of each lane.
    shapes : sequence of (int, int)
        Of each span, the binary logarithm of the bytes of a granule, and the size for other accesses than rows.
    exist : callable
        The number of granules that exist, an ``i64``, from the greatest offset and that logarithm.
    """
    b, active = code.builder, code.active
    bits = code.constant("u32", 0).each("u32", [1 << lane for lane in range(WARP)])
    first = b.extract_element(places.value, WORD32(0))
    follow = places == code.spread(first, "s64") + places.each("s64", [width * lane for lane in range(WARP)])
    aligned = b.icmp_signed("==", b.and_(first, WORD64(_ALIGN - 1)), WORD64(0))
    row = b.and_(aligned, b.icmp_signed("==", code.those(follow), WORD32(-1)))
    with b.if_else(row) as (together, apart):
        with together:
            one: list[Any] = [places.value, bits.value, first, b.add(first, WORD64((WARP - 1) * width))]
            for _, size in shapes:
                one += [WORD64(0), ir.IntType(1)(0), ir.IntType(size)(0)]
            after_one = b.block
        with apart:
            low = where(active, places, places.like((1 << 62) - 1)).reduced("smin")
            high = where(active, places, places.like(-(1 << 62))).reduced("smax")
            lowest = where(active & (places == code.spread(low, "s64")), bits, 0).reduced("umax")
            here = where(active, places, code.spread(low, "s64"))
            other = [here.value, where(active, bits, code.spread(lowest, "u32")).value, low, high]
            other += _spans(code, here, low, high, width, [(*shape, exist(high, shape[0])) for shape in shapes])
            after_other = b.block
    joined = []
    for pair in zip(one, other, strict=True):
        joined.append(b.phi(pair[0].type))
        joined[-1].add_incoming(pair[0], after_one)
        joined[-1].add_incoming(pair[1], after_other)
    here_, lanes, low, high, *rest = joined
    rows = [Span(code, shift, WARP * width >> shift, b.ashr(first, WORD64(shift)), row, None) for shift, _ in shapes]
    spans = [Span(code, *shape, *rest[3 * k : 3 * k + 3]) for k, shape in enumerate(shapes)]
    return AccessPlaces(Lanes(b, here_, "s64"), Lanes(b, lanes, "u32"), low, high, rows, spans)


def _spans(
    code: OperationCode, places: Lanes, low: Any, high: Any, width: int, shapes: Sequence[tuple[int, int, Any]]
) -> list[Any]:
    """The first granule of each span, whether it contains an access, and the granules of the access; ``shapes`` have
    the number of granules that exist too."""
    b, pairs = code.builder, []
    for shift, size, exist in shapes:
        begin = b.and_(b.ashr(low, WORD64(shift)), WORD64(-max(8 >> shift, 1)))
        last = b.sub(exist, WORD64(size))
        first = b.select(b.icmp_signed("<", begin, last), begin, last)
        end = b.add(b.ashr(high, WORD64(shift)), WORD64(max(width >> shift, 1)))
        pairs.append((first, b.icmp_signed("<=", b.sub(end, first), WORD64(size))))
    before = b.block
    with b.if_then(reduce(b.or_, [holds for _, holds in pairs])):
        covered = [
            _covered(code, (places >> shift) - code.spread(first, "s64"), max(width >> shift, 1), size)
            for (shift, size, _), (first, _) in zip(shapes, pairs, strict=True)
        ]
        after = b.block
    result: list[Any] = []
    for (first, holds), bits in zip(pairs, covered, strict=True):
        result += [first, holds, b.phi(bits.type)]
        result[-1].add_incoming(bits.type(0), before)
        result[-1].add_incoming(bits, after)
    return result


def _covered(code: OperationCode, number: Lanes, many: int, size: int) -> Any:
    """Bits of the granules of an access: ``many`` for each lane, from a number on."""
    b, whole = code.builder, ir.IntType(size)
    ones, covered = number.like((1 << many) - 1), whole(0)
    for k in range(size // 64):
        part = ones << (number & 63)
        if size > 64:
            part = where((number >> 6) == k, part, 0)
        covered = b.or_(covered, b.shl(b.zext(part.reduced("or"), whole), whole(64 * k)))
    return covered
