"""The sums of a 16 x 8 tile of a matrix product, for mma, wmma and wgmma.

By the hardware's rule (:mod:`sdpalab.sim.tensor_cores`) the greatest exponents are found in 16-bit integers, for the
whole tile at once. A product of two factors is exact in float32, and so is its scaling by a power of two, so that a
conversion to int32 is what cuts it off; the sum is exact in int32. Where float32 does not hold the products, or there
are infinities or NaN, :mod:`~sdpalab.sim.native.exact_sums` makes the whole tile's sums.

Factors lie in memory as float32, A as [2, depth, 8 rows] and B as [depth, 8 columns].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sdpalab.sim.forms import SUMMED
from sdpalab.sim.native.exact_sums import sum_tile
from sdpalab.sim.native.lanes import WORD64, Lanes, llvm_type, where
from sdpalab.sim.native.numeric import canonical, narrowed, widened
from sdpalab.sim.native.operation import OperationCode
from sdpalab.sim.tensor_cores import EMIN, FAR, SPECIAL_EXPONENT, ZERO_EXPONENT, SumRule

__all__ = ["ALTERNATING", "COLUMNS", "ROWS", "TileSum", "stacked", "store_half"]

ROWS, COLUMNS = 16, 8
ALTERNATING = [32 * odd + k for k in range(32) for odd in range(2)]
"""The order that takes one element after the other of two vectors of 32."""
_LEAST, _GREATEST = -100, 125
"""Exponents for which float32 holds all that a block keeps of its products, and their scales."""


def stacked(parts: Sequence[Lanes]) -> Lanes:
    """Vectors one behind the other; their number is a power of two."""
    parts = list(parts)
    while len(parts) > 1:
        many = 2 * parts[0].count
        parts = [parts[k].shuffled(range(many), parts[k + 1]) for k in range(0, len(parts), 2)]
    return parts[0]


def _greater(x: Lanes, y: Lanes) -> Lanes:
    return where(x > y, x, y)


def _towards_zero(values: Lanes) -> Lanes:
    """s32 below 2**31 - 64 in size as f32, without the digits that f32 does not have."""
    nearest = values.to("f32")
    sign = values >> 31
    more = ((nearest.to("s32") - values) ^ sign) - sign  # above zero where rounding led away from zero
    bits = nearest.as_type("s32")
    return where(more > 0, bits - 1, bits).as_type("f32")


def exponents(values: Lanes, least: int, *, special: bool = True) -> Lanes:
    """Exponents of float32 values, s32: ``least`` at least, but of zeros and of what is not finite; without ``special``
    that is 128, as its bits say."""
    bits = values.as_type("s32")
    size = bits & 0x7FFFFFFF
    exponent = (size >> 23) - 127
    finite = _greater(exponent, size.like(least))
    exponent = where(exponent == 128, size.like(SPECIAL_EXPONENT), finite) if special else finite
    return where(size == 0, size.like(ZERO_EXPONENT), exponent)


@dataclass(frozen=True)
class TileSum:
    """The code of one kind of sum.

    Attributes
    ----------
    rule : SumRule
    depth : int
        K.
    result : {"f32", "f16"}
    numerics : {"hardware", "float32"}
    """

    rule: SumRule
    depth: int
    result: str
    numerics: str

    @property
    def name(self) -> str:
        """What the code depends on."""
        if self.numerics == "hardware":
            return f"{self.depth}.{self.rule.name}.{self.result}"
        blocks = self.rule.blocks if self.result == "f16" or self.rule.addend_last else ()
        widths = "_".join(str(len(block)) for block in blocks)
        return f"{self.depth}.plain{widths}{'.last' * self.rule.addend_last}.{self.result}"

    # ---- A's exponents ----------------------------------------------------------------------------------------------

    def spread_exponents(self, code: OperationCode, left: Any, target: Any) -> None:
        """Write the exponents of A [2, depth, 8] as s16 [depth, 16 rows, 8 columns], the same in all columns."""
        if self.numerics != "hardware":
            return
        repeated = [row for row in range(8) for _ in range(COLUMNS)]
        for k in range(self.depth):
            halves = []
            for half in range(2):
                row = code.load(code.at(left, WORD64(32 * (half * self.depth + k))), "f32", 8, align=32)
                halves.append(exponents(row, self.rule.least).to("s16").shuffled(repeated))
            code.builder.store(stacked(halves).value, code.at(target, WORD64(256 * k)), align=64)

    # ---- sums -------------------------------------------------------------------------------------------------------

    def totals(
        self,
        code: OperationCode,
        left: Any,
        right: Any,
        of_left: Any,
        before: tuple[Lanes, Lanes],
        room: Any,
        *,
        negate: Any = None,
    ) -> tuple[Lanes, Lanes]:
        """The sums of a tile, f32 of [8 rows, 8 columns] each: the upper and the lower half.

        Parameters
        ----------
        left, right, of_left : llvmlite.ir.Value
            Pointers to A, B and A's exponents.
        before : tuple of Lanes
            C.
        room : llvmlite.ir.Value
            A pointer to 1024 bytes to work in.
        negate : llvmlite.ir.Value, optional
            An ``i1``: whether the products are subtracted.
        """
        start = [half.shuffled(range(at, at + COLUMNS)) for half in before for at in range(0, 8 * COLUMNS, COLUMNS)]
        sums = [code.constant("f32", 0.0, COLUMNS)] * ROWS if self.rule.addend_last else start
        if self.numerics == "hardware":
            sums = self._hardware(code, left, right, of_left, sums, room, negate)
        else:
            sums = [each for half in (0, 8) for each in self._plain(code, left, right, half, sums, negate)]
        if self.rule.addend_last:
            sums = [self._number(total + addend) for total, addend in zip(sums, start, strict=True)]
        sums = [total + 0.0 for total in sums]  # no zero is negative
        return stacked(sums[:8]), stacked(sums[8:])

    def _number(self, values: Lanes) -> Lanes:
        """f32 rounded to the result's type, to nearest even."""
        return widened(narrowed(values, "f16"), "f16") if self.result == "f16" else values

    def _element(self, code: OperationCode, left: Any, row: int, k: int) -> Lanes:
        """An element of A, for all columns."""
        place = code.at(left, WORD64(32 * (row // 8 * self.depth + k) + 4 * (row % 8)))
        return code.spread(code.builder.load(place, typ=llvm_type("f32").element, align=4), "f32", COLUMNS)

    def _row_of_b(self, code: OperationCode, right: Any, k: int) -> Lanes:
        return code.load(code.at(right, WORD64(32 * k)), "f32", COLUMNS, align=32)

    def _plain(
        self, code: OperationCode, left: Any, right: Any, half: int, start: Sequence[Lanes], negate: Any
    ) -> list[Lanes]:
        """Sums in float32 of the 8 rows from ``half`` on, ascending along K from zero; of each 16 products, or of each
        block of the rule."""
        by_rule = self.result == "f16" or self.rule.addend_last
        summed = [range(at, min(at + SUMMED, self.depth)) for at in range(0, self.depth, SUMMED)]
        sums, before = list(start[half : half + 8]), None
        for block in self.rule.blocks if by_rule else summed:
            rows = [code.constant("f32", 0.0, COLUMNS)] * 8
            for k in block:
                factors = self._row_of_b(code, right, k)
                rows = [self._element(code, left, half + row, k).call("fma", factors, rows[row]) for row in range(8)]
            if by_rule:
                rows = [self._signed(code, row, negate) for row in rows]
                sums = [self._number(row + total) for row, total in zip(rows, sums, strict=True)]
            else:
                before = rows if before is None else [x + y for x, y in zip(before, rows, strict=True)]
        if before is None:
            return sums
        return [self._signed(code, row, negate) + addend for row, addend in zip(before, sums, strict=True)]

    @staticmethod
    def _signed(code: OperationCode, values: Lanes, negate: Any) -> Lanes:
        return values if negate is None else where(code.all_or_none(negate, values.count), -values, values)

    def _hardware(
        self,
        code: OperationCode,
        left: Any,
        right: Any,
        of_left: Any,
        start: Sequence[Lanes],
        room: Any,
        negate: Any,
    ) -> list[Lanes]:
        """Sums by the rule, row by row, so that the processor's registers hold what is worked on."""
        b, out = code.builder, []
        with b.goto_entry_block():
            for _ in range(2):
                out.append(b.alloca(llvm_type("f32", 64)))
                out[-1].align = 64
        tops = [self._greatest(code, right, of_left, block) for block in self.rule.blocks]
        sums: list[Lanes] = []
        highest = lowest = code.constant("s32", 0, COLUMNS)
        for row in range(ROWS):
            total = start[row]
            for block, greatest in zip(self.rule.blocks, tops, strict=True):
                top = greatest.shuffled(range(COLUMNS * row, COLUMNS * (row + 1))).to("s32")
                top = _greater(top, exponents(total, EMIN[self.result], special=False))
                top = where(top < -FAR, top.like(0), top)  # where all terms are zero
                highest, lowest = _greater(highest, top), where(top < lowest, top, lowest)
                scale = ((-top + (self.rule.fraction + 127)) << 23).as_type("f32")
                terms = self._signed(code, self._terms(code, left, right, row, block, scale), negate)
                total = self._sum(terms, total, scale).frozen()  # out of range, where the exact sums are taken
            sums.append(total)
        exact, fast, after = (b.append_basic_block(name) for name in ("exact", "fast", "summed"))
        b.cbranch(((highest > _GREATEST) | (lowest < _LEAST)).any(), exact, fast)
        b.position_at_end(fast)
        for half in range(2):
            b.store(stacked(sums[8 * half : 8 * half + 8]).value, out[half], align=64)
        b.branch(after)
        b.position_at_end(exact)
        self._exact(code, left, right, start, room, negate, out)
        b.branch(after)
        b.position_at_end(after)
        return [
            code.load(code.at(half, WORD64(4 * at)), "f32", COLUMNS, align=32)
            for half in out
            for at in range(0, 8 * COLUMNS, COLUMNS)
        ]

    def _greatest(self, code: OperationCode, right: Any, of_left: Any, block: Sequence[int]) -> Lanes:
        """The greatest exponents of a block's products, s16 of [16 rows, 8 columns]."""
        greatest: Lanes | None = None
        for k in block:
            row = exponents(self._row_of_b(code, right, k), self.rule.least).to("s16")
            of_product = code.load(code.at(of_left, WORD64(256 * k)), "s16", 128) + row.shuffled(
                list(range(COLUMNS)) * ROWS
            )
            greatest = of_product if greatest is None else _greater(greatest, of_product)
        assert greatest is not None
        return greatest

    def _terms(self, code: OperationCode, left: Any, right: Any, row: int, block: Sequence[int], scale: Lanes) -> Lanes:
        """The sums of a block's aligned products in a row, in units of the last digit of a term, s32; ``scale`` is that
        unit's inverse."""
        total: Lanes | None = None
        for k in block:
            term = (self._element(code, left, row, k) * self._row_of_b(code, right, k) * scale).to("s32")
            total = term if total is None else total + term
        assert total is not None
        return total

    def _sum(self, products: Lanes, before: Lanes, scale: Lanes) -> Lanes:
        """The products and C, rounded once; ``scale`` as in :meth:`_terms`."""
        unit = (scale.as_type("s32").like(254 << 23) - scale.as_type("s32")).as_type("f32")
        addend = (before * scale).to("s32")
        most = (4 * max(map(len, self.rule.blocks)) + 2) << self.rule.fraction
        if self.result == "f32" and self.rule.precision == 23 and most < 1 << 31:
            return _towards_zero(products + addend) * unit
        total = products + addend
        # Of two terms with one sign the sum may need all 32 bits: then its sign is theirs.
        negative = ((products & addend) | ((products | addend) & total)) < 0
        size = where(negative, -total, total).as_type("u32")
        digits = 24 if self.result == "f16" else self.rule.precision + 1
        below = size >> digits  # as many digits as there are too many
        for shift in (1, 2, 4):
            below = below | (below >> shift)
        cut = size & ~below
        if self.result == "f16":  # what is cut off still decides the rounding
            cut = cut | where((size & below) != 0, below + 1, 0)
        value = cut.to("f32") * unit
        signed = (value.as_type("u32") | where(negative, value.as_type("u32").like(1 << 31), 0)).as_type("f32")
        return self._number(signed) + 0.0

    def _exact(
        self,
        code: OperationCode,
        left: Any,
        right: Any,
        start: Sequence[Lanes],
        room: Any,
        negate: Any,
        out: Sequence[Any],
    ) -> None:
        """Make the sums of the whole tile in integers."""
        b, rule = code.builder, self.rule
        for row, before in enumerate(start):  # with the products' sign on C, and again on the sum
            b.store(self._signed(code, before, negate).value, code.at(room, WORD64(32 * row)), align=32)
        results = code.at(room, WORD64(512))
        stride = 4 if rule.addend_last else 0
        shape, digits = (self.depth, len(rule.blocks[0]), stride), (rule.fraction, rule.precision, rule.least)
        numbers = (*shape, *digits, self.result == "f16")
        places = [b.ptrtoint(each, WORD64) for each in (left, right, room, results)]
        code.call(sum_tile, *places, *(WORD64(int(number)) for number in numbers))
        for half in range(2):
            values = code.load(code.at(results, WORD64(256 * half)), "f32", 64)
            b.store(self._signed(code, values, negate).value, out[half], align=64)


def store_half(code: OperationCode, whole: Lanes, result: str, rows: Sequence[Any]) -> None:
    """Write one half of a tile's sums to the rows of its registers: one of packed f16, or those of even columns and
    of odd ones."""
    if result == "f16":
        code.builder.store(narrowed(whole, "f16").value, rows[0], align=64)
        return
    for odd, row in enumerate(rows):
        column = whole.shuffled(range(odd, 64, 2))
        code.builder.store((canonical(column, "f32") if whole.floating else column).value, row, align=64)
