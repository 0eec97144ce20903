"""Launches on either engine of the simulator, and what two reports of a launch must have in common.

Two reports agree if they have the same set of (kind, instruction, conflicting instruction, advice). Threads, addresses
and counts may differ: the engines order warps and blocks differently.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from sdpalab.sim.hazards import Hazard

__all__ = ["Agreement", "LeftToReference", "agreement", "engine"]

_LAUNCH = importlib.import_module("sdpalab.sim.launch")

Agreement = set[tuple[str, int, int | None, str]]


class LeftToReference(AssertionError):
    """Native code has left a launch to the reference engine that it was to report itself."""


def agreement(hazards: Iterable[Hazard]) -> Agreement:
    """What two engines must report alike."""
    return {(each.kind, each.pc, each.other and each.other.pc, each.advice) for each in hazards}


@contextmanager
def engine(name: str, *, alone: bool = False) -> Iterator[None]:
    """Launches run on one engine; ``alone``, it must not leave any to the other."""

    def refuse(*_: object) -> None:
        raise LeftToReference

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SDPALAB_SIM_ENGINE", name)
        if alone:
            patch.setattr(_LAUNCH, "_on_reference", refuse)
        yield
