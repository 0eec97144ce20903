"""Samples: the times of one subject in the order of measurement, without dropping, smoothing or sorting."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

__all__ = ["ClockKind", "L2State", "Samples"]


class ClockKind(str, Enum):
    """The clock of a time. Times of different kinds are never compared."""

    GPU = "gpu"
    """Time on the GPU without the host: a call within a replayed CUDA graph."""
    STREAM = "stream"
    """Time on the GPU between two events around one call, its launches included."""
    EAGER = "eager"
    """Time on the host for consecutive calls of a Python function, dispatch included."""


class L2State(str, Enum):
    """Location of the inputs at the start of a call."""

    WARM = "warm"
    """In L2, as far as they fit: the previous call used the same inputs."""
    COLD = "cold"
    """In DRAM: L2 was overwritten, or the previous call used other inputs."""


@dataclass(frozen=True)
class Samples:
    """Times of one subject in the order of measurement.

    Attributes
    ----------
    name : str
        Name of the subject.
    clock : ClockKind
    l2 : L2State
    calls : int
        Number of calls per sample, which is their mean: those of a graph, or of a loop. At least 1.
    times_us : tuple of float
        Microseconds per call, one sample per round.
    warm_up_us : tuple of float
        Microseconds per call of the warm-up rounds: recorded, but not part of any statistic.

    Raises
    ------
    ValueError
        Without samples, or if one is not a positive number of microseconds.
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
