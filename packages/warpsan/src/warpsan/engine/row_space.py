"""Space for the rows of hazards of a run (:mod:`.hazards`)."""

from __future__ import annotations

import numpy as np

from warpsan.engine.arrays import Array
from warpsan.engine.layout import MOST_DOUBLED
from warpsan.engine.memory import DoubledArrival, HazardRow

__all__ = ["RowSpace"]

_MOST = 1 << 13


class RowSpace:
    """Space for rows; it must outlive them.

    Parameters
    ----------
    records : int
        The number of records, and of instructions, which have rows of their own.
    """

    def __init__(self, records: int) -> None:
        self._rows = np.zeros((_MOST + 1, HazardRow.byte_size), np.uint8)
        self._last = np.zeros(records, np.int32)
        self._doubled = np.zeros((MOST_DOUBLED, DoubledArrival.byte_size), np.uint8)

    @property
    def words(self) -> dict[str, int]:
        """The fields of the context."""
        arrays: dict[str, Array] = {"hazards": self._rows, "hazards_of": self._last, "doubled": self._doubled}
        return {"hazard_room": _MOST} | {name: int(array.ctypes.data) for name, array in arrays.items()}

    def rows(self, count: int) -> list[HazardRow]:
        """The first ``count`` rows."""
        return [HazardRow(int(self._rows[k].ctypes.data)) for k in range(count)]
