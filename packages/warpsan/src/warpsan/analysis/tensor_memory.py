"""Facts about instructions on tensor memory: registers of loads that may be used before a wait (PTX ISA,
"tcgen05.wait"), and the sizes of products ("Instruction descriptor").
"""

from __future__ import annotations

from warpsan.analysis.derived import derived
from warpsan.analysis.fusion import registers_read, registers_written
from warpsan.analysis.program import Program
from warpsan.ptx.grammar import known_form
from warpsan.ptx.ir import Address, Entry, Immediate, Instruction, Operand, Register
from warpsan.ptx.synchronising import TensorCopy
from warpsan.ptx.tensor_memory import TensorMove, TensorProduct, TensorWait

__all__ = ["masks_of_pairs", "numbers_of_loads", "product_descriptors", "product_size", "uses_of_loads"]


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


@derived
def product_descriptors(entry: Entry) -> dict[int, int]:
    """Instruction descriptors of the entry's products by their pc, as far as they are one constant."""
    written: dict[str, list[Instruction]] = {}
    for each in entry.instructions:
        for name in registers_written(each):
            written.setdefault(name, []).append(each)
    known = {}
    for each in entry.instructions:
        if known_form(each, TensorProduct) is not None:
            value = _constant(written, each.operands[3])
            if value is not None:
                known[each.pc] = value
    return known


def product_size(entry: Entry, instruction: Instruction) -> tuple[int, int, int] | None:
    """M, N and K of a product, if its instruction descriptor is one constant."""
    form, value = known_form(instruction, TensorProduct), product_descriptors(entry).get(instruction.pc)
    if form is None or value is None:
        return None
    return (value >> 24 & 31) * 16, (value >> 17 & 63) * 8, form.depth


@derived
def masks_of_pairs(entry: Entry) -> frozenset[int]:
    """The pcs of the instructions that make the address of the leading CTA's mbarrier, for copies of pairs of CTAs.

    On the GPU the address of a shared variable contains the rank of its CTA, and kernels clear the lowest bit of the
    rank (``Sm100MmaPeerBitMask`` in CUTLASS). In the simulator the address of an own variable has no rank.
    """
    written: dict[str, list[Instruction]] = {}
    copies = []
    for each in entry.instructions:
        form = known_form(each, TensorCopy)
        if form is not None and form.pairs:
            copies.append(each.operands[2])
        for name in registers_written(each):
            written.setdefault(name, []).append(each)
    masks, waiting, seen = set(), _bases(copies), set[str]()
    while waiting:
        name = waiting.pop()
        for each in written.get(name, ()) if name not in seen else ():
            mask = each.operands[2] if each.opcode == "and" else None
            if isinstance(mask, Immediate) and isinstance(mask.value, int) and mask.value >> 24 & 0xFF == 0xFE:
                masks.add(each.pc)
            elif each.opcode in ("add", "mov", "mad", "cvt", "cvta", "selp"):
                waiting += registers_read(each)
        seen.add(name)
    return frozenset(masks)


def _bases(operands: list[Operand]) -> list[str]:
    """The registers of addresses."""
    bases = (each.base if isinstance(each, Address) else each for each in operands)
    return [each.name for each in bases if isinstance(each, Register)]


def _constant(written: dict[str, list[Instruction]], operand: Operand) -> int | None:
    """The value of an operand that is a constant, or a register that moves set to one constant only."""
    values = {operand}
    if isinstance(operand, Register):
        values = {each.operands[1] if each.opcode == "mov" else operand for each in written.get(operand.name, ())}
    value = values.pop() if len(values) == 1 else None
    return value.value if isinstance(value, Immediate) and isinstance(value.value, int) else None


def _loads(instruction: Instruction) -> bool:
    form = known_form(instruction, TensorMove)
    return form is not None and form.loads
