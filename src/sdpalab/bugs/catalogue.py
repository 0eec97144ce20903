"""Every mutant of the catalogue."""

from __future__ import annotations

from sdpalab.bugs import cuda, precision, softmax, tiles
from sdpalab.bugs.mutant import Mutant

__all__ = ["mutants"]


def mutants() -> list[Mutant]:
    """All mutants: those in Python first, then those in the sources of shipped kernels."""
    return [*softmax.MUTANTS, *tiles.MUTANTS, *precision.MUTANTS, *cuda.mutants()]
