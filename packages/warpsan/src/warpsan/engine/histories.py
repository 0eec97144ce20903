"""Accesses of a launch to some places of global memory, which a further run of it records (:mod:`.trace`), for the
races of streams (:mod:`warpsan.host.streams`)."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np

from warpsan.checks.global_history import GlobalHistory
from warpsan.engine import layout
from warpsan.engine.communication import orders_blocks
from warpsan.engine.engine import NativeCode
from warpsan.engine.repeating import leave_part, marks_of, record
from warpsan.engine.replay import replay
from warpsan.engine.reporting import in_order
from warpsan.engine.selection import Array, Indices
from warpsan.errors import SimError
from warpsan.host.memory import Space
from warpsan.host.setup import Setup
from warpsan.report.hazard_log import HazardLog

__all__ = ["history_of"]

_PARTS = (1, 4, 32, 256)
"""Number of parts in which the places are recorded: the fewest whose events fit in memory."""


def history_of(setup: Setup, space: Space, places: Indices) -> GlobalHistory:
    """Run a complete launch once more, and keep its accesses to some places.

    Parameters
    ----------
    setup : Setup
        With the ``race`` check, and the heap as it was before the launch.
    space : Space
        Global memory as it was before the launch; its content is undefined afterwards.
    places : ndarray of int64 [n, 2]
        Ranges of global memory, byte indices from and to.

    Returns
    -------
    GlobalHistory

    Raises
    ------
    SimError
        If there are too many accesses.
    """
    fine, order = in_order(replace(setup, prerequisites=None, tracking=False))
    before = space.data.copy()
    marks = marks_of(fine, space)[layout.IN_GLOBAL]
    history = GlobalHistory(setup.entry, len(before), setup.geometry.ctas)
    for begin, end in places.tolist():
        marks[begin // history.granule : -(-end // history.granule)] = 1
    for parts in _PARTS:
        history = GlobalHistory(setup.entry, len(before), setup.geometry.ctas)
        if all(_keep(fine, order, space, before, _part(marks, part, parts), history) for part in range(parts)):
            return history
    raise SimError("the launch has too many accesses to what another stream accesses")


def _part(marks: Array, part: int, parts: int) -> Array:
    """One of so many parts of marks."""
    mine: Array = marks.copy()
    if parts > 1:
        leave_part(mine, part, parts)
    return mine


def _keep(
    setup: Setup, order: dict[str, int], space: Space, before: Array, marks: Array, history: GlobalHistory
) -> bool:
    """Keep the accesses to marked granules of global memory. Returns whether their events fit in memory."""
    space.data[:] = before
    bare = replace(setup, checks=(), counters=False, watchers=(), heap=deepcopy(setup.heap))
    code = NativeCode(bare, space, traced=True)
    watched = {**marks_of(setup, space), layout.IN_GLOBAL: marks}
    clusters = np.full(code.clusters, 2 if orders_blocks(setup.entry) else 0, np.uint8)
    state, _, events = record(setup, order, code, watched, clusters)
    end = state.context.trace_end
    if end > layout.TRACE_WORDS:
        return False
    replay(
        *(setup, space, HazardLog(), events[:end]),
        {"shared": watched[layout.IN_SHARED], "global": watched[layout.IN_GLOBAL]},
        together=state.context.order == layout.TOGETHER,
        history=history,
    )
    return True
