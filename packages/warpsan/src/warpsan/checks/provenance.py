"""The ``provenance`` check: the buffer from which the code computes the address of each access.

An address belongs to a buffer if its only possible sources are pointer parameters into that buffer, and integers. A
value from memory, from a call, or from an operation that does not preserve pointers may be any pointer: the access may
then go to every buffer. An allocation that holds several tensors is one buffer (:class:`~warpsan.host.arena.Arena`).
"""

from __future__ import annotations

from collections.abc import Sequence

from warpsan.analysis.fusion import registers_written
from warpsan.host.memory import GLOBAL_BASE, Extent
from warpsan.ptx.accesses import LoadStore
from warpsan.ptx.grammar import form_of
from warpsan.ptx.ir import Address, Entry, Immediate, Instruction, Operand, Register, Symbol
from warpsan.ptx.opcodes import loads_parameter, spaces_of

__all__ = ["Origins", "home_buffers", "pointer_origins"]

_PASSES_ON = frozenset({"add", "sub", "mov", "cvta", "selp"})
"""Opcodes whose result may be any of their operands, moved by the others."""
_INTEGERS = frozenset({"mul", "shl", "shr", "cvt", "bfe", "popc", "clz", "rem", "div", "setp", "set", "mul24", "slct"})
"""Opcodes whose result is not a pointer."""
_ACCESSES = frozenset({"ld", "st", "atom", "red"})

Origins = dict[int, frozenset[int]]
"""For each access, by its pc, the offsets in the parameter block of the pointers that its address is computed from."""


def pointer_origins(entry: Entry) -> Origins:
    """The origins of the accesses to global memory whose sources are all in the code."""
    writers: dict[str, list[Instruction]] = {}
    unknown: set[str] = set()
    for each in entry.instructions:
        written = registers_written(each)
        if len(written) == 1 and isinstance(each.operands[0], Register):
            writers.setdefault(written[0], []).append(each)
        else:  # one of several results
            unknown.update(written)
    origins: Origins = {}
    for each in entry.instructions:
        address = next((operand for operand in each.operands if isinstance(operand, Address)), None)
        if each.opcode not in _ACCESSES or address is None or spaces_of(each) - {"global"}:
            continue
        places = _origins(entry, address.base, writers, unknown)
        if places is not None:
            origins[each.pc] = places
    return origins


def home_buffers(origins: Origins, params: bytes, extents: Sequence[Extent]) -> dict[int, Extent]:
    """For each access whose pointers are all into one buffer, by its pc, that buffer."""
    homes: dict[int, Extent] = {}
    for pc, places in origins.items():
        values = [int.from_bytes(params[at : at + 8], "little") - GLOBAL_BASE for at in places]
        buffers = {extent for extent in extents for value in values if extent.begin <= value < extent.end}
        if len(buffers) == 1:
            homes[pc] = buffers.pop()
    return homes


def _origins(
    entry: Entry, base: object, writers: dict[str, list[Instruction]], unknown: set[str]
) -> frozenset[int] | None:
    """The places of the pointers that an address may be computed from; None for any pointer."""
    pending, seen, places = [base], set[str](), set[int]()
    while pending:
        register = pending.pop()
        if isinstance(register, Immediate):
            continue
        if not isinstance(register, Register) or register.name in unknown:
            return None
        if register.name in seen:
            continue
        seen.add(register.name)
        if register.name not in writers:
            return None
        for writer in writers[register.name]:
            if writer.opcode in _PASSES_ON:
                pending += [operand for operand in writer.operands[1:] if not _is_predicate(entry, operand)]
            elif writer.opcode in ("mad", "fma"):  # the product is not a pointer
                pending.append(writer.operands[3])
            elif loads_parameter(writer):
                place = _parameter(entry, writer)
                if place is None:
                    return None
                if form_of(writer, LoadStore).type.name in ("u64", "s64", "b64"):
                    places.add(place)
            elif writer.opcode not in _INTEGERS:
                return None
    return frozenset(places)


def _is_predicate(entry: Entry, operand: Operand) -> bool:
    if not isinstance(operand, Register):
        return False
    type_ = entry.registers.get(operand.name)
    return type_ is not None and type_.kind == "pred"


def _parameter(entry: Entry, load: Instruction) -> int | None:
    """The offset in the parameter block that a load reads; None if it reads no kernel parameter."""
    source = load.operands[1]
    if not isinstance(source, Address):
        return None
    param = next((each for each in entry.params if source.base == Symbol(each.name)), None)
    return None if param is None else param.offset + source.offset
