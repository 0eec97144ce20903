"""wmma m16n16k16 (PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions: wmma").

Products are those of :mod:`~sdpalab.sim.isa.tensor`. The fragment layout is unspecified in PTX. Here it is that of the
mma.m16n8k16 instructions which sm_80 and later compile it to, with the second half of an f16 A or B fragment repeating
the first.
"""

from __future__ import annotations

import numpy as np

from sdpalab.sim.decode import Decoder, Step, opcode
from sdpalab.sim.forms import A_ORDER, B_ORDER
from sdpalab.sim.ir import Instruction
from sdpalab.sim.isa.access import Accessor
from sdpalab.sim.isa.fragments import (
    accumulator,
    blocks,
    float32,
    pack_accumulator,
    source_rows,
    store_accumulator,
    target_rows,
    whole_warps,
)
from sdpalab.sim.isa.rounding import canonical_nans
from sdpalab.sim.isa.sums import add_products
from sdpalab.sim.modifiers import Mods, take_space
from sdpalab.sim.selection import WARP, Indices, Selection, count
from sdpalab.sim.tensor_cores import rule_of
from sdpalab.sim.types import TYPES

__all__: list[str] = []


@opcode("wmma")
def _wmma(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    action = mods.choice(("load", "store", "mma"))
    for name in ("sync", "aligned", "m16n16k16"):
        mods.choice((name,))
    if action == "mma":
        return _wmma_mma(decoder, instruction, mods)
    return _wmma_memory(decoder, instruction, mods, action)


def _wmma_mma(decoder: Decoder, instruction: Instruction, mods: Mods) -> Step:
    # A and B fragments are in registers, their memory layout no longer matters.
    layouts = [name for name in mods.left if name in ("row", "col")]
    mods.left = [name for name in mods.left if name not in ("row", "col")]
    kinds = [mods.type().name]
    while mods.left:
        kinds.append(mods.type().name)
    if len(layouts) != 2 or kinds not in (["f32", "f32"], ["f16", "f16"], ["f32", "bf16", "bf16", "f32"]):
        raise mods.unsupported("these operand types are not modelled")
    kind = "bf16" if "bf16" in kinds else "f16"
    packed = kinds[0] == "f16"
    a = source_rows(decoder, instruction, instruction.operands[1])[:4]
    b = source_rows(decoder, instruction, instruction.operands[2])[:4]
    c = source_rows(decoder, instruction, instruction.operands[3], "b32" if packed else "f32")
    d = target_rows(decoder, instruction, instruction.operands[0], "b32" if packed else "f32")
    whole = whole_warps(decoder, instruction)
    packed_order = ((0, 0), (1, 0), (0, 1), (1, 1))
    numerics, rule = decoder.machine.numerics, rule_of(decoder.machine.module.target, "wmma", kind, 16, kinds[0])

    def step(sel: Selection) -> None:
        lanes = whole(sel)
        if lanes is None:
            return
        left = float32(blocks(a, lanes, (2, 2), A_ORDER), kind)
        right = float32(blocks(b, lanes, (2, 2), B_ORDER), kind)
        before = float32(blocks(c, lanes, (2, 2), packed_order), "f16") if packed else accumulator(c, lanes, 16)
        after = add_products(left, right, before, rule, kinds[0], numerics)
        if packed:
            for target, values in zip(d, pack_accumulator(canonical_nans(after.astype(np.float16))), strict=True):
                target[lanes] = values
        else:
            store_accumulator(d, lanes, after)

    return step


def _wmma_memory(decoder: Decoder, instruction: Instruction, mods: Mods, action: str) -> Step:
    """A 16 x 16 tile between memory and a fragment. Each lane moves 16-byte pieces of the tile's 16 lines."""
    matrix = mods.choice(("a", "b", "c", "d"))
    by_column = mods.choice(("row", "col")) == "col"
    space = take_space(mods)
    type_ = mods.type()
    mods.done()
    if type_.name not in (("f16", "bf16") if matrix in "ab" else ("f16", "f32")):
        raise mods.unsupported("this element type is not modelled")
    fragment, address = instruction.operands[:2] if action == "load" else reversed(instruction.operands[:2])
    stride = decoder.src(instruction, instruction.operands[2], TYPES["u32"]) if len(instruction.operands) > 2 else None
    access = Accessor(decoder, instruction, address, space, 16)
    whole = whole_warps(decoder, instruction)
    size = type_.bytes
    rounds = size // 2  # 16-byte pieces that each lane moves: 16 lines of 16 elements are 32 or 64 pieces
    per_line = 16 * size // 16
    # A is kept as it is, B as its transpose: flip what lies the other way in memory.
    flip = by_column != (matrix == "b")
    wide = type_.name == "f32"
    name = "f32" if wide else "b32"
    rows = (target_rows if action == "load" else source_rows)(decoder, instruction, fragment, name)
    order = {"a": A_ORDER, "b": B_ORDER}.get(matrix, ((0, 0), (1, 0), (0, 1), (1, 1)))

    def offsets(lanes: Selection, turn: int) -> Indices:
        piece = decoder.machine.laneid[lanes] + WARP * turn
        line = piece // per_line
        lengths = np.int64(16) if stride is None else stride[lanes].astype(np.int64)
        result: Indices = line * lengths * size + piece % per_line * 16
        return result

    def load(sel: Selection) -> None:
        lanes = whole(sel)
        if lanes is None:
            return
        warps = count(lanes) // WARP
        words = np.empty((warps, rounds, WARP), dtype=np.complex128)
        for turn in range(rounds):
            words[:, turn] = access.gather(lanes, offsets(lanes, turn)).reshape(warps, WARP)
        tile = words.view(np.float32 if wide else np.uint16).reshape(warps, 16, 16)
        if flip:
            tile = tile.swapaxes(1, 2)
        if wide:
            store_accumulator(rows, lanes, np.ascontiguousarray(tile))
            return
        parts = tile.reshape(warps, 2, 8, 2, 8) if not flip else np.ascontiguousarray(tile).reshape(warps, 2, 8, 2, 8)
        for i, row in enumerate(rows):
            down, across = order[i % 4]
            row[lanes] = np.ascontiguousarray(parts[:, down, :, across, :]).view(np.uint32).reshape(-1)

    def store(sel: Selection) -> None:
        lanes = whole(sel)
        if lanes is None:
            return
        warps = count(lanes) // WARP
        tile = accumulator(rows, lanes, 16) if wide else blocks(rows, lanes, (2, 2), order)
        if flip:
            tile = np.ascontiguousarray(tile.swapaxes(1, 2))
        words = tile.reshape(warps, -1).view(np.complex128).reshape(warps, rounds, WARP)
        for turn in range(rounds):
            access.scatter(lanes, np.ascontiguousarray(words[:, turn]).reshape(-1), offsets(lanes, turn))

    return load if action == "load" else store
