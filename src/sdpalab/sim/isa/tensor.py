"""Warp-level matrix instructions: ldmatrix, mma.sync, wmma (PTX ISA, "Warp Level Matrix Multiply-Accumulate").

Products and sums are float32 in the host's matrix product: the order of the additions, and the truncation inside a real
tensor core, are not modelled. Accumulators in f16 are rounded once, at the end.

The fragment layout of wmma is unspecified in PTX. Here it is that of the mma.m16n8k16 instructions which sm_80 and
later compile it to, with the second half of an f16 A or B fragment repeating the first.
"""

from __future__ import annotations

import numpy as np

from sdpalab.sim.decode import Decoder, Mods, Step, opcode
from sdpalab.sim.fusion import Product
from sdpalab.sim.ir import Instruction, Operand
from sdpalab.sim.isa.access import Accessor
from sdpalab.sim.isa.fragments import (
    accumulator,
    blocks,
    float32,
    pack_accumulator,
    store_accumulator,
    whole_warps,
)
from sdpalab.sim.isa.move import take_space
from sdpalab.sim.selection import WARP, Array, Indices, Selection, count, indices
from sdpalab.sim.types import TYPES

__all__ = ["product_step"]

_BATCH = 32 * WARP
_A_ORDER = ((0, 0), (1, 0), (0, 1), (1, 1))
"""Blocks (row block, k block) of an A fragment in register order."""
_B_ORDER = ((0, 0), (0, 1), (1, 0), (1, 1))
"""Blocks (n block, k block) of a B fragment, kept as its transpose, in register order."""


def _rows(decoder: Decoder, instruction: Instruction, operand: Operand, type_: str = "b32") -> list[Array]:
    return [decoder.src(instruction, item, TYPES[type_]) for item in decoder.vector(operand)]


def _targets(decoder: Decoder, instruction: Instruction, operand: Operand, type_: str = "b32") -> list[Array]:
    return [decoder.dst(instruction, item, TYPES[type_]) for item in decoder.vector(operand)]


