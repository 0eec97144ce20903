"""Registers of wgmma products: accumulators and A fragments."""

from __future__ import annotations

import numpy as np

from warpsan.engine.machine import Machine
from warpsan.engine.selection import Selection, count

__all__ = ["ProductRegisters"]


class ProductRegisters:
    """Registers that products use as an accumulator or as A fragments, and their state in each lane.

    Attributes
    ----------
    names : tuple of str
    kind : str
        Type of an accumulator's elements (f32, f16, s32); empty for A fragments.
    busy : ndarray of int32 [lanes]
        Products in flight; ``flying`` is the sum, which spares most accesses a closer check.
    touched : ndarray of bool [lanes]
        Whether the program has accessed them since its last fence.
    """

    def __init__(self, machine: Machine, names: tuple[str, ...], kind: str) -> None:
        self.names, self.kind = names, kind
        self.busy = np.zeros(machine.lanes, dtype=np.int32)
        self.touched = np.zeros(machine.lanes, dtype=np.bool_)
        self.flying = 0

    def reset(self) -> None:
        """Reset: no products in flight, no registers touched."""
        self.busy.fill(0)
        self.touched.fill(False)
        self.flying = 0

    def begin(self, sel: Selection) -> None:
        """A product of these lanes is in flight."""
        self.busy[sel] += 1
        self.flying += count(sel)

    def end(self, sel: Selection) -> None:
        """A product of these lanes is complete."""
        self.busy[sel] -= 1
        self.flying -= count(sel)
