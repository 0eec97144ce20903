"""A machine whose time is made up, and known: noise, drift, outliers, throttling, all from a seed.

Its calls really compute, so that a check of their outputs finds what it should; only the time is a model. A
slowdown of the machine slows whatever runs on it then, as on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sdpalab.measure.clocks import Stopwatch
from sdpalab.measure.samples import ClockKind, L2State
from sdpalab.measure.session import Subject


class Work:
    """A call of known length: it writes ``right`` into its output, or what ``computes`` makes of that."""

    def __init__(self, name: str, us: float, computes: Callable[[np.ndarray, int], None] | None = None) -> None:
        self.name, self.us, self.called = name, us, 0
        self.right = np.arange(1.0, 5.0)
        self.out = np.zeros(4)
        self._computes = computes

    def __call__(self) -> None:
        self.called += 1
        if self._computes is None:
            self.out[:] = self.right
        else:
            self._computes(self.out, self.called)

    def check(self) -> str:
        return "" if (self.out == self.right).all() else f"{self.out.tolist()} is not {self.right.tolist()}"

    def overwrite_output(self) -> None:
        self.out[:] = np.nan

    def subject(self, **changes: object) -> Subject:
        return Subject(self.name, self, self.check, self.overwrite_output, **changes)


@dataclass(frozen=True)
class Behaviour:
    """How the machine's times scatter.

    ``noise`` is the standard deviation of the logarithm of a sample; ``correlation`` that of one sample with the next;
    ``drift`` the relative rise over 1000 samples; ``outliers`` the share of samples that take three times as long;
    ``throttled`` the share of time, in stretches of ``stretch`` samples, in which all takes 1.5 times as long.
    """

    noise: float = 0.02
    correlation: float = 0.0
    drift: float = 0.0
    outliers: float = 0.0
    throttled: float = 0.0
    stretch: int = 20


class SimulatedClock:
    """The clock of that machine.

    ``readied`` and ``log`` name the calls that it was given, and each that it timed; ``seconds`` is its own time.
    """

    kind, l2, calls = ClockKind.GPU, L2State.WARM, 100

    def __init__(self, behaviour: Behaviour, seed: int) -> None:
        self._behaviour, self._random = behaviour, np.random.default_rng(seed)
        self._count, self._previous, self._slow = 0, 0.0, False
        self.seconds = 0.0
        self.log: list[str] = []
        self.readied: list[str] = []

    def now(self) -> float:
        return self.seconds

    def ready(self, call: Work) -> Stopwatch:
        self.readied.append(call.name)

        def sample() -> float:
            call()
            self.log.append(call.name)
            time_us = call.us * self._factor()
            self.seconds += time_us * self.calls / 1e6
            return time_us

        return Stopwatch(sample, self.calls)

    def _factor(self) -> float:
        behaviour, random = self._behaviour, self._random
        if self._count % behaviour.stretch == 0:
            self._slow = random.random() < behaviour.throttled
        rho = behaviour.correlation
        self._previous = rho * self._previous + np.sqrt(1 - rho**2) * random.standard_normal()
        factor = float(np.exp(behaviour.noise * self._previous)) * (1 + behaviour.drift * self._count / 1000)
        self._count += 1
        return factor * (1.5 if self._slow else 1.0) * (3.0 if random.random() < behaviour.outliers else 1.0)


def times(us: float, behaviour: Behaviour, n: int, seed: int) -> list[float]:
    """``n`` samples in a row of a call of length ``us``."""
    sample = SimulatedClock(behaviour, seed).ready(Work("alone", us))
    return [sample() for _ in range(n)]
