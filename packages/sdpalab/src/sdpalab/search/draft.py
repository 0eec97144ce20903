"""A configuration on its way through the gates, before it has a record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sdpalab.kernels.kernel import Config
from sdpalab.search.outcome import Standing, Trial

__all__ = ["Draft", "GateFailure", "costs_of", "geometric_mean"]

Times = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class GateFailure:
    """Rejection by a gate, or the reason for a missing answer."""

    standing: Standing
    reason: str


@dataclass(frozen=True)
class Draft:
    """As :class:`~sdpalab.search.outcome.Trial`, without a standing; ``times_us`` may precede the judgement."""

    number: int
    config: Config
    identity: Mapping[str, str] = field(default_factory=dict)
    ptx_sha256: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)
    gates: tuple[str, ...] = ()
    times_us: Times = field(default_factory=dict)

    def through(self, *gates: str) -> Draft:
        """The draft after further gates."""
        return replace(self, gates=(*self.gates, *gates))

    @property
    def costs(self) -> tuple[float, ...]:
        """One cost per GPU, in the order of their names."""
        return costs_of(self.times_us)

    def failed(self, failed: GateFailure, same_as: int | None = None) -> Trial:
        """Record of a configuration that is not PASSED: without any time."""
        return self._trial(failed.standing, failed.reason, {}, same_as)

    def passed(self) -> Trial:
        """Record of a PASSED configuration."""
        return self._trial(Standing.PASSED, "", self.times_us, None)

    def _trial(self, standing: Standing, reason: str, times: Times, same_as: int | None) -> Trial:
        return Trial(
            number=self.number,
            config=dict(self.config),
            standing=standing,
            reason=reason,
            identity=self.identity,
            ptx_sha256={gpu: tuple(digests) for gpu, digests in self.ptx_sha256.items()},
            resources=self.resources,
            times_us=times,
            costs_us={gpu: geometric_mean(by_problem) for gpu, by_problem in times.items()},
            gates=self.gates,
            same_as=same_as,
        )


def costs_of(times: Times) -> tuple[float, ...]:
    """The geometric mean of each GPU's times, in the order of the GPUs' names."""
    return tuple(geometric_mean(times[gpu]) for gpu in sorted(times))


def geometric_mean(times: Mapping[str, float]) -> float:
    """Geometric mean of positive times."""
    return math.exp(sum(map(math.log, times.values())) / len(times))
