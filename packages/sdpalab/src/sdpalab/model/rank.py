"""How well modelled times put kernels in order: what a search needs of a model, more than microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import sqrt

__all__ = ["kendall_tau", "top_k_regret"]


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float:
    """Kendall's tau-b of two rankings of the same things: 1 if they agree on every pair, -1 if on none.

    Source: Kendall, "The Treatment of Ties in Ranking Problems", Biometrika 33 (1945).

    Raises
    ------
    ValueError
        If they are not equally long, or one of them puts nothing before anything else.
    """
    if len(first) != len(second):
        raise ValueError("two rankings of the same things are equally long")
    signs = [(_sign(a - c), _sign(b - d)) for (a, b), (c, d) in combinations(zip(first, second, strict=True), 2)]
    untied = [sum(sign[side] != 0 for sign in signs) for side in (0, 1)]
    if not all(untied):
        raise ValueError("a ranking in which all are equal has no order to compare")
    return sum(one * other for one, other in signs) / sqrt(untied[0] * untied[1])


def top_k_regret(modelled: Sequence[float], measured: Sequence[float], k: int) -> float:
    """What is lost by measuring only the k that the model has as the fastest: 0 if the fastest of all is among them.

    Parameters
    ----------
    modelled, measured : sequence of float
        Times of the same kernels.
    k : int
        1 to as many as there are.

    Returns
    -------
    float
        The best measured time of those k over that of all, less 1.
    """
    if len(modelled) != len(measured) or not 1 <= k <= len(modelled):
        raise ValueError("k is between 1 and the number of kernels, each of which has both times")
    chosen = sorted(range(len(modelled)), key=lambda place: modelled[place])[:k]
    return min(measured[place] for place in chosen) / min(measured) - 1


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
