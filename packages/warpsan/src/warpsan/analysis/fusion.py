"""Groups of a block's mma instructions, executed as larger matrix products, which the host computes much faster.

An unrolled loop over tiles issues many mma.m16n8k16 with the same A fragments, and chains that accumulate over k.
Execution of a group at the position of its last instruction gives the same values if no instruction between reads a
result or overwrites a factor: each mma still adds its own products. PTX registers are nearly always written once, so
groups cover whole tiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from warpsan.ptx.grammar import has_form, known_form
from warpsan.ptx.ir import Address, Instruction, Negated, Operand, Pair, Register, TensorAddress, Vector
from warpsan.ptx.matrices import WarpProduct
from warpsan.ptx.opcodes import opcode_of
from warpsan.ptx.synchronising import BarrierReduction

__all__ = [
    "Chain",
    "MmaGroup",
    "group_mma",
    "registers_in",
    "registers_read",
    "registers_used",
    "registers_written",
]

Names = tuple[str, ...]


@dataclass
class Chain:
    """mma instructions that accumulate in sequence into one 16 x 8 tile."""

    instructions: list[Instruction] = field(default_factory=list)

    @property
    def factors(self) -> tuple[Names, ...]:
        """A fragments along k; chains with equal fragments form one product."""
        return tuple(_names(instruction.operands[1]) for instruction in self.instructions)


@dataclass
class MmaGroup:
    """Chains with common A fragments: one product of [16, 16 k] by [16 k, 8 n] per warp."""

    chains: list[Chain]

    @property
    def instructions(self) -> list[Instruction]:
        """All instructions, each after its inputs."""
        return [instruction for chain in self.chains for instruction in chain.instructions]


def registers_used(instructions: Iterable[Instruction]) -> Counter[str]:
    """Number of instructions of an entry that read each register."""
    uses: Counter[str] = Counter()
    for instruction in instructions:
        uses.update({*registers_read(instruction)})
    return uses


def group_mma(body: Sequence[Instruction], uses: Counter[str]) -> list[Instruction | MmaGroup]:
    """The body of a basic block with its fusible mma instructions replaced by products, in an equivalent order."""
    out: list[Instruction | MmaGroup] = []
    group = _Group(uses)
    for instruction in body:
        if _fusible(instruction):
            if not group.takes(instruction):
                out += group.close()
            group.add(instruction)
            continue
        if group.disturbed_by(instruction):
            out += group.close()
        out.append(instruction)
    return out + group.close()


def _fusible(instruction: Instruction) -> bool:
    if instruction.opcode != "mma" or instruction.guard is not None:
        return False
    form = known_form(instruction, WarpProduct)
    return (
        form is not None
        and form.shape == "m16n8k16"
        and form.types in (("f32", "f16", "f16", "f32"), ("f32", "bf16", "bf16", "f32"))
        and all(isinstance(operand, Vector) for operand in instruction.operands)
        and all(isinstance(item, Register) for operand in instruction.operands[:3] for item in _items(operand))
    )


class _Group:
    """Fusible instructions with deferred execution."""

    def __init__(self, uses: Counter[str]) -> None:
        self.uses = uses
        self.clear()

    def clear(self) -> None:
        self.chains: list[Chain] = []
        self.results: dict[Names, Chain] = {}
        """The last chain that writes each tuple of registers."""
        self.written: set[str] = set()
        self.read: set[str] = set()

    def takes(self, instruction: Instruction) -> bool:
        """Whether an instruction can be executed with the group, after all its instructions."""
        d, a, b, c = (_names(operand) for operand in instruction.operands)
        if self.chains and instruction.form != self.chains[0].instructions[0].form:
            return False
        if not self.written.isdisjoint((*a, *b)):
            return False
        if c in self.results:  # it extends a chain, whose partial sum must have no other use
            if d != c and any(self.uses[name] > 1 for name in c):
                return False
            return d == c or (self.read.isdisjoint(d) and self.written.isdisjoint(d))
        return self.written.isdisjoint((*c, *d)) and self.read.isdisjoint(d)

    def add(self, instruction: Instruction) -> None:
        d, a, b, c = (_names(operand) for operand in instruction.operands)
        chain = self.results.pop(c, None)
        if chain is None:
            chain = Chain()
            self.chains.append(chain)
        chain.instructions.append(instruction)
        self.results[d] = chain
        self.written.update(d)
        self.read.update((*a, *b, *c))

    def disturbed_by(self, instruction: Instruction) -> bool:
        """Whether an instruction needs a result of the group, or overwrites an input of it."""
        if not self.chains:
            return False
        if not self.written.isdisjoint((*registers_read(instruction), *registers_written(instruction))):
            return True
        return not self.read.isdisjoint(registers_written(instruction))

    def close(self) -> list[MmaGroup]:
        """Return the group's products, and empty the group."""
        products: dict[tuple[Names, ...], MmaGroup] = {}
        for chain in self.chains:
            products.setdefault(chain.factors, MmaGroup([])).chains.append(chain)
        self.clear()
        return list(products.values())


def _items(operand: Operand) -> tuple[Operand, ...]:
    if isinstance(operand, Pair):
        return operand.first, operand.second
    if isinstance(operand, Negated):
        return (operand.register,)
    if isinstance(operand, TensorAddress):
        return operand.map, *operand.coordinates
    return operand.items if isinstance(operand, Vector) else (operand,)


def _names(operand: Operand) -> Names:
    return tuple(item.name if isinstance(item, Register) else repr(item) for item in _items(operand))


def registers_in(operand: Operand) -> list[str]:
    """Registers in an operand."""
    if isinstance(operand, Register):
        return [operand.name]
    names: list[str] = []
    for item in _items(operand):
        base = item.base if isinstance(item, Address) else item
        if isinstance(base, Register):
            names.append(base.name)
    return names


def registers_written(instruction: Instruction) -> tuple[str, ...]:
    """Registers that an instruction writes: its first operand, if it is one or several registers."""
    return _registers(instruction)[0]


def registers_read(instruction: Instruction) -> tuple[str, ...]:
    """Registers that an instruction may read."""
    return _registers(instruction)[1]


def _registers(instruction: Instruction) -> tuple[tuple[str, ...], ...]:
    known = instruction.registers
    if not known:
        writes = opcode_of(instruction).writes or has_form(instruction, BarrierReduction)
        targets = instruction.operands[:1] if writes else ()
        written = tuple(name for each in targets if not isinstance(each, Address) for name in registers_in(each))
        # wgmma's accumulator is both source and destination.
        skip = 1 if written and instruction.opcode != "wgmma" else 0
        read = [name for each in instruction.operands[skip:] for name in registers_in(each)]
        if instruction.guard is not None:
            read.append(instruction.guard.register.name)
        known = written, tuple(read)
        object.__setattr__(instruction, "registers", known)  # a cache in a frozen object, not part of its value
    return known
