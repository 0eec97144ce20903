"""The factors of matrix products, from 8 lines of 16 bytes each to float32 [k, 8 lines] in memory.

The lines are rows of A and columns of B. A register of a fragment holds them, a word a lane; so do 8 chunks of shared
memory. A line has 4 words, and a word 1 to 8 elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warpsan.engine.lanes import WORD64, Lanes, where
from warpsan.engine.numeric import widened
from warpsan.engine.operation import OperationCode
from warpsan.ptx.matrices import ELEMENTS
from warpsan.semantics.convert import decoded8

__all__ = ["NARROW", "Factor", "as_factor", "by_word", "small_float", "store_factors", "store_fragments"]

_TF32_BITS = 0xFFFFE000
"""Mask of the bits of a float32 that tf32 has."""
_SHIFTS = {"s8": 24, "s4": 28}
"""Shift that sign-extends an integer, to the left and back."""

Factor = Callable[[Lanes, str], Lanes]
"""Conversion of elements of a kind, as bits in a u32, to factors in f32."""
Registers = Callable[[Any], Lanes]
"""Registers of fragments by their number, an ``i64``."""


def as_factor(bits: Lanes, kind: str) -> Lanes:
    """The values of elements."""
    if kind in _SHIFTS:
        return ((bits.as_type("s32") << _SHIFTS[kind]) >> _SHIFTS[kind]).to("f32")
    if kind in ("u8", "u4"):
        return bits.as_type("s32").to("f32")
    if kind == "tf32":
        return (bits & _TF32_BITS).as_type("f32")
    return decoded8(bits, kind) if kind in ("e4m3", "e5m2") else widened(bits.to("u16"), kind)


NARROW = {"e2m3": (2, 3), "e3m2": (3, 2), "e2m1": (2, 1)}
"""Exponent and mantissa bits of types without infinities and NaN."""


def small_float(bits: Lanes, kind: str) -> Lanes:
    """The values of elements of four or six bits, in the low bits of a u32."""
    wide, narrow = NARROW[kind]
    bias = (1 << wide - 1) - 1
    exponent, mantissa = (bits >> narrow) & (1 << wide) - 1, bits & (1 << narrow) - 1
    normal = ((exponent + (127 - bias)) << 23 | mantissa << 23 - narrow).as_type("f32")
    small = mantissa.as_type("s32").to("f32") * 2.0 ** (1 - bias - narrow)
    size = where(exponent == 0, small, normal).as_type("u32")
    return (size | (bits >> wide + narrow & 1) << 31).as_type("f32")


def store_factors(code: OperationCode, lines: Lanes, kind: str, factor: Factor, target: Any) -> None:
    """Write the factors of u32 [8 lines, 4 words] to ``target``, as f32 [k, 8 lines]."""
    b, each = code.builder, ELEMENTS[kind]
    words, bits = by_word(lines), 32 // each
    with code.loop(WORD64(each)) as number:
        shift = code.spread(b.trunc(b.mul(number, WORD64(bits)), lines.value.type.element), "u32")
        factors = factor((words >> shift) & ((1 << bits) - 1), kind)
        for word in range(4):
            place = b.mul(b.add(number, WORD64(each * word)), WORD64(32))
            part = factors.shuffled(range(8 * word, 8 * word + 8))
            b.store(part.value, code.at(target, place), align=32)


def store_fragments(
    code: OperationCode,
    numbers: range,
    k_blocks: int,
    registers: Registers,
    kind: str,
    factor: Factor,
    target: Any,
) -> None:
    """Write the factors of some of a product's registers: two of A for each block along K, followed by one of B.

    ``target`` receives A, f32 [2, k, 8 rows], followed by B, f32 [k, 8 columns].
    """
    b, block = code.builder, 32 * 4 * ELEMENTS[kind]
    with code.loop(WORD64(len(numbers))) as turn:
        number = b.add(turn, WORD64(numbers.start))
        half, behind = b.and_(number, WORD64(1)), b.lshr(number, WORD64(1))
        of_a = b.add(b.mul(half, WORD64(block * k_blocks)), b.mul(behind, WORD64(block)))
        of_b = b.mul(number, WORD64(block))
        place = b.select(b.icmp_signed("<", number, WORD64(2 * k_blocks)), of_a, of_b)
        store_factors(code, registers(number), kind, factor, code.at(target, place))


def by_word(lines: Lanes) -> Lanes:
    """[8 lines, 4 words] as [4 words, 8 lines].

    It takes steps on two vectors of 8 each: for a shuffle of all 32, LLVM makes moves of single elements.
    """
    pairs = [lines.shuffled(range(at, at + 8)) for at in range(0, 32, 8)]
    fours = []
    for first in (0, 2):
        for word in (0, 2):  # [2 words, 4 lines]
            order = [8 * (line // 2) + 4 * (line % 2) + word + k for k in range(2) for line in range(4)]
            fours.append(pairs[first].shuffled(order, pairs[first + 1]))
    eights = []
    for word in range(4):
        order = [8 * half + 4 * (word % 2) + line for half in range(2) for line in range(4)]
        eights.append(fours[word // 2].shuffled(order, fours[2 + word // 2]))
    halves = [eights[k].shuffled(range(16), eights[k + 1]) for k in (0, 2)]
    return halves[0].shuffled(range(32), halves[1])
