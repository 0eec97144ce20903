"""The shapes that most steps have: an operation over lanes, in place where the selection is a slice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sdpalab.sim.decode import Mods, Step
from sdpalab.sim.selection import Array, Selection
from sdpalab.sim.types import PtxType

__all__ = ["binary", "computed", "require", "unary"]


def unary(ufunc: np.ufunc, a: Array, d: Array) -> Step:
    """``d = ufunc(a)``."""

    def step(sel: Selection) -> None:
        if isinstance(sel, slice):
            ufunc(a[sel], out=d[sel])
        else:
            d[sel] = ufunc(a[sel])

    return step


def binary(ufunc: np.ufunc, a: Array, b: Array, d: Array) -> Step:
    """``d = ufunc(a, b)``."""

    def step(sel: Selection) -> None:
        if isinstance(sel, slice):
            ufunc(a[sel], b[sel], out=d[sel], casting="same_kind")
        else:
            d[sel] = ufunc(a[sel], b[sel])

    return step


def computed(function: Callable[..., Array], d: Array, *sources: Array) -> Step:
    """``d = function(*sources)`` for what takes several NumPy operations."""

    def step(sel: Selection) -> None:
        d[sel] = function(*[source[sel] for source in sources])

    return step


def require(mods: Mods, type_: PtxType, names: tuple[str, ...]) -> None:
    """Refuse a type that the instruction does not have.

    Raises
    ------
    UnsupportedInstruction
        If ``type_`` is not among ``names``.
    """
    if type_.name not in names:
        raise mods.unsupported(f"expected one of {', '.join('.' + name for name in names)}, not .{type_.name}")
