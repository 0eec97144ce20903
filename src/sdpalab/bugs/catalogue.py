"""Every mutant of the catalogue."""

from __future__ import annotations

from sdpalab.bugs import cuda, edges, precision, softmax, tiles
from sdpalab.bugs.bug import Mutant

__all__ = ["mutants"]


def mutants() -> list[Mutant]:
    """All mutants: those in Python first, then those in the sources of shipped kernels."""
    return [*softmax.MUTANTS, *tiles.MUTANTS, *edges.MUTANTS, *precision.MUTANTS, *cuda.mutants()]
