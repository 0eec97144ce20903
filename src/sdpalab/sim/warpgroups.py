"""Warpgroups: four warps that meet at wgmma instructions, and the matrix products they have in flight.

A product belongs to the group that its warpgroup commits next, and is complete when the warpgroup has waited for that
group. Until then its accumulator registers hold poison in the late mode (the sum so far is kept here), and in either
mode the program may not touch them, nor overwrite registers or shared memory that it reads (PTX ISA,
"wgmma.wait_group"). Registers that were touched need a wgmma.fence before the next product on them ("wgmma.fence").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from sdpalab.sim.errors import Deadlock
from sdpalab.sim.fusion import registers_read, registers_written
from sdpalab.sim.ir import Instruction, Register, Vector
from sdpalab.sim.machine import Machine, Resume, Unit
from sdpalab.sim.selection import WARP, Array, Indices, Mask, Selection, count, indices, merge, split_groups, subset

__all__ = ["GROUP_WARPS", "Flight", "Reading", "Registers", "Warpgroups"]

GROUP_WARPS = 4
_LANES = GROUP_WARPS * WARP
_KIND = "wgmma"


class Registers:
    """Registers that one product or several have as accumulator, or as A fragments, and the state of each lane's.

    Attributes
    ----------
    names : tuple of str
    results : bool
        Whether they are an accumulator.
    busy : ndarray of int32 [lanes]
        Products in flight.
    touched : ndarray of bool [lanes]
        Whether the program has accessed them since its last fence.
    flying : int
        Sum of ``busy``, so that a look at it settles most accesses.
    """

    def __init__(self, names: tuple[str, ...], results: bool, lanes: int) -> None:
        self.names, self.results = names, results
        self.busy = np.zeros(lanes, dtype=np.int32)
        self.touched = np.zeros(lanes, dtype=np.bool_)
        self.flying = 0

    def reset(self) -> None:
        """Nothing in flight, nothing touched."""
        self.busy.fill(0)
        self.touched.fill(False)
        self.flying = 0

    def add(self, sel: Selection, number: int) -> None:
        """So many products more (or less) of these lanes are in flight."""
        self.busy[sel] += number
        self.flying += number * count(sel)


@dataclass(frozen=True)
class Reading:
    """What the observers gave for shared memory that a product reads: one ticket for each lane of ``sel``."""

    sel: Indices
    tickets: list[Array | None]


@dataclass(frozen=True)
class Flight:
    """A product in flight, of one warpgroup of some CTAs.

    ``sel`` is in the order [4 warps, CTAs, 32 lanes]; ``ctas`` and ``group`` have one value for each CTA.
    """

    sel: Selection
    ctas: Indices
    group: Array
    registers: tuple[Registers, ...]
    readings: list[Reading]
    finish: Callable[[Selection, Mask], None]
    """Makes the results of these lanes visible; the mask says which CTAs of the flight they are."""

    def parts(self, machine: Machine, chosen: Mask) -> tuple[Flight, Flight]:
        """The product of the chosen of its CTAs, and of the others."""
        parts = []
        for mask in (chosen, ~chosen):
            kept = np.zeros(machine.n_cta, dtype=np.bool_)
            kept[self.ctas[mask]] = True
            readings = []
            for reading in self.readings:
                mine = kept[machine.cta[reading.sel]]
                tickets = [None if ticket is None else ticket[mine] for ticket in reading.tickets]
                readings.append(Reading(reading.sel[mine], tickets))
            sel, finish = subset(self.sel, kept[machine.cta[self.sel]]), self.finish
            place = np.flatnonzero(mask)

            def finish_part(
                sel: Selection,
                of_part: Mask,
                finish: Callable[[Selection, Mask], None] = finish,
                place: Indices = place,
                size: int = len(self.ctas),
            ) -> None:
                whole = np.zeros(size, dtype=np.bool_)
                whole[place[of_part]] = True
                finish(sel, whole)

            parts.append(
                replace(self, sel=sel, ctas=self.ctas[mask], group=self.group[mask], readings=readings, finish=finish_part)
            )
        return parts[0], parts[1]
