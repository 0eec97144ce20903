"""Accesses of a launch to some places of global memory, which a further run of it keeps, for the races of streams
(:mod:`warpsan.host.streams`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from warpsan.engine.arrays import Array, Indices
from warpsan.engine.engine import NativeCode
from warpsan.engine.lane_races import READ, UPDATED, WROTE
from warpsan.engine.layout import OF_COPIES
from warpsan.engine.reporting import in_order, row_space
from warpsan.engine.touched import History, LastAccesses
from warpsan.errors import SimError
from warpsan.host.memory import Space
from warpsan.host.setup import Setup

__all__ = ["history_of"]


def history_of(setup: Setup, space: Space, places: Indices) -> History:
    """Run a complete launch once more, and keep its accesses to some places.

    Parameters
    ----------
    setup : Setup
        With the ``race`` check, and the heap as it was before the launch.
    space : Space
        Global memory as it was before the launch; its content is undefined afterwards.
    places : ndarray of int64 [n, 2]
        Ranges of global memory, byte indices from and to.

    Raises
    ------
    SimError
        If the launch does not run to its end.
    """
    bare = replace(setup, prerequisites=None, watchers=(), counters=False)
    fine, order = in_order(replace(bare, tracking=False, track_unwritten_global=False))
    code = NativeCode(fine, space)
    hazards = row_space(fine, code)
    state = code.state(order | hazards.words)
    if code.run(state, 0, code.clusters):
        raise SimError("the launch of another stream does not run to its end again")
    granule = 1 << state.context.global_shift
    wanted = np.zeros(state.marks.shape[1], np.bool_)
    for begin, end in places.tolist():
        wanted[begin // granule : -(-end // granule)] = True
    pcs = np.array([code.decoded.places[k] for k in range(len(code.decoded.places))], np.int64)
    return History(granule, *(_last(state.marks, kind, wanted, pcs) for kind in (READ, WROTE, UPDATED)))


def _last(marks: Array, kind: int, wanted: Array, pcs: Array) -> LastAccesses:
    """The accesses of a kind, from words of :class:`~warpsan.engine.memory.GlobalMark` [kinds, granules, words]."""
    if kind >= len(marks):
        return LastAccesses(*(np.empty(0, np.int64) for _ in range(4)))
    granules = np.flatnonzero((marks[kind, :, 0] != 0) & wanted)
    tags, parties = marks[kind, granules, 0], marks[kind, granules, 1]
    warps = tags & 0xFF
    return LastAccesses(granules, pcs[parties >> 20 & 0xFFFFF], tags >> 40, np.where(warps < OF_COPIES, warps, -1))
