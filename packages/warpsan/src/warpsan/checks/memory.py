"""The ``memory`` check: accesses out of bounds or misaligned, and warp-wide instructions without the whole warp."""

from __future__ import annotations

from warpsan.checks.illegal import address_of, buffer_of, element
from warpsan.engine.machine import Machine
from warpsan.engine.observer import Access, Observer
from warpsan.engine.selection import Selection, indices
from warpsan.host.memory import GLOBAL_BASE
from warpsan.ptx.ir import Instruction
from warpsan.report.hazard_log import HazardLog, conflicting_access_of

__all__ = ["MemoryCheck"]

_USUALLY_BOUND = "usually a missing bound on the last rows of a tile"
_USUALLY_NULL = "usually an allocation that failed, or an optional argument that is not tested"
_USUALLY_WILD = "usually a pointer that was never set, or one of the host"
_NOWHERE = "far from all memory of the launch"
_NULL_PAGE = 1 << 16
"""Bytes from address 0 whose accesses count as null pointer accesses."""


class MemoryCheck(Observer):
    """Reports illegal accesses, which the machine suppresses. Native code notes them (:mod:`warpsan.engine.suspects`);
    :mod:`.undefined_reads` reports reads of unwritten memory."""

    records_faults = True

    def __init__(self, machine: Machine, log: HazardLog) -> None:
        self.machine, self.log = machine, log

    def fault(self, kind: str, access: Access) -> None:
        """Record an access that the machine suppressed."""
        space, width, instruction = access.space, access.width, access.instruction
        if self.log.seen(kind, instruction):
            return
        first, where = int(access.offset[0]), f"{space.name} memory"
        lane, usually = int(indices(access.sel)[0]), _USUALLY_BOUND
        if kind == "misaligned":
            extent = space.extent_near(first) if space.name == "global" else None
            place = f"byte {first - extent.begin} of {extent.name}" if extent else f"offset {first} of {where}"
            what = f"{width}-byte access at {place}, which is not a multiple of {width}"
            self.log.add(self.machine, kind, instruction, lane, what, "check the row stride and the vector width")
            return
        known = buffer_of(self.machine, instruction) if space.name == "global" else None
        extent = self.machine.homes.get(instruction.pc) or known or space.extent_near(first)
        if extent is not None and extent.shape:
            what = f"{width}-byte access at {element(extent, first, width)}"
        elif extent is not None:
            size = extent.end - extent.begin
            what = f"{width}-byte access at byte {first - extent.begin} of {extent.name}, which has {size} bytes"
        elif space.name == "global":
            number = GLOBAL_BASE + first
            null = 0 <= number < _NULL_PAGE
            what = f"{width}-byte access at the address {number % 2**64:#x}, {'a null pointer' if null else _NOWHERE}"
            usually = _USUALLY_NULL if null else _USUALLY_WILD
        else:
            what = f"{width}-byte access at byte {first} of {where}, which has {space.limit} bytes"
        inside = space.extent_near(first) if space.name == "global" and space.holds(first, width) else None
        if inside is not None:
            what += f", and this place is in {inside.name}"
        address, other = address_of(self.machine.entry, instruction), None
        if address is not None:
            other = conflicting_access_of(self.machine, address)
            what += "; its address is computed by {other}"
        self.log.add(self.machine, kind, instruction, lane, what, usually, other)

    def divergent(self, sel: Selection, instruction: Instruction, need: str) -> None:
        """Record a warp-wide instruction that only part of a warp reached."""
        lane = int(indices(sel)[0])
        what = f"{need}, and only {len(indices(sel))} of the lanes are there"
        self.log.add(self.machine, "divergent", instruction, lane, what, "move it out of the divergent branch")
