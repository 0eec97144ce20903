"""Time of a CTA on an SM among others: a replay of its warps over some iterations of the main loop."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from sdpalab.compile.sass import SassInstruction
from sdpalab.model.matching import Role
from sdpalab.model.operations import WAVEFRONT, Act, Memory, operations
from sdpalab.model.pipes import SUB_CORES, Pipes
from sdpalab.model.placement import last_end
from sdpalab.model.replay import replay

__all__ = ["Schedule"]

ISSUES = 16_000
"""Largest number of instructions of a replay; of longer paths a part is replayed."""
MISMATCH = 0.25
"""Largest relative difference between the FLOPs on a path and the counted ones; loops have whole iterations."""
LEAST_TURNS = 4
"""Iterations of a loop in the shorter of the two replays whose difference is the time of an iteration."""


class Schedule:
    """The issue schedule of a launch's CTAs on one GPU.

    Parameters
    ----------
    code : sequence of SassInstruction
    roles : sequence of Role
        Roles of all warps of a CTA.
    memory : Memory
    pipes : Pipes
    """

    def __init__(self, code: Sequence[SassInstruction], roles: Sequence[Role], memory: Memory, pipes: Pipes) -> None:
        of_warp = {warp: role for role in roles for warp in role.warps}
        self._roles = [of_warp[warp] for warp in sorted(of_warp)]
        self._operations = operations(code, pipes, memory)
        self._pipes, self._shared_bytes = pipes, memory.shared_bytes
        self._clocks: dict[int, float] = {}

    def why_not(self) -> str:
        """Why the schedule gives no time, in one sentence; empty if it does."""
        if abs(self.matched - 1) > MISMATCH:
            return f"the path through its machine code has {self.matched:.0%} of the FLOPs that were counted"
        return ""

    @cached_property
    def matched(self) -> float:
        """Replayed matrix FLOPs over the counted ones; 1 without any."""
        counted = sum(role.counted_flops for role in self._roles)
        return sum(role.flops for role in self._roles) / counted if counted else 1.0

    def clocks(self, ctas: int) -> float:
        """Clocks in which an SM does the work of ``ctas`` mean CTAs, at this number of resident CTAs.

        Raises
        ------
        UserError
            If warps wait for each other in a deadlock.
        """
        if ctas not in self._clocks:
            self._clocks[ctas] = self._extrapolated(ctas)
        return self._clocks[ctas]

    def busy(self, ctas: int) -> Mapping[str, float]:
        """Share of :meth:`clocks` in which each unit of an SM works, 0 to 1, in descending order.

        ``issue`` means the issue slots, ``shared`` the data path of shared memory, and ``l2`` the port to L2.

        Raises
        ------
        UserError
            As :meth:`clocks`.
        """
        spent: defaultdict[str, float] = defaultdict(float)
        for place, runs in Counter(place for role in self._roles for place in role.path).items():
            one = self._operations[place]
            spent["issue"] += runs / SUB_CORES
            if one.act in (Act.LOAD, Act.COPY):
                spent["l2"] += runs * one.interval / self._pipes.l2_bytes_per_clk_sm
            if one.act is Act.COPY:
                spent["shared"] += runs * one.interval / WAVEFRONT
            elif one.act is Act.SHARED:
                spent["shared"] += runs * one.interval
            elif one.unit not in ("", "l2", "queue"):
                spent[one.unit] += runs * one.interval / SUB_CORES
        clocks = self.clocks(ctas) / ctas
        return {unit: spent[unit] / clocks for unit in sorted(spent, key=lambda unit: -spent[unit])}

    def turn_clocks(self, ctas: int) -> float | None:
        """Clocks of an iteration of the longest loop, over all warps of ``ctas`` resident CTAs.

        None without a loop of several iterations. Raises UserError as :meth:`clocks`.
        """
        turns = max((len(role.turns) for role in self._roles), default=0)
        if not turns:
            return None
        most = min(turns, max(2 * LEAST_TURNS, self._affordable(ctas, turns)))
        less, more = (self._replayed(ctas, part / turns) for part in (most // 2, most))
        return (more - less) / (most - most // 2)

    def last_end(self, by_cta: Sequence[float], blocks_per_sm: int, sms: int) -> float:
        """Clocks until the last CTA ends; the CTAs of an SM progress together, at the rate for their number.

        Arguments as for :func:`sdpalab.model.placement.last_end`; a CTA of mean work follows the path of the roles.

        Raises
        ------
        UserError
            As :meth:`clocks`.
        """
        ctas = len(by_cta)
        most = min(blocks_per_sm, -(-ctas // sms))
        known = sorted({1, most, min(most, max(1, ctas // sms))})
        rates = [many / self.clocks(many) for many in known]
        mean = sum(by_cta) / ctas
        paces = np.interp(range(1, most + 1), known, rates).tolist()
        return float(last_end([each / mean for each in by_cta], blocks_per_sm, sms, paces)) / self.matched

    def _extrapolated(self, ctas: int) -> float:
        turns = max((len(role.turns) for role in self._roles), default=0)
        replayed = max(2 * LEAST_TURNS, self._affordable(ctas, turns))
        if replayed + LEAST_TURNS >= turns:
            return self._replayed(ctas, 1.0)
        less, more = (self._replayed(ctas, part / turns) for part in (replayed // 2, replayed))
        return more + (more - less) / (replayed - replayed // 2) * (turns - replayed)

    def _affordable(self, ctas: int, turns: int) -> int:
        """Iterations of the loop that a replay may contain."""
        return turns * ISSUES // max(1, ctas * sum(len(role.path) for role in self._roles))

    def _replayed(self, ctas: int, share: float) -> float:
        return replay(
            self._operations, [role.cut(share) for role in self._roles], ctas, self._pipes, self._shared_bytes
        )
