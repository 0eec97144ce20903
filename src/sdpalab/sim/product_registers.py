"""Registers that wgmma products work on: accumulators, whose sums are kept here while products are in flight, and A
fragments."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sdpalab.sim.isa.fragments import (
    accumulator,
    blocks,
    float32,
    pack_accumulator,
    store_accumulator,
)
from sdpalab.sim.isa.rounding import canonical_nans
from sdpalab.sim.machine import Machine
from sdpalab.sim.selection import WARP, Array, Selection, count, subset

__all__ = ["ProductRegisters"]

Summed = Callable[[Array, Array, Array], Array]
"""Sums with products added: of factors and the sums before."""

_POISON = np.uint32(0xFFFFFFFF)


class ProductRegisters:
    """Registers that products have as an accumulator or as A fragments, and what goes on with them in each lane.

    Attributes
    ----------
    names : tuple of str
    kind : str
        Type of an accumulator's elements (f32, f16, s32); empty for A fragments.
    sums : ndarray [warps, 16, columns]
        An accumulator while products are in flight: float32 (of f16 values, for f16) or int32.
    busy : ndarray of int32 [lanes]
        Products in flight; ``flying`` is the sum, so that most accesses need no closer look.
    touched : ndarray of bool [lanes]
        Whether the program has accessed them since its last fence.
    """

    def __init__(self, machine: Machine, names: tuple[str, ...], kind: str) -> None:
        self.names, self.kind = names, kind
        self.late = machine.async_mode == "late"
        rows = [machine.row(name) for name in names] if kind else []
        dtype = np.dtype({"f32": np.float32, "s32": np.int32}.get(kind, np.uint32))
        self.rows: list[Array] = [row[0].view(dtype) for row in rows if row is not None and row[1].bits == 32]
        self.columns = len(self.rows) * (4 if kind == "f16" else 2)
        held = np.int32 if kind == "s32" else np.float32
        self.sums: Array = np.empty((machine.lanes // WARP, 16, self.columns), held)
        self.busy = np.zeros(machine.lanes, dtype=np.int32)
        self.touched = np.zeros(machine.lanes, dtype=np.bool_)
        self.flying = 0

    def reset(self) -> None:
        """Nothing in flight, nothing touched."""
        self.busy.fill(0)
        self.touched.fill(False)
        self.flying = 0

    def begin(self, sel: Selection) -> None:
        """A product of these lanes is in flight."""
        if self.kind:
            fresh = subset(sel, self.busy[sel] == 0)
            if count(fresh):
                self.sums[_warps(fresh)] = self._read(fresh)
                for row in self.rows if self.late else ():
                    row.view(np.uint32)[fresh] = _POISON
        self.busy[sel] += 1
        self.flying += count(sel)

    def add(self, sel: Selection, left: Array, right: Array, keep: Array, summed: Summed) -> None:
        """Add the products of float32 factors [4 warps, CTAs, 16, k] and [CTAs, columns, k] to the sums of the warps
        that ``keep`` theirs, or begin anew."""
        warps = _warps(sel)
        before = self.sums[warps]
        if not keep.all():  # the sum may be NaN, so it is not multiplied
            before = np.where(keep[:, None, None], before, before.dtype.type(0))
        after = summed(left, right, before.reshape(*left.shape[:3], -1))
        self.sums[warps] = after.reshape(before.shape)
        if not self.late:
            self._write(sel)

    def end(self, sel: Selection) -> None:
        """A product of these lanes is complete; after the last one the registers have its sum."""
        self.busy[sel] -= 1
        self.flying -= count(sel)
        if self.late and self.kind:
            done = subset(sel, self.busy[sel] == 0)
            if count(done):
                self._write(done)

    def _read(self, sel: Selection) -> Array:
        if self.kind == "f16":
            return float32(blocks(self.rows, sel, (2, self.columns // 8), self._order()), "f16")
        return accumulator(self.rows, sel, self.columns)

    def _write(self, sel: Selection) -> None:
        sums = self.sums[_warps(sel)]
        if self.kind == "f16":
            for row, values in zip(self.rows, pack_accumulator(canonical_nans(sums.astype(np.float16))), strict=True):
                row[sel] = values
        else:
            store_accumulator(self.rows, sel, sums)

    def _order(self) -> list[tuple[int, int]]:
        """Blocks of packed registers: the upper and the lower eight rows of each eight columns."""
        return [(down, across) for across in range(self.columns // 8) for down in range(2)]


def _warps(sel: Selection) -> Selection:
    """The warps of whole warps of lanes."""
    return slice(sel.start // WARP, sel.stop // WARP) if isinstance(sel, slice) else sel[::WARP] // WARP
