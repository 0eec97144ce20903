"""How long a CTA takes on an SM beside others: the replay of its warps, of some turns of their main loop for all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from sdpalab.compile.sass import SassInstruction
from sdpalab.model.matching import Role
from sdpalab.model.operations import Memory, operations
from sdpalab.model.pipes import Pipes
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
        issues = ctas * sum(len(role.path) for role in self._roles)
        turns = max((len(role.turns) for role in self._roles), default=0)
        replayed = max(2 * LEAST_TURNS, turns * ISSUES // max(1, issues))
        if replayed + LEAST_TURNS >= turns:
            return self._replayed(ctas, 1.0)
        less, more = (self._replayed(ctas, part / turns) for part in (replayed // 2, replayed))
        return more + (more - less) / (replayed - replayed // 2) * (turns - replayed)

    def _replayed(self, ctas: int, share: float) -> float:
        return replay(
            self._operations, [role.cut(share) for role in self._roles], ctas, self._pipes, self._shared_bytes
        )
