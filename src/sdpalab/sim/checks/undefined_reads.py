"""Reads of undefined bytes of shared memory, and what they come to matter for: the report."""

from __future__ import annotations

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
    """The first read of undefined bytes by each load, and where what loads have read has come to matter."""

    def __init__(self, machine: Machine, log: HazardLog) -> None:
        self.machine, self.log = machine, log
        self._first: dict[int, tuple[int, int, int]] = {}
        """For the pc of a load, the lane that first read undefined bytes, how many bytes it read, and where."""
        self._reported: set[tuple[object, object]] = set()

    def read(self, pc: int, lane: int, width: int, offset: int) -> None:
        """The load at ``pc`` reads undefined bytes."""
        self._first.setdefault(pc, (lane, width, offset))

    def matter(self, pc: int, instruction: Instruction, lane: int, role: str) -> None:
        """What the load at ``pc`` has read reaches an instruction: each pair of source lines is reported once."""
        cause = self.machine.entry.instructions[pc]
        group = cause.loc or cause.pc, instruction.loc or instruction.pc
        if group in self._reported:
            return
        self._reported.add(group)
        first, width, offset = self._first[pc]
        other = conflicting_access_at(self.machine, instruction, lane)
        what = f"{_read(width, offset)} before they were written, and used {role} by {{other}}"
        self.log.add(self.machine, "uninitialised", cause, first, what, _USUALLY, other)
