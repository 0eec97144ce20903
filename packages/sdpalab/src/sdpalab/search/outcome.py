"""The outcome of a configuration: a closed set of standings, and a record without illegal states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import Any

from pydantic.dataclasses import dataclass

from sdpalab.kernels.kernel import Config
from sdpalab.record import RECORD, JsonRecord

__all__ = ["MODELLED", "Finalist", "Standing", "Trial", "TrialOutcome"]

MODELLED = "modelled"
"""Clock of modelled costs; measured costs have a value of :class:`sdpalab.measure.samples.ClockKind`."""


class Standing(str, Enum):
    """Standing of a configuration. Only PASSED has a cost, and only PASSED configurations can be elites."""

    PASSED = "PASSED"
    """The configuration passed every gate up to the quick judge, and has a cost."""
    DUPLICATE = "DUPLICATE"
    """PTX and launches are equal to those of an earlier configuration, whose record applies to both."""
    SCREENED = "SCREENED"
    """Enough PASSED configurations are at least as fast by the model; it was not judged and has no cost."""
    BUILD_FAILED = "BUILD_FAILED"
    STATIC_LIMITS = "STATIC_LIMITS"
    """Registers, shared memory, spills, stack or resident blocks are beyond the kernel's declared limits."""
    HAZARD = "HAZARD"
    """The simulator found a race, an illegal access, a deadlock or an endless loop."""
    INCORRECT = "INCORRECT"
    """The judge rejected it; the reason begins with the status of the verdict."""
    TIMED_OUT = "TIMED_OUT"
    """A gate took longer than its limit."""
    NO_COST = "NO_COST"
    """The configuration is correct, but has no modelled or measured time."""
    SLOWER = "SLOWER"
    """A correct finalist that is slower than the default on a held-out shape."""
    LOST = "LOST"
    """No worker answered in any attempt. Never a verdict: a resumed search tries it again."""


@dataclass(frozen=True, config=RECORD)
class Trial(JsonRecord):
    """The record of one configuration.

    Attributes
    ----------
    number : int
        Order of the attempts, from 0, which is the kernel's default configuration.
    config : mapping
        Knobs of the configuration.
    standing : Standing
    reason : str
        Why the trial is not PASSED; empty if it is.
    identity : mapping of str to str
        By GPU: sha256 of its PTX and launches (:func:`sdpalab.search.targets.identity_of`).
    ptx_sha256 : mapping of str to tuple of str
        By GPU: digest of each build's PTX.
    resources : mapping of str to mapping
        By GPU: registers a thread, shared memory and spills in bytes, blocks an SM, of the launch with the highest use.
    times_us : mapping of str to mapping
        By GPU and label of the problem: cost in microseconds, of the kind in the log's head.
    costs_us : mapping of str to float
        By GPU: geometric mean of ``times_us`` over the problems, the objective of the search.
    gates : tuple of str
        Passed gates in order.
    same_as : int or None
        For a DUPLICATE: the number of the earlier configuration.

    Raises
    ------
    ValueError
        For a cost without PASSED, PASSED without a cost, or a missing reason.
    """

    number: int
    config: Mapping[str, int | str]
    standing: Standing
    reason: str = ""
    identity: Mapping[str, str] = field(default_factory=dict)
    ptx_sha256: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    resources: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    times_us: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    costs_us: Mapping[str, float] = field(default_factory=dict)
    gates: tuple[str, ...] = ()
    same_as: int | None = None

    def __post_init__(self) -> None:
        passed = self.standing is Standing.PASSED
        if passed != bool(self.costs_us) or passed != bool(self.times_us):
            raise ValueError(f"configuration {self.number}: a cost if PASSED, and only then")
        if passed == bool(self.reason):
            raise ValueError(f"configuration {self.number}: a reason if not PASSED, and only then")
        if (self.standing is Standing.DUPLICATE) != (self.same_as is not None):
            raise ValueError(f"configuration {self.number}: a DUPLICATE names the earlier one, and nothing else does")

    @property
    def knobs(self) -> Config:
        """The configuration."""
        return Config(self.config)

    @property
    def outcome(self) -> TrialOutcome:
        """The part of the record that strategies get."""
        return TrialOutcome(self.standing, tuple(self.costs_us[gpu] for gpu in sorted(self.costs_us)))


@dataclass(frozen=True, config=RECORD)
class TrialOutcome:
    """Result of a configuration for a strategy: its standing, and, if PASSED, the costs to minimise, one per GPU."""

    standing: Standing
    costs: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if (self.standing is Standing.PASSED) != bool(self.costs):
            raise ValueError("costs if PASSED, and only then")

    @property
    def passed(self) -> bool:
        """True if the configuration may be an elite."""
        return self.standing is Standing.PASSED


@dataclass(frozen=True, config=RECORD)
class Finalist(JsonRecord):
    """Result of the last gates for one PASSED configuration: full judge, held-out shapes, fresh seed.

    Attributes
    ----------
    number : int
        Number of its :class:`Trial`.
    config : mapping
    standing : Standing
        PASSED if the configuration may be used.
    reason : str
    identity : mapping of str to str
        As in its Trial: the judged code.
    verdict : mapping
        ``level``, ``cases`` and ``devices`` of the full judge, with the digest of the judge's own source.
    held_out : mapping of str to mapping
        By GPU and label of the held-out problem: cost relative to the default configuration.
    seed : int
        The fresh seed of the held-out inputs.
    """

    number: int
    config: Mapping[str, int | str]
    standing: Standing
    reason: str = ""
    identity: Mapping[str, str] = field(default_factory=dict)
    verdict: Mapping[str, Any] = field(default_factory=dict)
    held_out: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.standing is Standing.PASSED) != bool(self.verdict.get("passed")):
            raise ValueError(f"finalist {self.number}: PASSED with the full judge's verdict, and only then")
        if (self.standing is Standing.PASSED) == bool(self.reason):
            raise ValueError(f"finalist {self.number}: a reason if not PASSED, and only then")
