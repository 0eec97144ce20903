"""Undefined bits that go through shared memory, and what they come to matter for: the report."""

from __future__ import annotations

from sdpalab.sim.checks.registers import UNSET_USUALLY
from sdpalab.sim.hazard_log import HazardLog, conflicting_access_at
from sdpalab.sim.ir import Instruction
from sdpalab.sim.machine import Machine

__all__ = ["UndefinedReads", "report_unwritten"]

_USUALLY = "usually a missing barrier or zero fill"


def report_unwritten(
    machine: Machine, log: HazardLog, instruction: Instruction, lane: int, width: int, offset: int
) -> None:
    """Record a read of shared memory, where nobody wrote, as a hazard by itself."""
    log.add(machine, "uninitialised", instruction, lane, f"{_read(width, offset)} before they were written", _USUALLY)


def _read(width: int, offset: int) -> str:
    return f"{width} bytes of shared memory at offset {offset} are read"


class UndefinedReads:
    """Where undefined bits first came from: for each load the first read of bytes that nobody wrote, for each store the
    first register that was never set; and what they have come to matter for."""

    def __init__(self, machine: Machine, log: HazardLog) -> None:
        self.machine, self.log = machine, log
        self._first: dict[int, tuple[int, str, str]] = {}
        """For the pc of a load or a store, the first lane, what it does, and what is usually wrong."""
        self._reported: set[tuple[object, object]] = set()

    def read(self, pc: int, lane: int, width: int, offset: int) -> None:
        """The load at ``pc`` reads undefined bytes."""
        self._first.setdefault(pc, (lane, f"{_read(width, offset)} before they were written, and used", _USUALLY))

    def stored(self, pc: int, lane: int, name: str) -> None:
        """The store at ``pc`` to shared memory stores a register that was never set."""
        what = f"register {name.split('@')[0]} is stored to shared memory, was never set, and is used"
        self._first.setdefault(pc, (lane, what, UNSET_USUALLY))

    def matter(self, pc: int, instruction: Instruction, lane: int, role: str) -> None:
        """What came from the load or store at ``pc`` reaches an instruction: each pair of source lines is reported
        once."""
        cause = self.machine.entry.instructions[pc]
        group = cause.loc or cause.pc, instruction.loc or instruction.pc
        if group in self._reported:
            return
        self._reported.add(group)
        first, what, usually = self._first[pc]
        other = conflicting_access_at(self.machine, instruction, lane)
        self.log.add(self.machine, "uninitialised", cause, first, f"{what} {role} by {{other}}", usually, other)
