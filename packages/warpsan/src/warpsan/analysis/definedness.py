"""Which registers an instruction may read before they were written: forward data flow over a program's blocks.

A register is possibly undefined from the beginning until it is written on every path. What is computed from such a
register in its own lane is possibly undefined too: compilers copy, and compute with, what is used under the same
condition as it is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from warpsan.analysis.fusion import registers_read, registers_written
from warpsan.analysis.program import BasicBlock, Program, instructions_of
from warpsan.ptx.ir import Entry, Instruction, Register, Vector
from warpsan.ptx.linking import callee, is_indirect
from warpsan.ptx.opcodes import opcode_of

__all__ = [
    "Region",
    "Undefined",
    "computes",
    "find_undefined",
    "follows_load",
    "is_followed",
    "loads_shared",
    "stores_shared",
    "writes",
]


@dataclass(frozen=True)
class Undefined:
    """The result of :func:`find_undefined`.

    Attributes
    ----------
    reads : dict of int to frozenset of str
        For the pc of an instruction, the registers it reads that may be undefined.
    registers : frozenset of str
        All of these.
    """

    reads: dict[int, frozenset[str]]
    registers: frozenset[str]


class _Effect(NamedTuple):
    pc: int
    reads: frozenset[str]
    writes: frozenset[str]
    computes: bool
    always: bool
    """Whether it is executed by all lanes: it has no guard."""
    loads: bool
    """Whether its results may be undefined whatever it reads."""


@dataclass(frozen=True)
class Region:
    """Registers that are written between a branch and the block where its ways meet (:mod:`.regions`)."""

    meeting: int
    writes: frozenset[str]


def computes(instruction: Instruction) -> bool:
    """Whether an instruction's results are computed from its operands, lane by lane, or moved between lanes."""
    return opcode_of(instruction).undefined == "computed" and bool(registers_written(instruction))


def is_followed(instruction: Instruction) -> bool:
    """Whether undefined elements can be followed through an instruction."""
    return opcode_of(instruction).undefined == "followed"


def writes(entry: Entry, instruction: Instruction) -> tuple[str, ...]:
    """The registers that are written when an instruction has been executed, or the function that it calls."""
    if instruction.opcode != "call":
        return registers_written(instruction)
    results = instruction.operands[0]
    names = entry.targets if is_indirect(instruction) else (callee(instruction),)
    formal = [param for name in names if name in entry.functions for param in entry.functions[name].params]
    places = [*(results.items if isinstance(results, Vector) else ()), *formal]
    return tuple(place.name for place in places if isinstance(place, Register))


def loads_shared(instruction: Instruction) -> bool:
    """Whether an instruction's results may be bytes of shared memory."""
    spaces = {mod.split("::")[0] for mod in instruction.mods} & {"global", "local", "const", "param"}
    return instruction.opcode == "ldmatrix" or (instruction.opcode == "ld" and not spaces)


def follows_load(instruction: Instruction, *, looks: bool) -> bool:
    """Whether an instruction's results may be undefined bytes of memory, which can be followed: of shared memory; and,
    where one ``looks`` for those that nobody has written, of global memory."""
    if loads_shared(instruction):
        return True
    return looks and instruction.opcode in ("ld", "ldu") and "global" in instruction.mods


def stores_shared(instruction: Instruction) -> bool:
    """Whether an instruction may leave bytes of shared memory as undefined as its registers are."""
    elsewhere = {"global", "local", "param", "async"} & set(instruction.mods)
    return instruction.opcode in ("st", "stmatrix") and not elsewhere


def find_undefined(
    program: Program, entry: Entry, regions: Mapping[int, Region] | None = None, *, looks: bool = False
) -> Undefined:
    """Possibly undefined reads of an entry.

    Parameters
    ----------
    program : Program
        Of ``entry``.
    entry : Entry
    regions : mapping of int to Region, optional
        What branches decide, by their pc. With it what is loaded from memory may be undefined, too, and that is
        followed through matrix products and such branches.
    looks : bool
        Whether that is also global memory, and not only shared memory.
    """
    tracked = regions is not None
    if not program.undefined and not tracked:
        return Undefined({}, frozenset())
    effects = [_effects(entry, block, tracked=tracked, looks=looks) for block in program.blocks]
    into: list[set[str]] = [set() for _ in program.blocks]
    into[program.start] = set(program.undefined)
    reads: dict[int, frozenset[str]] = {}
    waiting = [program.start]
    visited: set[int] = set()
    while waiting:
        at = waiting.pop()
        visited.add(at)
        undefined = set(into[at])
        for effect in effects[at]:
            undefined_reads = effect.reads & undefined
            if undefined_reads:
                reads[effect.pc] = undefined_reads
            if effect.loads or (undefined_reads and effect.computes):
                undefined |= effect.writes
            elif effect.always:
                undefined -= effect.writes
            region = regions.get(effect.pc) if regions is not None and undefined_reads else None
            if region is not None and not region.writes <= into[region.meeting]:
                into[region.meeting] |= region.writes
                waiting.append(region.meeting)
        for successor in program.blocks[at].successors:
            if successor not in visited or not undefined <= into[successor]:
                into[successor] |= undefined
                waiting.append(successor)
    # What functions that call themselves put aside at the call is not followed.
    aside = {name for function in entry.circles for name in entry.functions[function].registers}
    if aside:
        reads = {pc: names - aside for pc, names in reads.items() if names - aside}
    return Undefined(reads, frozenset().union(*reads.values()))


def _effects(entry: Entry, block: BasicBlock, *, tracked: bool, looks: bool) -> list[_Effect]:
    effects = []
    for item in [*block.items, *([block.end] if block.end else [])]:
        for instruction in instructions_of(item):
            # What a call passes on, and a return, is a copy.
            copied = instruction.opcode in ("call", "ret")
            effects.append(
                _Effect(
                    instruction.pc,
                    frozenset(() if copied else registers_read(instruction)),
                    frozenset(writes(entry, instruction)),
                    computes(instruction) or (tracked and is_followed(instruction)),
                    instruction.guard is None,
                    tracked and follows_load(instruction, looks=looks),
                )
            )
    return effects
