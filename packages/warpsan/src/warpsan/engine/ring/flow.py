"""Flow of codes in an entry, found before decoding from the definitions of its registers alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from warpsan.analysis.fusion import registers_read, registers_written
from warpsan.ptx.ir import Entry, Immediate, Instruction, Register, Vector
from warpsan.ptx.modifiers import types_of
from warpsan.ptx.types import TYPES

__all__ = ["CodeFlow", "computes_floats", "flow_of"]

_COMPUTED = frozenset(
    {
        *("add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh"),
        *("neg", "abs", "copysign", "min", "max"),
    }
)
_MATRIX = ("mma", "wmma", "wgmma")
_KEPT = frozenset(
    {"mov", "selp", "slct", "shfl", "prmt", "bfe", "bfi", "shl", "shr", "and", "or", "xor", "lop3", "cvt", "min", "max"}
)
"""Opcodes that may pass the bits of a code on; an integer maximum is a maximum of the floats with these bits."""


@dataclass(frozen=True)
class CodeFlow:
    """Properties of an entry's registers.

    Attributes
    ----------
    computed : frozenset of str
        Registers that may hold a computed code, in all or a part of their bits.
    literals : dict of str to Immediate
        Registers that hold only one literal.
    as_float : frozenset of str
        Registers that are read as float32: by a floating-point instruction, or by a move to a .f32 register. A shift of
        an extended 16-bit register by 16 bits whose result is only stored counts as one.
    """

    computed: frozenset[str]
    literals: dict[str, Immediate]
    as_float: frozenset[str]


def computes_floats(instruction: Instruction) -> bool:
    """Whether an instruction computes a floating-point number from others."""
    if instruction.opcode in _MATRIX:
        return True
    floats = [each for each in types_of(instruction) if each.is_float]
    if instruction.opcode == "cvt":
        return bool(floats) and not any(each.kind in "us" for each in types_of(instruction))
    return bool(floats) and instruction.opcode in _COMPUTED


def flow_of(entry: Entry) -> CodeFlow:
    """Properties of an entry's registers, on all control paths."""
    writers: dict[str, list[Instruction]] = {}
    for instruction in entry.instructions:
        for name in registers_written(instruction):
            writers.setdefault(name, []).append(instruction)
    literals = {name: value for name, those in writers.items() if (value := _literal(name, those)) is not None}
    computed = set(_results(filter(computes_floats, entry.instructions)))
    passing = [each for each in entry.instructions if each.opcode in _KEPT]
    before = -1
    while len(computed) != before:
        before = len(computed)
        computed |= set(_results(each for each in passing if computed & set(registers_read(each))))
    as_float = {
        name
        for each in entry.instructions
        if (each.opcode in (*_COMPUTED, "setp", "selp", "cvt") and TYPES["f32"] in types_of(each))
        or _moved_to_float(entry, each)
        for name in registers_read(each)
    } | _only_stored(entry, writers)
    moves = [each for each in entry.instructions if each.text == "mov.b32" and len(registers_written(each)) == 1]
    before = -1
    while len(as_float) != before:
        before = len(as_float)
        as_float |= {name for each in moves if registers_written(each)[0] in as_float for name in registers_read(each)}
    return CodeFlow(frozenset(computed), literals, frozenset(as_float))


def _only_stored(entry: Entry, writers: dict[str, list[Instruction]]) -> set[str]:
    """Registers with an extended 16-bit number shifted up by 16 bits, which are only stored."""
    readers: dict[str, list[Instruction]] = {}
    for instruction in entry.instructions:
        for name in registers_read(instruction):
            readers.setdefault(name, []).append(instruction)

    def extended(instruction: Instruction) -> bool:
        sources = [writer for name in registers_read(instruction) for writer in writers.get(name, ())]
        return bool(sources) and all(each.text == "cvt.u32.u16" for each in sources)

    shifted = [each for each in entry.instructions if each.text == "shl.b32" and each.operands[-1] == Immediate(16)]
    return {
        name
        for each in shifted
        for name in registers_written(each)
        if extended(each) and all(reader.opcode == "st" for reader in readers.get(name, ()))
    }


def _moved_to_float(entry: Entry, instruction: Instruction) -> bool:
    """Whether an instruction moves bits to a .f32 register."""
    if instruction.opcode != "mov" or TYPES["b32"] not in types_of(instruction):
        return False
    return any(entry.registers[name] is TYPES["f32"] for name in registers_written(instruction))


def _results(instructions: Iterable[Instruction]) -> Iterable[str]:
    return (name for instruction in instructions for name in registers_written(instruction))


def _literal(name: str, writers: list[Instruction]) -> Immediate | None:
    """The literal that a register's only writer moves to it."""
    if len(writers) != 1 or writers[0].opcode != "mov" or writers[0].guard is not None:
        return None
    target, *sources = writers[0].operands
    if isinstance(target, Vector) or target != Register(name) or len(sources) != 1:
        return None
    return sources[0] if isinstance(sources[0], Immediate) else None
