"""Ranges of global memory that a launch has accessed, for the detection of races of streams."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from warpsan.engine.arrays import Array, Indices

__all__ = ["History", "LastAccesses", "Touched", "stretches"]


@dataclass(frozen=True)
class Touched:
    """Ranges of global memory, byte indices from and to, in the order of their addresses: int64 [n, 2].

    A read may be wider here than in the launch: reads are kept by 16 bytes.
    """

    reads: Indices
    writes: Indices
    updates: Indices


@dataclass(frozen=True)
class LastAccesses:
    """The last access of a kind to each granule that has one.

    Attributes
    ----------
    granules, pcs, owners, warps : ndarray of int64 [n]
        The granule; the pc, the linear index of the CTA plus one, and the number of the warp in it, or -1 for an
        asynchronous copy.
    """

    granules: Indices
    pcs: Indices
    owners: Indices
    warps: Indices


@dataclass(frozen=True)
class History:
    """The last accesses of a launch to places of global memory, by kind, and the bytes of a granule."""

    granule: int
    reads: LastAccesses
    writes: LastAccesses
    strong: LastAccesses


def stretches(shadows: Iterable[Array], granule: int) -> Indices:
    """The ranges in which any of these shadows, a word for every ``granule`` bytes, is not zero: int64 [n, 2]."""
    places = np.unique(np.concatenate([np.flatnonzero(shadow) for shadow in shadows]))
    if not len(places):
        return np.empty((0, 2), np.int64)
    breaks = np.flatnonzero(np.diff(places) != 1)
    first = places[np.concatenate([[0], breaks + 1])]
    last = places[np.concatenate([breaks, [len(places) - 1]])]
    return np.stack([first, last + 1], axis=1).astype(np.int64) * granule
