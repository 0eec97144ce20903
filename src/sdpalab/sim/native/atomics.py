"""Atomic operations, lane by lane: machine code (:mod:`~sdpalab.sim.native.translate`)."""

from __future__ import annotations

from sdpalab.sim.native.layout import OPERANDS, SCRATCH, SCRATCH_PLACES
from sdpalab.sim.native.words import load32, load64, store32, store64

__all__ = ["NAMES", "update"]

NAMES = ("add", "min", "max", "and", "or", "xor", "inc", "dec")
"""The operations that are native: on integers, whose order changes no sum."""


def update(registers: int, record: int, mask: int, context: int) -> int:
    """Operands are the rows of the result (-1: none) and of the source, the operation, bytes, and whether it is signed.

    The addresses are in the scratch. Lanes that name one address come one after the other.
    """
    places = load64(context + 8 * SCRATCH) + SCRATCH_PLACES
    target, source = load32(record + 4 * OPERANDS), registers + load32(record + 4 * (OPERANDS + 1))
    operation, size = load32(record + 4 * (OPERANDS + 2)), load32(record + 4 * (OPERANDS + 3))
    signed = load32(record + 4 * (OPERANDS + 4))
    for lane in range(32):
        if mask >> lane & 1 == 0:
            continue
        place = load64(places + 8 * lane)
        if size == 4:
            old, given = load32(place), load32(source + 4 * lane)
            if signed == 0:
                old, given = old & 0xFFFFFFFF, given & 0xFFFFFFFF
        else:
            old, given = load64(place), load64(source + 8 * lane)
        new = combined(operation, old, given, size == 8 and signed == 0)
        if size == 4:
            store32(place, new)
            if target >= 0:
                store32(registers + target + 4 * lane, old)
        else:
            store64(place, new)
            if target >= 0:
                store64(registers + target + 8 * lane, old)
    return 0


def combined(operation: int, old: int, given: int, flipped: int) -> int:
    """The new value; ``flipped`` compares as unsigned what are 64 bits."""
    if operation == 0:
        return old + given
    if operation == 3:
        return old & given
    if operation == 4:
        return old | given
    if operation == 5:
        return old ^ given
    if operation == 6:
        return 0 if old >= given else old + 1
    if operation == 7:
        return given if old == 0 or old > given else old - 1
    sign = (1 << 63) if flipped else 0
    less = (given ^ sign) < (old ^ sign)
    if operation == 1:
        return given if less else old
    return old if less else given
