"""Warp-level matrix instructions: ldmatrix and mma.sync (PTX ISA, "Warp Level Matrix Multiply-Accumulate").

Sums are by the rule of the architecture (:mod:`sdpalab.sim.tensor_cores`), or in float32
(:mod:`~sdpalab.sim.isa.sums`); integer sums are exact, and those of f64 a chain of fma from C. Sparse products are not
modelled.
"""

from __future__ import annotations

import numpy as np

from sdpalab.sim.decode import Decoder, Step, opcode
from sdpalab.sim.forms import A_ORDER, B_ORDER
from sdpalab.sim.fusion import MmaGroup
from sdpalab.sim.ir import Instruction
from sdpalab.sim.isa.access import Accessor
from sdpalab.sim.isa.fragments import (
    accumulator,
    blocks,
    factors,
    float32,
    integer_sum,
    matrix_product,
    pack_accumulator,
    source_rows,
    store_accumulator,
    target_rows,
    whole_warps,
)
from sdpalab.sim.isa.fused import fma_f64
from sdpalab.sim.isa.rounding import canonical_nans
from sdpalab.sim.isa.sums import add_products
from sdpalab.sim.modifiers import Mods, take_space
from sdpalab.sim.selection import WARP, Selection, count, indices
from sdpalab.sim.tensor_cores import rule_of

__all__ = ["mma_group_step"]

_BATCH = 32 * WARP


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
    targets = target_rows(decoder, instruction, instruction.operands[0])
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


_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "s4": 4, "u4": 4}
_PARTNERS = ({"f16"}, {"bf16"}, {"tf32"}, {"e4m3", "e5m2"}, {"s8", "u8"}, {"s4", "u4"})
"""Factor types of one mma: two of the same set."""


def _results(kind: str, kind_b: str) -> tuple[str, ...]:
    """Accumulator types for a pair of factor types."""
    if not any({kind, kind_b} <= partners for partners in _PARTNERS):
        return ()
    if kind[0] in "su":
        return ("s32",)
    return ("f32", "f16") if kind in ("f16", "e4m3", "e5m2") else ("f32",)


@opcode("mma")
def _mma(decoder: Decoder, instruction: Instruction) -> Step:
    """Every type packs 16 or 32 bytes along K into a row of A, in the same places."""
    mods = Mods(instruction)
    for name in ("sync", "aligned"):
        mods.choice((name,))
    if mods.flag("m8n8k4"):
        return _mma_f64(decoder, instruction, mods)
    depth = int(mods.choice(("m16n8k4", "m16n8k8", "m16n8k16", "m16n8k32", "m16n8k64")).rpartition("k")[2])
    for name in ("row", "col"):
        mods.choice((name,))
    saturates = mods.flag("satfinite")
    if len(mods.left) != 4:
        raise mods.unsupported("expected four types")
    result, kind, kind_b, addend = mods.left
    if addend != result or result not in _results(kind, kind_b) or (saturates and result != "s32"):
        raise mods.unsupported("these operand types are not modelled")
    if depth * _BITS[kind] not in (128, 256):
        raise mods.unsupported("there is no such shape for these types")
    k_blocks = depth * _BITS[kind] // 128
    packed = result == "f16"
    held = "b32" if packed else result
    a = source_rows(decoder, instruction, instruction.operands[1])
    b = source_rows(decoder, instruction, instruction.operands[2])
    c = source_rows(decoder, instruction, instruction.operands[3], held)
    d = target_rows(decoder, instruction, instruction.operands[0], held)
    if [len(a), len(b), len(c), len(d)] != [2 * k_blocks, k_blocks, *([2, 2] if packed else [4, 4])]:
        raise mods.unsupported("wrong number of registers for its shape and types")
    whole = whole_warps(decoder, instruction)
    machine = decoder.machine
    rule = None if result == "s32" else rule_of(machine.module.target, "mma", kind, depth, result)

    def step(sel: Selection) -> None:
        lanes = whole(sel)
        if lanes is None:
            return
        left = factors(blocks(a, lanes, (2, k_blocks), A_ORDER[: len(a)]).view(np.uint8), kind)
        right = factors(blocks(b, lanes, (1, k_blocks), B_ORDER[: len(b)]).view(np.uint8), kind_b)
        if rule is None:
            total = integer_sum(matrix_product(left, right), accumulator(c, lanes, 8), saturates)
            store_accumulator(d, lanes, total)
        elif packed:
            before = float32(blocks(c, lanes, (2, 1), ((0, 0), (1, 0))), "f16")
            after = add_products(left, right, before, rule, result, machine.numerics)
            for target, values in zip(d, pack_accumulator(canonical_nans(after.astype(np.float16))), strict=True):
                target[lanes] = values
        else:
            after = add_products(left, right, accumulator(c, lanes, 8), rule, result, machine.numerics)
            store_accumulator(d, lanes, after)

    return step


