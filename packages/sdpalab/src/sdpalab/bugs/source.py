"""Definitions of bugs in the source of shipped kernels, and the small problems that reveal them.

The catalogue only has kernels that compute attention, which the judge can reject. Bugs in the small programs that test
one check of the simulator are in the tests.
"""

from __future__ import annotations

from collections.abc import Mapping

from sdpalab.bugs.bug import HAZARD, WRONG, Bug, Family
from sdpalab.bugs.edit import SourceEdit
from sdpalab.kernels.kernel import Knob
from sdpalab.problem import Problem
from sdpalab.status import Status

__all__ = ["CAUSAL", "CROSS", "EVEN", "FLAT", "GROUPED", "HAZARD_OR_WRONG", "RAGGED", "SEVERAL_TILES", "in_source"]

RAGGED = Problem(1, 1, 100, 32)  # not a multiple of any kernel's key tile
CAUSAL = RAGGED.with_(causal=True)
CROSS = Problem(1, 1, 150, 32, seq_kv=90, causal=True)
EVEN = Problem(1, 1, 128, 32)
GROUPED = Problem(2, 4, 80, 32, kv_heads=2)
SEVERAL_TILES = Problem(1, 1, 200, 64)
FLAT = EVEN.with_(scale=0.0)
"""All scores are 0, and all weights 1."""

HAZARD_OR_WRONG = WRONG | HAZARD
_KNOBS: Mapping[str, Mapping[str, Knob]] = {"flash": {"SCHEDULE": "tiles"}}
"""Default knobs of the mutants of a kernel: blocks share no tile's keys."""


def in_source(
    kernels: str,
    what: str,
    *replacements: tuple[str, str],
    problem: Problem = EVEN,
    harmless: Problem | None = None,
    hazard: str = "",
    statuses: frozenset[Status] | None = None,
    family: Family = Family.CUDA,
    knobs: Mapping[str, Knob] | None = None,
    claims: bool = False,
    of: str = "source",
    link: str = "",
) -> tuple[Bug, ...]:
    """The same edit as one bug in each of ``kernels`` (names separated by spaces).

    ``claims`` is as in :class:`~sdpalab.bugs.bug.Bug`, and ``of`` as in :class:`~sdpalab.bugs.edit.SourceEdit`. With a
    ``hazard``, the simulator must report that kind, and the judge HAZARD unless ``statuses`` is given.
    """
    allowed = statuses or (HAZARD if hazard else WRONG)
    return tuple(
        Bug(
            f"{kernel}: {what}",
            family,
            hazard or None,
            SourceEdit(kernel, replacements, {**_KNOBS.get(kernel, {}), **(knobs or {})}, of),
            problem,
            harmless,
            allowed,
            claims=claims,
            link=link,
        )
        for kernel in kernels.split()
    )
