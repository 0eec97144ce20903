"""The ``provenance`` check: the buffer that the address of each access is computed from, as far as the code shows it.

An address belongs to a buffer if all that it may be computed from is pointer parameters into that buffer, and integers.
What comes from memory, from a call, or from an operation that does not pass pointers on may be any pointer: then the
access may go to every buffer. An allocation that holds several tensors is one buffer
(:class:`~sdpalab.sim.arena.Arena`).
"""

from __future__ import annotations

from sdpalab.sim.fusion import registers_written
from sdpalab.sim.ir import Address, Immediate, Instruction, Operand, Register, Symbol
from sdpalab.sim.machine import Machine
from sdpalab.sim.memory import GLOBAL_BASE, Extent

__all__ = ["home_buffers"]

_PASSES_ON = frozenset({"add", "sub", "mov", "cvta", "selp"})
"""Opcodes whose result may be any of their operands, moved by the others."""
_INTEGERS = frozenset({"mul", "shl", "shr", "cvt", "bfe", "popc", "clz", "rem", "div", "setp", "set", "mul24", "slct"})
"""Opcodes whose result is no pointer."""
_ACCESSES = frozenset({"ld", "st", "atom", "red"})


def home_buffers(machine: Machine) -> dict[int, Extent]:
    """For each access to global memory whose buffer the code shows, by its pc, that buffer."""
    writers: dict[str, list[Instruction]] = {}
    unknown: set[str] = set()
    for each in machine.entry.instructions:
        written = registers_written(each)
        if len(written) == 1 and isinstance(each.operands[0], Register):
            writers.setdefault(written[0], []).append(each)
        else:  # one of several results
            unknown.update(written)
    homes: dict[int, Extent] = {}
    for each in machine.entry.instructions:
        address = next((operand for operand in each.operands if isinstance(operand, Address)), None)
        if each.opcode not in _ACCESSES or address is None or {"shared", "local", "param", "const"} & set(each.mods):
            continue
        buffers = _origins(machine, address.base, writers, unknown)
        if buffers is not None and len(buffers) == 1:
            homes[each.pc] = buffers.pop()
    return homes


def _origins(
    machine: Machine, base: object, writers: dict[str, list[Instruction]], unknown: set[str]
) -> set[Extent] | None:
    """The buffers that an address may be computed from; None if it may be any."""
    pending, seen, extents = [base], set[str](), set[Extent]()
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
                pending += [operand for operand in writer.operands[1:] if not _is_predicate(machine, operand)]
            elif writer.opcode in ("mad", "fma"):  # the product is no pointer
                pending.append(writer.operands[3])
            elif writer.opcode == "ld" and "param" in writer.mods:
                buffer = _parameter(machine, writer)
                if buffer is None:
                    return None
                extents |= buffer
            elif writer.opcode not in _INTEGERS:
                return None
    return extents


def _is_predicate(machine: Machine, operand: Operand) -> bool:
    if not isinstance(operand, Register):
        return False
    type_ = machine.entry.registers.get(operand.name)
    return type_ is not None and type_.kind == "pred"


def _parameter(machine: Machine, load: Instruction) -> set[Extent] | None:
    """The buffer that a loaded parameter points into, nothing if it is no pointer; None for what is no parameter of
    the kernel."""
    source = load.operands[1]
    param = next(
        (each for each in machine.entry.params if isinstance(source, Address) and source.base == Symbol(each.name)),
        None,
    )
    if param is None or not isinstance(source, Address):
        return None
    at = param.offset + source.offset
    value = int.from_bytes(machine.params[at : at + 8], "little") - GLOBAL_BASE
    if not {"u64", "s64", "b64"} & set(load.mods):
        return set()
    return {extent for extent in machine.spaces["global"].extents if extent.begin <= value < extent.end}
