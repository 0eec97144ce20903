"""A bug in CUDA source as substitutions of text, and the problems that such bugs show on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sdpalab.bugs.bug import WRONG, Bug
from sdpalab.judge.verdict import Status
from sdpalab.problem import Problem

__all__ = ["CAUSAL", "CROSS", "EVEN", "FLAT", "GROUPED", "HAZARD", "HAZARD_OR_WRONG", "RAGGED", "SEVERAL_TILES", "Edit"]

RAGGED = Problem(1, 1, 100, 32)  # no kernel's tile of keys divides 100
CAUSAL = RAGGED.with_(causal=True)
CROSS = Problem(1, 1, 150, 32, seq_kv=90, causal=True)
EVEN = Problem(1, 1, 128, 32)
GROUPED = Problem(2, 4, 80, 32, kv_heads=2)
SEVERAL_TILES = Problem(1, 1, 200, 64)
FLAT = EVEN.with_(scale=0.0)
"""All scores are 0, and all weights 1."""

HAZARD = frozenset({Status.HAZARD})
HAZARD_OR_WRONG = WRONG | HAZARD


@dataclass(frozen=True)
class Edit:
    """One bug. ``where`` is a header, or the kernels whose own file it is planted in; ``old`` is there just once."""

    name: str
    where: str | tuple[str, ...]
    edits: Sequence[tuple[str, str]]
    problem: Problem
    harmless: Problem | None = None
    statuses: frozenset[Status] = WRONG
    bug: Bug = Bug.CUDA
