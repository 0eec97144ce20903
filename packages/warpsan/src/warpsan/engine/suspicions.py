"""Possible hazards of a launch: the notes of native code (:mod:`.suspects`), as Python reads them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from warpsan.engine import layout
from warpsan.engine.selection import Array
from warpsan.errors import SimError

__all__ = ["Suspicions"]

_GRANULES_OF_PLACE = 48
"""Number of suspicious granules of one instruction that are watched, evenly spread over all."""


@dataclass(frozen=True)
class Suspicions:
    """Places of possible hazards of a launch, besides illegal accesses.

    Attributes
    ----------
    rows : ndarray of int64 [n, words]
        In the words of :mod:`~warpsan.engine.layout`.
    places : dict of int to int
        The pc of a record's instruction, by the number of the record.
    status : int
        0, or the status of the run's end: a trap, or a deadlock.
    last : int
        The last cluster that ran.
    unwritten : bool
        Whether undefined bytes of shared memory were read.
    marks : dict of int to ndarray of uint8
        Further suspicious granules, by space, if an instruction has too many for rows.
    clusters : ndarray of uint8
        For each cluster as bits, whether it has such granules in shared memory, and more doubts without a place.
    illegal : bool
        Whether an illegal access ended the run, because no check records it.
    ending : SimError, optional
        The exception with which the run ended.
    """

    rows: Array
    places: dict[int, int]
    status: int
    last: int
    unwritten: bool
    marks: dict[int, Array]
    clusters: Array
    illegal: bool = False
    ending: SimError | None = None

    @property
    def pcs(self) -> set[int]:
        """The instructions with suspicious accesses."""
        accesses = self.rows[self.rows[:, layout.SU_SPACE] != layout.AT_UNIT]
        return {self.places[int(record)] for record in np.unique(accesses[:, layout.SU_RECORD])}

    @property
    def complete(self) -> bool:
        """Whether all hazards are already noted."""
        return not len(self.rows)

    @property
    def beside(self) -> bool:
        """Whether an instruction may break a rule beside a noted one."""
        return bool((self.rows[:, layout.SU_SPACE] == layout.AT_UNIT).any())

    def ruled(self, *, closely: bool) -> Array:
        """Clusters in which instructions may break other rules: the first of each instruction, or ``closely`` all."""
        rules = self.rows[self.rows[:, layout.SU_SPACE] == layout.AT_UNIT]
        if not closely:
            rules = rules[np.unique(rules[:, layout.SU_RECORD], return_index=True)[1]]
        more = np.flatnonzero(self.clusters & 2) if closely else ()
        return np.union1d(rules[:, layout.SU_CLUSTER], more).astype(np.int64)

    def watched(self, reported: Collection[int], *, closely: bool) -> Iterator[Array]:
        """Rows of the places to watch, of instructions that are not ``reported``: some of each instruction and
        space, in the first cluster that has any; ``closely``, all of them."""
        rows = self.rows
        for record in np.unique(rows[:, layout.SU_RECORD]):
            if self.places[int(record)] in reported:
                continue
            for space in (layout.IN_SHARED, layout.IN_GLOBAL):
                mine = rows[(rows[:, layout.SU_RECORD] == record) & (rows[:, layout.SU_SPACE] == space)]
                if closely:
                    yield from mine
                    continue
                if space == layout.IN_SHARED:
                    mine = mine[mine[:, layout.SU_CLUSTER] == mine[:1, layout.SU_CLUSTER]]
                _, firsts = np.unique(mine[:, layout.SU_GRANULE], return_index=True)
                some = np.linspace(0, len(firsts) - 1, min(len(firsts), _GRANULES_OF_PLACE)).astype(int)
                yield from mine[firsts[some]]
