"""What the integer families share: steps that take several NumPy operations, and the refusal of types."""

from __future__ import annotations

from collections.abc import Callable

from sdpalab.sim.decode import Mods, Step
from sdpalab.sim.selection import Array, Selection
from sdpalab.sim.types import PtxType

__all__ = ["computed", "require"]


def computed(function: Callable[..., Array], d: Array, *sources: Array) -> Step:
    """``d = function(*sources)`` for what takes several NumPy operations.

    The function gets constants as arrays of one element, so that what depends on them alone is computed once and not
    for every lane; its result is broadcast.
    """
    if any(not source.strides[0] for source in sources):
        once = [None if source.strides[0] else source[:1] for source in sources]

        def step_with_constants(sel: Selection) -> None:
            values = [source[sel] if one is None else one for source, one in zip(sources, once, strict=True)]
            d[sel] = function(*values)

        return step_with_constants

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
