"""Instructions that order threads or issue asynchronous operations, which a replay of events executes again.

A launch that is run again to report its hazards (:mod:`.trace`) records each execution of such an instruction, its
lanes, and the values of its registers. :mod:`.replay` passes them to the instruction's own handler
(:mod:`warpsan.replay`), on a machine that moves no data: the checks observe the order that its mbarriers, copies and
products in flight establish.
"""

from __future__ import annotations

from warpsan.analysis.derived import derived
from warpsan.ptx.grammar import has_form
from warpsan.ptx.ir import Address, Entry, Instruction, Negated, Operand, Register, TensorAddress
from warpsan.ptx.opcodes import role_of
from warpsan.ptx.synchronising import CopyArrival

__all__ = ["is_step", "issues", "step_registers"]


def is_step(entry: Entry, instruction: Instruction) -> bool:
    """Whether it orders threads, other than by a barrier of the block, or issues asynchronous operations."""
    role = role_of(instruction)
    return role in ("orders", "issues") or (role == "copies" and _copies_arrive(entry))


@derived
def _copies_arrive(entry: Entry) -> bool:
    """Whether an mbarrier may wait for copies of ``cp.async``."""
    return any(has_form(each, CopyArrival) for each in entry.instructions)


def issues(instruction: Instruction) -> bool:
    """Whether its operations land by themselves, when nothing else can run."""
    return role_of(instruction) == "issues"


def step_registers(entry: Entry, instruction: Instruction) -> tuple[str, ...]:
    """The registers that control it: all registers except the data that it moves or computes with."""
    names = (name for operand in instruction.operands for name in _names(operand))
    return tuple(dict.fromkeys(name for name in names if name in entry.registers))


def _names(operand: Operand) -> list[str]:
    if isinstance(operand, Register):
        return [operand.name]
    if isinstance(operand, Negated):
        return _names(operand.register)
    if isinstance(operand, Address):
        return [operand.base.name] if isinstance(operand.base, Register) else []
    if isinstance(operand, TensorAddress):
        return [name for each in (operand.map, *operand.coordinates) for name in _names(each)]
    return []