def _mma_f64(decoder: Decoder, instruction: Instruction, mods: Mods) -> Step:
    """``mma.m8n8k4`` on f64: lane (g, t) has A[g, t], B[t, g], and of C and D the elements [g, 2t] and [g, 2t + 1]."""
    for name in ("row", "col", "f64", "f64", "f64", "f64"):
        mods.choice((name,))
    mods.done()
    a, b, c = (source_rows(decoder, instruction, operand, "f64") for operand in instruction.operands[1:4])
    d = target_rows(decoder, instruction, instruction.operands[0], "f64")
    if [len(a), len(b), len(c), len(d)] != [1, 1, 2, 2]:
        raise mods.unsupported("wrong number of registers for its shape and types")
    whole = whole_warps(decoder, instruction)

    def step(sel: Selection) -> None:
        lanes = whole(sel)
        if lanes is None:
            return
        left, right = (row[0][lanes].reshape(-1, 8, 4) for row in (a, b))
        total = np.stack([row[lanes] for row in c], axis=-1).reshape(-1, 8, 8)
        for k in range(4):
            pair = np.broadcast_arrays(left[:, :, None, k], right[:, None, :, k])
            fma_f64(pair[0], pair[1], total, total)
        for i, target in enumerate(d):
            target[lanes] = canonical_nans(np.ascontiguousarray(total.reshape(-1, 2)[:, i]))

    return step


def mma_group_step(decoder: Decoder, product: MmaGroup) -> Step:
    """One host product for all mma instructions of ``product`` (see :mod:`sdpalab.sim.fusion`)."""
    chains = product.chains
    first = chains[0].instructions[0]
    deep, wide = len(chains[0].instructions), len(chains)
    kind = first.mods[6]
    a = [row for mma in chains[0].instructions for row in source_rows(decoder, mma, mma.operands[1])]
    a_order = [(down, 2 * k + across) for k in range(deep) for down, across in A_ORDER]
    b = [row for chain in chains for mma in chain.instructions for row in source_rows(decoder, mma, mma.operands[2])]
    b_order = [(n, 2 * k + half) for n in range(wide) for k in range(deep) for half in range(2)]
    c = [row for chain in chains for row in source_rows(decoder, first, chain.instructions[0].operands[3], "f32")]
    d = [row for chain in chains for row in target_rows(decoder, first, chain.instructions[-1].operands[0], "f32")]
    whole = whole_warps(decoder, first)
    numerics, rule = decoder.machine.numerics, rule_of(decoder.machine.module.target, "mma", kind, 16, "f32")

    def step(sel: Selection) -> None:
        lanes = whole(sel)
        if lanes is None:
            return
        for part in _batches(lanes):
            left = float32(blocks(a, part, (2, 2 * deep), a_order), kind)
            right = float32(blocks(b, part, (wide, 2 * deep), b_order), kind)
            result = accumulator(c, part, 8 * wide)
            for k in range(0, 16 * deep, 16):  # each instruction adds its products to what those before it left
                result = add_products(left[..., k : k + 16], right[..., k : k + 16], result, rule, "f32", numerics)
            store_accumulator(d, part, result)

    return decoder.watch([mma for chain in chains for mma in chain.instructions], step)


def _batches(lanes: Selection) -> list[Selection]:
    """Pieces of whole warps that fit the processor's cache."""
    if isinstance(lanes, slice):
        return [slice(at, min(at + _BATCH, lanes.stop)) for at in range(lanes.start, lanes.stop, _BATCH)]
    return [lanes[at : at + _BATCH] for at in range(0, len(lanes), _BATCH)]
