"""Shadow memory: a few words of bookkeeping for every granule of a space, gathered and scattered as fast as the data."""

from __future__ import annotations

import numpy as np

from sdpalab.sim.ir import Entry
from sdpalab.sim.selection import Array, Indices
from sdpalab.sim.types import TYPES

__all__ = ["Shadow", "granule_of"]

_VIEWS = {1: np.dtype(np.uint32), 2: np.dtype(np.uint64), 4: np.dtype(np.complex128)}


def granule_of(entry: Entry, spaces: tuple[str, ...]) -> int:
    """Bytes of the narrowest access that the entry makes to one of ``spaces`` (or a generic address), at most 4.

    Bookkeeping for less than that would never differ within it.
    """
    narrowest = 4
    for instruction in entry.instructions:
        if instruction.opcode not in ("ld", "st", "atom", "red"):
            continue
        named = {mod.split("::")[0] for mod in instruction.mods} & {"global", "shared", "local", "const", "param"}
        if named and not named & set(spaces):
            continue
        widths = [TYPES[mod].bytes for mod in instruction.mods if mod in TYPES]
        vector = next((int(mod[1:]) for mod in instruction.mods if mod in ("v2", "v4", "v8")), 1)
        narrowest = min([narrowest, *(width * vector for width in widths)])
    return narrowest


class Shadow:
    """One uint32 for every granule of a space of ``size`` bytes, in ``planes`` independent planes."""

    def __init__(self, size: int, granule: int, planes: int = 1) -> None:
        self.granule = granule
        self.words = -(-size // granule // 16) * 16 + 16
        self.data = np.zeros(self.words * planes, dtype=np.uint32)
        self._views: dict[int, Array] = {}

    def clear(self) -> None:
        """All zero."""
        self.data.fill(0)

    def _view(self, many: int) -> Array:
        if many not in self._views:
            self._views[many] = self.data.view(_VIEWS.get(many, np.dtype(f"V{4 * many}")))
        return self._views[many]

    def _places(self, index: Indices, many: int, plane: Indices | int) -> Indices:
        places: Indices = (index // self.granule + plane * self.words) // many
        return places

    def gather(self, index: Indices, width: int, plane: Indices | int = 0) -> Array:
        """The words of accesses of ``width`` bytes: uint32 [accesses, width / granule]."""
        many = max(1, width // self.granule)
        return self._view(many).take(self._places(index, many, plane)).view(np.uint32).reshape(-1, many)

    def scatter(self, index: Indices, width: int, values: Array, plane: Indices | int = 0) -> None:
        """Set all words of each access to its value (uint32, one an access)."""
        many = max(1, width // self.granule)
        words = values if many == 1 else np.repeat(values, many).view(self._view(many).dtype)
        self._view(many)[self._places(index, many, plane)] = words
