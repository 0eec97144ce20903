"""The sums of a 16 x 8 tile of a matrix product, for mma, wmma and wgmma.

For the hardware's rule (:mod:`warpsan.numerics.tensor_cores`), the greatest exponents are computed in 16-bit integers,
for the whole tile at once. A product of two factors is exact in float32, and so is its scaling by a power of two; a
conversion to int32 then truncates it, and the sum is exact in int32. If float32 does not hold the products, or there
are infinities or NaN, :mod:`~warpsan.engine.exact_sums` computes the whole tile's sums.

Factors lie in memory as float32, A as [2, depth, 8 rows] and B as [depth, 8 columns].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from warpsan.engine.exact_sums import sum_tile
from warpsan.engine.lanes import POINTER, WORD64, Lanes, llvm_type, where
from warpsan.engine.layout import SCRATCH_EXPONENTS, SCRATCH_ROWS
from warpsan.engine.numeric import canonical, narrowed, widened
from warpsan.engine.operation import OperationCode
from warpsan.numerics.tensor_cores import EMIN, FAR, SPECIAL_EXPONENT, ZERO_EXPONENT, SumRule
from warpsan.ptx.forms import SUMMED

__all__ = ["ALTERNATING", "COLUMNS", "ROWS", "TileSum", "stacked", "store_half"]

ROWS, COLUMNS = 16, 8
ALTERNATING = [32 * odd + k for k in range(32) for odd in range(2)]
"""The order that interleaves two vectors of 32."""
_LEAST, _GREATEST = -100, 125
"""Exponents for which float32 holds all digits that a block keeps of its products, and their scales."""
_TOO_LARGE = 0x4EFFFFC0
"""The float32 bits of 2^31 less the rounding of a sum of 128 terms: above it, a sum may need more than 32 bits."""


def stacked(parts: Sequence[Lanes]) -> Lanes:
    """Concatenate vectors; their number is a power of two."""
    parts = list(parts)
    while len(parts) > 1:
        many = 2 * parts[0].count
        parts = [parts[k].shuffled(range(many), parts[k + 1]) for k in range(0, len(parts), 2)]
    return parts[0]


def _greater(x: Lanes, y: Lanes) -> Lanes:
    return where(x > y, x, y)


def _lesser(x: Lanes, y: Lanes) -> Lanes:
    return where(x < y, x, y)


def _folded(values: Lanes, pick: Callable[[Lanes, Lanes], Lanes], count: int) -> Lanes:
    """``count`` elements that combine all elements of a vector."""
    while values.count > count:
        half = values.count // 2
        values = pick(values.shuffled(range(half)), values.shuffled(range(half, 2 * half)))
    return values


def _towards_zero(values: Lanes) -> Lanes:
    """s32 below 2**31 - 64 in size, or with AVX-512 any integer, as f32, truncated to the digits of f32."""
    if values.builder.module.has_rounding:
        parts = [values.shuffled(range(first, first + 16)) for first in range(0, values.count, 16)]
        return stacked([each.rounded_to_zero() for each in parts])
    nearest = values.to("f32")
    sign = values >> 31
    more = ((nearest.to("s32") - values) ^ sign) - sign  # above zero if the rounding was away from zero
    bits = nearest.as_type("s32")
    return where(more > 0, bits - 1, bits).as_type("f32")


def exponents(values: Lanes, least: int, *, special: bool = True) -> Lanes:
    """Exponents of float32 values, s32: at least ``least``, except for zeros and values that are not finite; without
    ``special``, these have 128, from their bits."""
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
        """The inputs of the code."""
        if self.numerics == "hardware":
            return f"{self.depth}.{self.rule.name}.{self.result}"
        blocks = self.rule.blocks if self.result == "f16" or self.rule.addend_last else ()
        widths = "_".join(str(len(block)) for block in blocks)
        return f"{self.depth}.plain{widths}{'.last' * self.rule.addend_last}.{self.result}"

    # ---- A ----------------------------------------------------------------------------------------------------------

    def spread(self, code: OperationCode, left: Any) -> None:
        """Write A [2, depth, 8] to the scratch, as f32 [depth, 16 rows, 8 columns] and the exponents as s16, the same
        in all columns."""
        if self.numerics != "hardware":
            return
        b, repeated = code.builder, [row for row in range(8) for _ in range(COLUMNS)]
        scratch = code.pointer("scratch")
        factors, powers = (code.at(scratch, WORD64(place)) for place in (SCRATCH_ROWS, SCRATCH_EXPONENTS))
        with code.loop(WORD64(self.depth)) as k:
            for half in range(2):
                line = code.load(code.at(left, b.mul(b.add(k, WORD64(half * self.depth)), WORD64(32))), "f32", 8, 32)
                of_line = exponents(line, self.rule.least[0]).to("s16")
                place = b.add(b.mul(k, WORD64(512)), WORD64(256 * half))
                b.store(line.shuffled(repeated).value, code.at(factors, place), align=64)
                b.store(of_line.shuffled(repeated).value, code.at(powers, b.lshr(place, WORD64(1))), align=64)

    # ---- sums -------------------------------------------------------------------------------------------------------

    def totals(
        self,
        code: OperationCode,
        left: Any,
        right: Any,
        before: tuple[Lanes, Lanes],
        room: Any,
        *,
        negate: Any = None,
    ) -> tuple[Lanes, Lanes]:
        """The sums of a tile, f32 of [8 rows, 8 columns] each: the upper and the lower half.

        A loop iteration computes a few rows: LLVM takes much longer for 16 rows in sequence, and the processor's
        registers hold the operands of a few. More than one row is needed, because each step of a row's sums waits for
        the last.

        Parameters
        ----------
        left, right : llvmlite.ir.Value
            Pointers to A and B; A has been :meth:`spread`.
        before : tuple of Lanes
            C.
        room : llvmlite.ir.Value
            A pointer to 1024 bytes of working memory.
        negate : llvmlite.ir.Value, optional
            An ``i1``: whether the products are subtracted.
        """
        b, results = code.builder, code.at(room, WORD64(512))
        before = self._signed(code, before[0], negate), self._signed(code, before[1], negate)  # and again for the sums
        start = tuple(half.like(0) for half in before) if self.rule.addend_last else before
        for half, values in enumerate(start):
            b.store(values.value, code.at(room, WORD64(256 * half)), align=64)
        if self.numerics == "hardware":
            self._hardware(code, left, right, room, results)
        else:
            self._plain(code, left, right, room, results)
        sums = []
        for half, addend in enumerate(before):
            total = code.load(code.at(results, WORD64(256 * half)), "f32", 64)
            if self.rule.addend_last:
                total = self._number(total + addend)
            sums.append(self._signed(code, total, negate) + 0.0)  # no zero is negative
        return sums[0], sums[1]

    @staticmethod
    def _signed(code: OperationCode, values: Lanes, negate: Any) -> Lanes:
        """Numbers, optionally negated."""
        if negate is None:
            return values
        float_ = llvm_type("f32").element
        return values * code.spread(code.builder.select(negate, float_(-1.0), float_(1.0)), "f32", values.count)

    def _number(self, values: Lanes) -> Lanes:
        """f32 rounded to the result's type, to nearest even."""
        return widened(narrowed(values, "f16"), "f16") if self.result == "f16" else values

    @contextmanager
    def _rows(self, code: OperationCode, left: Any, many: int) -> Iterator[tuple[Any, Any]]:
        """A loop over ``many`` rows at a time, a divisor of 8. Yields the number of the iteration, and the start of
        these rows of A. Elements of a row lie 32 bytes apart, and neighbouring rows 4."""
        b = code.builder
        with code.loop(WORD64(ROWS // many)) as turn:
            row = b.mul(turn, WORD64(many))
            half, line = b.lshr(row, WORD64(3)), b.and_(row, WORD64(7))
            yield turn, code.at(left, b.add(b.mul(half, WORD64(32 * self.depth)), b.mul(line, WORD64(4))))

    def _elements(self, code: OperationCode, of_a: Any, k: Any, many: int) -> Lanes:
        """An element of each of ``many`` rows of A, for all columns."""
        column = code.load(code.at(of_a, code.builder.mul(k, WORD64(32))), "f32", many, align=4)
        return column.shuffled([row for row in range(many) for _ in range(COLUMNS)])

    def _row_of_b(self, code: OperationCode, right: Any, k: Any, many: int) -> Lanes:
        """A row of B, for ``many`` rows of A."""
        row = code.load(code.at(right, code.builder.mul(k, WORD64(32))), "f32", COLUMNS, align=32)
        return row.shuffled(list(range(COLUMNS)) * many)

    def _plain(self, code: OperationCode, left: Any, right: Any, start: Any, results: Any) -> None:
        """Sums in float32, ascending along K from zero, for each 16 products, or for each block of the rule."""
        b, many, by_rule = code.builder, 4, self.result == "f16" or self.rule.addend_last
        summed = [range(at, min(at + SUMMED, self.depth)) for at in range(0, self.depth, SUMMED)]
        with self._rows(code, left, many) as (turn, of_a):
            place = b.mul(turn, WORD64(32 * many))
            totals, before = code.load(code.at(start, place), "f32", many * COLUMNS), None
            for block in self.rule.blocks if by_rule else summed:
                part = totals.like(0)
                for k in map(WORD64, block):
                    part = self._elements(code, of_a, k, many).call("fma", self._row_of_b(code, right, k, many), part)
                if by_rule:
                    totals = self._number(part + totals)
                else:
                    before = part if before is None else before + part
            totals = totals if before is None else before + totals
            b.store(totals.value, code.at(results, place), align=64)

    def _hardware(self, code: OperationCode, left: Any, right: Any, start: Any, results: Any) -> None:
        """Sums by the rule, in 32 bits; in :func:`sum_tile` where exponents or the sum need more."""
        b, size = code.builder, ROWS * COLUMNS
        overflows = (4 * max(map(len, self.rule.blocks))) << self.rule.fraction > 1 << 31
        tops, beyond = self._greatest(code, right)
        factors = code.at(code.pointer("scratch"), WORD64(SCRATCH_ROWS))
        most, least, largest = (code.loop_value(code.constant("u32", value, 16)) for value in (0, 0xFFFFFFFF, 0))
        total = code.loop_value(code.load(start, "f32", size))
        with code.loop(WORD64(len(self.rule.blocks))) as number:
            top = code.load(code.at(tops, b.mul(number, WORD64(256))), "s16", size).to("s32")
            bits = total.get().as_type("u32") & 0x7FFFFFFF
            most.set(_greater(most.get(), _folded(bits, _greater, 16)))
            least.set(_lesser(least.get(), _folded(bits - 1, _lesser, 16)))  # a zero is no small number
            if self.result == "f32":
                top = _greater(top, (bits >> 23).as_type("s32") - 127)
            else:
                top = _greater(top, exponents(total.get(), EMIN[self.result], special=False))
            scale = ((-top + (self.rule.fraction + 127)) << 23).as_type("f32")
            terms, sizes = code.loop_value(top.like(0)), code.loop_value(scale.like(0.0))
            with code.loop(WORD64(len(self.rule.blocks[0]))) as each:  # in units of the last digit
                k = self._product_of(code, number, each)
                of_a = code.load(code.at(factors, b.mul(k, WORD64(512))), "f32", size)
                term = of_a * self._row_of_b(code, right, k, ROWS) * scale
                terms.set(terms.get() + term.to("s32"))
                if overflows:
                    sizes.set(sizes.get() + (term.as_type("u32") & 0x7FFFFFFF).as_type("f32"))
            largest.set(_greater(largest.get(), _folded(sizes.get().as_type("u32"), _greater, 16)))
            total.set(self._sum(terms.get(), total.get(), scale))
        b.store(total.get().value, results, align=64)
        bounds = [exponent + 127 << 23 for exponent in (_GREATEST + 1, _LEAST)]
        of_sums = (most.get() >= bounds[0]) | (least.get() < bounds[1] - 1) | (largest.get() >= _TOO_LARGE)
        with b.if_then(b.or_(beyond.any(), of_sums.any()), likely=False):
            self._exact(code, left, right, start, results)

    def _greatest(self, code: OperationCode, right: Any) -> tuple[Any, Lanes]:
        """The places of the greatest exponents of each block's products, s16 [16 rows, 8 columns] for each block,
        without products other than zeros the least; and whether any are out of range, in any element."""
        b, blocks, many = code.builder, self.rule.blocks, 64
        with b.goto_entry_block():
            tops = b.alloca(llvm_type("s16", 128), size=len(blocks))
            of_right = b.alloca(llvm_type("s16", many), size=self.depth * COLUMNS // many)
            tops.align = of_right.align = 64
        with code.loop(WORD64(self.depth * COLUMNS // many)) as part:
            factors = code.load(code.at(right, b.mul(part, WORD64(4 * many))), "f32", many, align=32)
            powers = exponents(factors, self.rule.least[1]).to("s16")
            b.store(powers.value, code.at(of_right, b.mul(part, WORD64(2 * many))), align=64)
        of_left = code.at(code.pointer("scratch"), WORD64(SCRATCH_EXPONENTS))
        most, least = (code.loop_value(code.constant("s16", value, 32)) for value in (_LEAST, _GREATEST))
        with code.loop(WORD64(len(blocks))) as number:
            greatest = code.loop_value(code.constant("s16", 2 * ZERO_EXPONENT, 128))
            with code.loop(WORD64(len(blocks[0]))) as each:
                k = self._product_of(code, number, each)
                row = code.load(b.bitcast(code.at(of_right, b.mul(k, WORD64(16))), POINTER), "s16", COLUMNS, align=16)
                of_a = code.load(code.at(of_left, b.mul(k, WORD64(256))), "s16", 128)
                greatest.set(_greater(greatest.get(), of_a + row.shuffled(list(range(COLUMNS)) * ROWS)))
            top = where(greatest.get() < -FAR, greatest.get().like(_LEAST), greatest.get())
            most.set(_greater(most.get(), _folded(top, _greater, 32)))
            least.set(_lesser(least.get(), _folded(top, _lesser, 32)))
            b.store(top.value, code.at(tops, b.mul(number, WORD64(256))), align=64)
        return tops, (most.get() > _GREATEST) | (least.get() < _LEAST)

    def _product_of(self, code: OperationCode, number: Any, each: Any) -> Any:
        """The place along K of one product of a block, an ``i64``, by the numbers of both."""
        b = code.builder
        if self.rule.addend_last:  # blocks take two of each four
            among = b.add(b.mul(b.lshr(each, WORD64(1)), WORD64(4)), b.mul(number, WORD64(2)))
            return b.add(among, b.and_(each, WORD64(1)))
        return b.add(b.mul(number, WORD64(len(self.rule.blocks[0]))), each)

    def _sum(self, products: Lanes, before: Lanes, scale: Lanes) -> Lanes:
        """The products and C, rounded once; ``scale`` is the inverse of the unit of the last digit."""
        unit = (scale.as_type("s32").like(254 << 23) - scale.as_type("s32")).as_type("f32")
        addend = (before * scale).to("s32")
        most = (4 * max(map(len, self.rule.blocks)) + 2) << self.rule.fraction
        if self.result == "f32" and self.rule.precision == 23 and most < 1 << 31:
            return _towards_zero(products + addend) * unit
        total = products + addend
        # The sum of two terms with one sign may need all 32 bits: then its sign is theirs.
        negative = ((products & addend) | ((products | addend) & total)) < 0
        size = where(negative, -total, total).as_type("u32")
        value = self._cut(size) * unit
        signed = (value.as_type("u32") | where(negative, value.as_type("u32").like(1 << 31), 0)).as_type("f32")
        return self._number(signed) + 0.0

    def _cut(self, size: Lanes) -> Lanes:
        """u32 as f32, truncated to the digits of the result; those of f16 still decide its rounding."""
        if self.result == "f32" and self.rule.precision == 23 and size.builder.module.has_rounding:
            return _towards_zero(size)
        below = size >> (24 if self.result == "f16" else self.rule.precision + 1)  # the number of excess digits
        for shift in (1, 2, 4):
            below = below | (below >> shift)
        cut = size & ~below
        if self.result == "f16":
            cut = cut | where((size & below) != 0, below + 1, 0)
        return cut.to("f32")

    def _exact(self, code: OperationCode, left: Any, right: Any, start: Any, results: Any) -> None:
        """Compute the sums of the whole tile in integers."""
        rule = self.rule
        stride = 4 if rule.addend_last else 0
        shape, digits = (self.depth, len(rule.blocks[0]), stride), (rule.fraction, rule.precision, *rule.least)
        numbers = (*shape, *digits, self.result == "f16")
        places = [code.builder.ptrtoint(each, WORD64) for each in (left, right, start, results)]
        code.call(sum_tile, *places, *(WORD64(int(number)) for number in numbers))


def store_half(code: OperationCode, whole: Lanes, result: str, rows: Sequence[Any]) -> None:
    """Write one half of a tile's sums to the rows of its registers: one of packed f16, or those of even columns and
    of odd ones."""
    if result == "f16":
        code.builder.store(narrowed(whole, "f16").value, rows[0], align=64)
        return
    for odd, row in enumerate(rows):
        column = whole.shuffled(range(odd, 64, 2))
        code.builder.store((canonical(column, "f32") if whole.floating else column).value, row, align=64)
