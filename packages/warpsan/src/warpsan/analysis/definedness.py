"""Reads of possibly unwritten registers: forward data flow over a program's blocks.

A register is possibly undefined until it is written on every path. Results computed from such a register in the same
lane are also possibly undefined: compilers copy and compute values that are used under the condition of their
definition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from warpsan.analysis.fusion import registers_read, registers_written
from warpsan.analysis.program import BasicBlock, Program, instructions_of
from warpsan.ptx.grammar import has_form
from warpsan.ptx.ir import Entry, Instruction, Register, Vector
from warpsan.ptx.linking import callee, is_indirect
from warpsan.ptx.opcodes import opcode_of, spaces_of
from warpsan.ptx.synchronising import AsyncStore

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
        Registers that each instruction, by pc, may read undefined.
    registers : frozenset of str
        All of these registers.
    """

    reads: dict[int, frozenset[str]]
    registers: frozenset[str]


class _Effect(NamedTuple):
    pc: int
    reads: frozenset[str]
    writes: frozenset[str]
    computes: bool
    always: bool
    """Whether all lanes execute the instruction: it has no guard."""
    loads: bool
    """Whether its results may be undefined for any operands."""


@dataclass(frozen=True)
class Region:
    """Registers written between a branch and the block where its paths reconverge (:mod:`.regions`)."""

    meeting: int
    writes: frozenset[str]


def computes(instruction: Instruction) -> bool:
    """Whether an instruction's results are computed from its operands, lane by lane, or moved between lanes."""
    return opcode_of(instruction).undefined == "computed" and bool(registers_written(instruction))


def is_followed(instruction: Instruction) -> bool:
    """Whether an instruction supports tracking of undefined elements."""
    return opcode_of(instruction).undefined == "followed"


def writes(entry: Entry, instruction: Instruction) -> tuple[str, ...]:
    """Registers written by an instruction, or by the function it calls."""
    if instruction.opcode != "call":
        return registers_written(instruction)
    results = instruction.operands[0]
    names = entry.targets if is_indirect(instruction) else (callee(instruction),)
    formal = [param for name in names if name in entry.functions for param in entry.functions[name].params]
    places = [*(results.items if isinstance(results, Vector) else ()), *formal]
    return tuple(place.name for place in places if isinstance(place, Register))


def loads_shared(instruction: Instruction) -> bool:
    """Whether an instruction's results may be bytes of shared memory."""
    return instruction.opcode in ("ld", "ldmatrix") and not spaces_of(instruction) - {"shared"}


def follows_load(instruction: Instruction, *, track_unwritten_global: bool) -> bool:
    """Whether an instruction may load undefined bytes that are tracked: from shared memory, and with
    ``track_unwritten_global`` from unwritten global memory.
    """
    if loads_shared(instruction):
        return True
    return track_unwritten_global and instruction.opcode in ("ld", "ldu") and "global" in spaces_of(instruction)


def stores_shared(instruction: Instruction) -> bool:
    """Whether an instruction may store undefined registers to shared memory."""
    stores = instruction.opcode in ("st", "stmatrix") and not has_form(instruction, AsyncStore)
    return stores and not spaces_of(instruction) - {"shared"}


def find_undefined(
    program: Program, entry: Entry, regions: Mapping[int, Region] | None = None, *, track_unwritten_global: bool = False
) -> Undefined:
    """Possibly undefined reads of an entry.

    Parameters
    ----------
    program : Program
        Blocks of ``entry``.
    entry : Entry
    regions : mapping of int to Region, optional
        Regions of branches, by pc. With them, loaded values may also be undefined, and are tracked through matrix
        products and such branches.
    track_unwritten_global : bool
        Whether loads from global memory may be undefined, in addition to shared memory.
    """
    tracked = regions is not None
    if not program.undefined and not tracked:
        return Undefined({}, frozenset())
    effects = [
        _effects(entry, block, tracked=tracked, track_unwritten_global=track_unwritten_global)
        for block in program.blocks
    ]
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
    # Registers saved by a recursive call are not tracked.
    aside = {name for function in entry.circles for name in entry.functions[function].registers}
    if aside:
        reads = {pc: names - aside for pc, names in reads.items() if names - aside}
    return Undefined(reads, frozenset().union(*reads.values()))


def _effects(entry: Entry, block: BasicBlock, *, tracked: bool, track_unwritten_global: bool) -> list[_Effect]:
    effects = []
    for item in [*block.items, *([block.end] if block.end else [])]:
        for instruction in instructions_of(item):
            # Arguments and results of a call are copies.
            copied = instruction.opcode in ("call", "ret")
            effects.append(
                _Effect(
                    instruction.pc,
                    frozenset(() if copied else registers_read(instruction)),
                    frozenset(writes(entry, instruction)),
                    computes(instruction) or (tracked and is_followed(instruction)),
                    instruction.guard is None,
                    tracked and follows_load(instruction, track_unwritten_global=track_unwritten_global),
                )
            )
    return effects
