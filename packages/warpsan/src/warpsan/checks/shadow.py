"""Granules of the shadow memory of the checks."""

from __future__ import annotations

from warpsan.ptx.ir import Entry
from warpsan.ptx.opcodes import opcode_of, spaces_of
from warpsan.ptx.types import TYPES

__all__ = ["granule_of"]


def granule_of(entry: Entry, spaces: tuple[str, ...]) -> int:
    """Bytes of the narrowest access that the entry makes to one of ``spaces`` (or a generic address), at most 4.

    Granules need not be smaller than this access.
    """
    key = granule_of, spaces
    if key not in entry.derived:
        entry.derived[key] = _narrowest(entry, spaces)
    return int(entry.derived[key])


def _narrowest(entry: Entry, spaces: tuple[str, ...]) -> int:
    narrowest = 4
    for instruction in entry.instructions:
        if not opcode_of(instruction).memory:
            continue
        named = spaces_of(instruction)
        if named and not named & set(spaces):
            continue
        widths = [TYPES[mod].bytes for mod in instruction.mods if mod in TYPES]
        vector = next((int(mod[1:]) for mod in instruction.mods if mod in ("v2", "v4", "v8")), 1)
        narrowest = min([narrowest, *(width * vector for width in widths)])
    return narrowest
