"""Which loops of a program poll: they read one place again and again until another thread has changed it.

Such a loop is left only by branches on what it has read from an address that it does not change, and changes nothing
that others wait for. While it turns, other threads must run; if all threads that can run are in such loops, nothing
will happen any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from sdpalab.sim.fusion import registers_read, registers_written
from sdpalab.sim.ir import Address, Entry, Immediate, Instruction, Operand, Register
from sdpalab.sim.program import BasicBlock, Program, instructions_of

__all__ = ["polling_blocks"]

_READING = ("cas", "exch")
"""Atomic operations that change nothing while what they wait for has not come; others do with the operand 0."""
_LONGEST = 16
"""Blocks of a polling loop at most."""


def polling_blocks(entry: Entry, program: Program) -> frozenset[int]:
    """The blocks of all polling loops."""
    blocks, polling = program.blocks, set[int]()
    zeros = _zeros(entry.instructions)
    for last, block in enumerate(blocks):
        for first in block.successors:
            if first <= last < first + _LONGEST and _polls(blocks, first, last, zeros):
                polling.update(range(first, last + 1))
    return frozenset(polling)


def _zeros(code: Sequence[Instruction]) -> frozenset[str]:
    """Registers that hold 0 wherever they are set."""
    zero, other = set[str](), set[str]()
    for instruction in code:
        operands = instruction.operands
        null = instruction.opcode == "mov" and len(operands) == 2 and operands[1] == Immediate(0)
        (zero if null else other).update(registers_written(instruction))
    return frozenset(zero - other)


def _body(blocks: Sequence[BasicBlock], first: int, last: int) -> list[Instruction]:
    code: list[Instruction] = []
    for block in blocks[first : last + 1]:
        code += [each for item in block.items for each in instructions_of(item)]
        code += [] if block.end is None else [block.end]
    return code


def _polls(blocks: Sequence[BasicBlock], first: int, last: int, zeros: frozenset[str]) -> bool:
    code = _body(blocks, first, last)
    if any(each.opcode in ("bar", "barrier", "call", "st", "red", "cp", "wgmma") for each in code):
        return False
    written = {name for each in code for name in registers_written(each)}
    derived: set[str] = set()
    for each in code:
        if _reads_memory(each, zeros) and _fixed(each, written):
            derived.update(registers_written(each))
        elif each.opcode == "atom":
            return False
    grown = -1
    while grown != len(derived):
        grown = len(derived)
        for each in code:
            if not derived.isdisjoint(registers_read(each)):
                derived.update(registers_written(each))
    exits = [
        block.end
        for number, block in enumerate(blocks[first : last + 1], first)
        if any(not first <= after <= last for after in block.successors)
    ]
    guards = [None if end is None or end.guard is None else end.guard.register.name for end in exits]
    return bool(guards) and all(guard in derived for guard in guards)


def _reads_memory(instruction: Instruction, zeros: frozenset[str]) -> bool:
    """Whether an instruction reads what another thread may change, without changing it itself."""
    if instruction.opcode == "ld":
        return not {"param", "const", "local"} & set(instruction.mods)
    if instruction.opcode == "mbarrier":
        return "test_wait" in instruction.mods
    if instruction.opcode != "atom":
        return False
    return not set(_READING).isdisjoint(instruction.mods) or _is_zero(instruction.operands[-1], zeros)


def _is_zero(operand: Operand, zeros: frozenset[str]) -> bool:
    return operand == Immediate(0) or (isinstance(operand, Register) and operand.name in zeros)


def _fixed(instruction: Instruction, written: set[str]) -> bool:
    """Whether its address is the same in every turn of a loop that writes these registers."""
    address = next((each for each in instruction.operands if isinstance(each, Address)), None)
    base = None if address is None else address.base
    return not (isinstance(base, Register) and base.name in written)
