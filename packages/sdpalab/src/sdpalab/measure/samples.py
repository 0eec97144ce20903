"""Samples: the times of one subject as they were taken, in order, with nothing dropped, smoothed or sorted."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

__all__ = ["ClockKind", "L2State", "Samples"]


class ClockKind(str, Enum):
    """The clock of a time. Times of different kinds are never compared."""

    GPU = "gpu"
    """On the GPU, without the host: a call within a replayed CUDA graph."""
    STREAM = "stream"
    """On the GPU between two events around one call, its launches included."""
    EAGER = "eager"
    """On the host, a call of a Python function after another: dispatch included."""


class L2State(str, Enum):
    """Where the inputs were when a call began."""

    WARM = "warm"
    """In L2, as far as they fit: the call before used the same."""
    COLD = "cold"
    """In DRAM: what lay in L2 was overwritten, or the call before used other inputs."""


@dataclass(frozen=True)
class Samples:
    """Times of one subject, in the order in which they were taken.

    Attributes
    ----------
    name : str
        The subject.
    clock : ClockKind
    l2 : L2State
    calls : int
        Calls that one sample is the mean of: those of a graph, or of a loop. At least 1.
    times_us : tuple of float
        Microseconds a call, one sample a round.
    warm_up_us : tuple of float
        Microseconds a call of the rounds before those: kept, and never part of a statistic.

    Raises
    ------
    ValueError
        If there is no sample, or one is not a positive number of microseconds.
    """

    name: str
    clock: ClockKind
    l2: L2State
    calls: int
    times_us: tuple[float, ...]
    warm_up_us: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.times_us:
            raise ValueError(f"{self.name}: there is no sample")
        if self.calls < 1:
            raise ValueError(f"{self.name}: a sample is the mean of at least 1 call, not {self.calls}")
        for time in (*self.times_us, *self.warm_up_us):
            if not (math.isfinite(time) and time > 0):
                raise ValueError(f"{self.name}: a time must be a positive number of microseconds, not {time!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            **asdict(self),
            "clock": self.clock.value,
            "l2": self.l2.value,
            "times_us": list(self.times_us),
            "warm_up_us": list(self.warm_up_us),
        }
