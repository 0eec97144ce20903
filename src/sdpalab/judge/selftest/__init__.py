"""The judge's self-test: candidates with one planted bug each must all be rejected, and for the right reason.

``sdpalab judge --self-test`` runs it. A bug is planted in a right implementation: :class:`.tiled.TiledAttention` in
Python, or the source of a shipped kernel.
"""

from __future__ import annotations

from sdpalab.judge.selftest.mutant import Bug, Mutant
from sdpalab.judge.selftest.run import Outcome, Rate, mutants, rates, self_test

__all__ = ["Bug", "Mutant", "Outcome", "Rate", "mutants", "rates", "self_test"]
