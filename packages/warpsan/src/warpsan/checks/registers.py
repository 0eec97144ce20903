"""The ``memory`` check for registers: reports a use of a register that was never set.

A value that an instruction computes from undefined bits is undefined; a report needs a use as an address, stored value
or branch condition, or by other lanes or units (:mod:`warpsan.engine.undefined`). A value that is set and used under
the same condition is therefore never reported, whatever the compiler computes in between. The idea is that of
MemorySanitizer (Stepanov and Serebryany, CGO 2015). Values in local memory and function arguments count as set.
"""

from __future__ import annotations

from warpsan.engine.machine import Machine
from warpsan.ptx.ir import Instruction
from warpsan.report.hazard_log import HazardLog

__all__ = ["UNSET_USUALLY", "report_unset"]

UNSET_USUALLY = "usually a variable that is set in one branch only, or an accumulator that is not zeroed"


def report_unset(machine: Machine, log: HazardLog, instruction: Instruction, lane: int, name: str, role: str) -> None:
    """Record that a lane uses a register that was never set, in a role such as ``as an address``."""
    what = f"register {name.split('@')[0]} is used {role}, and was never set"
    log.add(machine, "uninitialised", instruction, lane, what, UNSET_USUALLY)
