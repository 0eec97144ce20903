"""The time that a simulated launch takes on this machine, by phase and by operation of native code."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["PHASES", "OperationTime", "SelfProfile", "Stopwatch", "merged"]

PHASES = ("parse", "decode", "compile", "run", "report")
"""The phases of a launch. Several runs of one launch add to the same phases; repeated runs are part of ``report``."""

_GROUPS = (
    ("check: accesses to memory", ("watch",)),
    ("check: undefined values", ("undefined",)),
    ("check: buffers of pointers", ("home",)),
    ("check: fences and prerequisites", ("fence", "map", "griddepcontrol", "mbarrier_init")),
    ("counters and recorders", ("count", "record")),
    ("unit: matrix products", ("mma", "wgmma", "wmma", "ldmatrix", "stmatrix", "movmatrix")),
    ("unit: asynchronous copies", ("cp", "bulk", "tensor", "mbarrier", "combine")),
    ("unit: loads and stores", ("ld", "st", "line")),
    ("unit: atomic operations", ("atom", "red")),
    ("unit: warp-wide operations", ("vote", "shfl", "redux", "match", "elect", "leader", "activemask", "bar")),
    ("unit: calls", ("frame", "host")),
)
_OTHERS = "unit: arithmetic and moves"


@dataclass(frozen=True)
class OperationTime:
    """The executions of one operation of native code.

    Attributes
    ----------
    name : str
        Its form, such as ``ld.global.64.32x1``; a check of an access begins with ``watch``.
    calls : int
        Executions, each by one warp.
    seconds : float
        Time of all executions, without operations that it calls.
    """

    name: str
    calls: int
    seconds: float

    @property
    def group(self) -> str:
        """The check or the unit that it belongs to."""
        kind = self.name.split(".")[0]
        return next((group for group, kinds in _GROUPS if kind in kinds), _OTHERS)


@dataclass(frozen=True)
class SelfProfile:
    """The time of launches on this machine in seconds, from samples of native code: about five in a millisecond.

    Attributes
    ----------
    phases : dict of str to float
        Time of each of :data:`PHASES`.
    operations : tuple of OperationTime
        Those that were executed, the longest first.
    dispatch : float
        Time of native code outside of operations: the schedule of warps, guards, ends of blocks, barriers, and
        products and copies that land there.
    """

    phases: dict[str, float]
    operations: tuple[OperationTime, ...]
    dispatch: float

    @property
    def groups(self) -> dict[str, float]:
        """The time of each check and unit, the longest first; ``dispatch`` is one of them."""
        seconds = defaultdict(float, dispatch=self.dispatch)
        for operation in self.operations:
            seconds[operation.group] += operation.seconds
        return dict(sorted(seconds.items(), key=lambda each: -each[1]))


def merged(profiles: Sequence[SelfProfile]) -> SelfProfile:
    """The profile of all launches together."""
    phases: dict[str, float] = defaultdict(float)
    calls: Counter[str] = Counter()
    seconds: dict[str, float] = defaultdict(float)
    for profile in profiles:
        for name, taken in profile.phases.items():
            phases[name] += taken
        for each in profile.operations:
            calls[each.name] += each.calls
            seconds[each.name] += each.seconds
    operations = (OperationTime(name, calls[name], taken) for name, taken in seconds.items())
    ordered = tuple(sorted(operations, key=lambda each: -each.seconds))
    return SelfProfile(dict(phases), ordered, sum(each.dispatch for each in profiles))


@dataclass
class Stopwatch:
    """Collects the profile of one launch.

    Attributes
    ----------
    operations : bool
        Whether native code measures its operations.
    timers : list of function
        Profiles of native code so far, without phases: one for each run.
    """

    operations: bool = False
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    timers: list[Callable[[], SelfProfile]] = field(default_factory=list)
    _phases: list[str] = field(default_factory=list)
    _since: float = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time to a phase, up to the next one within it."""
        self._take(name)
        try:
            yield
        finally:
            self._take()

    def _take(self, begins: str = "") -> None:
        """The present phase ends for now: another begins in it, or it is over."""
        now = time.perf_counter()
        if self._phases:
            self.seconds[self._phases[-1]] += now - self._since
        if begins:
            self._phases.append(begins)
        else:
            self._phases.pop()
        self._since = now

    def profile(self) -> SelfProfile:
        """The profile so far."""
        phases = {name: self.seconds[name] for name in PHASES if name in self.seconds}
        return merged([SelfProfile(phases, (), 0.0), *(timer() for timer in self.timers)])