@opcode("ldmatrix")
def _ldmatrix(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    for name in ("sync", "aligned", "m8n8"):
        mods.choice((name,))
    number = int(mods.choice(("x1", "x2", "x4"))[1:])
    transposed = mods.flag("trans")
    space = take_space(mods)
    mods.choice(("b16",))
    mods.done()
    targets = _targets(decoder, instruction, instruction.operands[0])
    if len(targets) != number:
        raise mods.unsupported(f"expected {number} registers")
    access = Accessor(decoder, instruction, instruction.operands[1], space, 16)
    whole = whole_warps(decoder, instruction)

    def step(sel: Selection) -> None:
        lanes = whole(sel)
        if lanes is None:
            return
        warps = count(lanes) // WARP
        # Lanes 0-7 point to the rows of the first matrix, 8-15 to those of the second, and so on.
        pointing = lanes if number == 4 else indices(lanes).reshape(warps, WARP)[:, : 8 * number].reshape(-1)
        words = access.gather(pointing)
        if transposed:
            flipped = words.view(np.uint16).reshape(warps, number, 8, 8).swapaxes(2, 3)
            fragments = np.ascontiguousarray(flipped).view(np.uint32).reshape(warps, number, WARP)
        else:
            fragments = words.view(np.uint32).reshape(warps, number, WARP)
        for i, target in enumerate(targets):
            if isinstance(lanes, slice):
                target[lanes].reshape(warps, WARP)[...] = fragments[:, i]
            else:
                target[lanes] = fragments[:, i].reshape(-1)

    return step


@opcode("mma")
def _mma(decoder: Decoder, instruction: Instruction) -> Step:
    mods = Mods(instruction)
    for name in ("sync", "aligned"):
        mods.choice((name,))
    shape = mods.choice(("m16n8k16", "m16n8k8"))
    for name in ("row", "col"):
        mods.choice((name,))
    kinds = [type_.name for type_ in (mods.type(), mods.type(), mods.type(), mods.type())]
    mods.done()
    result, kind, kind_b, addend = kinds
    if kind not in ("f16", "bf16") or kind_b != kind or addend != result or result not in ("f32", "f16"):
        raise mods.unsupported("these operand types are not modelled")
    if result == "f16" and kind != "f16":
        raise mods.unsupported("an f16 accumulator takes f16 factors")
    deep = shape == "m16n8k16"
    packed = result == "f16"
    a = _rows(decoder, instruction, instruction.operands[1])
    b = _rows(decoder, instruction, instruction.operands[2])
    c = _rows(decoder, instruction, instruction.operands[3], "b32" if packed else "f32")
    d = _targets(decoder, instruction, instruction.operands[0], "b32" if packed else "f32")
    if [len(a), len(b), len(c), len(d)] != [4 if deep else 2, 2 if deep else 1, *([2, 2] if packed else [4, 4])]:
        raise mods.unsupported("wrong number of registers for its shape and types")
    whole = whole_warps(decoder, instruction)
    k_blocks = 2 if deep else 1

    def step(sel: Selection) -> None:
        lanes = whole(sel)
        if lanes is None:
            return
        left = float32(blocks(a, lanes, (2, k_blocks), _A_ORDER[: len(a)]), kind)
        right = float32(blocks(b, lanes, (1, k_blocks), _B_ORDER[: len(b)]), kind)
        product = np.matmul(left, right.swapaxes(1, 2))
        if packed:
            product += float32(blocks(c, lanes, (2, 1), ((0, 0), (1, 0))), "f16")
            for target, values in zip(d, pack_accumulator(product.astype(np.float16)), strict=True):
                target[lanes] = values
        else:
            product += accumulator(c, lanes, 8)
            store_accumulator(d, lanes, product)

    return step


def product_step(decoder: Decoder, product: Product) -> Step:
    """One host product for all mma instructions of ``product`` (see :mod:`sdpalab.sim.fusion`)."""
    chains = product.chains
    first = chains[0].instructions[0]
    deep, wide = len(chains[0].instructions), len(chains)
    kind = first.mods[6]
    a = [row for mma in chains[0].instructions for row in _rows(decoder, mma, mma.operands[1])]
    a_order = [(down, 2 * k + across) for k in range(deep) for down, across in _A_ORDER]
    b = [row for chain in chains for mma in chain.instructions for row in _rows(decoder, mma, mma.operands[2])]
    b_order = [(n, 2 * k + half) for n in range(wide) for k in range(deep) for half in range(2)]
    c = [row for chain in chains for row in _rows(decoder, first, chain.instructions[0].operands[3], "f32")]
    d = [row for chain in chains for row in _targets(decoder, first, chain.instructions[-1].operands[0], "f32")]
    whole = whole_warps(decoder, first)

    def step(sel: Selection) -> None:
        lanes = whole(sel)
        if lanes is None:
            return
        for part in _batches(lanes):
            left = float32(blocks(a, part, (2, 2 * deep), a_order), kind)
            right = float32(blocks(b, part, (wide, 2 * deep), b_order), kind)
            result = np.matmul(left, right.swapaxes(1, 2))
            result += accumulator(c, part, 8 * wide)
            store_accumulator(d, part, result)

    return decoder.watch([mma for chain in chains for mma in chain.instructions], step)


def _batches(lanes: Selection) -> list[Selection]:
    """Pieces of whole warps that fit the processor's cache."""
    if isinstance(lanes, slice):
        return [slice(at, min(at + _BATCH, lanes.stop)) for at in range(lanes.start, lanes.stop, _BATCH)]
    return [lanes[at : at + _BATCH] for at in range(0, len(lanes), _BATCH)]


# ---- wmma m16n16k16 -------------------------------------------------------------------------------------------------


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
    a = _rows(decoder, instruction, instruction.operands[1])[:4]
    b = _rows(decoder, instruction, instruction.operands[2])[:4]
    c = _rows(decoder, instruction, instruction.operands[3], "b32" if packed else "f32")
    d = _targets(decoder, instruction, instruction.operands[0], "b32" if packed else "f32")
    whole = whole_warps(decoder, instruction)
    packed_order = ((0, 0), (1, 0), (0, 1), (1, 1))

    def step(sel: Selection) -> None:
        lanes = whole(sel)
        if lanes is None:
            return
        left = float32(blocks(a, lanes, (2, 2), _A_ORDER), kind)
        right = float32(blocks(b, lanes, (2, 2), _B_ORDER), kind)
        product = np.matmul(left, right.swapaxes(1, 2))
        if packed:
            product += float32(blocks(c, lanes, (2, 2), packed_order), "f16")
            for target, values in zip(d, pack_accumulator(product.astype(np.float16)), strict=True):
                target[lanes] = values
        else:
            product += accumulator(c, lanes, 16)
            store_accumulator(d, lanes, product)

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
    rows = (_targets if action == "load" else _rows)(decoder, instruction, fragment, name)
    order = {"a": _A_ORDER, "b": _B_ORDER}.get(matrix, ((0, 0), (1, 0), (0, 1), (1, 1)))

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
