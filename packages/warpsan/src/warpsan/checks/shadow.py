"""Shadow memory: a word for every granule of a space, gathered and scattered as fast as the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from warpsan.engine.selection import Array, Indices
from warpsan.ptx.ir import Entry
from warpsan.ptx.opcodes import opcode_of, spaces_of
from warpsan.ptx.types import TYPES

__all__ = ["Planes", "Shadow", "granule_of"]

_LARGE = 1 << 25
"""Size in bytes from which most of a shadow is usually untouched."""
_VIEWS: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint32), 2: np.dtype(np.uint64), 4: np.dtype(np.complex128)}


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


class Shadow:
    """One uint32 for every granule of a space of ``size`` bytes, in ``planes`` independent planes.

    With several planes, an access selects its own by a byte offset: the plane's number times :attr:`plane_bytes`.
    """

    def __init__(self, size: int, granule: int, planes: int = 1) -> None:
        self.plane_bytes = -(-size // 16) * 16 + 16
        self.granule = granule
        self._shift = granule.bit_length() - 1
        self._data = np.zeros(self.plane_bytes // granule * planes, dtype=np.uint32)
        self._views: dict[int, Array] = {}
        self._touched = False

    def clear(self) -> None:
        """All zero."""
        if self._touched and self._data.nbytes > _LARGE:  # fresh zeros take no time until they are used
            self._data = np.zeros_like(self._data)
            self._views.clear()
        elif self._touched:
            self._data.fill(0)
        self._touched = False

    def words(self) -> Array:
        """All of it: uint32 [granules]."""
        return self._data

    def _view(self, many: int) -> Array:
        if many not in self._views:
            self._views[many] = self._data.view(_VIEWS.get(many, np.dtype(f"V{4 * many}")))
        return self._views[many]

    def _many(self, width: int) -> tuple[int, int]:
        """Granules of an access, and the shift from its byte index to an index in accesses."""
        shift = max(self._shift, width.bit_length() - 1)
        return 1 << shift - self._shift, shift

    def gather(self, index: Indices, width: int) -> Array:
        """The words of accesses of ``width`` bytes at byte indices, uint32 [accesses, granules]."""
        many, shift = self._many(width)
        return self._view(many).take(index >> shift).view(np.uint32).reshape(-1, many)

    def scatter(self, index: Indices, width: int, values: Array) -> None:
        """Set all words of each access to its value (uint32, one an access)."""
        self._touched = True
        many, shift = self._many(width)
        view = self._view(many)
        view[index >> shift] = values if many == 1 else np.repeat(values, many).view(view.dtype)


class Planes:
    """Time of each actor's last access to each granule: a plane for each of ``actors``."""

    def __init__(self, size: int, granule: int, actors: int) -> None:
        self._shadow = Shadow(size, granule, actors)
        self.plane_bytes = self._shadow.plane_bytes
        self.actors: set[int] = set()
        """Actors with at least one access."""

    def clear(self) -> None:
        """Reset: there are no accesses yet."""
        self._shadow.clear()
        self.actors.clear()

    def mark(self, index: Indices, width: int, planes: Indices, actors: Indices, now: int) -> None:
        """Each of ``actors``, whose planes begin at the byte offsets ``planes``, accesses ``width`` bytes."""
        self.actors.update(np.flatnonzero(np.bincount(actors)).tolist())
        self._shadow.scatter(index + planes, width, np.full(len(index), now, dtype=np.uint32))

    def times(self, index: Indices, width: int) -> Iterator[tuple[int, Array]]:
        """For each actor with an access, the time of its last one at these places [accesses, granules]."""
        for actor in self.actors:
            yield actor, self._shadow.gather(index + actor * self.plane_bytes, width)
