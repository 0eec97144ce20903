"""Reductions over groups of lanes of a warp with different member masks: machine code
(:mod:`~warpsan.engine.translate`)."""

from __future__ import annotations

from warpsan.engine.words import load32, store32

__all__ = ["REDUCTIONS", "reduce_groups"]

REDUCTIONS = ("add", "and", "or", "xor", "umin", "umax", "smin", "smax")


def reduce_groups(scratch: int, operation: int) -> int:
    """Reduce each group of lanes. The scratch holds, for each lane, its group as bits, then its value; the results
    are written after these. The operation is an index in :data:`REDUCTIONS`."""
    for lane in range(32):
        group, result, there = load32(scratch + 4 * lane), 0, 0
        for other in range(32):
            if group >> other & 1 == 0:
                continue
            value = load32(scratch + 128 + 4 * other)
            if operation in (4, 5):
                value = value & 0xFFFFFFFF
            if there == 0:
                result = value
            elif operation == 0:
                result += value
            elif operation == 1:
                result = result & value
            elif operation == 2:
                result = result | value
            elif operation == 3:
                result = result ^ value
            elif operation in (4, 6):
                result = min(result, value)
            else:
                result = max(result, value)
            there = 1
        store32(scratch + 256 + 4 * lane, result)
    return 0
