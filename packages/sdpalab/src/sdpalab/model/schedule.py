"""How long a CTA takes on an SM beside others: the replay of its warps, of some turns of their main loop for all."""

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
"""Instructions that a replay may issue; of longer paths a part is replayed."""
MISMATCH = 0.25
"""Of the FLOPs on a path, above or below those that were counted: the turns of a loop are whole numbers."""
LEAST_TURNS = 4
"""Of a loop, in the shorter of the two replays whose difference is what a turn takes."""


class Schedule:
    """The issue schedule of a launch's CTAs on one GPU.

    Parameters
    ----------
    code : sequence of SassInstruction
    roles : sequence of Role
        All warps of a CTA have one.
    memory : Memory
    pipes : Pipes
    """

    def __init__(self, code: Sequence[SassInstruction], roles: Sequence[Role], memory: Memory, pipes: Pipes) -> None:
        of_warp = {warp: role for role in roles for warp in role.warps}
        self._roles = [of_warp[warp] for warp in sorted(of_warp)]
        self._operations = operations(code, pipes, memory)
        self._pipes, self._shared_bytes = pipes, memory.shared_bytes
        self._clocks: dict[int, float] = {}

    def reject_reason(self) -> str:
        """Why the schedule says nothing of the time, in one sentence; empty if it does."""
        if abs(self.matched - 1) > MISMATCH:
            return f"the path through its machine code has {self.matched:.0%} of the FLOPs that were counted"
        return ""

    @cached_property
    def matched(self) -> float:
        """FLOPs of the matrix instructions that are replayed over those that were counted; 1 if there are none."""
        counted = sum(role.counted_flops for role in self._roles)
        return sum(role.flops for role in self._roles) / counted if counted else 1.0

    def clocks(self, ctas: int) -> float:
        """Clocks in which an SM does the work of ``ctas`` mean CTAs while so many are resident.

        Raises
        ------
        UserError
            If their warps wait for each other without end.
        """
        if ctas not in self._clocks:
            self._clocks[ctas] = self._extrapolated(ctas)
        return self._clocks[ctas]

    def busy(self, ctas: int) -> Mapping[str, float]:
        """The share of :meth:`clocks` in which each unit of an SM works, 0 to 1, the busiest first.

        ``issue`` are the issue slots; ``shared`` is the data path of shared memory, and ``l2`` the port to L2.

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
        """Clocks of a turn of the longest loop by all warps of so many resident CTAs.

        None without a loop of several turns. Raises UserError as :meth:`clocks`.
        """
        turns = max((len(role.turns) for role in self._roles), default=0)
        if not turns:
            return None
        most = min(turns, max(2 * LEAST_TURNS, self._affordable(ctas, turns)))
        less, more = (self._replayed(ctas, part / turns) for part in (most // 2, most))
        return (more - less) / (most - most // 2)

    def last_end(self, by_cta: Sequence[float], blocks_per_sm: int, sms: int) -> float:
        """Clocks until the last CTA ends: those of an SM get on together, at the rate of so many.

        Arguments as for :func:`sdpalab.model.placement.last_end`; a CTA of mean work takes the path of the roles.

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
        """Turns of the loop that a replay may have."""
        return turns * ISSUES // max(1, ctas * sum(len(role.path) for role in self._roles))

    def _replayed(self, ctas: int, share: float) -> float:
        return replay(
            self._operations, [role.cut(share) for role in self._roles], ctas, self._pipes, self._shared_bytes
        )
