"""Grouping mma instructions of a block into larger matrix products, which one host product computes much faster.

An unrolled loop over tiles issues many mma.m16n8k16 with the same A fragments, and chains that accumulate over k.
Executing them together, at the place of the last, gives the same values as long as nothing in between reads a result or
overwrites a factor: each still adds its own products. PTX registers are nearly always written once, so that holds for
whole tiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from warpsan.ptx.ir import Address, Instruction, Negated, Operand, Pair, Register, TensorAddress, Vector
from warpsan.ptx.opcodes import opcode_of

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
    """mma instructions that accumulate one after the other into the same 16 x 8 tile."""

    instructions: list[Instruction] = field(default_factory=list)

    @property
    def factors(self) -> tuple[Names, ...]:
        """The A fragments along k: chains with the same ones form one product."""
        return tuple(_names(instruction.operands[1]) for instruction in self.instructions)


@dataclass
class MmaGroup:
    """Chains that share their A fragments: one product of [16, 16 k] by [16 k, 8 n] for each warp."""

    chains: list[Chain]

    @property
    def instructions(self) -> list[Instruction]:
        """All of them, each behind those that it needs."""
        return [instruction for chain in self.chains for instruction in chain.instructions]


def registers_used(instructions: Iterable[Instruction]) -> Counter[str]:
    """How many instructions read each register, anywhere in an entry."""
    uses: Counter[str] = Counter()
    for instruction in instructions:
        uses.update({*registers_read(instruction)})
    return uses


def group_mma(body: Sequence[Instruction], uses: Counter[str]) -> list[Instruction | MmaGroup]:
    """The body of a basic block with its fusible mma instructions replaced by products, in an order that is as good."""
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
    return (
        instruction.opcode == "mma"
        and instruction.guard is None
        and instruction.mods[:5] == ("sync", "aligned", "m16n8k16", "row", "col")
        and instruction.mods[5:] in (("f32", "f16", "f16", "f32"), ("f32", "bf16", "bf16", "f32"))
        and all(isinstance(operand, Vector) for operand in instruction.operands)
        and all(isinstance(item, Register) for operand in instruction.operands[:3] for item in _items(operand))
    )


class _Group:
    """Fusible instructions whose execution has been put off."""

    def __init__(self, uses: Counter[str]) -> None:
        self.uses = uses
        self.clear()

    def clear(self) -> None:
        self.chains: list[Chain] = []
        self.results: dict[Names, Chain] = {}
        """The chain that last wrote a tuple of registers."""
        self.written: set[str] = set()
        self.read: set[str] = set()

    def takes(self, instruction: Instruction) -> bool:
        """Whether the instruction can be executed with the group, after everything in it."""
        d, a, b, c = (_names(operand) for operand in instruction.operands)
        if self.chains and instruction.mods != self.chains[0].instructions[0].mods:
            return False
        if not self.written.isdisjoint((*a, *b)):
            return False
        if c in self.results:  # it continues a chain; the sum so far must be of no other use
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
        """Whether an instruction in between needs a result of the group, or overwrites what the group still reads."""
        if not self.chains:
            return False
        if not self.written.isdisjoint((*registers_read(instruction), *registers_written(instruction))):
            return True
        return not self.read.isdisjoint(registers_written(instruction))

    def close(self) -> list[MmaGroup]:
        """The group's products, and an empty group."""
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
    """The registers that an operand names."""
    if isinstance(operand, Register):
        return [operand.name]
    names: list[str] = []
    for item in _items(operand):
        base = item.base if isinstance(item, Address) else item
        if isinstance(base, Register):
            names.append(base.name)
    return names


def registers_written(instruction: Instruction) -> tuple[str, ...]:
    """Registers an instruction writes: its first operand, where that is a register or several."""
    return _registers(instruction)[0]


def registers_read(instruction: Instruction) -> tuple[str, ...]:
    """Registers an instruction may read."""
    return _registers(instruction)[1]


def _registers(instruction: Instruction) -> tuple[tuple[str, ...], ...]:
    known = instruction.registers
    if not known:
        writes = opcode_of(instruction).writes or "red" in instruction.mods
        targets = instruction.operands[:1] if writes else ()
        written = tuple(name for each in targets if not isinstance(each, Address) for name in registers_in(each))
        # wgmma's accumulator is source and destination in one.
        skip = 1 if written and instruction.opcode != "wgmma" else 0
        read = [name for each in instruction.operands[skip:] for name in registers_in(each)]
        if instruction.guard is not None:
            read.append(instruction.guard.register.name)
        known = written, tuple(read)
        object.__setattr__(instruction, "registers", known)  # of what is frozen: it is no part of its value
    return known
