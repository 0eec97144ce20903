"""Facts about prmt."""

from __future__ import annotations

__all__ = ["PRMT_MODES"]

PRMT_MODES: dict[str, tuple[tuple[int, ...], ...]] = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}
"""For each mode and each value of the selector's two low bits, the source of every result byte, the lowest first."""

_HALVES = {0x10: (0, 0), 0x32: (0, 1), 0x54: (1, 0), 0x76: (1, 1)}
"""Selector bytes that name a whole half of a source: which source, and which half."""
