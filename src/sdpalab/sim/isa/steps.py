"""What the integer families share: steps that take several NumPy operations."""

from __future__ import annotations

from collections.abc import Callable

from sdpalab.sim.decode import Step
from sdpalab.sim.selection import Array, Selection

__all__ = ["computed"]


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
