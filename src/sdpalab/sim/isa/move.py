"""Moving data: mov, ld, st, cvta and related instructions (PTX ISA, "Data Movement and Conversion Instructions")."""

from __future__ import annotations

import numpy as np

from sdpalab.sim.decode import Decoder, Step, opcode
from sdpalab.sim.forms import CLOCKS, of_kernel
from sdpalab.sim.ir import Instruction, Operand, Register, Vector
from sdpalab.sim.isa.access import PARAMETER_MASK, Accessor
from sdpalab.sim.isa.memory_mods import take_cache_hint
from sdpalab.sim.isa.parameters import load_parameter, parameter_by_address, store_parameter
from sdpalab.sim.memory import GLOBAL_BASE, WINDOW_BITS, WORDS, generic_base
from sdpalab.sim.modifiers import Mods, take_memory_mods, take_space
from sdpalab.sim.selection import Array, Selection, count
from sdpalab.sim.types import TYPES, PtxType, unsigned

__all__: list[str] = []


@opcode("ld", "ldu")
def _ld(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    space = take_space(mods)
    take_memory_mods(mods)
    vector = int(mods.choice(("v2", "v4", "v8"), default="v1")[1:])
    type_ = mods.type()
    operands = list(instruction.operands)
    take_cache_hint(decoder, mods, operands)
    mods.done()
    if len(operands) != 2:
        raise mods.unsupported("expected a destination and an address")
    destinations = _destinations(decoder, instruction, operands[0], type_, vector)
    width = vector * type_.bytes
    if space == "param" and not parameter_by_address(decoder.machine, instruction):
        return load_parameter(decoder, instruction, destinations, type_)
    if width > 16:
        raise mods.unsupported(f"accesses of {width} bytes are not modelled")
    if space == "param":
        space = "param" if of_kernel(decoder.machine.entry, instruction) else "local"
    access = Accessor(decoder, instruction, instruction.operands[1], space, width)
    gather = access.gather_unobserved if space == "param" else access.gather

    def deliver(sel: Selection, raw: Array) -> None:
        words = raw.view(type_.dtype)
        if vector == 1:
            destinations[0][sel] = words
        else:
            columns = words.reshape(-1, vector)
            for k, destination in enumerate(destinations):
                destination[sel] = columns[:, k]

    loads = None if decoder.machine.weak is None else decoder.machine.weak.loads
    if loads is not None and loads.may_wait(instruction):
        return lambda sel: loads.add(
            instruction, parts := access.reads(sel), lambda: deliver(sel, access.words(parts, sel))
        )
    return lambda sel: deliver(sel, gather(sel))


@opcode("st")
def _st(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    space = take_space(mods)
    take_memory_mods(mods)
    vector = int(mods.choice(("v2", "v4", "v8"), default="v1")[1:])
    type_ = mods.type()
    operands = list(instruction.operands)
    take_cache_hint(decoder, mods, operands)
    mods.done()
    if len(operands) != 2:
        raise mods.unsupported("expected an address and a value")
    width = vector * type_.bytes
    if width > 16:
        raise mods.unsupported(f"accesses of {width} bytes are not modelled")
    if space == "const":
        raise mods.unsupported("constant memory is read-only")
    items = decoder.vector(instruction.operands[1])
    if len(items) != vector:
        raise mods.unsupported(f"expected {vector} values")
    bits = TYPES[f"b{type_.bits}"]
    sources = [decoder.src(instruction, item, bits) for item in items]
    if space == "param":
        return store_parameter(decoder, instruction, sources, type_)
    access = Accessor(decoder, instruction, instruction.operands[0], space, width)

    def step(sel: Selection) -> None:
        if vector == 1:
            access.scatter(sel, sources[0][sel])
        else:
            columns = np.empty((count(sel), vector), bits.dtype)
            for k, source in enumerate(sources):
                columns[:, k] = source[sel]
            access.scatter(sel, columns.view(WORDS[width])[:, 0])

    return step


def _destinations(
    decoder: Decoder, instruction: Instruction, operand: Operand, type_: PtxType, vector: int
) -> list[Array]:
    items = decoder.vector(operand)
    if len(items) != vector:
        raise Mods(instruction).unsupported(f"expected {vector} registers")
    return [decoder.dst(instruction, item, type_) for item in items]


@opcode("mov")
def _mov(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    type_ = mods.type()
    mods.done()
    if len(instruction.operands) != 2:
        raise mods.unsupported("expected one source operand")
    target, origin = instruction.operands
    if isinstance(target, Vector) or isinstance(origin, Vector):
        return _mov_vector(decoder, instruction, type_)
    if isinstance(origin, Register) and origin.name in CLOCKS:
        return _read_clock(decoder, instruction, mods, type_, CLOCKS[origin.name])
    source = decoder.src(instruction, origin, type_)  # the address of a variable is relative to its own space
    destination = decoder.dst(instruction, target, type_)

    def step(sel: Selection) -> None:
        destination[sel] = source[sel]

    return step


def _read_clock(decoder: Decoder, instruction: Instruction, mods: Mods, type_: PtxType, bits: tuple[int, int]) -> Step:
    """Steps of the chunk of CTAs so far, the same for all its lanes, and more at every read."""
    width, shift = bits
    if type_.bits != width or type_.is_float:
        raise mods.unsupported(f"the clock has {width} bits")
    destination, machine = decoder.dst(instruction, instruction.operands[0], type_), decoder.machine

    def step(sel: Selection) -> None:
        machine.clock += 1
        destination[sel] = machine.clock >> shift & (1 << width) - 1

    return step


def _mov_vector(decoder: Decoder, instruction: Instruction, type_: PtxType) -> Step:
    """Pack ``{a, b}`` into one register, the first element lowest, or unpack one."""
    target, origin = instruction.operands
    many = decoder.vector(target if isinstance(target, Vector) else origin)
    part = TYPES[f"b{type_.bits // len(many)}"]
    if isinstance(target, Vector):
        whole = decoder.src(instruction, origin, TYPES[f"b{type_.bits}"])
        columns = np.ascontiguousarray(whole).view(part.dtype) if not whole.strides[0] else whole.view(part.dtype)
        parts = [decoder.dst(instruction, item, part) for item in many]
        pieces = [columns[k :: len(many)] for k in range(len(many))]

        def unpack(sel: Selection) -> None:
            for destination, piece in zip(parts, pieces, strict=True):
                destination[sel] = piece[sel]

        return unpack
    row = decoder.dst(instruction, target, TYPES[f"b{type_.bits}"]).view(part.dtype)
    sources = [decoder.src(instruction, item, part) for item in many]
    slots = [row[k :: len(many)] for k in range(len(many))]

    def pack(sel: Selection) -> None:
        # All sources are read before the register is written: it may be among them.
        values = [source[sel].copy() for source in sources]
        for slot, value in zip(slots, values, strict=True):
            slot[sel] = value

    return pack


@opcode("cvta")
def _cvta(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    to = mods.flag("to")
    space = take_space(mods)
    type_ = mods.type()
    mods.done()
    source = decoder.src(instruction, instruction.operands[1], type_)
    destination = decoder.dst(instruction, instruction.operands[0], type_)
    if space == "param" and not to:
        return _generic_parameter(source, destination)
    base = generic_base(space) if space != "param" else 0
    shift = np.array(-base if to else base, dtype=np.int64).view(np.uint64).astype(unsigned(type_.bits))

    def step(sel: Selection) -> None:
        if isinstance(sel, slice):
            np.add(source[sel], shift, out=destination[sel])
        else:
            destination[sel] = source[sel] + shift

    return step


def _generic_parameter(source: Array, destination: Array) -> Step:
    """The generic address of a parameter: a 32-bit register has lost the upper half of what it was."""

    def step(sel: Selection) -> None:
        destination[sel] = (source[sel].astype(np.int64) & PARAMETER_MASK) + GLOBAL_BASE

    return step


@opcode("isspacep")
def _isspacep(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    space = take_space(mods)
    mods.done()
    source = decoder.src(instruction, instruction.operands[1], TYPES["u64"])
    destination = decoder.dst(instruction, instruction.operands[0], TYPES["pred"])
    windows = {name: generic_base(name) >> WINDOW_BITS for name in ("shared", "shared::cluster", "local")}

    def step(sel: Selection) -> None:
        window = source[sel] >> np.uint64(WINDOW_BITS)
        if space in windows:
            destination[sel] = window == windows[space]
        else:
            destination[sel] = ~np.isin(window, list(windows.values()))

    return step
