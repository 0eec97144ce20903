"""Options of a launch: checks, schedule, copies, volatile accesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warpsan.checks.orders import VOLATILE_MODES
from warpsan.errors import LaunchError
from warpsan.numerics.choices import DEFAULT_NUMERICS, is_ring, valid_numerics

if TYPE_CHECKING:
    from warpsan.host.unwritten import Unwritten
    from warpsan.profile.recording import AccessRecorder

__all__ = ["CHECKS", "SCHEDULES", "Options", "thorough_checks"]

CHECKS = ("race", "memory", "async")
"""Checks that are enabled by default."""
MORE_CHECKS = ("lanes", "strict", "values", "provenance")
"""Opt-in checks. ``lanes``: lanes of a warp may execute an instruction at different times; without it, only diverged
lanes race with each other. ``strict``: as ``lanes``, and mbarriers for bulk copies need a fence after initialization,
and an mbarrier instruction without a scope has CTA scope. ``values``: a write of an unchanged value is also a race.
``provenance``: an access stays in the buffer from whose pointer its address is computed.
"""

SCHEDULES = ("lockstep", "forward", "reverse", "random")
"""Execution orders of warps (:func:`~warpsan.launch`)."""
_NEEDS = (("strict", "lanes"), ("lanes", "race"), ("values", "race"), ("provenance", "memory"))
"""Pairs of a check and the check that contains it."""


def thorough_checks(*, strict: bool = False) -> tuple[str, ...]:
    """Checks of the judge, of ``sanitize`` and of programs: :data:`CHECKS` and ``lanes``.

    ``strict`` adds ``strict`` and ``provenance``, which many correct kernels violate.
    """
    return (*CHECKS, "lanes", *(("strict", "provenance") if strict else ()))


def all_checks(checks: Sequence[str]) -> tuple[str, ...]:
    """Checks, with all checks that contain them."""
    for check, needed in _NEEDS:
        if check in checks and needed not in checks:
            checks = (*checks, needed)
    return tuple(checks)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a launch, as :func:`~warpsan.launch` describes them.

    Raises
    ------
    LaunchError
        If a value is invalid; the message lists the valid ones.
    """

    dynamic_smem: int = 0
    cluster: Sequence[int] = (1, 1, 1)
    cooperative: bool = False
    programmatic: bool = False
    checks: Sequence[str] = CHECKS
    counters: bool = False
    schedule: str = "lockstep"
    async_mode: str = "late"
    numerics: str = DEFAULT_NUMERICS
    seed: int = 0
    max_steps: int | None = None
    workers: int | None = None
    names: Sequence[str] = ()
    volatile: str = "sync"
    watchers: Sequence[AccessRecorder] = ()
    unwritten: Sequence[Unwritten] = ()
    self_profile: bool = False

    def __post_init__(self) -> None:
        for check in self.checks:
            if check not in (*CHECKS, *MORE_CHECKS):
                raise LaunchError(f"check {check!r} is not modelled; there is: {', '.join((*CHECKS, *MORE_CHECKS))}")
        if self.schedule not in SCHEDULES:
            raise LaunchError(f"schedule is one of {', '.join(SCHEDULES)}, not {self.schedule!r}")
        if self.async_mode not in ("late", "early"):
            raise LaunchError(f"async_mode is 'late' or 'early', not {self.async_mode!r}")
        if self.volatile not in VOLATILE_MODES:
            raise LaunchError(f"volatile is one of {', '.join(VOLATILE_MODES)}, not {self.volatile!r}")
        if self.seed < 0:
            raise LaunchError(f"seed is an integer from 0 on, not {self.seed!r}")
        if self.workers is not None and self.workers < 1:
            raise LaunchError(f"workers is a number of threads from 1 on, not {self.workers!r}")
        valid_numerics(self.numerics)

    @property
    def watched(self) -> tuple[str, ...]:
        """The checks that observe the launch: :attr:`checks` with all that contain them; none in a ring."""
        return () if is_ring(self.numerics) else all_checks(self.checks)
