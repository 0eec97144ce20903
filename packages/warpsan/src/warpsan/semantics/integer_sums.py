"""Matrix products of integers, for mma and wgmma: exact sums in int32.

Factors are converted to float32, like those of other types: a product has at most 16 bits, and one instruction adds at
most 64 of them, so that float32 holds every sum exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from warpsan.engine.lanes import WORD64, Lanes, llvm_type, where
from warpsan.engine.operation import OperationCode
from warpsan.semantics.sums import COLUMNS, ROWS, stacked

__all__ = ["IntegerSum"]


@dataclass(frozen=True)
class IntegerSum:
    """The code of one kind of sum, with the interface of :class:`~.sums.TileSum`.

    Attributes
    ----------
    depth : int
        K.
    saturates : bool
        Whether sums are clamped to int32 (``.satfinite``); otherwise they wrap.
    """

    depth: int
    saturates: bool
    result: str = "s32"

    @property
    def name(self) -> str:
        """The inputs of the code."""
        return f"{self.depth}.{self.result}{'.sat' * self.saturates}"

    def spread(self, code: OperationCode, left: Any) -> None:
        """The sums read A as it is."""

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
        """The sums of a tile, s32 of [8 rows, 8 columns] each: the upper and the lower half."""
        b, places, vector = code.builder, [], llvm_type("f32", COLUMNS)
        with b.goto_entry_block():
            for _ in range(ROWS):
                places.append(b.alloca(vector))
                places[-1].align = 32
        for place in places:
            b.store(code.constant("f32", 0.0, COLUMNS).value, place, align=32)
        with code.loop(WORD64(self.depth)) as k:
            offset = b.mul(k, WORD64(32))
            factors = code.load(code.at(right, offset), "f32", COLUMNS, align=32)
            for row, place in enumerate(places):
                first = WORD64(32 * (row // 8 * self.depth) + 4 * (row % 8))
                element = b.load(code.at(left, b.add(offset, first)), typ=vector.element, align=4)
                total = code.load(place, "f32", COLUMNS, align=32)
                b.store((total + code.spread(element, "f32", COLUMNS) * factors).value, place, align=32)
        rows = [code.load(place, "f32", COLUMNS, align=32) for place in places]
        return self._added(rows[:8], before[0]), self._added(rows[8:], before[1])

    def _added(self, rows: Sequence[Lanes], before: Lanes) -> Lanes:
        products = stacked(rows).to("s32")
        if not self.saturates:
            return before + products
        total, low, high = before.to("s64") + products.to("s64"), -(1 << 31), (1 << 31) - 1
        total = where(total < low, total.like(low), total)
        return where(total > high, total.like(high), total).to("s32")
