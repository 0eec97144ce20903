"""Sums of a running launch, as arrays that can be added across processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from warpsan.analysis.program import Program
from warpsan.engine.arrays import Array
from warpsan.ptx.ir import Entry

__all__ = ["SECTOR", "Tally"]

SECTOR = 32
"""Bytes per sector of global memory."""


class Tally:
    """Sums over the chunks of a launch.

    Parameters
    ----------
    entry, program : the entry, and its blocks
    size : int
        Bytes of global memory.
    ctas : int
        CTAs of the grid.
    warps_per_cta : int
    traffic : bool
        Whether to count memory traffic and instructions per CTA; otherwise these arrays are empty.
    zeros : function
        Creates an array from a shape and a dtype.

    Attributes
    ----------
    steps : ndarray of int64 [1]
        Vector steps.
    lanes, warps : ndarray of int64 [blocks of the program]
        Number of executions of each block, by lane and by warp.
    sectors, wavefronts : ndarray of int64 [instructions, 2]
        Actual and ideal numbers for global and shared memory accesses.
    touched : ndarray of bool [2, sectors]
        Sectors of global memory read, and written.
    issued : ndarray of int64 [CTAs of the grid]
        Warp instructions of each CTA.
    by_warp : ndarray of int64 [warps of a CTA, blocks of the program]
        Executions of each block by the warps with one index in all CTAs.
    unwaited : ndarray of int64 [instructions]
        Copies of threads that exited without a wait, with the ``async`` check.
    """

    def __init__(
        self,
        entry: Entry,
        program: Program,
        size: int,
        ctas: int,
        warps_per_cta: int,
        *,
        traffic: bool,
        zeros: Callable[[tuple[int, ...], Any], Array] = np.zeros,
    ) -> None:
        blocks, code = len(program.blocks), len(entry.instructions) if traffic else 0
        self.steps = zeros((1,), np.int64)
        self.lanes, self.warps = zeros((2, blocks), np.int64)
        self.sectors, self.wavefronts = zeros((2, code, 2), np.int64)
        self.touched = zeros((2, size // SECTOR + 1 if traffic else 0), np.bool_)
        self.issued = zeros((ctas if traffic else 0,), np.int64)
        self.unwaited = zeros((len(entry.instructions),), np.int64)
        self.by_warp = zeros((warps_per_cta, blocks if traffic else 0), np.int64)

    def add(self, other: Tally) -> None:
        """Add the sums of another process."""
        for name in ("steps", "lanes", "warps", "sectors", "wavefronts", "issued", "by_warp", "unwaited"):
            mine = getattr(self, name)
            mine += getattr(other, name)
        self.touched |= other.touched
