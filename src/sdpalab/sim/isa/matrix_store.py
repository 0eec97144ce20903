"""Matrices out of fragments: stmatrix and movmatrix (PTX ISA, "Warp Level Matrix Store Instruction", "Matrix Transpose
Instruction"). The forms on 8-bit elements, of sm_100 and later, are not modelled."""

from __future__ import annotations

import numpy as np

from sdpalab.sim.decode import Decoder, Step, opcode
from sdpalab.sim.ir import Instruction
from sdpalab.sim.isa.access import Accessor
from sdpalab.sim.isa.fragments import source_rows, whole_warps
from sdpalab.sim.modifiers import Mods, take_space
from sdpalab.sim.selection import WARP, Array, Selection, count, indices
from sdpalab.sim.types import TYPES

__all__: list[str] = []


def _transposed(fragments: Array) -> Array:
    """8 x 8 matrices of 16-bit elements, one word a lane: uint32 [..., 32]."""
    elements = fragments.view(np.uint16).reshape(*fragments.shape[:-1], 8, 8)
    return np.ascontiguousarray(elements.swapaxes(-1, -2)).view(np.uint32).reshape(fragments.shape)


@opcode("stmatrix")
def _stmatrix(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    for name in ("sync", "aligned", "m8n8"):
        mods.choice((name,))
    number = int(mods.choice(("x1", "x2", "x4"))[1:])
    trans = mods.flag("trans")
    space = take_space(mods)
    mods.choice(("b16",))
    mods.done()
    if space not in ("shared", "generic"):
        raise mods.unsupported("stores to shared memory")
    sources = source_rows(decoder, instruction, instruction.operands[1])
    if len(sources) != number:
        raise mods.unsupported(f"expected {number} registers")
    access = Accessor(decoder, instruction, instruction.operands[0], space, 16)
    whole = whole_warps(decoder, instruction)

    def step(sel: Selection) -> None:
        lanes = whole(sel)
        if lanes is None:
            return
        warps = count(lanes) // WARP
        fragments = np.stack([source[lanes].reshape(warps, WARP) for source in sources], axis=1)
        if trans:
            fragments = _transposed(fragments)
        # Lanes 0-7 point to the rows of the first matrix, 8-15 to those of the second, and so on.
        pointing = lanes if number == 4 else indices(lanes).reshape(warps, WARP)[:, : 8 * number].reshape(-1)
        access.scatter(pointing, fragments.view(np.complex128).reshape(-1))

    return step


@opcode("movmatrix")
def _movmatrix(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    for name in ("sync", "aligned", "m8n8", "trans", "b16"):
        mods.choice((name,))
    mods.done()
    destination = decoder.dst(instruction, instruction.operands[0], TYPES["b32"])
    source = decoder.src(instruction, instruction.operands[1], TYPES["b32"])
    whole = whole_warps(decoder, instruction)

    def step(sel: Selection) -> None:
        lanes = whole(sel)
        if lanes is not None:
            destination[lanes] = _transposed(source[lanes].reshape(-1, WARP).copy()).reshape(-1)

    return step
