"""What a launch can ask for: checks, schedule, copies, reads, volatile accesses."""

from __future__ import annotations

from collections.abc import Sequence

from warpsan.checks.orders import VOLATILE_MODES
from warpsan.errors import LaunchError

__all__ = ["CHECKS", "READS", "SCHEDULES", "all_checks", "check_options", "thorough_checks"]

CHECKS = ("race", "memory", "async")
"""The checks that are on unless a launch says otherwise."""
MORE_CHECKS = ("lanes", "strict", "values", "provenance")
"""What a launch has to ask for. ``lanes``: lanes of a warp that execute an instruction together need not stay
together; without it, only lanes that had diverged race with each other. ``strict``: the same, mbarriers for bulk
copies need a fence behind their initialisation, and an mbarrier's instruction without a scope has that of the CTA.
``values``: a write races also if the value is there already. ``provenance``: an access stays in the buffer from whose
pointer its address is computed."""

SCHEDULES = ("lockstep", "forward", "reverse", "random")
"""The orders in which warps run (:func:`~warpsan.launch`)."""

READS = ("latest", "stale")
"""What reads return (:func:`~warpsan.launch`)."""
_NEEDS = (("strict", "lanes"), ("lanes", "race"), ("values", "race"), ("provenance", "memory"))
"""Checks that are part of others."""


def thorough_checks(*, strict: bool = False) -> tuple[str, ...]:
    """The checks of the judge, of ``sanitize`` and of programs: :data:`CHECKS` and ``lanes``.

    With ``strict``, also those that many right kernels do not keep: ``strict`` and ``provenance``.
    """
    return (*CHECKS, "lanes", *(("strict", "provenance") if strict else ()))


def all_checks(checks: Sequence[str]) -> tuple[str, ...]:
    """Checks, and those that they are part of."""
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
    """Raise LaunchError for an option that there is not, in a sentence with those that there are."""
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
