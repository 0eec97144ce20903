"""Sets of executing lanes: a slice if they are contiguous (views, the fast path), otherwise a sorted index array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "Array",
    "Indices",
    "Mask",
    "Selection",
    "count",
    "in_turns",
    "indices",
    "merge",
    "split_groups",
    "split_warps",
    "subset",
]

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Selection = slice | Indices

WARP = 32


def count(sel: Selection) -> int:
    """Number of selected lanes."""
    return int(sel.stop - sel.start) if isinstance(sel, slice) else len(sel)


def indices(sel: Selection) -> Indices:
    """The selected lanes as an index array."""
    return np.arange(sel.start, sel.stop) if isinstance(sel, slice) else sel


def _compact(index: Indices) -> Selection:
    if len(index) and index[-1] - index[0] + 1 == len(index):
        return slice(int(index[0]), int(index[-1]) + 1)
    return index


def subset(sel: Selection, mask: Mask) -> Selection:
    """The lanes of ``sel`` for which ``mask`` (one value for each of them, in order) is true."""
    if isinstance(sel, slice):
        index = np.flatnonzero(mask)
        index += sel.start
        return _compact(index)
    return _compact(sel[mask])


def merge(sels: Sequence[Selection]) -> Selection:
    """The union of disjoint selections."""
    if len(sels) == 1:
        return sels[0]
    return _compact(np.sort(np.concatenate([indices(sel) for sel in sels])))


def in_turns(index: Indices) -> list[Indices]:
    """Groups of positions in ``index`` without duplicates; equal values come in order."""
    everything = np.arange(len(index))
    if (index[1:] > index[:-1]).all():
        return [everything]
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    if len(first) == len(index):
        return [everything]
    turn = everything - np.repeat(first, np.diff(first, append=len(index)))
    return np.split(order[np.argsort(turn, kind="stable")], np.cumsum(np.bincount(turn))[:-1])


def split_groups(sel: Selection, groups: Indices, size: int) -> tuple[Selection | None, Selection | None]:
    """The lanes of ``sel`` whose whole group is in it, and the others; None for an empty part.

    ``groups`` is the group number of every lane (not only of the selected ones), ``size`` the lanes of one group.
    """
    mine = groups[sel]
    whole = np.bincount(mine)[mine] == size
    if whole.all():
        return sel, None
    return (subset(sel, whole) if whole.any() else None), subset(sel, ~whole)


def split_warps(sel: Selection) -> tuple[Selection | None, Selection | None]:
    """The lanes of ``sel`` whose whole warp is in it, and the others; None for an empty part."""
    if isinstance(sel, slice):
        if sel.start % WARP == 0 and sel.stop % WARP == 0:
            return sel, None
        sel = indices(sel)
    whole = np.bincount(sel // WARP)[sel // WARP] == WARP
    if whole.all():
        return _compact(sel), None
    if not whole.any():
        return None, _compact(sel)
    return _compact(sel[whole]), _compact(sel[~whole])
