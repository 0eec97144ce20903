"""Views: the past of a point of a warp's program, and the Fence-SC order (PTX ISA, "Causality Order").

A view holds writes in two ways. ``clock`` has, for each warp, the time up to which all its writes come before: base
causality order, which is transitive. ``seen`` has single writes that a strong read has observed: causality order
contains these, without the writes before them.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TypeVar

__all__ = ["FenceOrder", "View"]

_Key = TypeVar("_Key")


class View:
    """The past of a point of a program.

    Attributes
    ----------
    clock : dict of int to int
        A time for each warp (its number in the launch).
    seen : set of int
        Writes by their number.
    orders : dict of FenceOrder to int
        The number of fences of each Fence-SC order that come before.
    """

    __slots__ = ("clock", "orders", "seen")

    def __init__(self) -> None:
        self.clock: dict[int, int] = {}
        self.seen: set[int] = set()
        self.orders: dict[FenceOrder, int] = {}

    def copy(self) -> View:
        """A copy to keep."""
        twin = View()
        twin.join(self)
        return twin

    def join(self, other: View) -> None:
        """Merge the past of ``other``."""
        _raise_to(self.clock, other.clock)
        _raise_to(self.orders, other.orders)
        self.seen |= other.seen

    def knows(self, warp: int, time: int, write: int) -> bool:
        """Whether a write, by this warp at this time, comes before."""
        if self.clock.get(warp, 0) >= time or write in self.seen:
            return True
        return any(order.knows(upto, warp, time, write) for order, upto in self.orders.items())


class FenceOrder:
    """The Fence-SC order of the threads of one block, of one cluster, or of the GPU, in the order of execution.

    It contains the ``fence.sc`` whose scope includes the whole group. Each comes after all earlier ones. Views do not
    copy the past of the first ``n`` of them, but contain only ``n``.
    """

    def __init__(self) -> None:
        self._length = 0
        self._clock: dict[int, list[tuple[int, int]]] = {}
        """For each warp, the times that come before, and the place from which on each does."""
        self._seen: dict[int, int] = {}
        """For each write, the place from which on it comes before."""
        self._orders: dict[FenceOrder, int] = {}

    def lead_to(self, view: View) -> None:
        """All fences so far come before ``view``."""
        _raise_to(view.orders, self._orders)
        _raise_to(view.orders, {self: self._length})

    def append(self, view: View) -> None:
        """A fence with this view."""
        self._length += 1
        for warp, time in view.clock.items():
            steps = self._clock.setdefault(warp, [])
            if not steps or steps[-1][1] < time:
                steps.append((self._length, time))
        for write in view.seen:
            self._seen.setdefault(write, self._length)
        _raise_to(self._orders, view.orders)

    def knows(self, upto: int, warp: int, time: int, write: int) -> bool:
        """Whether a write comes before one of the first ``upto`` fences."""
        if self._seen.get(write, upto + 1) <= upto:
            return True
        steps = self._clock.get(warp, [])
        place = bisect_right(steps, upto, key=lambda step: step[0]) - 1
        return place >= 0 and steps[place][1] >= time


def _raise_to(mine: dict[_Key, int], other: dict[_Key, int]) -> None:
    for key, value in other.items():
        if mine.get(key, -1) < value:
            mine[key] = value
