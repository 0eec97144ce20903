"""Options of a launch: checks, schedule, copies, reads, volatile accesses."""

from __future__ import annotations

from collections.abc import Sequence

from warpsan.checks.orders import VOLATILE_MODES
from warpsan.errors import LaunchError

__all__ = ["CHECKS", "READS", "SCHEDULES", "all_checks", "check_options", "thorough_checks"]

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

READS = ("latest", "stale")
"""Values of reads (:func:`~warpsan.launch`)."""
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


def check_options(
    checks: Sequence[str],
    schedule: str,
    async_mode: str,
    seed: int,
    workers: int | None,
    volatile: str,
    reads: str,
) -> None:
    """Raise LaunchError for an unknown option; the message lists the valid ones."""
    for check in checks:
        if check not in (*CHECKS, *MORE_CHECKS):
            raise LaunchError(f"check {check!r} is not modelled; there is: {', '.join((*CHECKS, *MORE_CHECKS))}")
    if schedule not in SCHEDULES:
        raise LaunchError(f"schedule is one of {', '.join(SCHEDULES)}, not {schedule!r}")
    if async_mode not in ("late", "early"):
        raise LaunchError(f"async_mode is 'late' or 'early', not {async_mode!r}")
    if volatile not in VOLATILE_MODES:
        raise LaunchError(f"volatile is one of {', '.join(VOLATILE_MODES)}, not {volatile!r}")
    if reads not in READS:
        raise LaunchError(f"reads is one of {', '.join(READS)}, not {reads!r}")
    if seed < 0:
        raise LaunchError(f"seed is an integer from 0 on, not {seed!r}")
    if workers is not None and workers < 1:
        raise LaunchError(f"workers is a number of threads from 1 on, not {workers!r}")
