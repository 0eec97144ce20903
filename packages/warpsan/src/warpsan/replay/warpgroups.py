"""Warpgroups: four warps that converge at wgmma instructions, and their matrix products in flight.

A product belongs to the group that its warpgroup commits next, and is complete when the warpgroup has waited for that
group. Until then the program may not touch its accumulator registers, nor overwrite registers or shared memory that it
reads (PTX ISA, "wgmma.wait_group"). Registers that were touched need a wgmma.fence before the next product on them
("wgmma.fence").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from warpsan.analysis.fusion import registers_read, registers_written
from warpsan.engine.machine import AsyncUnit, Machine
from warpsan.engine.selection import WARP, Array, Indices, Mask, Selection, indices, merge, split_groups, subset
from warpsan.ptx.grammar import has_form
from warpsan.ptx.ir import Instruction, Register, Vector
from warpsan.ptx.synchronising import Product
from warpsan.replay.product_registers import ProductRegisters
from warpsan.report.hazard_log import conflicting_access_at
from warpsan.report.hazards import ConflictingAccess

__all__ = ["GROUP_WARPS", "Flight", "Reading", "Warpgroups", "WgmmaProduct"]

GROUP_WARPS = 4
_LANES = GROUP_WARPS * WARP
_KIND = "wgmma"
_NO_WAIT = "usually a missing wgmma.wait_group, a wait for too few groups, or a missing wgmma.commit_group before it"
_NO_FENCE = "usually a missing wgmma.fence between that access and the product"

Step = Callable[[Selection], None]


@dataclass(frozen=True)
class Reading:
    """Shared memory that a product reads: for each observer a ticket, with one value for each of the lanes ``sel``."""

    sel: Indices
    tickets: list[Array | None]


class WgmmaProduct(Protocol):
    """A wgmma.mma_async instruction."""

    instruction: Instruction
    registers: tuple[ProductRegisters, ...]


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

    product: WgmmaProduct
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
        self.fenced = np.zeros(machine.lanes, dtype=np.bool_)
        self.flying: list[Flight] = []
        self.waiting: dict[int, tuple[Instruction, Selection]] = {}
        self.registers: dict[tuple[tuple[str, ...], str], ProductRegisters] = {}
        self.by_name: dict[str, list[ProductRegisters]] = {}
        for instruction in machine.entry.instructions:
            if has_form(instruction, Product):
                kinds = (*instruction.mods[-3:-2], "")
                for operand, kind in zip(instruction.operands[:2], kinds, strict=False):
                    if isinstance(operand, Vector):
                        self._add(tuple(item.name for item in operand.items if isinstance(item, Register)), kind)

    @staticmethod
    def of(machine: Machine) -> Warpgroups:
        """The machine's warpgroups, made on first use."""
        unit = machine.units.get(_KIND)
        if not isinstance(unit, Warpgroups):
            unit = machine.units[_KIND] = Warpgroups(machine)
        return unit

    def _add(self, names: tuple[str, ...], kind: str) -> None:
        if (names, kind) not in self.registers:
            registers = self.registers[names, kind] = ProductRegisters(self.machine, names, kind)
            for name in set(names):
                self.by_name.setdefault(name, []).append(registers)

    def reset(self) -> None:
        """Reset: no products in flight, no waiting lanes."""
        self.groups.fill(0)
        self.fenced.fill(False)
        self.flying.clear()
        self.waiting.clear()
        for registers in self.registers.values():
            registers.reset()

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
        for registers in flight.product.registers:
            self._check_registers(flight, registers)
        for registers in flight.product.registers:
            registers.begin(flight.sel)
        self.flying.append(flight)

    def commit(self, sel: Selection) -> None:
        """The products since the last commit become a group."""
        self.groups[sel] += 1

    def fence(self, sel: Selection) -> None:
        """Earlier accesses of the lanes to registers come before their next products."""
        self.fenced[sel] = True
        for registers in self.registers.values():
            registers.touched[sel] = False

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
        for registers in flight.product.registers:
            registers.end(flight.sel)
        slot = self.machine.n_cta * WARP
        for reading in flight.readings:
            # A lane that has waited is ordered after the reads of all four warps, since the operation belongs to the
            # warpgroup: each ticket has four lanes, one in each warp.
            first = reading.sel - reading.sel // slot % GROUP_WARPS * slot
            all_lanes = first + slot * np.arange(GROUP_WARPS)[:, None]
            for observer, ticket in zip(self.machine.observers, reading.tickets, strict=True):
                if ticket is not None:
                    observer.complete(ticket, all_lanes)

    # ---- rules for registers ----------------------------------------------------------------------------------------

    def _check_registers(self, flight: Flight, mine: ProductRegisters) -> None:
        """A product's registers must be fenced, and no other tile in flight may contain one of them."""
        if not self.fenced[flight.sel].all():
            bad = subset(flight.sel, ~self.fenced[flight.sel])
            self.report(bad, flight.product.instruction, "there was no wgmma.fence before the first product", _NO_FENCE)
        elif mine.touched[flight.sel].any():
            bad = subset(flight.sel, mine.touched[flight.sel])
            what = f"registers {mine.names[0]} to {mine.names[-1]} were accessed since the last wgmma.fence"
            self.report(bad, flight.product.instruction, what, _NO_FENCE)
        for other in {id(each): each for name in mine.names for each in self.by_name[name]}.values():
            if other is not mine and (other.kind or mine.kind):
                self._check_idle(flight.sel, flight.product.instruction, other, "uses registers of")

    def _check_idle(self, sel: Selection, instruction: Instruction, registers: ProductRegisters, does: str) -> None:
        if not registers.flying:
            return
        busy = registers.busy[sel] > 0
        if busy.any():
            bad = subset(sel, busy)
            lane = int(indices(bad)[0])
            culprit = next(
                each.product.instruction
                for each in self.flying
                if registers in each.product.registers and lane in indices(each.sel)
            )
            what = f"{does} what {{other}} {'accumulates in' if registers.kind else 'reads'}"
            self.report(
                bad, instruction, what, _NO_WAIT, conflicting_access_at(self.machine, culprit, lane, "in flight")
            )

    def report(
        self, sel: Selection, instruction: Instruction, what: str, usually: str, other: ConflictingAccess | None = None
    ) -> None:
        """Notify the observers of a broken rule."""
        for observer in self.machine.observers:
            observer.misuse(_KIND, sel, instruction, what, usually, other)

    def watched(self, instructions: Sequence[Instruction], step: Step) -> Step:
        """``step``, which executes these instructions, preceded by a check of the registers of products.

        Reads of A fragments are allowed; all other accesses are not.
        """
        uses: dict[tuple[int, str], tuple[Instruction, ProductRegisters, str]] = {}
        for instruction in instructions:
            for names, does in ((registers_written(instruction), "overwrites"), (registers_read(instruction), "reads")):
                for registers in (each for name in names for each in self.by_name.get(name, ())):
                    if registers.kind or does == "overwrites":
                        uses.setdefault((id(registers), does), (instruction, registers, does))
        if not uses:
            return step
        looks = tuple(uses.values())

        def run(sel: Selection) -> None:
            for instruction, registers, does in looks:
                self._check_idle(sel, instruction, registers, does)
                registers.touched[sel] = True
            step(sel)

        return run
