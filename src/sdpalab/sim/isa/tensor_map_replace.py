"""Tensor maps that a kernel changes: tensormap.replace, and the copy of one with a fence (PTX ISA, "tensormap.replace",
"tensormap.cp_fenceproxy"). The race check looks for missing fences."""

from __future__ import annotations

import numpy as np

from sdpalab.sim.decode import Decoder, Step, opcode
from sdpalab.sim.ir import Immediate, Instruction
from sdpalab.sim.isa.access import Accessor
from sdpalab.sim.memory import WORDS
from sdpalab.sim.modifiers import Mods, take_space
from sdpalab.sim.observer import Access
from sdpalab.sim.selection import WARP, Array, Selection, indices
from sdpalab.sim.tensor_map import ALIGNMENT, BYTE_STRIDES, CHUNK, DESCRIPTOR_BYTES, FIELDS

__all__: list[str] = []


@opcode("tensormap.replace")
def _replace(decoder: Decoder, instruction: Instruction) -> Step:
    """Each lane sets a field of the map at its address."""
    mods = Mods(instruction)
    mods.choice(("replace",))
    mods.choice(("tile",))
    field = mods.choice(FIELDS)
    space = take_space(mods)
    mods.choice(("b1024",))
    type_ = mods.type()
    mods.done()
    if space not in ("global", "shared", "generic"):
        raise mods.unsupported("a tensor map lies in global or shared memory")
    begin, width, many = FIELDS[field]
    wide = width == 8
    if type_.name != ("b64" if wide else "b32"):
        raise mods.unsupported(f"the field .{field} takes a .{'b64' if wide else 'b32'}")
    operands = list(instruction.operands)
    place = operands.pop(1) if many > 1 else Immediate(0)
    if not isinstance(place, Immediate) or not 0 <= int(place.value) < many:
        raise mods.unsupported(f"the field .{field} has the elements 0 to {many - 1}")
    begin += width * int(place.value)
    access = Accessor(decoder, instruction, operands[0], space, ALIGNMENT)
    values = decoder.src(instruction, operands[1], type_)
    sixteenths = field == "global_stride" and float(decoder.machine.module.version) < BYTE_STRIDES

    def step(sel: Selection) -> None:
        for part in access.parts(sel, width=DESCRIPTOR_BYTES):
            words = values[part.sel]
            words = (words << 4 if sixteenths else words).astype(WORDS[width])
            _store(decoder, part, begin, width, words)

    return step


@opcode("tensormap.cp_fenceproxy")
def _copy(decoder: Decoder, instruction: Instruction) -> Step:
    """A warp copies a map from shared to global memory."""
    mods = Mods(instruction)
    for name in ("cp_fenceproxy", "global", "shared::cta", "tensormap::generic", "release"):
        mods.choice((name,))
    mods.choice(("cta", "cluster", "gpu", "sys"))
    mods.choice(("sync",))
    mods.choice(("aligned",))
    mods.done()
    target, source, size = instruction.operands
    if size != Immediate(DESCRIPTOR_BYTES):
        raise mods.unsupported(f"the size must be {DESCRIPTOR_BYTES}")
    writes = Accessor(decoder, instruction, target, "global", ALIGNMENT)
    reads = Accessor(decoder, instruction, source, "shared", ALIGNMENT)
    observers = decoder.machine.observers

    def step(sel: Selection) -> None:
        lanes = indices(sel)
        leaders = lanes[np.unique(lanes // WARP, return_index=True)[1]]
        for part in reads.parts(leaders, width=DESCRIPTOR_BYTES):
            chunks: list[Array] = []
            for begin in range(0, DESCRIPTOR_BYTES, CHUNK):
                chunk = _at(part, begin, CHUNK)
                for observer in observers:
                    observer.load(chunk)
                chunks.append(part.space.load(chunk.index, CHUNK))
            mine = indices(part.sel)
            for goal in writes.parts(mine, width=DESCRIPTOR_BYTES):
                row = np.searchsorted(mine, indices(goal.sel))
                for number, words in enumerate(chunks):
                    _store(decoder, goal, number * CHUNK, CHUNK, np.ascontiguousarray(words[row]))
        for observer in observers:
            observer.tensor_map_fence(sel, instruction, None)

    return step


def _at(access: Access, begin: int, width: int) -> Access:
    """Some of the bytes of accesses."""
    return Access(access.space, access.offset + begin, access.index + begin, width, access.sel, access.instruction)


def _store(decoder: Decoder, access: Access, begin: int, width: int, words: Array) -> None:
    """Write a word into each map."""
    part = _at(access, begin, width)
    for observer in decoder.machine.observers:
        observer.store(part, words)
    part.space.store(part.index, width, words)
