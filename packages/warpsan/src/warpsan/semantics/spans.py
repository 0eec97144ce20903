"""Spans of granules in the checks of shared memory: an access whose places lie in 64 granules is checked and marked in
vectors, with a bit for each granule that it covers, not lane by lane."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

from warpsan.engine.lanes import WORD64, Lanes, where
from warpsan.engine.operation import OperationCode

__all__ = ["SPAN", "Span"]

SPAN = 64
"""Granules of a span. A CTA has at least as many: its shadow memory has whole pages."""


@dataclass(frozen=True)
class Span:
    """The granules of an access.

    Attributes
    ----------
    first : llvmlite.ir.Value
        The first granule of the span, ``i64``; its byte is a multiple of 8.
    holds : llvmlite.ir.Value
        Whether all places of the access lie in the span, an ``i1``; the rest is defined only then.
    covered : llvmlite.ir.Value
        The granules of the access as bits, ``i64``.
    """

    code: OperationCode
    shift: int
    first: Any
    holds: Any
    covered: Any

    @classmethod
    def of(cls, code: OperationCode, places: Lanes, low: Any, high: Any, many: int, shift: int) -> Span:
        """The span of an access of ``many`` granules of each lane, from the least offset ``low`` to the greatest,
        ``high``; inactive lanes repeat an active one."""
        b, whole = code.builder, max(8 >> shift, 1)
        begin = b.and_(b.ashr(low, WORD64(shift)), WORD64(-whole))
        last = b.sub(code.context("granules"), WORD64(SPAN))
        first = b.select(b.icmp_signed("<", begin, last), begin, last)
        end = b.add(b.ashr(high, WORD64(shift)), WORD64(many))
        number = ((places >> shift) - code.spread(first, "s64")) & (SPAN - 1)
        covered = (number.like((1 << many) - 1) << number).reduced("or")
        return cls(code, shift, first, b.icmp_signed("<=", b.sub(end, first), WORD64(SPAN)), covered)

    def any(self, condition: Lanes) -> Any:
        """Whether a condition on the granules of the span holds for a covered one, an ``i1``."""
        b = self.code.builder
        return b.icmp_signed("!=", b.and_(b.bitcast(condition.value, WORD64), self.covered), WORD64(0))

    def load(self, base: Any, type_: str) -> Lanes:
        """The elements of an array that has one for each granule."""
        size = self.code.constant(type_, 0, 1).bits // 8
        pointer = self.code.at(base, self.code.builder.mul(self.first, WORD64(size)))
        return self.code.load(pointer, type_, SPAN, size)

    def store(self, base: Any, value: Lanes) -> None:
        """Set the elements of covered granules."""
        b, size = self.code.builder, value.bits // 8
        covered = Lanes(b, b.bitcast(self.covered, self.code.constant("pred", 0, SPAN).value.type), "pred")
        before = self.load(base, value.type).frozen()  # otherwise a masked store, which is slow on AMD's processors
        b.store(where(covered, value, before).value, self.code.at(base, b.mul(self.first, WORD64(size))), align=size)

    def has_bytes(self, written: Any) -> Any:
        """Whether the bits of all bytes of covered granules are set in ``written``, an ``i1``."""
        code, b, many = self.code, self.code.builder, 1 << self.shift
        part = SPAN // many
        bits = code.spread(self.covered, "u64", many)
        bits = (bits >> bits.each("u64", [part * k for k in range(many)])) & ((1 << part) - 1)
        for step in reversed(range(part.bit_length() - 1)):  # a granule's bit to its first byte
            size = 1 << step
            mask = reduce(int.__or__, (((1 << size) - 1) << many * size * k for k in range(SPAN // (many * size))))
            bits = (bits | (bits << size * (many - 1))) & mask
        needed = bits * ((1 << many) - 1)
        place = (
            code.at(written, b.ashr(self.first, WORD64(3 - self.shift)))
            if self.shift <= 3
            else code.at(written, b.shl(self.first, WORD64(self.shift - 3)))
        )
        return b.not_(((needed & ~code.load(place, "u64", many, 1)) != 0).any())
