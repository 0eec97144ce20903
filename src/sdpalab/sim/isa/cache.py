"""Cache control: prefetches, priorities and policies (PTX ISA, "prefetch", "applypriority", "discard",
"createpolicy"). There are no caches here, so only ``discard`` changes a value: it leaves undefined values.
"""

from __future__ import annotations

import numpy as np

from sdpalab.sim.decode import Decoder, Step, opcode
from sdpalab.sim.forms import LINE, POLICY, PRIORITIES
from sdpalab.sim.ir import Immediate, Instruction
from sdpalab.sim.isa.access import Accessor, address_register
from sdpalab.sim.memory import POISON, WORDS
from sdpalab.sim.modifiers import Mods, take_space
from sdpalab.sim.observer import Access
from sdpalab.sim.selection import Selection
from sdpalab.sim.types import TYPES

__all__: list[str] = []

_CHUNK = 16
"""Bytes of the words that discard writes."""


def _nothing(sel: Selection) -> None:
    """No value changes."""


@opcode("prefetch", "prefetchu")
def _prefetch(decoder: Decoder, instruction: Instruction) -> Step:
    """Touches no value, and no address is wrong."""
    mods = Mods(instruction)
    if instruction.opcode == "prefetchu":
        mods.choice(("L1",))
    else:
        space = take_space(mods)
        levels = ("L1", "L2") if space in ("global", "local", "generic") else ()
        maps = ("tensormap",) if space in ("const", "param", "generic") else ()
        mods.choice((*levels, *PRIORITIES[:2], *maps) if space == "global" else (*levels, *maps))
    mods.done()
    address_register(decoder, instruction, instruction.operands[0])
    return _nothing


@opcode("applypriority")
def _applypriority(decoder: Decoder, instruction: Instruction) -> Step:
    """Touches no value; the line must be there and aligned."""
    mods = Mods(instruction)
    mods.flag("global")
    mods.choice(("L2::evict_normal",))
    mods.done()
    line = _line(decoder, instruction, mods)

    def step(sel: Selection) -> None:
        line.parts(sel)

    return step


@opcode("discard")
def _discard(decoder: Decoder, instruction: Instruction) -> Step:
    """Writes poison: the values are undefined."""
    mods = Mods(instruction)
    mods.flag("global")
    mods.choice(("L2",))
    mods.done()
    line = _line(decoder, instruction, mods)
    observers = decoder.machine.observers

    def step(sel: Selection) -> None:
        for part in line.parts(sel):
            words = np.full((len(part.offset), _CHUNK), POISON, np.uint8).view(WORDS[_CHUNK])[:, 0]
            for begin in range(0, LINE, _CHUNK):
                chunk = Access(part.space, part.offset + begin, part.index + begin, _CHUNK, part.sel, instruction)
                for observer in observers:
                    observer.store(chunk, words)
                part.space.store(chunk.index, _CHUNK, words)

    return step


def _line(decoder: Decoder, instruction: Instruction, mods: Mods) -> Accessor:
    """The operands ``[a], 128``."""
    if instruction.operands[1] != Immediate(LINE):
        raise mods.unsupported(f"the size must be {LINE}")
    return Accessor(decoder, instruction, instruction.operands[0], "generic", LINE, "global")


@opcode("createpolicy")
def _createpolicy(decoder: Decoder, instruction: Instruction) -> Step:
    """A cache policy: 64 bits that only ``.L2::cache_hint`` takes."""
    mods = Mods(instruction)
    form = mods.choice(("fractional", "range", "cvt"))
    operands = list(instruction.operands)
    destination = decoder.dst(instruction, operands.pop(0), TYPES["b64"])
    if form == "cvt":
        mods.choice(("L2",))
        types = ["b64"]
    else:
        if form == "range":
            mods.flag("global")
        mods.choice(PRIORITIES)
        mods.choice(("L2::evict_first", "L2::evict_unchanged"), default="")
        types = ["f32"][: len(operands)] if form == "fractional" else ["u32", "u32"]
        if form == "range":
            address_register(decoder, instruction, operands.pop(0))
    mods.choice(("b64",))
    mods.done()
    if len(operands) != len(types):
        raise mods.unsupported("wrong number of operands")
    for operand, name in zip(operands, types, strict=True):
        decoder.src(instruction, operand, TYPES[name])

    def step(sel: Selection) -> None:
        destination[sel] = POLICY

    return step
