"""Comparison of configurations by several costs: dominance, front, and ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["at_least_as_good", "dominates", "front", "ranked"]

Costs = Sequence[float]


def at_least_as_good(one: Costs, other: Costs) -> bool:
    """True if ``one`` is at most ``other`` in every cost."""
    return all(a <= b for a, b in zip(one, other, strict=True))


def dominates(one: Costs, other: Costs) -> bool:
    """True if ``one`` is at most ``other`` in every cost, and lower in one."""
    return at_least_as_good(one, other) and any(a < b for a, b in zip(one, other, strict=True))


def front(costs: Sequence[Costs]) -> list[int]:
    """Positions of the costs that no other dominates, in order."""
    return [n for n, each in enumerate(costs) if not any(dominates(other, each) for other in costs)]


def ranked(costs: Sequence[Costs]) -> list[int]:
    """All positions, best first: front by front, within a front by the geometric mean of the costs, then in order."""
    if all(len(each) == 1 for each in costs):
        return sorted(range(len(costs)), key=lambda n: (costs[n][0], n))
    left, ordered = list(range(len(costs))), []
    while left:
        best = {left[n] for n in front([costs[n] for n in left])}
        ordered += sorted(best, key=lambda n: (sum(map(math.log, costs[n])), n))
        left = [n for n in left if n not in best]
    return ordered
