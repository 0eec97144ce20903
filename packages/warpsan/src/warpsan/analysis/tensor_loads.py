"""Registers of loads from tensor memory that instructions may use before a wait (PTX ISA, "tcgen05.wait")."""

from __future__ import annotations

from warpsan.analysis.derived import derived
from warpsan.analysis.fusion import registers_read, registers_written
from warpsan.analysis.program import Program
from warpsan.ptx.grammar import known_form
from warpsan.ptx.ir import Entry, Instruction
from warpsan.ptx.tensor_memory import TensorMove, TensorWait

__all__ = ["numbers_of_loads", "uses_of_loads"]


@derived
def numbers_of_loads(entry: Entry) -> dict[int, int]:
    """Numbers of the entry's loads from tensor memory, by their pc."""
    loads = (each.pc for each in entry.instructions if _loads(each))
    return {pc: number for number, pc in enumerate(loads)}


def uses_of_loads(program: Program, entry: Entry) -> dict[int, list[int]]:
    """By the pc of each instruction that uses registers of loads which may not have been waited for, the numbers of
    these loads."""
    numbers = numbers_of_loads(entry)
    if not numbers:
        return {}
    registers = {pc: frozenset(registers_written(entry.instructions[pc])) for pc in numbers}
    pending: list[set[int]] = [set() for _ in program.blocks]
    uses: dict[int, list[int]] = {}
    waiting = list(range(len(program.blocks)))
    while waiting:
        number = waiting.pop()
        block, now = program.blocks[number], set(pending[number])
        for instruction in entry.instructions[block.first : block.first + block.size]:
            names = {*registers_read(instruction), *registers_written(instruction)}
            used = sorted(numbers[pc] for pc in now if not names.isdisjoint(registers[pc]))
            if used:
                uses[instruction.pc] = used
            wait = known_form(instruction, TensorWait)
            if wait is not None and wait.loads:
                now.clear()
            elif instruction.pc in numbers:
                now.add(instruction.pc)
        for following in block.successors:
            if not now <= pending[following]:
                pending[following] |= now
                waiting.append(following)
    return uses


def _loads(instruction: Instruction) -> bool:
    form = known_form(instruction, TensorMove)
    return form is not None and form.loads
