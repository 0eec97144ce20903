"""Reports of reads of unwritten memory, and of the uses of undefined bits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from warpsan.checks.registers import UNSET_USUALLY
from warpsan.engine.machine import Machine
from warpsan.host.memory import Space
from warpsan.ptx.ir import Instruction
from warpsan.report.hazard_log import HazardLog, conflicting_access_at

__all__ = ["UndefinedReads", "UnwrittenBytes", "report_unwritten", "unwritten_global", "unwritten_shared"]

_USUALLY = "usually a missing barrier or zero fill"
_USUALLY_GLOBAL = "usually a buffer that the host did not clear or copy to, or an output that is accumulated into"


@dataclass(frozen=True)
class UnwrittenBytes:
    """The message for unwritten bytes that are read, and the usual cause."""

    what: str
    usually: str


def unwritten_shared(width: int, offset: int) -> UnwrittenBytes:
    """Bytes of shared memory."""
    return UnwrittenBytes(
        f"{width} bytes of shared memory at offset {offset} are read before they were written", _USUALLY
    )


def unwritten_global(space: Space, width: int, offset: int) -> UnwrittenBytes:
    """Bytes of global memory, by the buffer in which they lie."""
    extent = space.extent_near(offset)
    place = f"offset {offset}"
    if extent is not None:
        place = f"byte {offset - extent.begin} of {extent.name}"
        if extent.shape:
            index = np.unravel_index((offset - extent.begin) // extent.itemsize, extent.shape)
            place += f", in {extent.name}[{', '.join(str(int(each)) for each in index)}],"
    many, are, them = ("byte", "is", "it") if width == 1 else ("bytes", "are", "them")
    return UnwrittenBytes(
        f"{width} {many} of global memory at {place} {are} read before anything wrote {them}", _USUALLY_GLOBAL
    )


def report_unwritten(
    machine: Machine, log: HazardLog, instruction: Instruction, lane: int, unwritten: UnwrittenBytes
) -> None:
    """Record a read of unwritten bytes as a hazard."""
    log.add(machine, "uninitialised", instruction, lane, unwritten.what, unwritten.usually)


class UndefinedReads:
    """Origins of undefined bits and their uses: for each load, and each copy from global memory, the first read of
    unwritten bytes; for each store, the first register that was never set."""

    def __init__(self, machine: Machine, log: HazardLog) -> None:
        self.machine, self.log = machine, log
        self._first: dict[int, tuple[int, str, str]] = {}
        """For the pc of a load, a copy or a store: the first lane, its access, and the usual cause."""
        self._reported: set[tuple[object, object]] = set()

    def read(self, pc: int, lane: int, unwritten: UnwrittenBytes) -> None:
        """The load or copy at ``pc`` reads unwritten bytes."""
        self._first.setdefault(pc, (lane, f"{unwritten.what}, and used", unwritten.usually))

    def stored(self, pc: int, lane: int, name: str) -> None:
        """The store at ``pc`` to shared memory stores a register that was never set."""
        what = f"register {name.split('@')[0]} is stored to shared memory, was never set, and is used"
        self._first.setdefault(pc, (lane, what, UNSET_USUALLY))

    def matter(self, pc: int, instruction: Instruction, lane: int, role: str) -> None:
        """A value from the load, copy or store at ``pc`` reaches an instruction; each pair of source lines is
        reported once."""
        cause = self.machine.entry.instructions[pc]
        group = cause.loc or cause.pc, instruction.loc or instruction.pc
        if group in self._reported:
            return
        self._reported.add(group)
        first, what, usually = self._first[pc]
        other = conflicting_access_at(self.machine, instruction, lane)
        self.log.add(self.machine, "uninitialised", cause, first, f"{what} {role} by {{other}}", usually, other)
