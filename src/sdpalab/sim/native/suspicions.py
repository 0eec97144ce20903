"""Where a launch may have hazards: what native code has noted (:mod:`.suspects`), as Python reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sdpalab.sim.native import layout
from sdpalab.sim.selection import Array

__all__ = ["Suspicions"]

_GRANULES_OF_PLACE = 48
"""Of the granules that are suspicious at one instruction, those that are watched: evenly spread over all."""


@dataclass(frozen=True)
class Suspicions:
    """Where a launch may have hazards besides illegal accesses.

    Attributes
    ----------
    rows : ndarray of int64 [n, words]
        By the words of :mod:`~sdpalab.sim.native.layout`.
    places : dict of int to int
        By the number of a record, the pc of its instruction.
    status : int
        0, or with which the run has ended: a trap, or nothing could run any more.
    last : int
        The last cluster that ran.
    """

    rows: Array
    places: dict[int, int]
    status: int
    last: int

    @property
    def pcs(self) -> set[int]:
        """The instructions whose accesses are suspicious."""
        accesses = self.rows[~np.isin(self.rows[:, layout.SU_SPACE], (layout.AT_ARRIVAL, layout.AT_UNIT))]
        return {self.places[int(record)] for record in np.unique(accesses[:, layout.SU_RECORD])}

    @property
    def complete(self) -> bool:
        """Whether there is nothing to report besides what has been noted."""
        return not len(self.rows) and not self.status

    @property
    def beside(self) -> bool:
        """Whether an instruction may break a rule beside one that is noted."""
        return bool((self.rows[:, layout.SU_SPACE] == layout.AT_UNIT).any())

    @property
    def ruled(self) -> Array:
        """Clusters in which instructions may break other rules: of each instruction the first."""
        rules = self.rows[np.isin(self.rows[:, layout.SU_SPACE], (layout.AT_RULE, layout.AT_UNIT))]
        _, firsts = np.unique(rules[:, layout.SU_RECORD], return_index=True)
        clusters: Array = rules[firsts, layout.SU_CLUSTER]
        return clusters

    @property
    def clusters(self) -> Array:
        """Clusters in which a rule of barriers may be broken."""
        arrivals = self.rows[self.rows[:, layout.SU_SPACE] == layout.AT_ARRIVAL]
        return np.unique(arrivals[:, layout.SU_CLUSTER])

    def watched(self) -> Iterator[Array]:
        """Rows of the places to watch: of each instruction and space some, in the first cluster that has any."""
        rows = self.rows
        for record in np.unique(rows[:, layout.SU_RECORD]):
            for space in (layout.IN_SHARED, layout.IN_GLOBAL):
                mine = rows[(rows[:, layout.SU_RECORD] == record) & (rows[:, layout.SU_SPACE] == space)]
                if space == layout.IN_SHARED:
                    mine = mine[mine[:, layout.SU_CLUSTER] == mine[:1, layout.SU_CLUSTER]]
                _, firsts = np.unique(mine[:, layout.SU_GRANULE], return_index=True)
                some = np.linspace(0, len(firsts) - 1, min(len(firsts), _GRANULES_OF_PLACE)).astype(int)
                yield from mine[firsts[some]]
