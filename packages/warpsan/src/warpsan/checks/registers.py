"""The ``memory`` check for registers: the report of a use of one that was never set.

What an instruction computes from undefined bits is undefined; only addresses, stored values, branches and what other
lanes or units see are reported (:mod:`warpsan.engine.undefined`). So a value that is set and used under the same
condition is never reported, whatever the compiler computes in between. The idea is that of MemorySanitizer (Stepanov
and Serebryany, CGO 2015). What is stored in local memory, or passed to a function, counts as set.
"""

from __future__ import annotations

from warpsan.engine.machine import Machine
from warpsan.ptx.ir import Instruction
from warpsan.report.hazard_log import HazardLog

__all__ = ["UNSET_USUALLY", "report_unset"]

UNSET_USUALLY = "usually a variable that is set in one branch only, or an accumulator that is not zeroed"


def report_unset(machine: Machine, log: HazardLog, instruction: Instruction, lane: int, name: str, role: str) -> None:
    """Record that a lane uses a register in a role, such as ``as an address``, which was never set."""
    what = f"register {name.split('@')[0]} is used {role}, and was never set"
    log.add(machine, "uninitialised", instruction, lane, what, UNSET_USUALLY)
