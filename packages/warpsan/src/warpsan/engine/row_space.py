"""Space for the rows of hazards of a run (:mod:`.hazards`)."""

from __future__ import annotations

import numpy as np

from warpsan.engine.memory import HazardRow

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

    @property
    def words(self) -> dict[str, int]:
        """The fields of the context."""
        addresses = {"hazards": int(self._rows.ctypes.data), "hazards_of": int(self._last.ctypes.data)}
        return {**addresses, "hazard_room": _MOST}

    def rows(self, count: int) -> list[HazardRow]:
        """The first ``count`` rows."""
        return [HazardRow(int(self._rows[k].ctypes.data)) for k in range(count)]
