"""Warpgroups: four warps that converge at wgmma instructions, and their matrix products in flight.

A product belongs to the group that its warpgroup commits next, and is complete when the warpgroup has waited for that
group. Until then the program may not touch its accumulator registers, nor overwrite registers or shared memory that it
reads (PTX ISA, "wgmma.wait_group"). Registers that were touched need a wgmma.fence before the next product on them
("wgmma.fence").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from warpsan.engine.machine import AsyncUnit, Machine
from warpsan.engine.selection import WARP, Array, Indices, Mask, Selection, indices, merge, split_groups, subset
from warpsan.ptx.ir import Instruction

__all__ = ["GROUP_WARPS", "Flight", "Reading", "Warpgroups"]

GROUP_WARPS = 4
_LANES = GROUP_WARPS * WARP
_KIND = "wgmma"


@dataclass(frozen=True)
class Reading:
    """Shared memory that a product reads: for each observer a ticket, with one value for each of the lanes ``sel``."""

    sel: Indices
    tickets: list[Array | None]


@dataclass(frozen=True)
class Flight:
    """A product in flight, of one warpgroup in some CTAs.

    Attributes
    ----------
    sel : Selection
        Its lanes, [4 warps, CTAs, 32].
    leaders : ndarray of int64 [CTAs]
        The first of its lanes in each CTA.
    group : ndarray of int32 [CTAs]
        Number of groups committed before.
    """

    sel: Selection
    leaders: Indices
    group: Array
    readings: list[Reading]

    def part(self, machine: Machine, chosen: Mask) -> Flight:
        """The same product in some of its CTAs."""
        in_part = np.zeros(machine.n_cta, dtype=np.bool_)
        in_part[machine.cta[self.leaders[chosen]]] = True
        readings = []
        for reading in self.readings:
            mine = in_part[machine.cta[reading.sel]]
            tickets = [None if ticket is None else ticket[mine] for ticket in reading.tickets]
            readings.append(Reading(reading.sel[mine], tickets))
        return replace(
            self,
            sel=subset(self.sel, in_part[machine.cta[self.sel]]),
            leaders=self.leaders[chosen],
            group=self.group[chosen],
            readings=readings,
        )


class Warpgroups(AsyncUnit):
    """The warpgroups of a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.span = _LANES * machine.n_cta
        """Lanes of one warpgroup in all CTAs."""
        self.number: Indices = np.arange(machine.lanes) // self.span * machine.n_cta + machine.cta
        self.groups = np.zeros(machine.lanes, dtype=np.int32)
        """Groups that each lane has committed."""
        self.flying: list[Flight] = []
        self.waiting: dict[int, tuple[Instruction, Selection]] = {}

    @staticmethod
    def of(machine: Machine) -> Warpgroups:
        """The machine's warpgroups, made on first use."""
        unit = machine.units.get(_KIND)
        if not isinstance(unit, Warpgroups):
            unit = machine.units[_KIND] = Warpgroups(machine)
        return unit

    def reset(self) -> None:
        """Reset: no products in flight, no waiting lanes."""
        self.groups.fill(0)
        self.flying.clear()
        self.waiting.clear()

    # ---- meeting ----------------------------------------------------------------------------------------------------

    def meet(self, sel: Selection, instruction: Instruction, act: Callable[[Selection], None]) -> None:
        """Lanes arrive at an instruction of their warpgroup; those whose warpgroup is complete execute it.

        ``act`` is called with the lanes of one warpgroup of some CTAs.
        """
        if instruction.pc in self.waiting:
            sel = merge([self.waiting.pop(instruction.pc)[1], sel])
        whole, partial = split_groups(sel, self.number, _LANES)
        if partial is not None:
            self.waiting[instruction.pc] = instruction, partial
        for part in [] if whole is None else self._one_by_one(whole):
            act(part)

    def _one_by_one(self, sel: Selection) -> list[Selection]:
        """The lanes of each complete warpgroup, over all CTAs in which it is complete."""
        lanes = indices(sel)
        first, last = int(lanes[0]) // self.span, int(lanes[-1]) // self.span
        if first == last:
            return [sel]
        place = lanes // self.span
        return [subset(sel, place == number) for number in range(first, last + 1) if number in place]

    # ---- products ---------------------------------------------------------------------------------------------------

    def leaders(self, sel: Selection) -> Indices:
        """The first lane in each CTA of a warpgroup's lanes."""
        lanes = indices(sel)
        return lanes[: len(lanes) // GROUP_WARPS : WARP]

    def issue(self, flight: Flight) -> None:
        """Put a product in flight."""
        self.flying.append(flight)

    def commit(self, sel: Selection) -> None:
        """The products since the last commit become a group."""
        self.groups[sel] += 1

    def wait(self, sel: Selection, keep: int) -> None:
        """Complete all products of a warpgroup but those of its last ``keep`` groups, in order."""
        if not self.flying:
            return
        waiting = np.zeros(self.machine.lanes, dtype=np.bool_)
        waiting[sel] = True
        left: list[Flight] = []
        for flight in self.flying:
            ready = waiting[flight.leaders] & (flight.group < self.groups[flight.leaders] - keep)
            if ready.all():
                self._complete(flight)
            elif ready.any():
                self._complete(flight.part(self.machine, ready))
                left.append(flight.part(self.machine, ~ready))
            else:
                left.append(flight)
        self.flying = left

    def _complete(self, flight: Flight) -> None:
        slot = self.machine.n_cta * WARP
        for reading in flight.readings:
            # A lane that has waited is ordered after the reads of all four warps, since the operation belongs to the
            # warpgroup: each ticket has four lanes, one in each warp.
            first = reading.sel - reading.sel // slot % GROUP_WARPS * slot
            all_lanes = first + slot * np.arange(GROUP_WARPS)[:, None]
            for observer, ticket in zip(self.machine.observers, reading.tickets, strict=True):
                if ticket is not None:
                    observer.complete(ticket, all_lanes)
